"""Tensors of PyTorch and arrays of JAX come in without a copy, in the types that NumPy lacks too. Both are optional."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from requirements import require

from hurray_wire import adapters
from hurray_wire.adapters import as_array, copy_pages
from hurray_wire.errors import IncompatibleError, UnsupportedError

TYPES = [
    ("float16", np.float16),
    ("bfloat16", ml_dtypes.bfloat16),
    ("float32", np.float32),
    ("int8", np.int8),
    ("uint8", np.uint8),
    ("float8_e4m3fn", ml_dtypes.float8_e4m3fn),
    ("float8_e5m2", ml_dtypes.float8_e5m2),
]


def some_bits(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize(("name", "numpy_type"), TYPES)
def test_a_torch_tensor_is_borrowed_whatever_its_strides(name: str, numpy_type: Any) -> None:
    torch = pytest.importorskip("torch")
    bits = some_bits(6, 8, 3, 16)
    tensor = torch.from_numpy(bits.copy()).view(getattr(torch, name))
    expected = bits.view(numpy_type)
    for turned, wanted in (
        (tensor, expected),
        (tensor.permute(2, 0, 3, 1), expected.transpose(2, 0, 3, 1)),
        (tensor[1::2, :, 1:], expected[1::2, :, 1:]),
    ):
        found = as_array(turned, what="pool", writable=True)
        assert found.dtype == np.dtype(numpy_type)
        assert found.tobytes() == wanted.tobytes()
        assert found.__array_interface__["data"][0] == turned.data_ptr()


def test_a_torch_tensor_is_a_destination() -> None:
    torch = pytest.importorskip("torch")
    cache = torch.zeros(2, 5, 4, 3, 8, dtype=torch.bfloat16)
    source = some_bits(5, 4, 3, 16).view(ml_dtypes.bfloat16)
    (layer,) = adapters.get("vllm-kv-first").views([cache], writable=True)
    copy_pages(source, layer.pools["value"], source_ids=[4, 2], destination_ids=[0, 3])
    assert cache[1, 0].view(torch.uint8).numpy().tobytes() == source[4].tobytes()
    assert cache[1, 3].view(torch.uint8).numpy().tobytes() == source[2].tobytes()
    assert not cache[0].any()
    assert not cache[1, [1, 2, 4]].any()


def test_a_torch_tensor_that_records_gradients_gives_its_values() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.ones(2, 3, requires_grad=True)
    assert np.shares_memory(as_array(tensor, what="pool"), tensor.detach().numpy())


def test_torch_tables_come_in() -> None:
    torch = pytest.importorskip("torch")
    tables = adapters.normalise(
        block_tables=torch.tensor([[3, 1, -1], [2, -1, -1]], dtype=torch.int32),
        seq_lens=torch.tensor([5, 4]),
        page_size=4,
        num_pages=4,
    )
    assert [array.tolist() for array in tables] == [[3, 1, 2], [0, 2, 3], [5, 4]]


def test_torch_tensors_numpy_cannot_reach_are_refused_with_the_reason() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(UnsupportedError, match="never the label"):
        as_array(torch.zeros(4, dtype=torch.float8_e4m3fnuz), what="pool")
    with pytest.raises(IncompatibleError, match="move it to the CPU"):
        as_array(torch.zeros(4, device="meta"), what="pool")
    with pytest.raises(IncompatibleError, match="does not give its memory"):
        as_array(torch.eye(3).to_sparse(), what="pool")
    with pytest.raises(IncompatibleError, match="does not give its memory"):
        as_array(torch.zeros(3, dtype=torch.complex64).conj(), what="pool")


@pytest.mark.parametrize(("name", "numpy_type"), TYPES)
def test_a_jax_array_is_borrowed_and_is_no_destination(name: str, numpy_type: Any) -> None:
    require(find_spec("jax"), "the extra 'jax' is not installed")
    jnp = import_module("jax.numpy")
    values = some_bits(4, 2, 16).view(numpy_type)
    array = jnp.asarray(values)
    found = as_array(array, what="pool")
    assert found.dtype == np.dtype(numpy_type)
    assert found.tobytes() == values.tobytes()
    assert found.__array_interface__["data"][0] == array.unsafe_buffer_pointer()
    with pytest.raises(IncompatibleError) as refusal:
        as_array(array, what="pool", writable=True)
    assert refusal.value.rule == "adapter.destination"

"""Tensors of PyTorch: over mapped memory, gathered into, saved from, restored into; never by way of another copy.

Without PyTorch these tests are skipped; with HURRAY_WIRE_REQUIRE_TORCH=1 in the environment that is a failure.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from export_cases import DIM, HEADS, LAYERS, LENS, PAGE, ROLES, TABLES, numbered, pairs, pool, saved, tokens

import hurray_wire as hw

INSTALLED = importlib.util.find_spec("torch") is not None
if INSTALLED or os.environ.get("HURRAY_WIRE_REQUIRE_TORCH") == "1":
    import torch

    import hurray_wire.torch as ht

needs_torch = pytest.mark.skipif(
    not INSTALLED and os.environ.get("HURRAY_WIRE_REQUIRE_TORCH") != "1", reason="PyTorch is not installed"
)

# what NumPy calls a type, and PyTorch; the first three are those that NumPy itself lacks
TYPES = [
    (ml_dtypes.bfloat16, "bfloat16"),
    (ml_dtypes.float8_e4m3fn, "float8_e4m3fn"),
    (ml_dtypes.float8_e5m2, "float8_e5m2"),
    (np.float16, "float16"),
    (np.float32, "float32"),
    (np.float64, "float64"),
    (np.int8, "int8"),
    (np.uint8, "uint8"),
    (np.int64, "int64"),
]


def tensor_of(array: np.ndarray, name: str) -> Any:
    """The same bits as a tensor, by a way of its own."""
    raw = np.ascontiguousarray(array).view(np.uint8)
    return torch.frombuffer(bytearray(raw.tobytes()), dtype=getattr(torch, name)).reshape(array.shape)


def bits(tensor: Any) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "cache.hrry"
    path.write_bytes(data)
    return path


@needs_torch
@pytest.mark.parametrize(("numpy_type", "name"), TYPES)
def test_a_mapped_pool_is_a_tensor_without_a_copy(tmp_path, numpy_type, name) -> None:
    path = written(tmp_path, saved(pairs(numpy_type), compact=False, scrub=False))
    with hw.load_snapshot(path) as snapshot:
        tensor = snapshot[1].value
        found = ht.page_pool(tensor)
        assert found.dtype == getattr(torch, name)
        assert found.shape == (7, PAGE, HEADS, DIM)
        assert found.data_ptr() == tensor.page_pool.__array_interface__["data"][0]
    del snapshot, tensor
    gc.collect()
    assert bits(found) == pool(1, "value", numpy_type).tobytes()  # after the file was closed, too


@needs_torch
def test_gathering_is_into_memory_that_the_tensor_takes_over() -> None:
    snapshot = hw.load_snapshot(saved())
    values, mask = ht.gather(snapshot[1].key, [1, 3], max_len=11)
    assert (values.dtype, values.shape) == (torch.bfloat16, (2, 11, HEADS, DIM))
    assert mask.dtype == torch.bool
    assert mask.sum(1).tolist() == [11, 3]
    for row, seq in enumerate((1, 3)):
        expected = b"".join(tokens(pool(1, "key"), seq)[:11])
        assert bits(values[row])[: len(expected)] == expected
    values[0, 0, 0, 0] = 1  # ours to write


@needs_torch
@pytest.mark.parametrize(("numpy_type", "name"), TYPES)
def test_gathering_into_a_tensor_of_the_caller_writes_that_one(numpy_type, name) -> None:
    snapshot = hw.load_snapshot(saved(pairs(numpy_type)))
    larger = torch.zeros((4, 20, 2 * HEADS, DIM), dtype=getattr(torch, name))
    out = larger[:, 3:15, HEADS:]  # a part of it, not contiguous
    found = ht.gather(snapshot[0].value, out=out)
    assert found.values is out
    for seq, length in enumerate(LENS):
        assert bits(larger[seq, 3 : 3 + length, HEADS:]) == b"".join(tokens(pool(0, "value", numpy_type), seq))
    assert not larger[:, :3].view(torch.uint8).any()
    assert not larger[:, :, :HEADS].view(torch.uint8).any()


@needs_torch
def test_an_output_that_does_not_fit_is_refused() -> None:
    tensor = hw.load_snapshot(saved())[0].key
    with pytest.raises(hw.BufferSizeError, match="out is of float16, the gathered values of bfloat16"):
        ht.gather(tensor, out=torch.zeros((4, 12, HEADS, DIM), dtype=torch.float16))
    with pytest.raises(hw.BufferSizeError, match="out has shape"):
        ht.gather(tensor, out=torch.zeros((4, 12, HEADS, 5), dtype=torch.bfloat16))
    with pytest.raises(hw.IncompatibleError, match="move it to the CPU"):
        ht.gather(tensor, out=torch.zeros((4, 12, HEADS, DIM), dtype=torch.bfloat16, device="meta"))


@needs_torch
def test_real_numbers_are_gathered() -> None:
    layers = [(torch.linspace(-3, 3, 7 * PAGE * HEADS * DIM).reshape(7, PAGE, HEADS, DIM), None)]
    tensor = hw.load_snapshot(saved(layers, quantize="int8"))[0].key
    values, _ = ht.gather(tensor, [1], dequantize=True)
    assert values.dtype == torch.float32
    exact = torch.stack([layers[0][0][TABLES[1][token // PAGE], token % PAGE] for token in range(12)]).double()
    worst = exact.abs().amax(dim=(1, 2), keepdim=True)
    assert bool(((values[0].double() - exact).abs() <= worst / 254 * (1 + 2**-15)).all())
    out = torch.zeros((1, 12, HEADS, DIM))
    assert torch.equal(ht.gather(tensor, [1], out=out, dequantize=True).values, values)


@needs_torch
def test_a_layer_is_gathered_as_tensors() -> None:
    batch = ht.gather_layer(hw.load_snapshot(saved()), 1, [0])
    assert list(batch) == ["keys", "values", "mask"]
    assert bits(batch["values"][0]) == b"".join(tokens(pool(1, "value"), 0))


@needs_torch
@pytest.mark.parametrize(("numpy_type", "name"), TYPES)
@pytest.mark.parametrize("turned", [False, True], ids=["contiguous", "strided"])
def test_tensors_are_saved_by_value(numpy_type, name, turned) -> None:
    layers = []
    for pair in pairs(numpy_type):
        tensors = [tensor_of(array, name) for array in pair]
        if turned:  # heads before tokens in memory, and a gap behind every element
            spread = [torch.zeros((7, HEADS, PAGE, DIM, 2), dtype=tensor.dtype) for tensor in tensors]
            for wide, tensor in zip(spread, tensors, strict=True):
                wide.view(torch.uint8).reshape(7, HEADS, PAGE, DIM, 2, -1)[..., 1, :] = (
                    tensor.permute(0, 2, 1, 3).contiguous().view(torch.uint8).reshape(7, HEADS, PAGE, DIM, -1)
                )
            tensors = [wide[..., 1].permute(0, 2, 1, 3) for wide in spread]
            assert not tensors[0].is_contiguous()
        layers.append(tuple(tensors))
    tables = torch.tensor(TABLES, dtype=torch.int32)
    found = saved(layers, block_tables=tables, seq_lens=torch.tensor(LENS))
    assert found == saved(pairs(numpy_type))


@needs_torch
def test_saving_takes_tensors_as_they_lie() -> None:
    """What is written is the caller's own memory: no tensor is copied to be looked at."""
    cache = torch.arange(7 * PAGE * HEADS * DIM, dtype=torch.int32).reshape(7, PAGE, HEADS, DIM)

    class Changing(io.BytesIO):
        """Changes the cache as soon as the first bytes are written."""

        def write(self, data: Any) -> int:
            if not self.tell():
                cache.add_(1000)
            return super().write(data)

    out = Changing()
    hw.save_snapshot(out, [(cache, None)], block_tables=TABLES, seq_lens=LENS, checksums=False)
    first = hw.load_snapshot(out.getvalue()).gather(0)["keys"][0, 0, 0, 0]
    assert first == 1000 + 5 * PAGE * HEADS * DIM


@needs_torch
@pytest.mark.parametrize("layout", ["split-hnd", "vllm-kv-first", "vllm-packed", "trtllm-pool"])
def test_a_snapshot_is_restored_into_tensors(layout) -> None:
    shapes = {
        "split-hnd": [(9, HEADS, PAGE, DIM)] * 2,
        "vllm-kv-first": (2, 9, PAGE, HEADS, DIM),
        "vllm-packed": (9, HEADS, PAGE, 2 * DIM),
        "trtllm-pool": (9, LAYERS, 2, HEADS, PAGE, DIM),
    }

    def fresh(shape: Any) -> Any:
        return tuple(map(fresh, shape)) if isinstance(shape, list) else torch.full(shape, 7, dtype=torch.bfloat16)

    out = fresh(shapes[layout]) if layout == "trtllm-pool" else [fresh(shapes[layout]) for _ in range(LAYERS)]
    exported = hw.load_snapshot(saved()).export(
        layout=layout, out=out, page_ids=torch.tensor([8, 6, 4, 2, 0]), form="nhd" if layout == "vllm-packed" else None
    )
    at = {
        "split-hnd": lambda layer, role, page, slot: out[layer][role][page, :, slot],
        "vllm-kv-first": lambda layer, role, page, slot: out[layer][role, page, slot],
        "vllm-packed": lambda layer, role, page, slot: out[layer][page, :, slot, role * DIM :][:, :DIM],
        "trtllm-pool": lambda layer, role, page, slot: out[page, layer, role, :, slot],
    }[layout]
    for layer, (number, role) in ((layer, pair) for layer in range(LAYERS) for pair in enumerate(ROLES)):
        for seq, length in enumerate(LENS):
            found = [
                bits(at(layer, number, int(exported.block_tables[seq, t // PAGE]), t % PAGE)) for t in range(length)
            ]
            assert found == tokens(pool(layer, role), seq)
        assert bool((at(layer, number, 1, 0) == 7).all())


@needs_torch
def test_tensors_of_pools_speak_dlpack_both_ways() -> None:
    snapshot = hw.load_snapshot(saved(compact=False, scrub=False))
    held = ht.page_pool(snapshot[0].key)
    again = torch.from_dlpack(held)
    assert (again.dtype, again.data_ptr()) == (torch.bfloat16, held.data_ptr())

    class Speaker:
        """Somebody else's array, which knows DLPack and nothing more."""

        def __init__(self, array: np.ndarray) -> None:
            self.tensor = torch.from_numpy(array.copy())

        def __dlpack__(self, **options: Any) -> Any:
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.tensor.__dlpack_device__()

    layers = [tuple(map(Speaker, pair)) for pair in pairs(np.float16)]
    assert saved(layers) == saved(pairs(np.float16))


@needs_torch
def test_what_pytorch_lacks_is_refused() -> None:
    for dtype in (ml_dtypes.int4, "V16", ">f4"):
        with pytest.raises(hw.UnsupportedError, match="PyTorch has no tensor") as refusal:
            ht.as_tensor(np.zeros((2, 3), dtype))
        assert refusal.value.rule == "torch.array"
    with pytest.raises(hw.UnsupportedError, match="PyTorch has no tensor"):
        ht.as_tensor(np.zeros(4)[::-1])


@needs_torch
def test_an_array_that_may_be_written_stays_so() -> None:
    array = numbered(3, 4)
    ht.as_tensor(array).zero_()
    assert not array.view(np.uint16).any()


def test_without_pytorch_the_import_names_the_extra() -> None:
    code = "import sys; sys.modules['torch'] = None\nimport hurray_wire.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        "ImportError: hurray_wire.torch needs PyTorch, which comes with the extra: pip install 'hurray_wire[torch]'"
        in (done.stderr)
    )

"""What a gather is asked for: the output given, the fill value, real numbers of any bits. Both ways check alike."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from export_cases import DIM, HEADS, LENS, TABLES, held, numbered, saved

import hurray_wire as hw

TOKENS = sum(LENS)
BATCH = (len(LENS), max(LENS), HEADS, DIM)
RUN = (TOKENS, HEADS, DIM)
SIGNALLING = {
    "float16": 0x7C01,
    "bfloat16": 0x7F81,
    "float32": 0x7F800001,
    "float64": 0x7FF0000000000001,
    "float8_e5m2": 0x7D,
    "float8_e4m3fn": 0x7F,
}


@pytest.fixture(autouse=True)
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def key(**options: Any) -> Any:
    return hw.load_snapshot(saved(**options))[0].key


def signalling(name: str) -> np.ndarray:
    """A NaN that the machine reports when it is converted, 0-d."""
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    return np.array(SIGNALLING[name], f"u{dtype.itemsize}").view(dtype)


def room(shape: tuple[int, ...], dequantize: bool, *, writable: bool = True) -> np.ndarray:
    """An output of the right type, full of ones."""
    out = np.ones(shape, np.float32 if dequantize else ml_dtypes.bfloat16)
    out.flags.writeable = writable
    return out


@pytest.mark.parametrize("zstd", [None, 1])
@pytest.mark.parametrize("dequantize", [False, True])
@pytest.mark.parametrize(
    ("shape", "writable", "words"),
    [
        ((4, 12, HEADS, DIM + 1), True, "shape"),
        ((3, 12, HEADS, DIM), True, "shape"),
        ((4, 12), True, "shape"),
        ((), True, "shape"),
        (BATCH, False, "read-only"),
    ],
)
def test_an_output_of_another_shape_is_refused(
    shape: tuple[int, ...], writable: bool, words: str, dequantize: bool, zstd: int | None
) -> None:
    tensor, out = key(zstd=zstd), room(shape, dequantize, writable=writable)
    with pytest.raises(hw.BufferSizeError, match=words) as caught:
        tensor.gather(out=out, dequantize=dequantize)
    assert caught.value.rule == "gather.out"
    ragged = room(RUN if shape == BATCH else shape, dequantize, writable=writable)
    with pytest.raises(hw.BufferSizeError, match=words) as caught:
        tensor.ragged(out=ragged, dequantize=dequantize)
    assert caught.value.rule == "gather.out"
    assert (out == 1).all()
    assert (ragged == 1).all()


@pytest.mark.parametrize("dequantize", [False, True])
@pytest.mark.parametrize(
    ("out", "words"),
    [
        ([[0.0]], "out is a list, not a NumPy array"),
        (memoryview(bytes(8)), "out is a memoryview, not a NumPy array"),
        (np.zeros(BATCH, np.int16), "out is of int16, the gathered values of"),
        (np.zeros(BATCH, ">f4"), "out is of >f4, the gathered values of"),
    ],
)
def test_an_output_of_another_type_is_refused(out: Any, words: str, dequantize: bool) -> None:
    with pytest.raises(hw.BufferSizeError, match=words) as caught:
        key().gather(out=out, dequantize=dequantize)
    assert caught.value.rule == "gather.out"
    run = out.reshape(-1, HEADS, DIM)[:TOKENS] if isinstance(out, np.ndarray) else out
    with pytest.raises(hw.BufferSizeError, match=words) as caught:
        key().ragged(out=run, dequantize=dequantize)
    assert caught.value.rule == "gather.out"


@pytest.mark.parametrize("dequantize", [False, True])
def test_an_output_that_overlaps_the_pool_is_refused(dequantize: bool) -> None:
    memory = np.frombuffer(bytearray(saved([(pool32(), pool32())])), np.uint8)
    tensor: Any = hw.load_snapshot(memory)[0].key
    pool = tensor.page_pool
    start = pool.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    mine = memory[start : start + pool.nbytes].view(np.float32)
    before = memory.tobytes()
    with pytest.raises(hw.BufferSizeError, match="overlaps the pool"):
        tensor.gather([0], out=mine[: 6 * HEADS * DIM].reshape(1, 6, HEADS, DIM), dequantize=dequantize)
    with pytest.raises(hw.BufferSizeError, match="overlaps the pool"):
        tensor.ragged([0], out=mine[: 6 * HEADS * DIM].reshape(6, HEADS, DIM), dequantize=dequantize)
    assert memory.tobytes() == before


def pool32() -> np.ndarray:
    return numbered(7, 4, HEADS, DIM, dtype=np.float32)


@pytest.mark.parametrize("dequantize", [False, True])
@pytest.mark.parametrize("fill", [None, "x", [1.0], 10**400, 1e300, 1j, np.zeros(2), object()])
def test_a_fill_that_the_values_cannot_hold_is_refused(fill: Any, dequantize: bool) -> None:
    out = room(BATCH, dequantize)
    with pytest.raises(hw.IncompatibleError, match="cannot hold fill=") as caught:
        key().gather(fill=fill, out=out, dequantize=dequantize)
    assert caught.value.rule == "gather.fill"
    assert (out == 1).all()


def test_a_fill_is_held_by_real_numbers_and_not_by_what_is_stored() -> None:
    tensor = key(layers=[(pool8(), pool8())])
    assert (tensor.gather(fill=300.5, dequantize=True).values[2] == 300.5).all()
    with pytest.raises(hw.IncompatibleError):
        tensor.gather(fill=300.5)


def pool8() -> np.ndarray:
    return numbered(7, 4, HEADS, DIM, dtype=np.uint8)


@pytest.mark.parametrize(("fill", "bits"), [(0, 0), (-0.0, 0x80000000), (1.5, 0x3FC00000), (float("-inf"), 0xFF800000)])
@pytest.mark.parametrize("given", [False, True])
def test_real_numbers_are_padded_with_the_bits_of_the_fill(fill: Any, bits: int, given: bool) -> None:
    out = room(BATCH, True) if given else None
    values, mask = key().gather(fill=fill, dequantize=True, out=out)
    assert (values is out) == given
    assert (values.view(np.uint32)[~mask] == bits).all()
    assert mask.sum(axis=1).tolist() == LENS


@pytest.mark.parametrize("zstd", [None, 1])
@pytest.mark.parametrize("strided", [False, True])
def test_ragged_fills_the_output_that_it_is_given(zstd: int | None, strided: bool) -> None:
    snapshot = hw.load_snapshot(saved(zstd=zstd))
    tensor: Any = snapshot[0].key
    expected = [token for seq in held(snapshot, 0, "key") for token in seq]
    out = (
        np.zeros((TOKENS, HEADS, DIM, 2), ml_dtypes.bfloat16)[..., 1] if strided else np.zeros(RUN, ml_dtypes.bfloat16)
    )
    assert tensor.ragged(out=out) is out
    assert [token.tobytes() for token in out] == expected
    part = out[:9]
    part[...] = 0
    assert tensor.ragged([3, 0], out=part) is part
    assert [token.tobytes() for token in part] == expected[-3:] + expected[:6]


def test_ragged_fills_the_output_with_real_numbers() -> None:
    tensor = key(layers=[(pool8(), pool8())])
    out = np.zeros(RUN, np.float32)
    assert tensor.ragged(out=out, dequantize=True) is out
    rows = [pool8()[page, slot] for row, length in zip(TABLES, LENS, strict=True) for page, slot in places(row, length)]
    assert out.tolist() == [row.tolist() for row in rows]


def places(table: list[int], length: int) -> list[tuple[int, int]]:
    return [(table[token // 4], token % 4) for token in range(length)]


def all_nan(array: np.ndarray) -> bool:
    with np.errstate(all="ignore"):
        return bool(np.isnan(array.astype(np.float64)).all())


@pytest.mark.parametrize("name", SIGNALLING)
def test_a_signalling_nan_is_a_nan_and_no_warning(name: str) -> None:
    """Warnings are errors in this file."""
    nan = signalling(name)
    pool = np.zeros((4, 4, HEADS, DIM), nan.dtype)
    pool[...] = nan
    snapshot = hw.load_snapshot(saved([(pool, pool)], block_tables=[[0, 1]], seq_lens=[6]))
    tensor: Any = snapshot[0].key
    assert np.isnan(tensor.gather(dequantize=True).values).all()
    assert np.isnan(tensor.ragged(dequantize=True)).all()
    assert np.isnan(tensor.read_pages([0], dequantize=True)).all()
    assert np.isnan(snapshot.export(dequantize=True).arrays[0][0][0]).all()
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float64):
        out = [(np.zeros((2, 4, HEADS, DIM), dtype), np.zeros((2, 4, HEADS, DIM), dtype))]
        snapshot.export(dequantize=True, out=out)
        assert all_nan(out[0][0][0])
    for fill in map(signalling, ("float32", "float64")):
        assert np.isnan(tensor.gather(max_len=7, fill=fill[()], dequantize=True).values[0, 6]).all()
        assert all_nan(tensor.gather(max_len=7, fill=fill[()]).values[0, 6])
    assert tensor.gather(max_len=7, fill=nan).values[0, 6].tobytes() == nan.tobytes() * HEADS * DIM


def test_numbers_beyond_float32_are_infinite_and_no_warning() -> None:
    pool = np.full((2, 4, HEADS, DIM), -1e300)
    tensor: Any = hw.load_snapshot(saved([(pool, pool)], block_tables=[[0, 1]], seq_lens=[6]))[0].key
    assert (tensor.ragged(dequantize=True) == -np.inf).all()


@pytest.mark.parametrize("scale", [signalling("float64"), signalling("float32"), 1e300, -1.0])
def test_a_scale_that_is_no_finite_number_above_0_is_an_error_and_no_warning(scale: Any) -> None:
    pool = np.zeros((2, 4, HEADS, DIM), ml_dtypes.float8_e4m3fn)
    with pytest.raises(hw.IncompatibleError) as caught:
        hw.save_snapshot(io.BytesIO(), [(pool, pool)], block_tables=[[0]], seq_lens=[4], scales={"layers.0.key": scale})
    assert caught.value.rule == "snapshot.scale"


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_slots_that_no_sequence_uses_may_hold_a_signalling_nan_when_others_become_int8(name: str) -> None:
    pool = np.ones((4, 4, HEADS, DIM), signalling(name).dtype)
    pool[2:] = signalling(name)
    out = io.BytesIO()
    hw.save_snapshot(out, [(pool, pool)], block_tables=[[0, 1]], seq_lens=[8], quantize="int8")
    tensor: Any = hw.load_snapshot(out.getvalue())[0].key
    np.testing.assert_allclose(tensor.ragged(dequantize=True), 1, rtol=1e-6)

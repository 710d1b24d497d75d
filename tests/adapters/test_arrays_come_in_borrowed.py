"""What the gate borrows, what it refuses, and that it never relabels bits without being told."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hurray_wire.adapters import as_array
from hurray_wire.errors import BufferSizeError, IncompatibleError, UnsupportedError


class Lender:
    """An array owner that lends its own memory through ``__array__``."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.array


class Copier(Lender):
    """One that copies on every request."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.array.copy()


class Dlpack:
    """One that speaks only the DLPack protocol."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class Elsewhere(Dlpack):
    """One whose memory is on a device that NumPy cannot reach."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("the memory is on device cuda:0")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


@pytest.mark.parametrize("owner", [np.asarray, Lender, Dlpack])
def test_the_owners_memory_is_borrowed(owner: Any) -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    found = as_array(owner(array), what="pool", writable=True)
    assert type(found) is np.ndarray
    assert np.shares_memory(found, array)
    np.testing.assert_array_equal(found, array, strict=True)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=">u2").reshape(3, 4)[::-1, ::2],
        np.asfortranarray(np.arange(12, dtype=np.float64).reshape(3, 4)),
        np.broadcast_to(np.float16(3), (2, 2)),
        np.zeros((0, 3), np.int8),
        np.ones((2, 2), bool),
        np.ones((2, 2), np.complex64),
        np.ones((2, 2), ml_dtypes.bfloat16),
        np.ones((2, 2), ml_dtypes.float8_e4m3fn),
        np.ones((2, 2), ml_dtypes.int4),
        np.zeros((2, 2), "V16"),
    ],
    ids=lambda array: str(array.dtype),
)
def test_order_strides_and_type_stay_as_they_are(array: np.ndarray) -> None:
    found = as_array(array, what="pool")
    assert (found.dtype, found.shape, found.strides) == (array.dtype, array.shape, array.strides)
    assert found.__array_interface__["data"] == array.__array_interface__["data"]


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros(2, ml_dtypes.float8_e4m3fnuz), "never the label"),
        (np.zeros(2, ml_dtypes.float8_e5m2fnuz), "never the label"),
        (np.zeros(2, ml_dtypes.float8_e4m3b11fnuz), "never the label"),
        (np.zeros(2, ml_dtypes.float8_e4m3), "infinities"),
        (np.zeros(2, ml_dtypes.float8_e3m4), "no such type"),
        (np.array([None, 1]), "not a numeric type"),
        (np.array(["a"]), "not a numeric type"),
        (np.array([b"a"]), "not a numeric type"),
        (np.array(["2026-01-01"], "M8[D]"), "not a numeric type"),
        (np.zeros(2, "V2"), "dtype="),
        (np.zeros(2, [("values", "i1", 8), ("scale", "f4")]), "opaque record"),
        (np.zeros(2, np.longdouble), "long double"),
        (np.zeros(2, np.clongdouble), "long double"),
    ],
    ids=lambda value: str(getattr(value, "dtype", "")),
)
def test_types_the_format_lacks_are_refused_with_the_reason(array: np.ndarray, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason) as refusal:
        as_array(array, what="layer 3 key")
    assert refusal.value.rule == "element-type.dtype"
    assert refusal.value.message.startswith("layer 3 key holds ")


@pytest.mark.parametrize(
    ("held", "told"),
    [
        (np.uint8, ml_dtypes.float8_e4m3fn),
        (np.int8, ml_dtypes.float8_e5m2),
        (np.uint16, ml_dtypes.bfloat16),
        (np.int16, np.float16),
        ("V2", ml_dtypes.bfloat16),
        (np.uint8, "float8_e4m3fn"),
        (np.float16, np.float16),
    ],
)
def test_raw_bits_are_relabelled_only_when_told(held: Any, told: Any) -> None:
    bits = np.arange(40, dtype=np.uint8).view(held)
    if np.dtype(held) != "V2":
        assert as_array(bits, what="pool").dtype == held
    found = as_array(bits, what="pool", dtype=told)
    assert found.dtype == np.dtype(told)
    assert found.tobytes() == bits.tobytes()
    assert np.shares_memory(found, bits)


@pytest.mark.parametrize(
    ("held", "told"),
    [
        (np.float16, ml_dtypes.bfloat16),  # the classic: bf16 bits read as fp16
        (ml_dtypes.bfloat16, np.float16),
        (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
        (np.uint8, ml_dtypes.bfloat16),
        (np.uint8, ml_dtypes.int4),
        (np.uint8, ml_dtypes.float4_e2m1fn),
        (">u2", ml_dtypes.bfloat16),
        ([("a", "u1"), ("b", "u1")], ml_dtypes.bfloat16),
    ],
)
def test_values_are_never_relabelled(held: Any, told: Any) -> None:
    with pytest.raises(IncompatibleError) as refusal:
        as_array(np.zeros(4, held), what="pool", dtype=told)
    assert refusal.value.rule == "adapter.relabel"


def test_a_told_type_the_format_lacks_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="never the label"):
        as_array(np.zeros(4, np.uint8), what="pool", dtype=ml_dtypes.float8_e4m3fnuz)


@pytest.mark.parametrize(
    "owner",
    [
        np.broadcast_to(np.float32(1), (3, 3)),
        np.lib.stride_tricks.as_strided(np.zeros(3), (3, 3), (0, 8)),
        Copier(np.zeros(3)),
        Lender(np.broadcast_to(np.float32(1), (3,))),
    ],
    ids=["read-only", "overlapping", "copier", "lent read-only"],
)
def test_what_cannot_be_written_is_no_destination(owner: Any) -> None:
    as_array(owner, what="pool")
    with pytest.raises(IncompatibleError) as refusal:
        as_array(owner, what="pool", writable=True)
    assert refusal.value.rule == "adapter.destination"


def test_memory_out_of_reach_is_refused_with_its_cause() -> None:
    with pytest.raises(IncompatibleError, match="cuda:0") as refusal:
        as_array(Elsewhere(np.zeros(3)), what="pool")
    assert isinstance(refusal.value.__cause__, BufferError)


@pytest.mark.parametrize("nothing", [[[1.0, 2.0]], "pool", None, 3, b"bytes", memoryview(b"bytes"), object()])
def test_what_is_no_array_is_refused(nothing: Any) -> None:
    with pytest.raises(BufferSizeError) as refusal:
        as_array(nothing, what="pool")
    assert refusal.value.rule == "adapter.array-kind"


def test_a_mask_is_not_dropped() -> None:
    with pytest.raises(UnsupportedError, match="mask"):
        as_array(np.ma.masked_array([1.0, 2.0], [True, False]), what="pool")

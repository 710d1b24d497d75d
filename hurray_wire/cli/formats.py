"""What .npy, .npz and .safetensors call element types, for the reader and the writer of dumps alike.

Safetensors has names for most types. NumPy's formats have none for bfloat16, float8 and the sub-byte types, which NumPy
itself would write as nameless bytes; there the bits are kept as unsigned integers, and an entry ``dtypes``, a string
with JSON in it, maps the names of such arrays to the format's names of their types.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import hurray_wire as hw

__all__ = ["DTYPES", "ELEMENT_TYPES", "SAFETENSORS_TYPES", "as_bits"]

DTYPES = "dtypes"

ELEMENT_TYPES: dict[str, np.dtype[Any]] = {
    value.name: value.dtype
    for value in vars(hw).values()
    if isinstance(value, hw.ElementType) and value.dtype is not None
}

# The fnuz types are here only to be refused by their own names: no snapshot holds them.
SAFETENSORS_TYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(dtype)
    for name, dtype in {
        "BOOL": "?",
        "U8": "u1",
        "I8": "i1",
        "U16": "<u2",
        "I16": "<i2",
        "U32": "<u4",
        "I32": "<i4",
        "U64": "<u8",
        "I64": "<i8",
        "F16": "<f2",
        "BF16": ml_dtypes.bfloat16,
        "F32": "<f4",
        "F64": "<f8",
        "C64": "<c8",
        "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F8_E5M2": ml_dtypes.float8_e5m2,
        "F8_E8M0": ml_dtypes.float8_e8m0fnu,
        "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
        "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    }.items()
}

_NAMES = {dtype: name for name, dtype in ELEMENT_TYPES.items()}


def as_bits(array: NDArray[Any]) -> tuple[NDArray[Any], str | None]:
    """The array as NumPy's formats can hold it, and the name of its element type where they have none (else None)."""
    if array.dtype.isbuiltin != 2:  # 2 is what NumPy calls types that another package registered
        return array, None
    return array.view(f"u{array.dtype.itemsize}"), _NAMES[array.dtype]

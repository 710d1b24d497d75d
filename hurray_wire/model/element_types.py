"""The element types of the format, told once (spec/descriptor.md, "Element types").

Each constant knows its tag, its width in bits and the NumPy or ml_dtypes type that holds one element in memory. Packed
sub-byte types have an in-memory type of one byte an element; how they are packed on the wire is told by ``packing``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import InvalidDescriptorError, UnsupportedError

__all__ = ["BY_NAME", "BY_TAG", "ElementType", "buffer_bytes", "from_dtype"]

PRIVATE_TAGS = range(0xF0, 0xFF)


@dataclass(frozen=True, slots=True)
class ElementType:
    """One element type.

    ``name`` is the format's own word, ``tag`` its byte on the wire, ``bits`` its width there. ``dtype`` is the NumPy
    type that holds an element in memory, or None for a private type, whose meaning only its producer knows.
    ``float128`` is opaque to NumPy: its dtype is 16 raw bytes, so bit patterns survive on every machine.
    """

    name: str
    tag: int
    bits: int
    dtype: np.dtype[Any] | None = field(compare=False)

    @property
    def is_private(self) -> bool:
        return self.tag in PRIVATE_TAGS

    @property
    def is_packed(self) -> bool:
        """True if an element is narrower than a byte, or does not fill its bytes (6-bit)."""
        return self.bits < 8

    @property
    def group(self) -> tuple[int, int]:
        """``(elements, bytes)`` of the smallest whole run of elements: (1, itemsize), or (8, 1), (4, 1), (2, 1), (4,
        3).
        """
        if self.bits >= 8:
            return 1, self.bits // 8
        if self.bits == 6:
            return 4, 3
        return 8 // self.bits, 1

    def __repr__(self) -> str:
        return f"hurray_wire.{self.name}" if self.tag in BY_TAG else f"ElementType({self.name!r}, 0x{self.tag:02X})"


def buffer_bytes(element_type: ElementType, elements: int) -> int:
    """Bytes that ``elements`` elements take on the wire, the unused bits of the last byte (or 6-bit group) included."""
    per_group, group_bytes = element_type.group
    return -(-elements // per_group) * group_bytes


def private(tag: int, bits: int) -> ElementType:
    """A private element type (tags 0xF0..0xFE), whose width comes from the descriptor's extension type section."""
    if tag not in PRIVATE_TAGS:
        raise InvalidDescriptorError(
            f"element type tag 0x{tag:02X} is not in the private range 0xF0..0xFE", rule="element-type.tag", found=tag
        )
    return ElementType(f"private_{tag:02x}", tag, bits, None)


def _table() -> tuple[ElementType, ...]:
    ml = ml_dtypes
    rows: tuple[tuple[str, int, int, Any], ...] = (
        ("float16", 0x01, 16, "<f2"),
        ("bfloat16", 0x02, 16, ml.bfloat16),
        ("float32", 0x03, 32, "<f4"),
        ("float64", 0x04, 64, "<f8"),
        ("int8", 0x10, 8, "i1"),
        ("uint8", 0x11, 8, "u1"),
        ("int16", 0x12, 16, "<i2"),
        ("uint16", 0x13, 16, "<u2"),
        ("int32", 0x14, 32, "<i4"),
        ("uint32", 0x15, 32, "<u4"),
        ("int64", 0x16, 64, "<i8"),
        ("uint64", 0x17, 64, "<u8"),
        ("bool", 0x20, 1, "?"),
        ("float8_e4m3", 0x40, 8, ml.float8_e4m3fn),
        ("float8_e5m2", 0x41, 8, ml.float8_e5m2),
        ("float8_e8m0", 0x42, 8, ml.float8_e8m0fnu),
        ("float4_e2m1", 0x43, 4, ml.float4_e2m1fn),
        ("float6_e2m3", 0x44, 6, ml.float6_e2m3fn),
        ("float6_e3m2", 0x45, 6, ml.float6_e3m2fn),
        ("float128", 0x46, 128, "V16"),
        ("int4", 0x48, 4, ml.int4),
        ("uint4", 0x49, 4, ml.uint4),
        ("int2", 0x4A, 2, ml.int2),
        ("uint2", 0x4B, 2, ml.uint2),
        ("complex64", 0x50, 64, "<c8"),
        ("complex128", 0x51, 128, "<c16"),
    )
    return tuple(ElementType(name, tag, bits, np.dtype(dtype)) for name, tag, bits, dtype in rows)


ALL = _table()
BY_TAG: dict[int, ElementType] = {element_type.tag: element_type for element_type in ALL}
BY_NAME: dict[str, ElementType] = {element_type.name: element_type for element_type in ALL}
_BY_DTYPE = {element_type.dtype: element_type for element_type in ALL}


def from_tag(tag: int) -> ElementType:
    """The element type with this tag; private tags have no entry here (see :func:`private`)."""
    try:
        return BY_TAG[tag]
    except KeyError:
        raise InvalidDescriptorError(
            f"element type tag 0x{tag:02X} is reserved or unknown", rule="element-type.tag", found=tag
        ) from None


def from_dtype(dtype: Any) -> ElementType:
    """The element type that holds the values of a NumPy dtype of either byte order.

    Raises UnsupportedError for a dtype the format has no type for (the fnuz float8 variants, strings, objects, ...).
    """
    numpy_dtype = np.dtype(dtype)
    found = _BY_DTYPE.get(numpy_dtype.newbyteorder("<"))
    if found is None:
        raise UnsupportedError(
            f"NumPy type {numpy_dtype} has no element type in the Hurray format",
            rule="element-type.dtype",
            found=str(dtype),
        )
    return found


float16 = BY_NAME["float16"]
bfloat16 = BY_NAME["bfloat16"]
float32 = BY_NAME["float32"]
float64 = BY_NAME["float64"]
int8 = BY_NAME["int8"]
uint8 = BY_NAME["uint8"]
int16 = BY_NAME["int16"]
uint16 = BY_NAME["uint16"]
int32 = BY_NAME["int32"]
uint32 = BY_NAME["uint32"]
int64 = BY_NAME["int64"]
uint64 = BY_NAME["uint64"]
bool_ = BY_NAME["bool"]
float8_e4m3 = BY_NAME["float8_e4m3"]
float8_e5m2 = BY_NAME["float8_e5m2"]
float8_e8m0 = BY_NAME["float8_e8m0"]
float4_e2m1 = BY_NAME["float4_e2m1"]
float6_e2m3 = BY_NAME["float6_e2m3"]
float6_e3m2 = BY_NAME["float6_e3m2"]
float128 = BY_NAME["float128"]
int4 = BY_NAME["int4"]
uint4 = BY_NAME["uint4"]
int2 = BY_NAME["int2"]
uint2 = BY_NAME["uint2"]
complex64 = BY_NAME["complex64"]
complex128 = BY_NAME["complex128"]

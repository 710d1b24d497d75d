"""The key-value section of a file: bytes to a dictionary and back (spec/container.md, "Metadata").

Values of the wire and of Python: string = str, i64 and u64 = int, f64 = float, bool = bool, bytes = bytes, array =
list of one of these. An int is written as i64 where it fits and as u64 otherwise; a NumPy array of int64, uint64 or
float64 says its type itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ChecksumError, InvalidFileError, LimitError
from ..limits import Limits
from . import structs
from .checksum import crc32c
from .doorway import Cursor, build

__all__ = ["SEAL_KEY", "Metadata", "check_seal", "decode_metadata", "encode_metadata"]

Metadata = dict[str, Any]

SEAL_KEY = "hurray_wire.metadata_crc32c"

STRING, I64, U64, F64, BOOL, BYTES, ARRAY = range(1, 8)
_NUMBERS: dict[int, tuple[Any, str]] = {
    I64: (structs.I64, "<i8"),
    U64: (structs.U64, "<u8"),
    F64: (structs.F64, "<f8"),
}
_KEY_MAX = (1 << 16) - 1
_LENGTH_MAX = (1 << 32) - 1


def decode_metadata(section: memoryview, *, base: int = 0, limits: Limits | None = None) -> Metadata:
    """The dictionary held by exactly the bytes of a key-value section; nothing of the buffer is kept."""
    limits = limits or Limits()
    cursor = Cursor(section, area="metadata", base=base, error=InvalidFileError)
    count = cursor.value(structs.U32, "the key-value section")
    left = _left(limits.max_metadata_entries, count, "the key-value section", base, limits)
    metadata: Metadata = {}
    for _ in range(count):
        start = cursor.offset
        key = _text(cursor, cursor.value(structs.U16, "a key's length"), "a key")
        if not key:
            raise InvalidFileError("a metadata key is empty", rule="metadata.key-empty", offset=start)
        if key in metadata:
            raise InvalidFileError(
                f"metadata key {key!r} is there twice", rule="metadata.key-duplicate", offset=start, found=key
            )
        tag = cursor.value(structs.U8, "a value's tag")
        if tag == ARRAY:
            metadata[key], left = _decode_array(cursor, key, left, limits)
        else:
            metadata[key] = _decode_scalar(cursor, tag, key)
    if cursor.remaining:
        raise InvalidFileError(
            f"{cursor.remaining} bytes follow the last of {count} metadata entries",
            rule="metadata.length",
            offset=cursor.offset,
            declared=len(section),
            found=cursor.at,
        )
    return metadata


def encode_metadata(metadata: Mapping[str, Any], *, seal: bool = False) -> bytes:
    """The key-value section, entries in the order of the mapping. A value of another kind is refused by its key.

    ``seal`` adds a last entry, the CRC-32C of all bytes before it, since nothing else in a file covers its metadata.
    """
    parts = [build(structs.U32, {"value": len(metadata) + seal})]
    for key, value in metadata.items():
        if not isinstance(key, str) or not 1 <= len(raw := _utf8(key, key)) <= _KEY_MAX:
            raise InvalidFileError(
                f"metadata key {key!r} is not a string of 1 to {_KEY_MAX} bytes", rule="metadata.key-empty", found=key
            )
        parts += [build(structs.U16, {"value": len(raw)}), raw, *_encode_value(key, value)]
    section = b"".join(parts)
    return section + _seal_entry(crc32c(section)) if seal else section


def check_seal(section: memoryview, *, base: int = 0) -> bool:
    """Check the seal of a section that has one, as its last entry; False if it has none. Raises ChecksumError."""
    size = len(_seal_entry(0))
    sealed, entry = section[:-size], bytes(section[-size:])
    if entry[:-8] != _seal_entry(0)[:-8]:
        return False
    if entry != _seal_entry(found := crc32c(sealed)):
        raise ChecksumError(
            f"the metadata has CRC-32C 0x{found:08X}, which is not what its last entry recorded",
            rule="verify.metadata-crc",
            offset=base,
            found=found,
        )
    return True


def _seal_entry(crc: int) -> bytes:
    key = SEAL_KEY.encode()
    parts = [build(structs.U16, {"value": len(key)}), key, build(structs.U8, {"value": U64})]
    return b"".join(parts) + build(structs.U64, {"value": crc})


def _left(left: int, count: int, what: str, offset: int, limits: Limits) -> int:
    """How many entries and elements may still come once ``count`` of them do."""
    if count > left:
        raise LimitError(
            f"{what} has {count} entries, and metadata at most {limits.max_metadata_entries} in all",
            rule="limit.metadata-entries",
            offset=offset,
            declared=limits.max_metadata_entries,
            found=count,
        )
    return left - count


def _decode_array(cursor: Cursor, key: str, left: int, limits: Limits) -> tuple[list[Any], int]:
    """The elements, and how many entries and elements may still come."""
    start = cursor.offset
    header = cursor.take(structs.ARRAY_HEADER, f"the array {key!r}")
    if header.element_tag in _NUMBERS:
        raw = cursor.view(header.count * 8, f"the array {key!r}")
        return np.frombuffer(raw, dtype=_NUMBERS[header.element_tag][1]).tolist(), left
    if header.element_tag == ARRAY or not STRING <= header.element_tag <= BYTES:
        raise InvalidFileError(
            f"the array {key!r} has elements of the unknown kind {header.element_tag}",
            rule="metadata.value-tag",
            offset=start,
            found=header.element_tag,
        )
    left = _left(left, header.count, f"the array {key!r}", start, limits)
    return [_decode_scalar(cursor, header.element_tag, key) for _ in range(header.count)], left


def _decode_scalar(cursor: Cursor, tag: int, key: str) -> Any:
    start = cursor.offset
    what = f"the value of {key!r}"
    if tag in _NUMBERS:
        return cursor.value(_NUMBERS[tag][0], what)
    if tag == BOOL:
        value = cursor.value(structs.U8, what)
        if value > 1:
            raise InvalidFileError(
                f"the boolean {key!r} is {value}, not 0 or 1", rule="metadata.bool", offset=start, found=value
            )
        return bool(value)
    if tag == STRING:
        return _text(cursor, cursor.value(structs.U32, what), what)
    if tag == BYTES:
        return cursor.take_bytes(cursor.value(structs.U32, what), what)
    raise InvalidFileError(f"{what} is of the unknown kind {tag}", rule="metadata.value-tag", offset=start, found=tag)


def _text(cursor: Cursor, length: int, what: str) -> str:
    start = cursor.offset
    try:
        return cursor.take_bytes(length, what).decode("utf-8")
    except UnicodeDecodeError as cause:
        raise InvalidFileError(f"{what} is not UTF-8", rule="metadata.utf8", offset=start) from cause


def _encode_value(key: str, value: Any) -> list[bytes]:
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iuf":
        tag = {"i": I64, "u": U64, "f": F64}[value.dtype.kind]
        raw = np.ascontiguousarray(value, dtype=_NUMBERS[tag][1])
        return [*_array_header(key, tag, len(raw)), raw.tobytes()]
    if isinstance(value, list | tuple):
        numbers = _as_numbers(value)
        if numbers is not None:
            return _encode_value(key, numbers)
        tag = _array_tag(key, value)
        encoder = _SCALARS[tag]
        return [*_array_header(key, tag, len(value)), *(encoder(key, element) for element in value)]
    tag = _tag_of(key, value)
    return [build(structs.U8, {"value": tag}), _SCALARS[tag](key, value)]


def _as_numbers(values: Sequence[Any]) -> np.ndarray[Any, Any] | None:
    """A list of plain numbers of one kind as an array of the kind that they are written as; None for anything else."""
    kinds = set(map(type, values))
    if kinds == {float}:
        return np.array(values, dtype=np.float64)
    if kinds == {int}:
        for dtype in (np.int64, np.uint64):
            with contextlib.suppress(OverflowError):
                return np.array(values, dtype=dtype)
    return None


def _array_header(key: str, tag: int, count: int) -> list[bytes]:
    if count > _LENGTH_MAX:
        raise InvalidFileError(f"the array {key!r} has {count} elements, too many", rule="metadata.length", found=count)
    header = build(structs.ARRAY_HEADER, {"element_tag": tag, "count": count})
    return [build(structs.U8, {"value": ARRAY}), header]


def _array_tag(key: str, values: Sequence[Any]) -> int:
    tags = {_tag_of(key, value) for value in values}
    if tags == {I64, U64} and all(value >= 0 for value in values):
        return U64
    if len(tags) > 1:
        raise InvalidFileError(f"the elements of {key!r} are not of one kind", rule="metadata.value-tag")
    return tags.pop() if tags else STRING


def _tag_of(key: str, value: Any) -> int:
    if isinstance(value, bool | np.bool_):
        return BOOL
    if isinstance(value, int | np.integer):
        number = int(value)
        if -(1 << 63) <= number < 1 << 63:
            return I64
        if 0 <= number < 1 << 64:
            return U64
        raise InvalidFileError(f"{key!r} is {number}, which fits no 64 bits", rule="metadata.number", found=number)
    if isinstance(value, str):
        return STRING
    if isinstance(value, float | np.floating):
        return F64
    if isinstance(value, bytes | bytearray | memoryview):
        return BYTES
    raise InvalidFileError(
        f"metadata {key!r} is a {type(value).__name__}; it can be str, int, float, bool, bytes or a list of one",
        rule="metadata.value-tag",
    )


def _utf8(key: str, text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as cause:
        raise InvalidFileError(f"metadata {key!r} holds text that is not UTF-8", rule="metadata.utf8") from cause


def _sized(key: str, raw: bytes) -> bytes:
    if len(raw) > _LENGTH_MAX:
        raise InvalidFileError(f"metadata {key!r} has {len(raw)} bytes, too many", rule="metadata.length")
    return build(structs.U32, {"value": len(raw)}) + raw


_SCALARS: dict[int, Callable[[str, Any], bytes]] = {
    STRING: lambda key, value: _sized(key, _utf8(key, value)),
    I64: lambda key, value: build(structs.I64, {"value": int(value)}),
    U64: lambda key, value: build(structs.U64, {"value": int(value)}),
    F64: lambda key, value: build(structs.F64, {"value": float(value)}),
    BOOL: lambda key, value: build(structs.U8, {"value": int(value)}),
    BYTES: lambda key, value: _sized(key, bytes(value)),
}

"""The index of a file: names and places of its tensors; bytes to objects and back (spec/container.md).

An index may have some 100,000 entries, so it is kept in columns and judged by columns: only the names, whose lengths
vary, are walked one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import ChecksumError, InvalidFileError, LimitError, TruncatedError
from ..limits import Limits
from . import structs
from .checksum import crc32c
from .container import STRUCTURE_ALIGNMENT, TRAILER_BYTES, FileHeader, Trailer
from .doorway import Cursor, build, size_of, table

__all__ = ["Index", "IndexEntry", "check_name", "decode_index", "encode_index"]

ENTRY_BYTES = size_of(structs.INDEX_ENTRY)
NAME_MAX = (1 << 16) - 1


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """Where one tensor lies: its descriptor, and its data from the first buffer's first byte to the last one's last."""

    name: str
    descriptor_offset: int
    descriptor_length: int
    data_offset: int
    data_length: int


class Index:
    """All index entries, column by column, in write order (ascending descriptor offset)."""

    __slots__ = ("_places", "data_lengths", "data_offsets", "descriptor_lengths", "descriptor_offsets", "names")

    def __init__(self, names: Sequence[str], columns: Sequence[NDArray[np.int64]]) -> None:
        self.names = tuple(names)
        self.descriptor_offsets, self.descriptor_lengths, self.data_offsets, self.data_lengths = columns
        self._places = {name: place for place, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[IndexEntry]:
        return (self.entry(name) for name in self.names)

    def place(self, name: str) -> int:
        """Where in write order the tensor of this name stands; KeyError if there is none."""
        return self._places[name]

    def entry(self, name: str) -> IndexEntry:
        """The entry of this name; KeyError if there is none."""
        place = self._places[name]
        return IndexEntry(
            name,
            int(self.descriptor_offsets[place]),
            int(self.descriptor_lengths[place]),
            int(self.data_offsets[place]),
            int(self.data_lengths[place]),
        )


def decode_index(raw: memoryview, *, header: FileHeader, trailer: Trailer, file_size: int, limits: Limits) -> Index:
    """The index held by exactly these bytes: checksum, names and places checked. Nothing of the buffer is kept."""
    base = trailer.index_offset
    if header.has_index_crc32c and (found := crc32c(raw)) != trailer.index_crc32c:
        raise ChecksumError(
            f"the index has CRC-32C 0x{found:08X}, but the trailer recorded 0x{trailer.index_crc32c:08X}",
            rule="index.crc",
            offset=base,
            declared=trailer.index_crc32c,
            found=found,
        )
    cursor = Cursor(raw, area="index", base=base, error=InvalidFileError)
    count = cursor.value(structs.U64, "the index")
    if count > limits.max_tensors:
        raise LimitError(
            f"the index has {count} entries, above the limit of {limits.max_tensors}",
            rule="limit.tensors",
            offset=base,
            declared=limits.max_tensors,
            found=count,
        )
    if count * (2 + 1 + ENTRY_BYTES) > cursor.remaining:
        raise TruncatedError(
            f"the index of {cursor.remaining} bytes is too short for {count} entries",
            rule="index.truncated",
            offset=base,
            declared=count,
            found=cursor.remaining,
        )
    raw_names, starts = _walk_names(cursor, count)
    rows = table(structs.INDEX_ENTRY, raw, starts)
    _check_rows(rows, raw_names, starts + base, file_size, header)
    names = [_name(name, base + int(start)) for name, start in zip(raw_names, starts, strict=True)]
    order = np.argsort(rows["descriptor_offset"], kind="stable")
    if header.sorted_index:
        fault = next((k for k in range(1, count) if raw_names[k - 1] >= raw_names[k]), None)
        sorting = "its names"
    else:
        falls = np.flatnonzero(np.diff(order) != 1) if count else order
        fault = int(falls[0]) + 1 if len(falls) else None
        sorting = "descriptor offset"
    _check_duplicates(names, base)
    if fault is not None:
        raise InvalidFileError(
            f"the index is not in order of {sorting} at entry {fault}, {names[fault]!r}",
            rule="index.order",
            offset=base + int(starts[fault]),
            found=names[fault],
        )
    fields = ("descriptor_offset", "descriptor_length", "data_offset", "data_length")
    columns = [rows[field][order].astype(np.int64) for field in fields]
    return Index([names[k] for k in order.tolist()], columns)


def encode_index(entries: Iterable[IndexEntry], *, sorted_index: bool) -> bytes:
    """The index's bytes: entries as given (write order), or by name."""
    listed = [(entry, entry.name.encode("utf-8")) for entry in entries]
    if sorted_index:
        listed.sort(key=lambda pair: pair[1])
    parts = [build(structs.U64, {"value": len(listed)})]
    for entry, name in listed:
        fields = {
            "descriptor_offset": entry.descriptor_offset,
            "descriptor_length": entry.descriptor_length,
            "data_offset": entry.data_offset,
            "data_length": entry.data_length,
            "flags": 0,
        }
        parts += [build(structs.U16, {"value": len(name)}), name, build(structs.INDEX_ENTRY, fields)]
    return b"".join(parts)


def check_name(name: object) -> str:
    """A tensor name that a reader will take: 1 to 65,535 bytes of UTF-8."""
    try:
        length = len(name.encode("utf-8")) if isinstance(name, str) else 0
    except UnicodeEncodeError as cause:
        raise InvalidFileError(f"tensor name {name!r} is not UTF-8", rule="index.name-utf8", found=name) from cause
    if not isinstance(name, str) or not 1 <= length <= NAME_MAX:
        raise InvalidFileError(
            f"tensor name {name!r:.80} is not a string of 1 to {NAME_MAX} bytes", rule="index.name-length", found=length
        )
    return name


def _walk_names(cursor: Cursor, count: int) -> tuple[list[bytes], NDArray[np.int64]]:
    """The raw names, and where in the index each entry's fixed part starts."""
    data = cursor.data
    names: list[bytes] = []
    starts = np.empty(count, dtype=np.int64)
    at, end = cursor.at, len(data)
    for k in range(count):
        # by hand, since a record per name would cost more than all else in opening a file of many tensors
        length = int.from_bytes(data[at : at + 2], "little")
        start = at + 2 + length
        if start + ENTRY_BYTES > end:
            raise TruncatedError(
                f"entry {k} of {count} reaches past the end of the index",
                rule="index.truncated",
                offset=cursor.base + at,
                declared=start + ENTRY_BYTES,
                found=end,
            )
        names.append(bytes(data[at + 2 : start]))
        starts[k] = start
        at = start + ENTRY_BYTES
    if at != end:
        raise InvalidFileError(
            f"{end - at} bytes follow the last of {count} index entries",
            rule="index.length",
            offset=cursor.base + at,
            declared=end,
            found=at,
        )
    return names, starts


def _check_rows(
    rows: NDArray[np.void], names: list[bytes], offsets: NDArray[np.int64], file_size: int, header: FileHeader
) -> None:
    """Every place lies in the file, and what must be aligned or zero is."""

    def refuse(bad: NDArray[np.bool_], words: str, rule: str) -> None:
        if bad.any():
            k = int(np.argmax(bad))
            raise InvalidFileError(
                f"index entry {k}, {names[k].decode('utf-8', 'replace')!r}: {words}",
                rule=rule,
                offset=int(offsets[k]),
                found={field: int(rows[field][k]) for field in rows.dtype.names or ()},
            )

    end = np.uint64(file_size - TRAILER_BYTES)
    descriptor, data = rows["descriptor_offset"], rows["data_offset"]
    # each operand is compared with the file's size before it is added to anything, so nothing wraps
    refuse(
        (descriptor > end) | (rows["descriptor_length"] > end - np.minimum(descriptor, end)),
        "the descriptor reaches past the end of the file",
        "index.descriptor-place",
    )
    refuse(
        descriptor % np.uint64(STRUCTURE_ALIGNMENT) != 0,
        "descriptor_offset is not a multiple of 8",
        "index.descriptor-place",
    )
    refuse(
        rows["descriptor_length"] < size_of(structs.DESCRIPTOR_HEADER),
        "descriptor_length is too short for a descriptor",
        "index.descriptor-length",
    )
    refuse(
        (data > end) | (rows["data_length"] > end - np.minimum(data, end)),
        "the data reaches past the end of the file",
        "index.data-place",
    )
    unaligned = data % np.uint64(header.data_buffer_alignment) != 0
    refuse((rows["data_length"] > 0) & unaligned, "data_offset is not aligned", "index.data-place")
    refuse(rows["flags"] != 0, "its flags are not zero", "index.flags")


def _name(raw: bytes, offset: int) -> str:
    if not raw:
        raise InvalidFileError("a tensor name is empty", rule="index.name-length", offset=offset)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as cause:
        raise InvalidFileError(
            f"tensor name {raw!r:.80} is not UTF-8", rule="index.name-utf8", offset=offset
        ) from cause


def _check_duplicates(names: list[str], base: int) -> None:
    if len(set(names)) == len(names):
        return
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidFileError(
                f"duplicate tensor name {name!r} in the index", rule="index.name-duplicate", offset=base, found=name
            )
        seen.add(name)

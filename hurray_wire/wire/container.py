"""The parts of a file: header, index and trailer; bytes to objects and back (spec/container.md).

Every byte of a file belongs to exactly one thing: header, descriptor, buffer, zero padding, key-value section, index
or trailer. :func:`check_regions` holds a file to that from what header, trailer and index say, before anything else
is read. Whether the padding is zero needs reading it, and is left to ``verify``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from ..errors import ChecksumError, HurrayError, InvalidFileError, LimitError, TruncatedError, UnsupportedError
from ..limits import Limits
from . import structs
from .checksum import crc32c
from .doorway import Cursor, build, located, size_of, table

__all__ = [
    "HEADER_BYTES",
    "TRAILER_BYTES",
    "FileHeader",
    "Index",
    "IndexEntry",
    "Region",
    "Regions",
    "Trailer",
    "align_up",
    "check_regions",
    "decode_header",
    "decode_index",
    "decode_trailer",
    "encode_header",
    "encode_index",
    "encode_trailer",
]

HEADER_BYTES = size_of(structs.FILE_HEADER)
TRAILER_BYTES = size_of(structs.TRAILER)
ENTRY_BYTES = size_of(structs.INDEX_ENTRY)
NAME_MAX = (1 << 16) - 1

CONTAINER_MAJOR = 1
HAS_KV_METADATA, SORTED_INDEX, HAS_INDEX_CRC32C = 1, 2, 4
MIN_ALIGNMENT, MAX_ALIGNMENT = 4096, 2 << 20
STRUCTURE_ALIGNMENT = 8  # descriptors, key-value section and index
NO_HINT = (1 << 64) - 1


def align_up(offset: int, alignment: int) -> int:
    """The first multiple of ``alignment`` at or after ``offset``."""
    return -(-offset // alignment) * alignment


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHeader:
    """The first 64 bytes of a file."""

    data_buffer_alignment: int = MIN_ALIGNMENT
    first_descriptor_offset: int = HEADER_BYTES
    has_kv_metadata: bool = False
    sorted_index: bool = False
    has_index_crc32c: bool = True
    tensor_count_hint: int = NO_HINT
    container_minor: int = 0

    def __post_init__(self) -> None:
        alignment = self.data_buffer_alignment
        if not MIN_ALIGNMENT <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise InvalidFileError(
                f"data_buffer_alignment {alignment} is not a power of two in {MIN_ALIGNMENT}..{MAX_ALIGNMENT}",
                rule="container.alignment",
                declared=(MIN_ALIGNMENT, MAX_ALIGNMENT),
                found=alignment,
            )
        first = self.first_descriptor_offset
        if first < HEADER_BYTES or first % STRUCTURE_ALIGNMENT:
            raise InvalidFileError(
                f"first_descriptor_offset {first} is not a multiple of {STRUCTURE_ALIGNMENT} from {HEADER_BYTES} on",
                rule="container.first-descriptor",
                declared=HEADER_BYTES,
                found=first,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trailer:
    """The last 40 bytes of a file. ``kv_offset`` and ``kv_length`` are both 0 where there is no metadata."""

    index_offset: int
    index_length: int
    kv_offset: int = 0
    kv_length: int = 0
    index_crc32c: int = 0


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


@dataclass(frozen=True, slots=True)
class Region:
    """A run of bytes that is one thing. ``slack`` bounds the padding that may follow it (exclusive)."""

    start: int
    end: int
    what: str
    slack: int = STRUCTURE_ALIGNMENT


class Regions(Sequence[Region]):
    """Every region of a file, in order. Kept as columns, since a file may have some 100,000 of them."""

    def __init__(self, header: FileHeader, trailer: Trailer, index: Index, file_size: int) -> None:
        first = header.first_descriptor_offset
        self._index = index
        self._fixed = [
            Region(0, HEADER_BYTES, "the header", first - HEADER_BYTES + STRUCTURE_ALIGNMENT),
            Region(trailer.index_offset, trailer.index_offset + trailer.index_length, "the index"),
            Region(file_size - TRAILER_BYTES, file_size, "the trailer"),
        ]
        if trailer.kv_length:
            end = trailer.kv_offset + trailer.kv_length
            self._fixed.append(Region(trailer.kv_offset, end, "the key-value section"))
        self._with_data = np.flatnonzero(index.data_lengths)
        descriptors, data = index.descriptor_offsets, index.data_offsets[self._with_data]
        starts = np.concatenate([descriptors, data, [region.start for region in self._fixed]])
        ends = np.concatenate(
            [
                descriptors + index.descriptor_lengths,
                data + index.data_lengths[self._with_data],
                [region.end for region in self._fixed],
            ]
        )
        slacks = np.concatenate(
            [
                np.full(len(descriptors), header.data_buffer_alignment),
                np.full(len(data), STRUCTURE_ALIGNMENT),
                [region.slack for region in self._fixed],
            ]
        )
        self._order = np.argsort(starts, kind="stable")
        self.starts, self.ends, self.slacks = starts[self._order], ends[self._order], slacks[self._order]

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, place: int) -> Region: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Region]: ...
    def __getitem__(self, place: int | slice) -> Region | Sequence[Region]:
        if isinstance(place, slice):
            return [self[k] for k in range(*place.indices(len(self)))]
        return Region(int(self.starts[place]), int(self.ends[place]), self._what(place), int(self.slacks[place]))

    def gaps(self) -> NDArray[np.intp]:
        """Places of the regions that are followed by padding."""
        return np.flatnonzero(self.starts[1:] > self.ends[:-1])

    def _what(self, place: int) -> str:
        number = int(self._order[place])
        tensors, with_data = len(self._index), len(self._with_data)
        if number < tensors:
            return f"the descriptor of {self._index.names[number]!r}"
        number -= tensors
        if number < with_data:
            return f"the data of {self._index.names[self._with_data[number]]!r}"
        return self._fixed[number - with_data].what


def decode_header(raw: memoryview) -> FileHeader:
    """The file header held by the first 64 bytes."""
    cursor = Cursor(raw, area="container", error=InvalidFileError)
    record = cursor.take(structs.FILE_HEADER, "the file")
    with located(0):
        if record.container_major != CONTAINER_MAJOR:
            kind: type[HurrayError] = UnsupportedError if record.container_major else InvalidFileError
            raise kind(
                f"container version {record.container_major}.{record.container_minor} is not {CONTAINER_MAJOR}.x",
                rule="container.version-major",
                declared=CONTAINER_MAJOR,
                found=record.container_major,
            )
        if record.file_flags & ~(HAS_KV_METADATA | SORTED_INDEX | HAS_INDEX_CRC32C):
            raise InvalidFileError(
                f"file_flags 0x{record.file_flags:08X} hold unknown bits",
                rule="container.flags",
                found=record.file_flags,
            )
        return FileHeader(
            data_buffer_alignment=record.data_buffer_alignment,
            first_descriptor_offset=record.first_descriptor_offset,
            has_kv_metadata=bool(record.file_flags & HAS_KV_METADATA),
            sorted_index=bool(record.file_flags & SORTED_INDEX),
            has_index_crc32c=bool(record.file_flags & HAS_INDEX_CRC32C),
            tensor_count_hint=record.tensor_count_hint,
            container_minor=record.container_minor,
        )


def encode_header(header: FileHeader) -> bytes:
    """The 64 bytes of a file header."""
    flags = (
        HAS_KV_METADATA * header.has_kv_metadata
        | SORTED_INDEX * header.sorted_index
        | HAS_INDEX_CRC32C * header.has_index_crc32c
    )
    return build(
        structs.FILE_HEADER,
        {
            "container_major": CONTAINER_MAJOR,
            "container_minor": header.container_minor,
            "file_flags": flags,
            "data_buffer_alignment": header.data_buffer_alignment,
            "first_descriptor_offset": header.first_descriptor_offset,
            "tensor_count_hint": header.tensor_count_hint,
        },
    )


def decode_trailer(raw: memoryview, *, file_size: int, header: FileHeader, limits: Limits) -> Trailer:
    """The trailer held by the last 40 bytes of a file of ``file_size`` bytes, its places checked against that size."""
    end = file_size - TRAILER_BYTES
    if bytes(raw[-4:]) != structs.DESCRIPTOR_MAGIC:
        # said before anything else of the trailer, since what stands there is then not one
        raise TruncatedError(
            f"the file ends in {bytes(raw[-4:]).hex(' ')} and not in a trailer: it is cut short, or bytes follow it",
            rule="trailer.magic",
            offset=file_size - 4,
            found=bytes(raw[-4:]),
        )
    cursor = Cursor(raw, area="trailer", base=end, error=InvalidFileError)
    record = cursor.take(structs.TRAILER, "the trailer, at the end of the file,")
    trailer = Trailer(
        index_offset=record.index_offset,
        index_length=record.index_length,
        kv_offset=record.kv_offset,
        kv_length=record.kv_length,
        index_crc32c=record.index_crc32c,
    )
    with located(end):
        _check_place("the index", trailer.index_offset, trailer.index_length, end, "trailer.index-place")
        _check_limit("the index", trailer.index_length, limits.max_index_bytes, "limit.index-bytes")
        if header.has_kv_metadata or (trailer.kv_offset and trailer.kv_length):
            _check_place("the key-value section", trailer.kv_offset, trailer.kv_length, end, "trailer.kv-place")
            _check_limit("the metadata", trailer.kv_length, limits.max_metadata_bytes, "limit.metadata-bytes")
        elif trailer.kv_offset or trailer.kv_length:
            raise InvalidFileError(
                f"the key-value section has offset {trailer.kv_offset} and length {trailer.kv_length}: "
                "only one of them is zero",
                rule="trailer.kv-place",
            )
        if not header.has_index_crc32c and trailer.index_crc32c:
            raise InvalidFileError(
                f"index_crc32c is 0x{trailer.index_crc32c:08X} in a file without an index checksum",
                rule="trailer.crc-unused",
                declared=0,
                found=trailer.index_crc32c,
            )
    return trailer


def encode_trailer(trailer: Trailer) -> bytes:
    """The 40 bytes of a trailer."""
    return build(
        structs.TRAILER,
        {
            "index_offset": trailer.index_offset,
            "index_length": trailer.index_length,
            "kv_offset": trailer.kv_offset,
            "kv_length": trailer.kv_length,
            "index_crc32c": trailer.index_crc32c,
        },
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


def check_regions(header: FileHeader, trailer: Trailer, index: Index, file_size: int) -> Regions:
    """The regions of a file in order; refuses overlaps and holes. Needs no payload."""
    regions = Regions(header, trailer, index, file_size)
    first = header.first_descriptor_offset
    lowest = int(index.descriptor_offsets[0]) if len(index) else int(regions.starts[1])
    if (len(index) and first != lowest) or first > lowest:
        raise InvalidFileError(
            f"first_descriptor_offset is {first}, but the first descriptor stands at {lowest}",
            rule="container.first-descriptor",
            offset=20,
            declared=first,
            found=lowest,
        )
    between = regions.starts[1:] - regions.ends[:-1]
    faults = np.flatnonzero((between < 0) | (between >= regions.slacks[:-1]))
    if len(faults):
        before, region = regions[int(faults[0])], regions[int(faults[0]) + 1]
        if region.start < before.end:
            raise InvalidFileError(
                f"{region.what} (bytes {region.start} to {region.end}) overlaps {before.what} "
                f"(bytes {before.start} to {before.end})",
                rule="container.overlap",
                offset=region.start,
                declared=before.end,
                found=region.start,
            )
        raise InvalidFileError(
            f"{region.start - before.end} bytes between {before.what} and {region.what} belong to nothing",
            rule="container.hole",
            offset=before.end,
            declared=before.slack - 1,
            found=region.start - before.end,
        )
    return regions


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


def _check_place(what: str, offset: int, length: int, end: int, rule: str) -> None:
    if offset < HEADER_BYTES or offset % STRUCTURE_ALIGNMENT or offset + length > end or length < 4:
        raise InvalidFileError(
            f"{what} is said to be {length} bytes at {offset}, in a file whose trailer starts at {end}",
            rule=rule,
            declared=(offset, length),
            found=end,
        )


def _check_limit(what: str, size: int, limit: int, rule: str) -> None:
    if size > limit:
        raise LimitError(f"{what} has {size} bytes, above the limit of {limit}", rule=rule, declared=limit, found=size)

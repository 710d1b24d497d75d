"""The two ends of a file: header and trailer; bytes to objects and back (spec/container.md).

What stands between them is listed in the index (``index.py``); that every byte belongs to something is held by
``regions.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import HurrayError, InvalidFileError, LimitError, TruncatedError, UnsupportedError
from ..limits import Limits
from . import structs
from .doorway import Cursor, build, located, size_of

__all__ = [
    "HEADER_BYTES",
    "MIN_ALIGNMENT",
    "STRUCTURE_ALIGNMENT",
    "TRAILER_BYTES",
    "FileHeader",
    "Trailer",
    "align_up",
    "decode_header",
    "decode_trailer",
    "encode_header",
    "encode_trailer",
]

HEADER_BYTES = size_of(structs.FILE_HEADER)
TRAILER_BYTES = size_of(structs.TRAILER)

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

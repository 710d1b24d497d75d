"""The seek table of a compressed file: bytes to object and back (spec/compressed.md, "Seek table").

The table is a skippable frame at the very end of the file. It lists every frame before it, in order, by its sizes and,
where the flag says so, the checksum of what it inflates to. Here it is held to the file's size and to what a zstd frame
can do at all; what only a frame's own header can tell is left to ``store/frames.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InvalidFileError, LimitError, TruncatedError
from ..limits import MAX_FRAME_BYTES, Limits
from . import structs
from .doorway import Cursor, build, row_dtype, size_of

__all__ = [
    "FOOTER_BYTES",
    "SEEKABLE_MAGIC",
    "SeekFooter",
    "SeekTable",
    "decode_seek_footer",
    "decode_seek_table",
    "encode_seek_table",
]

SEEKABLE_MAGIC = bytes.fromhex("b1 ea 92 8f")  # the last four bytes of a file that has a table
TABLE_MAGIC = bytes.fromhex("5e 2a 4d 18")
FOOTER_BYTES = size_of(structs.SEEK_FOOTER)

MAX_RATIO = 1 << 15  # a block of a zstd frame takes at least 4 bytes and yields at most 128 KiB
MIN_FRAME_BYTES = 8  # a skippable frame without content; a frame with content takes more

CHECKSUM_FLAG, RESERVED_BITS = 0x80, 0x7C  # the two lowest bits mean nothing


@dataclass(frozen=True, slots=True)
class SeekFooter:
    """The last bytes of a table, which tell how long it is."""

    frames: int
    has_checksums: bool

    @property
    def table_bytes(self) -> int:
        """Bytes of the whole table, its header and this footer included."""
        return size_of(structs.SKIPPABLE_HEADER) + self.frames * row_dtype(self.row).itemsize + FOOTER_BYTES

    @property
    def row(self) -> Any:
        return structs.SEEK_ENTRY_CHECKED if self.has_checksums else structs.SEEK_ENTRY


@dataclass(frozen=True, slots=True, eq=False)
class SeekTable:
    """What a table tells of each frame, in the order of the file; ``checksums`` is None where it has none.

    A checksum is the low 32 bits of XXH64 (seed 0) of the bytes that the frame inflates to.
    """

    compressed_sizes: NDArray[np.int64]
    decompressed_sizes: NDArray[np.int64]
    checksums: NDArray[np.uint32] | None

    def __len__(self) -> int:
        return len(self.compressed_sizes)


def decode_seek_footer(raw: memoryview, *, file_size: int, limits: Limits) -> SeekFooter:
    """The footer held by the last ``FOOTER_BYTES`` bytes of a file that ends with ``SEEKABLE_MAGIC``."""
    base = file_size - FOOTER_BYTES
    record = Cursor(raw, area="compressed", base=base, error=InvalidFileError).take(structs.SEEK_FOOTER, "the footer")
    if record.descriptor & RESERVED_BITS:
        raise InvalidFileError(
            f"the seek table's descriptor 0x{record.descriptor:02X} has reserved bits that are not zero",
            rule="compressed.reserved",
            offset=base,
            found=record.descriptor,
        )
    footer = SeekFooter(record.number_of_frames, bool(record.descriptor & CHECKSUM_FLAG))
    if footer.frames > limits.max_frames:
        raise LimitError(
            f"the seek table lists {footer.frames} frames, above the limit of {limits.max_frames}",
            rule="limit.frames",
            offset=base,
            declared=limits.max_frames,
            found=footer.frames,
        )
    if footer.table_bytes > file_size:
        raise TruncatedError(
            f"a seek table of {footer.frames} frames has {footer.table_bytes} bytes, but the file has {file_size}",
            rule="compressed.truncated",
            offset=base,
            declared=footer.table_bytes,
            found=file_size,
        )
    return footer


def decode_seek_table(raw: memoryview, footer: SeekFooter, *, file_size: int) -> SeekTable:
    """The table held by the last ``footer.table_bytes`` bytes of a file. Nothing of it is kept."""
    base = file_size - footer.table_bytes
    cursor = Cursor(raw, area="compressed", base=base, error=InvalidFileError)
    header = cursor.take(structs.SKIPPABLE_HEADER, "the seek table")
    if header.magic != TABLE_MAGIC:
        raise InvalidFileError(
            f"no seek table starts where its {footer.frames} frames say: {header.magic.hex(' ')}",
            rule="compressed.table-magic",
            offset=base,
            declared=TABLE_MAGIC,
            found=header.magic,
        )
    content = footer.table_bytes - size_of(structs.SKIPPABLE_HEADER)
    if header.frame_size != content:
        raise InvalidFileError(
            f"the seek table is said to have {header.frame_size} bytes, but {footer.frames} frames take {content}",
            rule="compressed.table-length",
            offset=base,
            declared=header.frame_size,
            found=content,
        )
    rows = np.frombuffer(cursor.view(content - FOOTER_BYTES, "the seek table"), dtype=row_dtype(footer.row))
    table = SeekTable(
        rows["compressed_size"].astype(np.int64),
        rows["decompressed_size"].astype(np.int64),
        rows["checksum"].astype(np.uint32) if footer.has_checksums else None,
    )
    _check_entries(table)
    total = int(table.compressed_sizes.sum())
    if total != base:
        raise InvalidFileError(
            f"the frames that the seek table lists have {total} bytes, but {base} bytes stand before it",
            rule="compressed.table-sum",
            offset=base,
            declared=total,
            found=base,
        )
    return table


def encode_seek_table(compressed_sizes: ArrayLike, decompressed_sizes: ArrayLike, checksums: ArrayLike) -> bytes:
    """The bytes of a table with checksums. The sizes are those of frames that exist, each below 2**32."""
    columns = [np.asarray(column, dtype=np.uint32) for column in (compressed_sizes, decompressed_sizes, checksums)]
    rows = np.empty(len(columns[0]), dtype=row_dtype(structs.SEEK_ENTRY_CHECKED))
    for field, column in zip(rows.dtype.names or (), columns, strict=True):
        rows[field] = column
    header = {"magic": TABLE_MAGIC, "frame_size": rows.nbytes + FOOTER_BYTES}
    footer = {"number_of_frames": len(rows), "descriptor": CHECKSUM_FLAG, "magic": SEEKABLE_MAGIC}
    return build(structs.SKIPPABLE_HEADER, header) + rows.tobytes() + build(structs.SEEK_FOOTER, footer)


def _check_entries(table: SeekTable) -> None:
    """No entry tells what no frame can be."""
    compressed, decompressed = table.compressed_sizes, table.decompressed_sizes
    short = compressed < MIN_FRAME_BYTES
    if short.any():
        k = int(np.argmax(short))
        raise InvalidFileError(
            f"frame {k} is listed with {compressed[k]} bytes, fewer than any frame has",
            rule="compressed.entry",
            declared=int(compressed[k]),
            found=MIN_FRAME_BYTES,
        )
    large = decompressed > MAX_FRAME_BYTES
    if large.any():
        k = int(np.argmax(large))
        raise LimitError(
            f"frame {k} is listed with {decompressed[k]} inflated bytes, above the format's {MAX_FRAME_BYTES}",
            rule="compressed.frame-limit",
            declared=MAX_FRAME_BYTES,
            found=int(decompressed[k]),
        )
    lying = decompressed > compressed * MAX_RATIO
    if lying.any():
        k = int(np.argmax(lying))
        raise InvalidFileError(
            f"frame {k} is said to inflate from {compressed[k]} bytes to {decompressed[k]}, more than zstd can do",
            rule="compressed.ratio",
            declared=int(decompressed[k]),
            found=int(compressed[k]) * MAX_RATIO,
        )

"""One zstd frame: compressed, judged, inflated (spec/compressed.md, "Frames").

The only module that calls python-zstandard. It trusts no frame and not much of the library: the header is judged before
memory is asked for, trailing bytes are refused, what comes out is measured and its checksum compared by us, and every
thread has a context of its own, since contexts are not thread-safe. Which bytes make a frame is for the seek table to
say, or for :func:`blocks` to find out.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import xxhash
import zstandard

from ..errors import ChecksumError, InvalidFileError, LimitError, TruncatedError, UnsupportedError
from ..limits import FREE_BYTES, Limits

__all__ = [
    "FrameHeader",
    "blocks",
    "broken",
    "compress",
    "decode_frame_header",
    "decompressor",
    "extent",
    "inflate",
    "inflated_bytes_allowed",
    "is_skippable",
    "is_zstd",
    "skippable_bytes",
]

CHECKSUM_BYTES = 4  # at the end of a frame that has one: the low 32 bits of XXH64 of its content

_MAGIC = zstandard.FRAME_HEADER
_SKIPPABLE_TAIL = bytes.fromhex("2a 4d 18")  # after a byte 0x50..0x5F
_SKIPPABLE_HEADER = 8
_HEADER_MAX = 18
_UNKNOWN = zstandard.CONTENTSIZE_UNKNOWN
_BLOCK_HEADER = 3
_BLOCK_MAX = 128 << 10
_RAW, _RLE, _COMPRESSED = 0, 1, 2
WINDOW_MAX = 128 << 20  # what every zstd tool takes without being told to take more

_contexts = threading.local()


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The header of one frame. ``content_bytes`` is None where the frame does not tell."""

    header_bytes: int
    content_bytes: int | None
    window_bytes: int
    has_checksum: bool

    def check_window(self, offset: int) -> None:
        """Raise LimitError if inflating the frame bit by bit would need too much memory for what came before."""
        if self.window_bytes > WINDOW_MAX:
            raise LimitError(
                f"the frame needs a window of {self.window_bytes} bytes, above the limit of {WINDOW_MAX}",
                rule="limit.window",
                offset=offset,
                declared=WINDOW_MAX,
                found=self.window_bytes,
            )


def is_zstd(head: memoryview) -> bool:
    """True if a zstd frame starts here."""
    return head[:4] == _MAGIC


def is_skippable(head: memoryview) -> bool:
    """True if a skippable frame starts here."""
    return len(head) >= 4 and head[0] >> 4 == 5 and head[1:4] == _SKIPPABLE_TAIL


def skippable_bytes(head: memoryview) -> int:
    """Bytes of the skippable frame that starts here, its own header included; past the end if that is cut off."""
    return _SKIPPABLE_HEADER + int.from_bytes(head[4:_SKIPPABLE_HEADER], "little")


def compress(data: Any, level: int) -> bytes:
    """One frame of a contiguous buffer, with content size and checksum; the same bytes in whatever thread."""
    context = getattr(_contexts, "compressor", None)
    if context is None or context[0] != level:
        # threads=0: several threads in one frame would make other bytes of it
        made = zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True, threads=0)
        context = _contexts.compressor = (level, made)
    compressor: zstandard.ZstdCompressor = context[1]
    return compressor.compress(data)


def decompressor() -> zstandard.ZstdDecompressor:
    """The calling thread's own decompressor."""
    made: zstandard.ZstdDecompressor | None = getattr(_contexts, "decompressor", None)
    if made is None:
        made = _contexts.decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW_MAX)
    return made


def decode_frame_header(data: memoryview, offset: int) -> FrameHeader:
    """The header of the frame that starts ``data``, and in the file at ``offset``. Refuses what we cannot inflate."""
    if not is_zstd(data):
        raise InvalidFileError(
            f"no zstd frame starts here, but {bytes(data[:4]).hex(' ')}",
            rule="compressed.frame-magic",
            offset=offset,
            declared=_MAGIC,
            found=bytes(data[:4]),
        )
    head = data[:_HEADER_MAX]
    try:
        header = zstandard.get_frame_parameters(head)
        length = zstandard.frame_header_size(head)
    except zstandard.ZstdError as cause:
        raise InvalidFileError(
            f"the frame's header is broken: {cause}", rule="compressed.frame-header", offset=offset
        ) from cause
    if header.dict_id:
        raise UnsupportedError(
            f"the frame needs dictionary {header.dict_id}",
            rule="compressed.dictionary",
            offset=offset,
            found=header.dict_id,
        )
    known = header.content_size != _UNKNOWN
    return FrameHeader(length, header.content_size if known else None, header.window_size, header.has_checksum)


def blocks(data: memoryview, at: int, offset: int) -> Iterator[tuple[int, int]]:
    """For each block of a frame: where it ends in ``data``, and the most it can inflate to.

    ``at`` is where the first block starts in ``data``, which starts at ``offset`` in the file. Nothing is inflated.
    """
    last = False
    while not last:
        header = int.from_bytes(data[at : at + _BLOCK_HEADER], "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        end = at + _BLOCK_HEADER + (1 if kind == _RLE else size)
        if at + _BLOCK_HEADER > len(data) or end > len(data):
            raise TruncatedError(
                f"a block of the frame ends at {offset + end}, but the bytes end at {offset + len(data)}",
                rule="compressed.truncated",
                offset=offset + at,
                declared=offset + end,
                found=offset + len(data),
            )
        if kind > _COMPRESSED or size > _BLOCK_MAX:
            raise InvalidFileError(
                f"a block of the frame is of type {kind} and size {size}, which no block is",
                rule="compressed.inflate",
                offset=offset + at,
                found=(kind, size),
            )
        yield end, _BLOCK_MAX if kind == _COMPRESSED else size
        at = end


def extent(data: memoryview, header: FrameHeader, offset: int) -> tuple[int, int]:
    """Bytes of the frame that starts ``data``, and the most it can inflate to."""
    end, at_most = header.header_bytes, 0
    for block_end, most in blocks(data, end, offset):
        end = block_end
        at_most += most
    return end + CHECKSUM_BYTES * header.has_checksum, at_most


def inflated_bytes_allowed(stored: int, limits: Limits) -> int:
    """What so many compressed bytes may inflate to."""
    return max(FREE_BYTES, limits.max_inflated_ratio * stored)


def inflate(data: memoryview, size: int, *, offset: int, checksum: int | None = None) -> bytes:
    """What one frame inflates to: ``size`` bytes, no more and no less.

    ``data`` is the frame, all of it and nothing else, which stands at ``offset`` in the file; ``checksum`` is the one
    that the seek table has for it. The caller has bounded ``size``. A skippable frame is one of size 0.
    """
    if size == 0 and is_skippable(data):
        _check_end(skippable_bytes(data), data, offset)
        header, out = None, b""
    else:
        header = decode_frame_header(data, offset)
        if header.content_bytes not in (None, size):
            raise InvalidFileError(
                f"the frame tells a content of {header.content_bytes} bytes, but the seek table {size}",
                rule="compressed.content-size",
                offset=offset,
                declared=size,
                found=header.content_bytes,
            )
        if header.content_bytes is None:
            header.check_window(offset)  # a frame that tells its size is inflated at once, its output is its window
        out = _inflated(data, header, size, offset) if size else _empty(data, header, offset)
    if checksum is not None:
        if header is not None and header.has_checksum:
            found = int.from_bytes(data[-CHECKSUM_BYTES:], "little")  # the same sum, and zstd has just checked it
        else:
            found = _checksum(out)
        if found != checksum:
            raise ChecksumError(
                f"the frame's content has checksum 0x{found:08X}, but the seek table 0x{checksum:08X}",
                rule="compressed.table-checksum",
                offset=offset,
                declared=checksum,
                found=found,
            )
    return out


def broken(cause: zstandard.ZstdError, offset: int) -> InvalidFileError:
    """What zstd found, as an error of ours."""
    if "checksum" in str(cause):
        return ChecksumError(
            "the frame's content does not have the checksum that the frame ends with",
            rule="compressed.frame-checksum",
            offset=offset,
        )
    return InvalidFileError(f"the frame does not inflate: {cause}", rule="compressed.inflate", offset=offset)


def _inflated(data: memoryview, header: FrameHeader, size: int, offset: int) -> bytes:
    try:
        # max_output_size counts only where the frame tells no size; where it does, that is what we were asked for
        out = decompressor().decompress(data, max_output_size=size, allow_extra_data=False)
    except MemoryError as cause:
        raise LimitError(f"there is no memory for a frame of {size} bytes", rule="limit.memory", found=size) from cause
    except zstandard.ZstdError as cause:
        _check_end(extent(data, header, offset)[0], data, offset)
        raise broken(cause, offset) from cause
    if len(out) != size:
        raise InvalidFileError(
            f"the frame inflates to {len(out)} bytes, but the seek table tells {size}",
            rule="compressed.produced",
            offset=offset,
            declared=size,
            found=len(out),
        )
    return out


def _empty(data: memoryview, header: FrameHeader, offset: int) -> bytes:
    """zstandard returns before it looks at anything behind the header of an empty frame, so this looks."""
    end, at_most = extent(data, header, offset)
    _check_end(end, data, offset)
    if at_most:
        raise InvalidFileError(
            "the frame is said to be empty, but has blocks that are not",
            rule="compressed.produced",
            offset=offset,
            declared=0,
            found=at_most,
        )
    if header.has_checksum and int.from_bytes(data[-CHECKSUM_BYTES:], "little") != _checksum(b""):
        raise ChecksumError(
            "the empty frame does not have the checksum of nothing", rule="compressed.frame-checksum", offset=offset
        )
    return b""


def _checksum(content: bytes) -> int:
    return xxhash.xxh64_intdigest(content) & 0xFFFFFFFF


def _check_end(end: int, data: memoryview, offset: int) -> None:
    if end > len(data):
        raise TruncatedError(
            f"the frame has {end} bytes, but the seek table gives it {len(data)}",
            rule="compressed.truncated",
            offset=offset,
            declared=len(data),
            found=end,
        )
    if end < len(data):
        raise InvalidFileError(
            f"the frame ends after {end} bytes, but the seek table gives it {len(data)}",
            rule="compressed.frame-end",
            offset=offset,
            declared=len(data),
            found=end,
        )

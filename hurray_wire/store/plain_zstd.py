"""A zstd file without a seek table: inflated once, into anonymous memory (spec/compressed.md, "Plain zstd files").

One frame or many, with content sizes or without, skippable frames anywhere. The frames are walked first, block by block
and without inflating, so that the file is known to be whole, and what it claims to be possible, before memory is asked
for. They are then inflated a few blocks at a time; what does not begin as a file does is given up after the first.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

import zstandard

from ..errors import InvalidFileError, LimitError, TruncatedError
from ..limits import Limits
from ..wire import planes
from ..wire.container import HEADER_BYTES, decode_header
from ..wire.structs import DESCRIPTOR_MAGIC, FILE_MAGIC
from .frames import (
    FrameHeader,
    blocks,
    broken,
    decode_frame_header,
    decompressor,
    extent,
    inflated_bytes_allowed,
    is_skippable,
    skippable_bytes,
)
from .source import BytesSource, Compression, Source

__all__ = ["PlainZstdSource", "check_not_planes"]

_STEP_BYTES = 4 << 20  # what the blocks inflated in one step can come to


@dataclass(frozen=True, slots=True)
class _Frame:
    start: int
    end: int
    header: FrameHeader
    at_most: int  # bytes that its blocks can inflate to


class PlainZstdSource(BytesSource):
    """What a plain zstd file inflates to, in memory. The source of the compressed bytes is closed."""

    def __init__(self, inner: Source, limits: Limits) -> None:
        data = inner.view(0, inner.size)
        frames = list(_walk(data))
        super().__init__(_inflated(data, frames, limits))
        self._compression = Compression(
            seekable=False,
            planes=False,
            frames=len(frames),
            inflated=len(frames),
            compressed_bytes=inner.size,
            inflated_bytes=self.size,
        )
        inner.close()

    @property
    def compression(self) -> Compression:
        return self._compression


def _walk(data: memoryview) -> Iterator[_Frame]:
    """The frames of a file, each whole and claiming nothing impossible."""
    at = 0
    while at < len(data):
        rest = data[at:]
        if is_skippable(rest):
            at += skippable_bytes(rest)
            _check_whole(at, len(data))
            continue
        header = decode_frame_header(rest, at)
        end, at_most = extent(rest, header, at)
        _check_whole(at + end, len(data))
        if header.content_bytes is not None and header.content_bytes > at_most:
            raise InvalidFileError(
                f"the frame tells a content of {header.content_bytes} bytes, but its blocks hold {at_most} at most",
                rule="compressed.content-size",
                offset=at,
                declared=header.content_bytes,
                found=at_most,
            )
        header.check_window(at)
        yield _Frame(at, at + end, header, at_most)
        at += end


def _check_whole(end: int, size: int) -> None:
    if end > size:
        raise TruncatedError(
            f"a frame ends at {end}, but the file at {size}", rule="compressed.truncated", declared=end, found=size
        )


def _inflated(data: memoryview, frames: list[_Frame], limits: Limits) -> memoryview:
    allowed = min(limits.max_inflated_bytes, inflated_bytes_allowed(len(data), limits))
    declared = sum(frame.header.content_bytes or 0 for frame in frames)
    if declared > allowed:
        raise _too_large(declared, allowed, len(data))
    most = sum(frame.at_most if frame.header.content_bytes is None else frame.header.content_bytes for frame in frames)
    memory = _anonymous(min(most, allowed))
    position = 0
    judged = False
    for frame in frames:
        for piece in _pieces(data[frame.start : frame.end], frame):
            if position + len(piece) > len(memory):
                raise _too_large(position + len(piece), allowed, len(data))
            memory[position : position + len(piece)] = piece
            position += len(piece)
            if not judged and position >= HEADER_BYTES:
                _check_start(memory[:HEADER_BYTES])
                judged = True
    return memory[:position]


def _check_start(header: memoryview) -> None:
    check_not_planes(header)
    if header[: len(DESCRIPTOR_MAGIC)] == DESCRIPTOR_MAGIC and header[: len(FILE_MAGIC)] != FILE_MAGIC:
        raise InvalidFileError(
            "these are the bytes of a compressed stream; inflate it with zstd -d first",
            rule="container.magic",
            offset=0,
            declared=FILE_MAGIC,
            found=bytes(header[: len(FILE_MAGIC)]),
        )
    decode_header(header)


def check_not_planes(head: memoryview) -> None:
    """Raise InvalidFileError if byte planes begin here, where no seek table tells their frames."""
    if head[: len(planes.PLANES_MAGIC)] == planes.PLANES_MAGIC:
        raise InvalidFileError(
            "the bytes are those of a file of byte planes, which cannot be put together without its seek table",
            rule="compressed.planes-table",
            offset=0,
            found=planes.PLANES_MAGIC,
        )


def _anonymous(size: int) -> memoryview:
    try:
        return memoryview(mmap.mmap(-1, size) if size else bytearray())
    except (OSError, OverflowError, MemoryError) as cause:
        raise LimitError(f"there is no memory for {size} bytes", rule="limit.memory", found=size) from cause


def _pieces(data: memoryview, frame: _Frame) -> Iterator[bytes]:
    """What one frame inflates to, a few blocks at a time; as much as it tells, where it tells."""
    context = decompressor().decompressobj()
    told = frame.header.content_bytes
    produced = 0
    for step in _steps(data, frame):
        try:
            piece = context.decompress(step)
        except zstandard.ZstdError as cause:
            raise broken(cause, frame.start) from cause
        except MemoryError as cause:
            raise LimitError(
                "there is no memory to inflate a frame", rule="limit.memory", offset=frame.start
            ) from cause
        produced += len(piece)
        if told is not None and produced > told:
            break
        yield piece
    if told not in (None, produced):
        raise InvalidFileError(
            f"the frame inflates to {produced} bytes, but tells {told}",
            rule="compressed.produced",
            offset=frame.start,
            declared=told,
            found=produced,
        )
    if not context.eof or context.unused_data:
        raise InvalidFileError(
            "the frame does not end where its blocks end", rule="compressed.frame-end", offset=frame.start
        )


def _steps(data: memoryview, frame: _Frame) -> Iterator[memoryview]:
    """The bytes of a frame in parts that inflate to a bounded size."""
    begin = pending = 0
    for end, most in blocks(data, frame.header.header_bytes, frame.start):
        pending += most
        if pending >= _STEP_BYTES:
            yield data[begin:end]
            begin, pending = end, 0
    if begin < len(data):
        yield data[begin:]


def _too_large(size: int, allowed: int, stored: int) -> LimitError:
    return LimitError(
        f"the file of {stored} bytes inflates to {size} or more, above the limit of {allowed}",
        rule="limit.inflated-bytes",
        declared=allowed,
        found=size,
    )

"""A zstd file without a seek table: inflated once, into anonymous memory (spec/compressed.md, "Plain zstd files").

One frame or many, with content sizes or without, skippable frames anywhere. The frames are walked first, block by block
and without inflating, so that the file is known to be whole, and what it claims to be possible, before memory is asked
for. They are then inflated a few blocks at a time.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

import zstandard

from ..errors import InvalidFileError, LimitError, TruncatedError
from ..limits import Limits
from .frames import (
    FrameHeader,
    blocks,
    broken,
    decode_frame_header,
    decompressor,
    extent,
    is_skippable,
    skippable_bytes,
)
from .source import BytesSource, Compression, Source

__all__ = ["PlainZstdSource"]

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
    declared = sum(frame.header.content_bytes or 0 for frame in frames)
    if declared > limits.max_inflated_bytes:
        raise _too_large(declared, limits)
    most = sum(frame.at_most if frame.header.content_bytes is None else frame.header.content_bytes for frame in frames)
    memory = _anonymous(min(most, limits.max_inflated_bytes))
    position = 0
    for frame in frames:
        for piece in _pieces(data[frame.start : frame.end], frame):
            if position + len(piece) > len(memory):
                raise _too_large(position + len(piece), limits)
            memory[position : position + len(piece)] = piece
            position += len(piece)
    return memory[:position]


def _anonymous(size: int) -> memoryview:
    try:
        return memoryview(mmap.mmap(-1, size) if size else b"")
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


def _too_large(size: int, limits: Limits) -> LimitError:
    return LimitError(
        f"the file inflates to {size} bytes or more, above the limit of {limits.max_inflated_bytes}",
        rule="limit.inflated-bytes",
        declared=limits.max_inflated_bytes,
        found=size,
    )

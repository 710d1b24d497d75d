"""A sink that compresses what is written to it and hands it on (spec/compressed.md, "Writing").

One forward pass: bytes are cut into frames, each at most 1 MiB and never across a place that the writer has marked by
:meth:`CompressedSink.cut`; frames are compressed side by side on all cores, handed on in order, and listed in the
table that ends the file. A frame depends on nothing but its own bytes and the level, so that the file is the same
whatever the number of threads. A bounded number of bytes is under way at any time.
"""

from __future__ import annotations

import math
import operator
from array import array
from collections import deque
from concurrent.futures import Future, wait
from typing import Any

import numpy as np

from ..errors import IncompatibleError, LimitError, UnsupportedError
from ..limits import MAX_FRAME_BYTES, Limits
from ..model.block_paged import BlockPagedLayout
from ..model.descriptor import TensorDescriptor
from ..model.shape import DYNAMIC
from ..parallel import submit
from ..wire import planes
from ..wire.seektable import encode_seek_table
from ..wire.structs import FILE_MAGIC
from .frames import CHECKSUM_BYTES, compress
from .sink import Sink

__all__ = ["DEFAULT_LEVEL", "DEFAULT_LEVEL_PLANES", "FRAME_BYTES", "CompressedSink", "level_of", "whole_pages"]

FRAME_BYTES = 1 << 20  # inflated; smaller ones compress worse, larger ones make a gather inflate more it does not need

DEFAULT_LEVEL = 3
DEFAULT_LEVEL_PLANES = 1
_LEVELS = range(-7, 23)

_MAX_FRAMES = Limits().max_frames  # what is written can be read
_UNDER_WAY_BYTES = 24 << 20  # enough for a dozen cores, and what keeps packing small beside its input
_UNDER_WAY_FRAMES = 256
_INLINE_BYTES = 16 << 10  # compressed sooner than a thread wakes up


class CompressedSink(Sink):
    """Compresses into another sink, which it owns."""

    def __init__(self, inner: Sink, *, level: int, planes: bool) -> None:
        super().__init__()
        self._inner = inner
        self._level = level
        self._planes = planes
        self._frame_bytes = FRAME_BYTES
        self._element_bytes = 1
        self._held = bytearray()
        self._under_way: deque[tuple[Future[bytes], int]] = deque()
        self._under_way_bytes = 0
        self._sizes, self._inflated_sizes, self._checksums = array("I"), array("I"), array("I")

    def check_unit(self, unit_bytes: int) -> None:
        if unit_bytes > MAX_FRAME_BYTES:
            raise UnsupportedError(
                f"a page of {unit_bytes} bytes does not fit into a frame, which holds {MAX_FRAME_BYTES} at most",
                rule="compressed.page-size",
                declared=MAX_FRAME_BYTES,
                found=unit_bytes,
            )

    def cut(self, unit_bytes: int = 1, element_bytes: int = 1) -> None:
        self._end_frame()
        self._frame_bytes = max(FRAME_BYTES // unit_bytes, 1) * unit_bytes
        self._element_bytes = element_bytes if self._planes else 1

    def commit(self, *, durable: bool) -> None:
        self._end_frame()
        while self._under_way:
            self._hand_on()
        self._inner.write(encode_seek_table(self._sizes, self._inflated_sizes, self._checksums))
        self._inner.commit(durable=durable)

    def abort(self) -> None:
        futures = [future for future, _ in self._under_way]
        self._under_way.clear()
        for future in futures:
            future.cancel()
        wait(futures)
        self._inner.abort()

    def _write(self, view: memoryview) -> None:
        if self.position == 0 and self._planes:
            assert view[: len(FILE_MAGIC)] == FILE_MAGIC, "a file is written from its start"
            self._held += planes.PLANES_MAGIC
            view = view[len(FILE_MAGIC) :]
        while view:
            part = view[: self._frame_bytes - len(self._held)]
            view = view[len(part) :]
            if len(part) == self._frame_bytes:
                self._compress(bytes(part))  # a copy, since the view is the writer's again when this returns
                continue
            self._held += part
            if len(self._held) == self._frame_bytes:
                self._end_frame()

    def _end_frame(self) -> None:
        if self._held:
            frame, self._held = self._held, bytearray()
            self._compress(frame)

    def _compress(self, data: bytes | bytearray) -> None:
        """Begin to compress one frame, and hand on as many earlier ones as keeps what is under way within bounds."""
        if len(self._sizes) + len(self._under_way) == _MAX_FRAMES:
            raise LimitError(
                f"the file would have more than the {_MAX_FRAMES} frames that a reader takes",
                rule="limit.frames",
                declared=_MAX_FRAMES,
            )
        job = data, self._element_bytes, self._level
        future: Future[bytes]
        if len(data) < _INLINE_BYTES:
            future = Future()
            future.set_result(_compressed(job))
        else:
            future = submit(_compressed, job)
        self._under_way.append((future, len(data)))
        self._under_way_bytes += len(data)
        while self._under_way_bytes > _UNDER_WAY_BYTES or len(self._under_way) > _UNDER_WAY_FRAMES:
            self._hand_on()

    def _hand_on(self) -> None:
        """Write the frame that is next in order, as soon as it is ready."""
        future, size = self._under_way.popleft()
        frame = future.result()
        self._under_way_bytes -= size
        self._inner.write(frame)
        self._sizes.append(len(frame))
        self._inflated_sizes.append(size)
        self._checksums.append(int.from_bytes(frame[-CHECKSUM_BYTES:], "little"))  # the table's sum is the frame's own


def level_of(zstd: Any, *, planes: bool) -> int | None:
    """The level that ``zstd=`` asks for: None for none (None or False), the default for True, else an integer."""
    if zstd is None or zstd is False:
        if planes:
            raise IncompatibleError(
                "planes=True stores byte planes in compressed frames, so it needs zstd=True or a level",
                rule="compressed.planes-without-zstd",
            )
        return None
    if zstd is True:
        return DEFAULT_LEVEL_PLANES if planes else DEFAULT_LEVEL
    level = operator.index(zstd)
    if level not in _LEVELS or level == 0:
        raise IncompatibleError(
            f"zstd={level} is not a level: {_LEVELS[0]} to {_LEVELS[-1]}, and not 0",
            rule="compressed.level",
            declared=(_LEVELS[0], _LEVELS[-1]),
            found=level,
        )
    return level


def whole_pages(descriptor: TensorDescriptor) -> int:
    """Bytes of the smallest number of whole pages that fill whole bytes; of one element, where pages have no size."""
    per_group, group_bytes = descriptor.element_type.group
    layout, shape = descriptor.layout, descriptor.shape
    if not isinstance(layout, BlockPagedLayout):
        return 1
    heads, dim = shape[1], shape[2]
    elements = 0 if DYNAMIC in (heads, dim) else layout.page_size * heads * dim
    return math.lcm(elements, per_group) // per_group * group_bytes if elements else group_bytes


def _compressed(job: tuple[bytes | bytearray, int, int]) -> bytes:
    data, element_bytes, level = job
    if element_bytes > 1:
        return compress(planes.split(np.frombuffer(data, dtype=np.uint8), element_bytes), level)
    return compress(data, level)

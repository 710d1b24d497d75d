"""A sink that compresses what is written to it and hands it on (spec/compressed.md, "Writing").

One forward pass: bytes are cut into frames, each at most 1 MiB and never across a place that the writer has marked by
:meth:`CompressedSink.cut`; frames are compressed side by side on all cores, handed on in order, and listed in the
table that ends the file. A frame depends on nothing but its own bytes and the level, so that the file is the same
whatever the number of threads. A bounded number of bytes is under way at any time.

Bytes come in two ways: written, as to any sink, or as parts that are made by the thread that compresses them, which
then has them in its cache, and sums them up there.
"""

from __future__ import annotations

import math
import operator
import os
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import BufferSizeError, IncompatibleError, InvalidFileError, LimitError, UnsupportedError
from ..limits import FREE_BYTES, Limits
from ..model.block_paged import BlockPagedLayout
from ..model.descriptor import TensorDescriptor
from ..model.shape import DYNAMIC
from ..parallel import cpu_count, result_of, settle, submit
from ..wire import planes
from ..wire.checksum import combined, crc32c
from ..wire.seektable import encode_seek_table
from ..wire.structs import FILE_MAGIC
from .frames import CHECKSUM_BYTES, compress
from .sink import Sink

__all__ = ["DEFAULT_LEVEL", "FRAME_BYTES", "CompressedSink", "Maker", "Tally", "level_of", "whole_pages"]

FRAME_BYTES = 1 << 20  # inflated; smaller ones compress worse, larger ones make a gather inflate more it does not need

# Measured on a real bfloat16 cache (tools/bench_zstd.py): in tokens that do not repeat, higher levels find nothing more
# (plain frames 1.27 at each) or do worse (planes 1.45 at level 1, 1.39 at 3), in twice the time and more.
DEFAULT_LEVEL = 1
_LEVELS = range(-7, 23)

Bytes: TypeAlias = NDArray[np.uint8]
Maker: TypeAlias = Callable[[Bytes], Bytes]
"""Makes bytes that fill the memory that it is given, in it or elsewhere; where is its answer."""

_MAX_FRAMES = Limits().max_frames  # what is written can be read
_UNDER_WAY_PER_CPU = 2 << 20  # a thread compresses one frame while its next one is made; more only misses the caches
_UNDER_WAY_BYTES = 24 << 20  # packing stays small beside its input, whatever the machine
_UNDER_WAY_FRAMES = 256
_INLINE_BYTES = 16 << 10  # compressed sooner than a thread wakes up

_SCRATCH_BYTES = 1 << 20  # what a thread keeps, enough for frames of the usual size

_scratch = threading.local()


class Tally:
    """The CRC-32C of bytes whose parts are summed up on their own."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, checksum: int, size: int) -> None:
        self.value = combined(self.value, checksum, size)


class _Job(NamedTuple):
    """What a thread is to do for one frame, whose bytes ``make`` brings into ``memory``, which is of their size."""

    make: Maker
    memory: Bytes
    element_bytes: int
    level: int
    summed: bool


class _UnderWay(NamedTuple):
    future: Future[tuple[bytes, int]]
    job: _Job
    memory: Bytes | None  # to be used again
    tally: Tally | None


class CompressedSink(Sink):
    """Compresses into another sink, which it owns."""

    def __init__(self, inner: Sink, *, level: int, planes: bool) -> None:
        super().__init__()
        self._inner = inner
        self._process = os.getpid()
        self._level = level
        self._planes = planes
        self._frame_bytes = FRAME_BYTES
        self._element_bytes = 1
        self._frame: Bytes | None = None  # the frame that is being filled, and how far it is
        self._filled = 0
        self._spare: list[Bytes] = []  # frames that were handed on: new memory costs more than the copy into it
        self._under_way: deque[_UnderWay] = deque()
        self._under_way_bytes = 0
        self._under_way_limit = min((cpu_count() + 1) * _UNDER_WAY_PER_CPU, _UNDER_WAY_BYTES)
        self._sizes, self._inflated_sizes, self._checksums = array("I"), array("I"), array("I")

    def check_unit(self, unit_bytes: int) -> None:
        if unit_bytes > FREE_BYTES:  # of zeros it would be more than a reader inflates out of a few bytes
            raise UnsupportedError(
                f"a page of {unit_bytes} bytes does not fit into a frame, which holds {FREE_BYTES} at most",
                rule="compressed.page-size",
                declared=FREE_BYTES,
                found=unit_bytes,
            )

    def cut(self, unit_bytes: int = 1, element_bytes: int = 1) -> None:
        self._end_frame()
        frame_bytes = max(FRAME_BYTES // unit_bytes, 1) * unit_bytes
        if frame_bytes != self._frame_bytes:
            self._frame_bytes = frame_bytes
            self._spare.clear()
        self._element_bytes = element_bytes if self._planes else 1

    def write_parts(self, parts: Iterable[tuple[int, Maker]], tally: Tally | None) -> None:
        """Write what the makers make, each as a frame of its own, and of the size that is told with it.

        Comes right after :meth:`cut`; parts are of ``frame_bytes``, but for the last, which may be smaller. They are
        made in other threads, some of them after this has returned. ``tally`` is told of each, in order, by the time
        that :meth:`drain` returns.
        """
        for size, make in parts:
            memory = self._new_frame()
            self._begin(_Job(make, memory[:size], self._element_bytes, self._level, tally is not None), memory, tally)
            self.position += size

    @property
    def frame_bytes(self) -> int:
        """The size of all frames but the last, up to the next cut."""
        return self._frame_bytes

    def drain(self) -> None:
        """End the frame that is being filled, and wait until all frames are handed on."""
        self._end_frame()
        while self._under_way:
            self._hand_on()

    def commit(self, *, durable: bool) -> None:
        self.drain()
        self._inner.write(encode_seek_table(self._sizes, self._inflated_sizes, self._checksums))
        self._inner.commit(durable=durable)

    def abort(self) -> None:
        futures = [frame.future for frame in self._under_way]
        self._under_way.clear()
        if self._process == os.getpid():  # in a forked child nobody is at work on them
            settle(futures)
        self._inner.abort()

    def _write(self, view: memoryview) -> None:
        if self.position == 0 and self._planes:
            assert view[: len(FILE_MAGIC)] == FILE_MAGIC, "a file is written from its start"
            view = memoryview(planes.PLANES_MAGIC + view[len(FILE_MAGIC) :])
        data = np.frombuffer(view, dtype=np.uint8)
        # The view is the writer's again when this returns. Until then frames are borrowed from it; those that may then
        # still be under way, and the one that is only begun, are copies. NumPy lets other threads run meanwhile.
        copied = self._under_way_limit + 2 * self._frame_bytes
        while len(data):
            if self._frame is None:
                if len(data) >= copied:
                    self._compress(data[: self._frame_bytes])
                    data = data[self._frame_bytes :]
                    continue
                self._frame = self._new_frame()
            part = data[: len(self._frame) - self._filled]
            self._frame[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            if self._filled == len(self._frame):
                self._end_frame()
            data = data[len(part) :]

    def _new_frame(self) -> Bytes:
        return self._spare.pop() if self._spare else np.empty(self._frame_bytes, dtype=np.uint8)

    def _end_frame(self) -> None:
        if self._frame is not None:
            frame, filled = self._frame, self._filled
            self._frame, self._filled = None, 0
            self._compress(frame[:filled], frame)

    def _compress(self, data: Bytes, memory: Bytes | None = None) -> None:
        """Begin to compress a frame that is there. ``memory`` is what it lies in, to be used again, if that is ours."""
        self._begin(_Job(_itself, data, self._element_bytes, self._level, False), memory, None)

    def _begin(self, job: _Job, memory: Bytes | None, tally: Tally | None) -> None:
        """Begin one frame, and hand on as many earlier ones as keeps what is under way within bounds."""
        if len(self._sizes) + len(self._under_way) == _MAX_FRAMES:
            raise LimitError(
                f"the file would have more than the {_MAX_FRAMES} frames that a reader takes",
                rule="limit.frames",
                declared=_MAX_FRAMES,
            )
        size = len(job.memory)
        future: Future[tuple[bytes, int]]
        if size < _INLINE_BYTES:
            future = Future()
            future.set_result(_compressed(job))
        else:
            future = submit(_compressed, job)
        self._under_way.append(_UnderWay(future, job, memory, tally))
        self._under_way_bytes += size
        while self._under_way_bytes > self._under_way_limit or len(self._under_way) > _UNDER_WAY_FRAMES:
            self._hand_on()

    def _hand_on(self) -> None:
        """Write the frame that is next in order, as soon as it is ready."""
        if self._process != os.getpid():
            raise InvalidFileError(
                "frames of this file were being compressed when the process forked; the child cannot finish them",
                rule="file.unfinished",
            )
        future, job, memory, tally = self._under_way.popleft()
        frame, checksum = result_of(future, job, _compressed)
        size = len(job.memory)
        self._under_way_bytes -= size
        if memory is not None and len(memory) == self._frame_bytes:
            self._spare.append(memory)
        if tally is not None:
            tally.add(checksum, size)
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
        return DEFAULT_LEVEL
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


def _itself(memory: Bytes) -> Bytes:
    return memory


def _compressed(job: _Job) -> tuple[bytes, int]:
    """One frame, and the CRC-32C of its bytes if that is wanted, otherwise 0."""
    data = job.make(job.memory)
    if len(data) != len(job.memory):
        raise BufferSizeError(
            f"a part of {len(job.memory)} bytes was made with {len(data)}",
            rule="buffer.size",
            declared=len(job.memory),
            found=len(data),
        )
    checksum = crc32c(data) if job.summed else 0
    if job.element_bytes > 1:
        data = planes.split(data, job.element_bytes, _scratch_of(len(data)))
    return compress(data, job.level), checksum


def _scratch_of(size: int) -> Bytes:
    """Memory of the calling thread for so many bytes, which is used again."""
    if size > _SCRATCH_BYTES:
        return np.empty(size, dtype=np.uint8)
    memory: Bytes | None = getattr(_scratch, "memory", None)
    if memory is None:
        memory = _scratch.memory = np.empty(_SCRATCH_BYTES, dtype=np.uint8)
    return memory[:size]

"""A file at a URL as a source: what is asked for comes by range requests, few, side by side, and only that.

Round trips are what reading far away costs, so three things save them. Opening brings both ends of the file, where the
header, the trailer, the index and the table of a compressed file are. A small stretch brings what follows it, for
tables and descriptors stand in groups. And who is going to read many stretches says so, by ``prefetch``. What came so
is held, a bounded amount of it, and looked up before anything is asked for; pages are not held. How stretches become
requests is left to ``ranges.py``, how these are sent to ``remote_files.py``.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import forks
from .ranges import merged, plan
from .remote_files import connect
from .source import CopyingSource, runs

__all__ = ["RemoteSource"]

_HEAD_BYTES = 16 << 10
_TAIL_BYTES = 64 << 10  # an index of some 500 tensors and their checksums
_TAIL_SHARE = 1 << 14  # of a large file one byte in so many is added: index and seek table grow with the file
_TAIL_MOST = 1 << 20
_SMALL_BYTES = 32 << 10  # what follows a stretch of up to this is brought along,
_WINDOW_BYTES = 64 << 10  # so that it is this much in all
_BEFORE_BYTES = 16 << 10  # before a stretch that is prefetched: the tables of one tensor end where the next begins
_HELD_BYTES = 32 << 20
_AHEAD_BYTES = 16 << 20  # at once by prefetch, so that several threads may do so
_ALIGNMENT = 64  # what is lent of an extent is as well aligned as it is in the file


class RemoteSource(CopyingSource):
    """The file at ``url``. ``options`` are those of the fsspec file system."""

    scatters = True

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        super().__init__()
        self._file = connect(url, options)
        head = self._file.begin(_HEAD_BYTES)
        self.size = self._file.size
        self._held = _Extents(_HELD_BYTES)
        tail = _TAIL_BYTES + min(_TAIL_MOST, self.size // _TAIL_SHARE)
        self._bring([(0, min(_HEAD_BYTES, self.size)), (max(0, self.size - tail), self.size)], head)

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> int:
        room = _AHEAD_BYTES
        taken = 0
        spans = []
        for offset, length in ranges:
            self._check(offset, length)
            if length and self._held.find(offset, length) is None:
                start = max(0, offset - _BEFORE_BYTES)
                room -= offset + length - start
                if room < 0:
                    break
                spans.append((start, offset + length))
            taken += 1
        self._bring(spans)
        return max(taken, 1)

    def read_rows(self, offset: int, row_bytes: int, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """As of any source; rows near each other come with one request, and all requests are sent side by side."""
        flat = out.reshape(-1).data if out.size else memoryview(b"")
        self.read_parts(
            [
                (offset + int(rows[first]) * row_bytes, flat[first * row_bytes : behind * row_bytes])
                for first, behind in runs(rows)
            ]
        )

    def read_parts(self, parts: Sequence[tuple[int, memoryview]]) -> None:
        """As of any source, requested as by :meth:`read_rows`."""
        stretches = []
        for offset, memory in parts:
            self._check(offset, len(memory))
            held = self._held.find(offset, len(memory))
            if held is None:
                stretches.append((offset, memory))
            else:
                memory[:] = held
        self._fetch(stretches)

    def close(self) -> None:
        super().close()
        self._held.clear()

    def _view(self, offset: int, length: int) -> memoryview:
        near = self._near(offset, length)
        return super()._view(offset, length) if near is None else near

    def _read_into(self, offset: int, out: memoryview) -> None:
        near = self._near(offset, len(out))
        if near is None:
            self._fetch([(offset, out)])
        else:
            out[:] = near

    def _near(self, offset: int, length: int) -> memoryview | None:
        """The bytes, if they are held, or few enough to bring some more along."""
        held = self._held.find(offset, length)
        if held is None and length <= _SMALL_BYTES:
            self._bring([(offset, min(offset + _WINDOW_BYTES, self.size))])
            held = self._held.find(offset, length)
        return held

    def _bring(self, spans: Sequence[tuple[int, int]], head: bytes = b"") -> None:
        """Fetch these spans, those near each other as one, and hold them; ``head`` is what is there of the first."""
        spans = merged([(start // _ALIGNMENT * _ALIGNMENT, stop) for start, stop in spans if start < stop])
        memories = [memoryview(bytearray(stop - start)) for start, stop in spans]
        stretches = [(start, memory) for (start, _), memory in zip(spans, memories, strict=True)]
        if head:
            memories[0][: len(head)] = head
            stretches[0] = len(head), memories[0][len(head) :]
        self._fetch(stretches)
        for (start, _), memory in zip(spans, memories, strict=True):
            self._held.add(start, memory.toreadonly())

    def _fetch(self, stretches: Sequence[tuple[int, memoryview]]) -> None:
        requests = plan(stretches)
        if requests:
            self._file.fetch(requests)


class _Extents:
    """Stretches of a file, ``capacity`` bytes of them at most, those out first that were longest not looked at."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._size = 0
        self._starts: list[int] = []
        self._held: OrderedDict[int, memoryview] = OrderedDict()
        self._lock = threading.Lock()
        forks.register(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self.clear()  # another thread may have been in the middle of a change

    def find(self, offset: int, length: int) -> memoryview | None:
        """These bytes, borrowed, if one extent has them all."""
        with self._lock:
            place = bisect_right(self._starts, offset)
            if not place:
                return None
            start = self._starts[place - 1]
            extent = self._held[start]
            if offset + length > start + len(extent):
                return None
            self._held.move_to_end(start)
            return extent[offset - start : offset - start + length]

    def add(self, start: int, extent: memoryview) -> None:
        with self._lock:
            first, behind = bisect_left(self._starts, start), bisect_left(self._starts, start + len(extent))
            for covered in self._starts[first:behind]:  # they would be found in its stead
                if covered + len(self._held[covered]) <= start + len(extent):
                    self._drop(covered)
            if start in self._held:
                return
            insort(self._starts, start)
            self._held[start] = extent
            self._size += len(extent)
            while self._size > self._capacity:
                self._drop(next(iter(self._held)))

    def clear(self) -> None:
        with self._lock:
            self._held.clear()
            self._starts.clear()
            self._size = 0

    def _drop(self, start: int) -> None:
        self._size -= len(self._held.pop(start))
        del self._starts[bisect_left(self._starts, start)]

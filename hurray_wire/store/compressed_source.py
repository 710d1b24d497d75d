"""A compressed file as a source of the bytes it inflates to (spec/compressed.md).

A file with a seek table is inflated frame by frame, and only those frames that hold what was asked for: side by side on
all cores, each once, copied from where it was inflated straight to where it is wanted. The last few frames are kept, as
neighbouring requests share them. A file without a table is for ``plain_zstd.py``; what one frame may be is judged in
``frames.py``.

In a file of byte planes the bytes that this source gives are those of the file before it was split: the magic is put
back, and frames of page pools are merged. Which frames those are only descriptors tell, so the reader says it by
:meth:`CompressedSource.mark_pool` when it has read one. Nothing can be read too early: a frame with any byte of a
descriptor, of the index or of padding does not lie within a pool, so it is not split.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .. import forks
from ..errors import InvalidFileError, LimitError
from ..limits import Limits
from ..parallel import run
from ..wire import planes
from ..wire.seektable import (
    FOOTER_BYTES,
    SEEKABLE_MAGIC,
    SeekTable,
    decode_seek_footer,
    decode_seek_table,
)
from ..wire.structs import FILE_MAGIC
from .frame_cache import FrameCache
from .frames import inflate, inflated_bytes_allowed, is_skippable, is_zstd
from .plain_zstd import PlainZstdSource, check_not_planes
from .source import Compression, CopyingSource, Source, runs

__all__ = ["CompressedSource", "inflating"]

Bytes: TypeAlias = NDArray[np.uint8]
Piece: TypeAlias = tuple[int, int, Bytes]  # from where and to where in a frame, and the memory that it goes to

_CACHE_BYTES = 32 << 20  # some tens of frames: what a verify's chunk, or a gather and the next one, have in common
_KEEP_BYTES = 4 << 20  # of a larger request, frames that are used whole are not kept: that would push out the others
_SPREAD_BYTES = 256 << 10  # below this, waking threads costs as much as inflating


def inflating(source: Source, limits: Limits) -> Source:
    """The source itself, or one over what it inflates to, told apart by content. It then owns the one it was given."""
    head = source.view(0, min(8, source.size))
    if is_zstd(head) or is_skippable(head):
        tail = source.view(source.size - len(SEEKABLE_MAGIC), len(SEEKABLE_MAGIC))
        return CompressedSource(source, limits) if tail == SEEKABLE_MAGIC else PlainZstdSource(source, limits)
    check_not_planes(head)
    return source


class CompressedSource(CopyingSource):
    """What a compressed file with a seek table inflates to. Owns the source of the compressed bytes."""

    scatters = True

    def __init__(self, inner: Source, limits: Limits) -> None:
        super().__init__()
        self._inner = inner
        self._table = _read_table(inner, limits)
        self._limits = limits
        self._begins = _edges(self._table.compressed_sizes)
        self._starts = _edges(self._table.decompressed_sizes)
        self.size = int(self._starts[-1])
        self._cache = FrameCache(_CACHE_BYTES)
        self._pools: list[tuple[int, int, int]] = []  # first frame, frame behind the last, bytes of an element
        self._pools_lock = threading.Lock()
        self._planes = False
        if self.size >= len(planes.PLANES_MAGIC):
            self._planes = self.view(0, len(planes.PLANES_MAGIC)) == planes.PLANES_MAGIC
        forks.register(self)

    def after_fork(self) -> None:
        self._pools_lock = threading.Lock()

    @property
    def compression(self) -> Compression:
        return Compression(
            seekable=True,
            planes=self._planes,
            frames=len(self._table),
            inflated=self._cache.made,
            compressed_bytes=self._inner.size,
            inflated_bytes=self.size,
        )

    def mark_pool(self, offset: int, length: int, element_bytes: int) -> None:
        """Frames from ``offset`` on hold a page pool, which in a file of byte planes is split into planes.

        Raises InvalidFileError where a frame of such a pool holds anything else, or cuts an element.
        """
        if not self._planes or element_bytes == 1 or not length:
            return
        self._check(offset, length)
        first = int(np.searchsorted(self._starts, offset, side="right")) - 1
        behind = int(np.searchsorted(self._starts, offset + length, side="left"))
        for edge, place in ((first, offset), (behind, offset + length)):
            if self._starts[edge] != place:
                raise InvalidFileError(
                    f"a frame crosses byte {place}, where a page pool in planes starts or ends",
                    rule="compressed.planes-frame",
                    offset=place,
                    found=int(self._starts[edge]),
                )
        cut = (self._starts[first:behind] - offset) % element_bytes != 0
        if cut.any():
            place = int(self._starts[first + int(np.argmax(cut))])
            raise InvalidFileError(
                f"a frame of a page pool in planes starts at {place}, within an element of {element_bytes} bytes",
                rule="compressed.planes-frame",
                offset=place,
                declared=element_bytes,
                found=place - offset,
            )
        with self._pools_lock:
            insort(self._pools, (first, behind, element_bytes))

    def read_rows(self, offset: int, row_bytes: int, rows: NDArray[np.int64], out: Bytes) -> None:
        """As of any source; inflates just the frames that hold these rows, each once, side by side."""
        flat = out.reshape(-1)
        self.read_parts(
            [
                (offset + int(rows[start]) * row_bytes, flat[start * row_bytes : stop * row_bytes].data)
                for start, stop in runs(rows)
                if row_bytes
            ]
        )

    def read_parts(self, parts: Sequence[tuple[int, memoryview]]) -> None:
        """As of any source; inflates just the frames that hold these parts, each once, side by side."""
        for offset, memory in parts:
            self._check(offset, len(memory))
        self._copy([(offset, np.frombuffer(memory, dtype=np.uint8)) for offset, memory in parts if len(memory)])

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> int:
        offsets, lengths = np.array(ranges, dtype=np.int64).reshape(-1, 2).T
        first = np.searchsorted(self._starts, offsets, side="right") - 1
        behind = np.searchsorted(self._starts, offsets + lengths, side="left")
        begins, ends = self._begins[first], self._begins[behind]
        return self._inner.prefetch(list(zip(begins.tolist(), (ends - begins).tolist(), strict=True)))

    def reads_from(self, target: object) -> bool:
        return self._inner.reads_from(target)

    def check_empty_frames(self) -> None:
        """Look at the frames that hold nothing, which no reading touches. Raises InvalidFileError."""
        for number in np.flatnonzero(self._table.decompressed_sizes == 0).tolist():
            self._inflate(number)

    def close(self) -> None:
        super().close()
        self._cache.clear()
        self._inner.close()

    def _read_into(self, offset: int, out: memoryview) -> None:
        if len(out):
            self._copy([(offset, np.frombuffer(out, dtype=np.uint8))])

    def _copy(self, parts: list[tuple[int, Bytes]]) -> None:
        """Fill each part, which is not empty, with the inflated bytes from its offset on."""
        asked = sum(len(out) for _, out in parts)
        wanted: dict[int, list[Piece]] = {}
        firsts = np.searchsorted(self._starts, [offset for offset, _ in parts], side="right") - 1
        for number, (offset, out) in zip(firsts.tolist(), parts, strict=True):
            done = 0
            while done < len(out):
                start, stop = int(self._starts[number]), min(int(self._starts[number + 1]), offset + len(out))
                begin, end = offset + done - start, stop - start
                if end > begin:
                    wanted.setdefault(number, []).append((begin, end, out[done : done + end - begin]))
                    done += end - begin
                number += 1

        stored = int(self._table.compressed_sizes[list(wanted)].sum())
        if asked > (allowed := inflated_bytes_allowed(stored, self._limits)):
            raise LimitError(
                f"{asked} bytes are asked for out of {len(wanted)} frames of {stored}, above the limit of {allowed} "
                "(see Limits.max_inflated_ratio)",
                rule="limit.inflated-bytes",
                declared=allowed,
                found=asked,
            )

        def copy(item: tuple[int, list[Piece]]) -> None:
            number, pieces = item
            whole = len(pieces) == 1 and len(pieces[0][2]) == int(self._table.decompressed_sizes[number])
            if asked > _KEEP_BYTES and whole and number not in self._cache:
                self._inflate_into(number, pieces[0][2])
                self._cache.count()
                return
            frame = self._cache.get(number, self._inflate)
            for begin, end, out in pieces:
                out[...] = frame[begin:end]

        frames = list(wanted.items())
        while frames:
            ranges = [(0, 0) if number in self._cache else self._range(number) for number, _ in frames]
            count = self._inner.prefetch(ranges)
            at_once, frames = frames[:count], frames[count:]
            sizes = self._table.decompressed_sizes[[number for number, _ in at_once]]
            # frames as large as all that is kept are inflated one after the other, or memory would grow with the cores
            if len(at_once) > 1 and int(sizes.sum()) >= _SPREAD_BYTES and int(sizes.max()) <= _CACHE_BYTES:
                run(copy, at_once)
            else:
                for item in at_once:
                    copy(item)
        if self._planes:
            for offset, out in parts:
                if offset < len(FILE_MAGIC):
                    magic = np.frombuffer(FILE_MAGIC, dtype=np.uint8)[offset : offset + len(out)]
                    out[: len(magic)] = magic

    def _inflate(self, number: int) -> Bytes:
        data, element_bytes = self._stored(number)
        return data if element_bytes == 1 else planes.merge(data, element_bytes)

    def _inflate_into(self, number: int, out: Bytes) -> None:
        data, element_bytes = self._stored(number)
        if element_bytes == 1:
            out[...] = data
        else:
            planes.merge(data, element_bytes, out)

    def _stored(self, number: int) -> tuple[Bytes, int]:
        """What a frame inflates to, and the bytes of an element if it is in planes, otherwise 1."""
        begin, compressed_size = self._range(number)
        size = int(self._table.decompressed_sizes[number])
        if size > (allowed := inflated_bytes_allowed(compressed_size, self._limits)):
            raise LimitError(
                f"a frame of {compressed_size} bytes inflates to {size}, above the limit of {allowed}",
                rule="limit.inflated-bytes",
                offset=begin,
                declared=allowed,
                found=size,
            )
        raw = self._inner.view(begin, compressed_size)
        checksum = None if self._table.checksums is None else int(self._table.checksums[number])
        data = np.frombuffer(inflate(raw, size, offset=begin, checksum=checksum), dtype=np.uint8)
        return data, self._element_bytes(number) if self._planes else 1

    def _range(self, number: int) -> tuple[int, int]:
        """Where a frame lies in the compressed file, and how many bytes it has there."""
        return int(self._begins[number]), int(self._table.compressed_sizes[number])

    def _element_bytes(self, number: int) -> int:
        """Bytes of an element if the frame belongs to a pool in planes, otherwise 1."""
        with self._pools_lock:
            place = bisect_right(self._pools, number, key=lambda pool: pool[0]) - 1
            if place < 0 or number >= self._pools[place][1]:
                return 1
            return self._pools[place][2]


def _read_table(source: Source, limits: Limits) -> SeekTable:
    size = source.size
    footer = decode_seek_footer(
        source.view(max(0, size - FOOTER_BYTES), min(size, FOOTER_BYTES)), file_size=size, limits=limits
    )
    table = source.view(size - footer.table_bytes, footer.table_bytes)
    return decode_seek_table(table, footer, file_size=size)


def _edges(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of these runs starts, and where the last one ends."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])

"""Copying tokens out of a page pool: the inner loop of ``gather``, as bytes and on threads.

Knows pages, a block table that was already checked, and where to write. Which tokens belong to whom, and every
refusal, stands in ``gather``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from .parallel import cpu_count, run

__all__ = ["PageCopy", "Piece", "as_bits"]

_SPREAD_BYTES = 8 << 20  # below this, waking threads costs as much as their share of the copy
_SPREAD_PIECE_BYTES = 1 << 18  # with smaller pieces on average, the threads would only wait for the interpreter
_PORTION_BYTES = 8 << 20  # at most what one thread takes at a time: larger ones help no further
_PORTIONS_PER_CPU = 4  # long sequences are cut, so that threads end together
_SCATTERED_BYTES = 1 << 18  # a temporary of this size stays in the second-level cache

Piece: TypeAlias = tuple[int | None, NDArray[Any]]
"""The entry of the block table at which the pages begin (None: write padding), and the part of ``target`` to write."""


def as_bits(array: NDArray[Any]) -> NDArray[Any]:
    """The same memory as unsigned integers or raw bytes of the same size: no byte order, no NaN, no foreign dtype."""
    size = array.dtype.itemsize
    return array.view(f"u{size}" if size in (1, 2, 4, 8) else f"V{size}") if size else array


class PageCopy:
    """Copies from ``pool`` [num_pages, page_size, *rest] into ``values`` [..., tokens, *rest] of the same dtype.

    ``target`` is ``values`` with the same leading axes, to be cut into pieces. Two forms of it are known here alone:
    rows of bytes, one per token, where pool and values allow copying by ``numpy.take``; otherwise the bits as they lie.
    """

    def __init__(self, pool: NDArray[Any], block_table: NDArray[Any], values: NDArray[Any]) -> None:
        self.table = block_table
        self.pool = as_bits(pool)
        self.page_size = pool.shape[1]
        self.token_bytes = math.prod(pool.shape[2:]) * pool.dtype.itemsize
        self.target = as_bits(values)
        self.rows: NDArray[np.uint8] | None = None
        self.stride = 1
        if pool.size and values.size:
            lead = values.ndim - pool.ndim + 2
            if values.flags.c_contiguous or (lead == 2 and values[0].flags.c_contiguous):
                self._use_rows(values.shape[:lead])

    def write(self, pieces: list[Piece], padding: NDArray[Any] | None = None) -> None:
        """Write every piece: tokens out of the pool, or ``padding`` (0-d, as bits; None is zeros).

        A piece begins with the first slot of the page that its entry names, and takes as many pages as it needs;
        slots behind its last token are not read.
        """
        if not self.token_bytes or not pieces:
            return
        nbytes = sum(len(target) for _, target in pieces) * self.token_bytes
        if nbytes >= max(_SPREAD_BYTES, _SPREAD_PIECE_BYTES * len(pieces)):
            portion = min(_PORTION_BYTES, nbytes // (_PORTIONS_PER_CPU * cpu_count()))
            run(lambda piece: self._write(piece, padding), self._cut(pieces, portion))
            return
        for piece in pieces:
            self._write(piece, padding)

    def _use_rows(self, lead: tuple[int, ...]) -> None:
        self.rows, self.stride = _page_rows(self.pool)
        if self.rows is not None:
            self.target = self.target.reshape(*lead, -1).view(np.uint8)

    def _cut(self, pieces: list[Piece], portion: int) -> Iterator[Piece]:
        """The same pieces, none longer than ``portion`` bytes or one page."""
        step = self.page_size * max(1, portion // (self.page_size * self.token_bytes))
        for start, target in pieces:
            for first in range(0, len(target), step):
                yield None if start is None else start + first // self.page_size, target[first : first + step]

    def _write(self, piece: Piece, padding: NDArray[Any] | None) -> None:
        start, target = piece
        if start is None:
            if padding is None:
                target[...] = np.zeros((), target.dtype)
            else:
                target.view(padding.dtype)[...] = padding
            return
        full, rest = divmod(len(target), self.page_size)
        pages = self.table[start : start + full + (rest > 0)].astype(np.intp)
        if self.stride != 1:
            pages *= self.stride
        whole = full * self.page_size
        if self.rows is not None:
            if full:
                # "clip" is what lets NumPy write straight into the target; "raise" would buffer all of it
                self.rows.take(pages[:full], 0, target[:whole].reshape(full, -1), "clip")
            if rest:
                target[whole:] = self.rows[pages[full]].reshape(self.page_size, -1)[:rest]
            return
        step = max(1, _SCATTERED_BYTES // (self.page_size * self.token_bytes))
        for block in range(0, full, step):
            some = pages[block : min(block + step, full)]
            part = target[block * self.page_size : (block + len(some)) * self.page_size]
            part.reshape(len(some), self.page_size, *part.shape[1:])[...] = self.pool[some]
        if rest:
            target[whole:] = self.pool[pages[full], :rest]


def _page_rows(pool: NDArray[Any]) -> tuple[NDArray[np.uint8] | None, int]:
    """The pool as rows of bytes, page p being row p * stride; None where the bytes of one page do not lie together.

    numpy.take would first make a contiguous copy of all of a pool that is not. Where the pages of several tensors
    alternate in memory, rows are laid over those in between as well, and never taken.
    """
    if pool.flags.c_contiguous:
        return pool.reshape(len(pool), -1).view(np.uint8), 1
    page, step = pool[0], pool.strides[0]
    if page.flags.c_contiguous and step > 0 and step % page.nbytes == 0:
        stride = step // page.nbytes
        shape = ((len(pool) - 1) * stride + 1, page.nbytes)
        return as_strided(page.reshape(1, -1).view(np.uint8), shape, (page.nbytes, 1), writeable=False), stride
    return None, 1

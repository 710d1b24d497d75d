"""Changing the page size: which tokens of which old page make up each new one, and copying them.

Prefill and decode workers often run with different page sizes (16 against 64). Any two sizes go together: both are
multiples of their greatest common divisor, a *granule*, which lies in one page on either side, so that a new page is
a row of granules. The plan is made from the tables once and serves every layer and role of the batch.

Sharing is kept where two sequences need the same new page: the same old pages from the same token on, as far as their
lengths reach. A prefix that ends within a new page is copied for each sequence, since what follows it differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import parallel
from ..errors import BufferSizeError, IncompatibleError
from .base import zeros
from .copying import (
    PageSource,
    check_destination,
    check_distinct,
    check_pages,
    chunks,
    page_bytes,
)
from .integers import Ints, as_ids, check_page_size
from .tables import Tables

__all__ = ["Repaging", "plan_bytes", "repage"]

# What a plan takes while it is made: some eight numbers for each granule, and for each page the key it is shared by.
_GRANULE_BYTES = 64
_PAGE_BYTES = 256


@dataclass(frozen=True, slots=True, eq=False)
class Repaging:
    """A plan for new pages of ``page_size`` tokens, ``num_pages`` of them, numbered as the new ``tables`` first name
    them.

    ``pages`` [num_pages, granules] are the old pages that hold the granules of each new one, -1 beyond its tokens;
    ``starts`` [num_pages] is the first granule's place within its old page, counted in granules; ``filled``
    [num_pages] are the tokens in use. A granule has ``granule`` tokens.
    """

    tables: Tables
    page_size: int
    old_page_size: int
    granule: int
    pages: Ints
    starts: Ints
    filled: Ints

    @property
    def num_pages(self) -> int:
        return len(self.pages)

    def copy(self, source: PageSource, destination: NDArray[Any], *, destination_ids: ArrayLike | None = None) -> None:
        """Write the new pages into ``destination``, page i to place ``destination_ids[i]`` (default 0, 1, ...).

        ``source`` is ``[num_pages, page_size, num_heads, head_dim]`` in the old page size, or a function that reads
        such pages; ``destination`` is a pool of the new one. Both may have any strides. Slots past the tokens of a
        page are zeroed. Bits are kept. Errors as for ``copy_pages``.
        """
        self.plan_copy(source, destination, destination_ids=destination_ids)()

    def plan_copy(
        self, source: PageSource, destination: NDArray[Any], *, destination_ids: ArrayLike | None = None
    ) -> Callable[[], None]:
        """All that ``copy`` checks, now; the copying itself when the result is called."""
        pool = None if callable(source) else source
        check_destination(destination, pool)
        if pool is not None:
            self._check_source(pool, destination)
            as_ids(self.pages[self.pages >= 0], "the old tables", len(pool))
        if destination.ndim != 4 or destination.shape[1] != self.page_size:
            raise BufferSizeError(
                f"new pages of {self.page_size} tokens do not fit into a pool {list(destination.shape)}",
                rule="adapter.copy-shape",
                declared=self.page_size,
                found=destination.shape,
            )
        places = np.arange(self.num_pages) if destination_ids is None else destination_ids
        to_ids = as_ids(places, "destination_ids", len(destination))
        if len(to_ids) != self.num_pages:
            raise IncompatibleError(
                f"{self.num_pages} new pages cannot go to {len(to_ids)} places",
                rule="adapter.copy-count",
                declared=len(to_ids),
                found=self.num_pages,
            )
        check_distinct(to_ids)
        granules = self._granules(destination)

        def copy(part: slice) -> None:
            rows, columns = np.nonzero(self.pages[part] >= 0)
            old = self.pages[part][rows, columns]
            within = (self.starts[part][rows] + columns) % (self.old_page_size // self.granule)
            to = to_ids[part]
            if callable(source):
                needed, old = np.unique(old, return_inverse=True)
                read = source(needed)
                self._check_source(read, destination)
            else:
                read = source
            granules[to[rows], columns] = self._granules(read)[old, within]
            for page, filled in zip(to.tolist(), self.filled[part].tolist(), strict=True):
                if filled < self.page_size:
                    destination[page, filled:] = np.zeros((), destination.dtype)

        def run() -> None:
            parallel.run(copy, chunks(self.num_pages, page_bytes(destination)))

        return run

    def read(self, source: PageSource, start: int, stop: int) -> NDArray[Any]:
        """New pages ``start`` to ``stop`` as a fresh array ``[stop - start, page_size, num_heads, head_dim]``.

        For a writer that takes a pool piece by piece, so that no whole pool of the new size is ever in memory.
        """
        part = slice(*slice(start, stop).indices(self.num_pages))
        pages = self.pages[part]
        if callable(source):
            needed, renumbered = np.unique(pages[pages >= 0], return_inverse=True)
            pool, pages = source(needed), pages.copy()
            pages[pages >= 0] = renumbered
        else:
            pool = source
        piece = replace(self, pages=pages, starts=self.starts[part], filled=self.filled[part])
        fresh = zeros((len(pages), self.page_size, *pool.shape[2:]), pool.dtype)
        piece.copy(pool, fresh)
        return fresh

    def _granules(self, pool: NDArray[Any]) -> NDArray[Any]:
        """The same memory as [pages, granules of a page, tokens of a granule, heads, dim]."""
        pages, tokens = pool.shape[:2]
        return pool.reshape(pages, tokens // self.granule, self.granule, *pool.shape[2:])

    def _check_source(self, pool: NDArray[Any], destination: NDArray[Any]) -> None:
        check_pages(pool, destination, tokens=False)
        if pool.shape[1] != self.old_page_size:
            raise BufferSizeError(
                f"the tables are for pages of {self.old_page_size} tokens, but the pool is {list(pool.shape)}",
                rule="adapter.copy-shape",
                declared=self.old_page_size,
                found=pool.shape,
            )


def plan_bytes(seq_lens: Ints, *, page_size: int, new_page_size: int) -> int:
    """What ``repage`` takes at most while it plans for sequences of these lengths, in bytes."""
    old, new = check_page_size(page_size), check_page_size(new_page_size)
    pages: int = sum(-(-length // new) for length in seq_lens.tolist())
    return pages * (_PAGE_BYTES + _GRANULE_BYTES * (new // math.gcd(old, new)))


def repage(tables: Tables, *, page_size: int, new_page_size: int) -> Repaging:
    """Plan the same batch in pages of ``new_page_size`` tokens; ``tables`` (see ``normalise``) are for ``page_size``.

    No payload is read. The plan takes about 8 bytes for each granule: 8 a token if the sizes have no common divisor.
    """
    old, new = check_page_size(page_size), check_page_size(new_page_size)
    granule = math.gcd(old, new)
    in_old, in_new = old // granule, new // granule
    lengths = tables.seq_lens
    counts = -(-lengths // new)
    ptr = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=ptr[1:])

    # of each new page: its sequence, its number there, and its tokens
    seq = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    number = np.arange(len(seq), dtype=np.int64) - ptr[seq]
    filled = np.minimum(lengths[seq] - number * new, new)

    first = number * in_new
    at = first[:, np.newaxis] + np.arange(in_new, dtype=np.int64)  # granules of the sequence
    used = np.arange(in_new, dtype=np.int64) * granule < filled[:, np.newaxis]
    entry = np.where(used, tables.seq_ptr[seq][:, np.newaxis] + at // in_old, 0)
    pages = np.where(used, tables.block_table[entry] if len(tables.block_table) else -1, -1)
    starts = first % in_old

    block_table = np.arange(len(seq), dtype=np.int64)
    if len(np.unique(tables.block_table)) < len(tables.block_table):
        pages, starts, filled, block_table = _share(pages, starts, filled)
    return Repaging(Tables(block_table, ptr, lengths), new, old, granule, pages, starts, filled)


def _share(pages: Ints, starts: Ints, filled: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """New pages made of the same granules become one, with as many tokens as the longest needs."""
    # np.unique of rows would name each column of them, and there may be a million
    numbers: dict[bytes, int] = {}
    block_table = np.empty(len(pages), dtype=np.int64)
    first: list[int] = []
    for page, (start, row) in enumerate(zip(starts.tolist(), pages, strict=True)):
        number = numbers.setdefault(row.tobytes() + start.to_bytes(8, "little"), len(first))
        if number == len(first):
            first.append(page)
        block_table[page] = number
    longest = np.zeros(len(first), dtype=np.int64)
    np.maximum.at(longest, block_table, filled)
    return pages[first], starts[first], longest, block_table

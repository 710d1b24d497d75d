"""Which pages of a pool go into a snapshot, and with what in them (spec/snapshot.md, "Privacy").

A live pool holds other requests' pages and, in the last page of a sequence, slots of whoever had it before. A
:class:`PagePlan` is made once from the tables and serves every layer and role: which pages are written and in what
order (``compact``), how many slots of each are kept (``scrub``), and the block table that then names them.
:class:`PoolChunks` writes a pool by such a plan, page by page, without ever holding a second pool in memory.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .adapters.copying import copy_pages
from .adapters.rows import PageRows
from .adapters.tables import Tables
from .arrays.memory import allocate
from .arrays.packing import pack
from .limits import Limits
from .model.element_types import ElementType, buffer_bytes
from .page_copy import as_bits
from .parallel import map_bounded

__all__ = ["PageMaker", "PagePlan", "PoolChunks", "PoolInput", "deduplicated", "plan_pages", "staged"]

Ints = NDArray[np.int64]
Bytes: TypeAlias = NDArray[np.uint8]

_CHUNK_BYTES = 2 << 20  # of one chunk; large enough that a write call costs nothing beside it
_PACKED_PAGES = 8  # a chunk of packed elements must fill whole bytes, whatever a page holds
_AHEAD = 2  # chunks in memory: one that is being written, and the next


@dataclass(frozen=True, slots=True)
class PagePlan:
    """The pages of one batch as they are written.

    ``pages`` are the pool's page ids in the order of the file, or None for the whole pool as it lies. ``kept`` is how
    many slots of each written page hold tokens, the rest being zeroed, or None to keep every slot. ``block_table``
    (ids in the file) and ``seq_ptr`` are what the snapshot records.
    """

    num_pages: int
    page_size: int
    pages: Ints | None
    kept: Ints | None
    block_table: Ints
    seq_ptr: Ints


def plan_pages(
    tables: Tables,
    *,
    num_pages: int,
    page_size: int,
    compact: bool,
    scrub: bool,
    limits: Limits | None = None,
    stored: int | None = None,
) -> PagePlan:
    """The plan for a pool of ``num_pages`` pages, in which ``tables`` (checked, trimmed by length) name pages.

    ``compact`` writes only referenced pages, in the order in which sequences first use them, so that a sequence lies in
    one run; a page named twice is written once. ``scrub`` keeps of each page the slots that some sequence uses.

    Raises LimitError for more pages than ``limits`` and memory allow to plan: pages without bytes are as many as
    anybody says. ``stored`` are the bytes of the tensor that holds them, if it comes from a file.
    """
    table, pages = tables.block_table, None
    if compact:
        pages, first, places = np.unique(table, return_index=True, return_inverse=True)
        order = np.argsort(first)
        ranks = np.empty_like(order)
        ranks[order] = np.arange(len(order))
        pages, table = pages[order], ranks[places.reshape(-1)]
    written = num_pages if pages is None else len(pages)
    kept = None
    if scrub:
        counts = np.diff(tables.seq_ptr)
        position = np.arange(len(table)) - np.repeat(tables.seq_ptr[:-1], counts)
        tokens = np.minimum(np.repeat(tables.seq_lens, counts) - position * page_size, page_size)
        kept = allocate((written,), np.dtype(np.int64), limits, stored=stored, zeroed=True)
        np.maximum.at(kept, table, tokens)
    return PagePlan(written, page_size, pages, kept, table.astype(np.int64), tables.seq_ptr)


def deduplicated(plan: PagePlan, pools: Sequence[PoolInput]) -> PagePlan:
    """The plan with pages that hold the same bytes in every one of ``pools`` written once.

    One page id names a page in all layers, so pages are merged only where all layers agree. Reads every pool once.
    """
    if not any(math.prod(pool.shape[1:]) for pool in pools):  # pages without bytes, as many as anybody says, are equal
        first = np.arange(min(plan.num_pages, 1))
        return replace(
            plan,
            num_pages=len(first),
            pages=first if plan.pages is None else plan.pages[first],
            kept=None if plan.kept is None else plan.kept[first],
            block_table=np.zeros_like(plan.block_table),
        )
    digests = [hashlib.blake2b(digest_size=32) for _ in range(plan.num_pages)]
    for pool in pools:
        page = 0
        for piece in staged(pool, plan):
            for row in piece.reshape(len(piece), -1).view(np.uint8) if piece.size else ():
                digests[page].update(row.data)
                page += 1
    seen: dict[bytes, int] = {}
    merged = np.empty(plan.num_pages, dtype=np.int64)
    kept_pages: list[int] = []
    for page, digest in enumerate(digests):
        place = seen.setdefault(digest.digest(), len(kept_pages))
        if place == len(kept_pages):
            kept_pages.append(page)
        merged[page] = place
    chosen = np.array(kept_pages, dtype=np.int64)
    return replace(
        plan,
        num_pages=len(chosen),
        pages=chosen if plan.pages is None else plan.pages[chosen],
        kept=None if plan.kept is None else plan.kept[chosen],
        block_table=merged[plan.block_table],
    )


class PageMaker(Protocol):
    """Pages that exist only when they are asked for."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def fill(self, pages: Ints, out: NDArray[Any]) -> None:
        """Write these pages into ``out`` [n, page_size, num_heads, head_dim], of the same type in either byte order."""


PoolInput: TypeAlias = NDArray[Any] | PageMaker


class PoolChunks:
    """The bytes of one pool, written by a plan, piece by piece (a ``Chunked`` of the writer).

    ``pool`` is [num_pages, page_size, num_heads, head_dim] of any strides and byte order, borrowed. A stretch of
    pages that lies in memory as the file wants it is handed out as it is; anything else goes through a few MiB of
    staging.
    """

    def __init__(self, pool: PoolInput, plan: PagePlan, element_type: ElementType) -> None:
        # NumPy moves integers of any strides several times faster than types it does not know; the bits are the same
        if isinstance(pool, np.ndarray) and not element_type.is_packed and _is_little(pool.dtype):
            pool = as_bits(pool)
        self._pool = pool
        self._plan = plan
        self._element_type = element_type
        _, page_size, heads, dim = pool.shape
        self.nbytes = buffer_bytes(element_type, plan.num_pages * page_size * heads * dim)

    def chunks(self) -> Iterator[NDArray[np.uint8]]:
        """``nbytes`` bytes in pieces; each is valid until the next is asked for."""
        if not self.nbytes:
            return
        for piece in staged(self._pool, self._plan, multiple=_PACKED_PAGES if self._element_type.is_packed else 1):
            if self._element_type.is_packed:
                yield pack(piece.reshape(-1), self._element_type)
            else:
                yield piece.reshape(-1).view(np.uint8)

    def parts(self, part_bytes: int) -> Iterator[tuple[int, Callable[[Bytes], Bytes]]] | None:
        """The same bytes in parts of ``part_bytes`` (a whole number of pages), the last one smaller: the size of each,
        and a function that makes it, in the memory of that size that it is given or as a view of the pool.

        Parts may be made in any order, by several threads at once, as long as the pool stays as it is. None where
        pages are no whole number of bytes.
        """
        if self._element_type.is_packed or not self.nbytes:
            return None
        page_bytes = self.nbytes // self._plan.num_pages
        pages, shape = _WrittenPages(self._pool, self._plan), self._pool.shape[1:]

        def made(memory: Bytes, *, first: int) -> Bytes:
            out = memory.view(pages.dtype).reshape(-1, *shape)
            return pages.made(first, first + len(out), out).reshape(-1).view(np.uint8)

        return (
            (min(part_bytes, self.nbytes - start), partial(made, first=start // page_bytes))
            for start in range(0, self.nbytes, part_bytes)
        )


def staged(pool: PoolInput, plan: PagePlan, *, multiple: int = 1) -> Iterator[NDArray[Any]]:
    """The written pages in order, in C-contiguous little-endian pieces [n, page_size, num_heads, head_dim].

    Pieces but the last are a multiple of ``multiple`` pages. A piece is valid until the next is asked for, and the next
    is being made meanwhile; it may be the pool itself, whole.
    """
    pages = _WrittenPages(pool, plan)
    if plan.pages is None and isinstance(pool, np.ndarray) and pages.lie_as_written(0, plan.num_pages):
        yield pool
        return
    page_bytes = max(1, int(np.prod(pool.shape[1:], dtype=object)) * pool.dtype.itemsize)
    step = max(_CHUNK_BYTES // page_bytes // multiple, 1) * multiple
    shape = (min(step, plan.num_pages), *pool.shape[1:])
    staging = [np.empty(shape, dtype=pages.dtype) for _ in range(_AHEAD)]

    def piece(number: int) -> NDArray[Any]:
        start, stop = number * step, min((number + 1) * step, plan.num_pages)
        return pages.made(start, stop, staging[number % _AHEAD][: stop - start])

    yield from map_bounded(piece, range(-(-plan.num_pages // step)), _AHEAD)


class _WrittenPages:
    """The pages of one pool as they are written: any of them, in any thread."""

    def __init__(self, pool: PoolInput, plan: PagePlan) -> None:
        self._pool = pool
        self._plan = plan
        self.dtype = pool.dtype.newbyteorder("<")
        little = isinstance(pool, np.ndarray) and _is_little(pool.dtype)
        self._plain = isinstance(pool, np.ndarray) and little and pool.flags.c_contiguous
        self._rows = PageRows.of(pool) if isinstance(pool, np.ndarray) and little else None

    def lie_as_written(self, start: int, stop: int) -> bool:
        """True if these written pages follow each other in the pool, and no slot of them is zeroed."""
        plan = self._plan
        if not self._plain or (plan.kept is not None and (plan.kept[start:stop] < plan.page_size).any()):
            return False
        return plan.pages is None or _is_run(plan.pages[start:stop])

    def made(self, start: int, stop: int, out: NDArray[Any]) -> NDArray[Any]:
        """The written pages ``start`` to ``stop``: those of the pool, borrowed, or a copy in ``out`` [n, *page]."""
        pool, plan = self._pool, self._plan
        pages = np.arange(start, stop) if plan.pages is None else plan.pages[start:stop]
        if isinstance(pool, np.ndarray) and self.lie_as_written(start, stop):
            return pool[int(pages[0]) : int(pages[-1]) + 1]
        if self._rows is not None:
            self._rows.take(pages, out)
        else:
            _fill(out, pool, pages)
        if plan.kept is not None:
            raw = out.view(np.uint8) if out.dtype.itemsize else out
            for place in np.flatnonzero(plan.kept[start:stop] < plan.page_size).tolist():
                raw[place, int(plan.kept[start + place]) :] = 0
        return out


def _fill(out: NDArray[Any], pool: PoolInput, pages: Ints) -> None:
    """Copy these pages of the pool into ``out``."""
    if not isinstance(pool, np.ndarray):
        pool.fill(pages, out)
    elif _is_run(pages):
        np.copyto(out, pool[int(pages[0]) : int(pages[-1]) + 1], casting="equiv")
    else:
        copy_pages(pool, out, source_ids=pages, destination_ids=np.arange(len(pages)))


def _is_run(pages: Ints) -> bool:
    return int(pages[-1]) - int(pages[0]) == len(pages) - 1 and bool((np.diff(pages) == 1).all())


def _is_little(dtype: np.dtype[Any]) -> bool:
    return dtype == dtype.newbyteorder("<")

"""The pages of an export: which they are, where they go, and copying them (spec/snapshot.md has the tables).

An engine has one block table for all layers. The tensors of a snapshot have a table each; a foreign writer may have
numbered the pages of every one differently, may share them differently, may even have cut them to different sizes.
:class:`PageMap` finds the pages of one page size that serve them all: as many as there are different ones, numbered
as the sequences first use them. :func:`place` says where they go in a pool of the caller's. What a pool is made of is
told in ``export_parts.py``; the arithmetic of page sizes stands in ``adapters/repaging.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, SupportsIndex, TypeVar

import numpy as np
from numpy.typing import NDArray

from .adapters import PageSource, Repaging, Tables, as_array, normalise, plan_bytes, plan_copy, repage
from .adapters.base import layer_name
from .adapters.integers import as_ids, check_page_size
from .arrays.memory import check_limit, check_together, stored_bytes
from .errors import IncompatibleError
from .gather import choose
from .paged_tensor import PagedTensor

__all__ = ["PageMap", "Placement", "check_one_batch", "chosen_layers", "chosen_tables", "place", "several"]

T = TypeVar("T")
Ints = NDArray[np.int64]


class Placement(NamedTuple):
    """Where pages go: page ``pages[i]`` of the export to ``ids[i]``. ``block_table`` names the ids, entry by entry."""

    pages: Ints
    ids: Ints
    block_table: Ints


@dataclass(frozen=True, slots=True)
class PageMap:
    """The pages of an export.

    ``tables`` names them, numbered from 0 as the sequences first use them; ``filled`` [num_pages] are the tokens in
    use of each. ``plans`` tells by the id of a tensor how they are made from its own pages.
    """

    tables: Tables
    page_size: int
    filled: Ints
    plans: dict[int, Repaging]

    @property
    def num_pages(self) -> int:
        return len(self.filled)

    @classmethod
    def of(cls, tensors: Iterable[PagedTensor], seqs: Sequence[SupportsIndex] | None, page_size: int) -> PageMap:
        """The pages of ``page_size`` tokens that hold the chosen sequences of ``tensors`` (see ``check_one_batch``).

        A page is shared by sequences if they share it in every tensor. Errors as for ``PagedTensor.gather``. A
        few bytes of a file may speak of pages without end, so what their numbers take is bounded like what they hold.
        """
        page_size = check_page_size(page_size)
        groups: dict[tuple[int, bytes], int] = {}
        plans: list[Repaging] = []
        group_of: dict[int, int] = {}
        for tensor in tensors:
            tables = chosen_tables(tensor, seqs)
            _check_plan(tensor, tables, page_size)
            key = tensor.layout.page_size, tables.block_table.tobytes()
            if key not in groups:
                groups[key] = len(plans)
                plans.append(repage(tables, page_size=tensor.layout.page_size, new_page_size=page_size))
            group_of[id(tensor)] = groups[key]
        if len(plans) == 1:
            tables, filled = plans[0].tables, plans[0].filled
        else:
            tables, filled, plans = _unified(plans)
        return cls(tables, page_size, filled, {tensor: plans[group] for tensor, group in group_of.items()})

    def plan_copy(
        self, tensor: PagedTensor, source: PageSource, destination: NDArray[Any], placement: Placement
    ) -> Callable[[], None]:
        """Check the copying of pages of ``tensor`` (``source`` gives them) into ``destination``; do it when called.

        Slots past the tokens of a page are zeroed.
        """
        plan, rows = self.plans[id(tensor)], placement.pages
        if plan.old_page_size != plan.page_size:
            piece = replace(plan, pages=plan.pages[rows], starts=plan.starts[rows], filled=plan.filled[rows])
            return piece.plan_copy(source, destination, destination_ids=placement.ids)
        copy = plan_copy(source, destination, source_ids=plan.pages[rows, 0], destination_ids=placement.ids)
        partial = self.filled[rows] < self.page_size
        tails = list(zip(placement.ids[partial].tolist(), self.filled[rows[partial]].tolist(), strict=True))

        def run() -> None:
            copy()
            for page, filled in tails:
                destination[page, filled:] = np.zeros((), destination.dtype)

        return run


def several(chosen: Iterable[T] | None, what: str) -> list[T] | None:
    """What a caller chose, as a list; None if that is all there are."""
    if chosen is None:
        return None
    if not isinstance(chosen, Iterable):
        raise TypeError(f"{what} is {chosen!r}, not several of them; for one alone it is {what}=[{chosen!r}]")
    return list(chosen)


def chosen_layers(chosen: Iterable[int | None] | None) -> list[int | None] | None:
    """The layers a caller chose; None if that is all there are. IncompatibleError for one that is named twice."""
    layers = several(chosen, "layers")
    for place, layer in enumerate(layers or ()):
        if layers is not None and layer in layers[:place]:
            raise IncompatibleError(
                f"layers names {layer_name(layer)} twice; a snapshot has it once",
                rule="adapter.layer-index",
                found=layer,
            )
    return layers


def check_one_batch(tensors: Iterable[PagedTensor]) -> None:
    """The sequences of all these tensors have the same lengths. Raises IncompatibleError."""
    first, *others = tensors
    for tensor in others:
        if not np.array_equal(tensor.seq_lens, first.seq_lens):
            raise IncompatibleError(
                f"{tensor.name!r} is of another batch than {first.name!r}: the lengths of its sequences differ",
                rule="export.batch",
            )


def chosen_tables(tensor: PagedTensor, seqs: Sequence[SupportsIndex] | None) -> Tables:
    """The pages of the chosen sequences of a tensor, cut to their lengths."""
    starts, lens = choose(tensor.seq_ptr, tensor.seq_lens, seqs)
    lengths = np.array(lens, dtype=np.int64)
    counts = -(-lengths // tensor.layout.page_size)
    ptr = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=ptr[1:])
    entries = np.repeat(np.array(starts, dtype=np.int64) - ptr[:-1], counts) + np.arange(ptr[-1])
    return Tables(tensor.block_table[entries].astype(np.int64), ptr, lengths)


def _check_plan(tensor: PagedTensor, tables: Tables, page_size: int) -> None:
    """Planning the pages, and the padded table of those, take no more than the limits allow."""
    stored = stored_bytes(tensor.descriptor)
    planning = plan_bytes(tables.seq_lens, page_size=tensor.layout.page_size, new_page_size=page_size)
    what = f"planning {tensor.name!r} in pages of {page_size}"
    check_together(planning, tensor.limits, what, stored=stored)
    widest = -(-int(tables.seq_lens.max(initial=0)) // page_size)
    check_limit(8 * tables.num_seqs * widest, tensor.limits, f"{what}, the block table padded,", stored=stored)


def place(pages: PageMap, page_ids: Any, num_pages: int) -> Placement:
    """Where the caller wants the pages: an id for each of them, or a table of ids with a row for each sequence.

    In a table a shared page may go to one place or to several. Raises InvalidDescriptorError for ids that are not in
    a pool of ``num_pages``, IncompatibleError for ids that are not as many as pages, or name one place for two of them.
    """
    wanted = pages.tables.block_table
    if not _is_table(page_ids):
        ids = as_ids(page_ids, "page_ids", num_pages)
        if len(ids) != pages.num_pages:
            raise IncompatibleError(
                f"page_ids has {len(ids)} entries for {pages.num_pages} pages of {pages.page_size} tokens",
                rule="adapter.copy-count",
                declared=pages.num_pages,
                found=len(ids),
            )
        ordered = np.sort(ids)
        _check_once(ordered[1:][ordered[1:] == ordered[:-1]])
        return Placement(np.arange(len(ids)), ids, ids[wanted])
    table = normalise(
        block_tables=page_ids, seq_lens=pages.tables.seq_lens, page_size=pages.page_size, num_pages=num_pages
    ).block_table
    pairs = np.unique(np.stack([table, wanted], axis=1), axis=0)
    _check_once(pairs[1:, 0][pairs[1:, 0] == pairs[:-1, 0]])
    return Placement(pairs[:, 1], pairs[:, 0], table)


def _check_once(twice: Ints) -> None:
    """``twice`` are the places that are named for more than one page."""
    if len(twice):
        raise IncompatibleError(
            f"page_ids names page {int(twice[0])} for two different pages",
            rule="adapter.destination",
            found=int(twice[0]),
        )


def _unified(plans: list[Repaging]) -> tuple[Tables, Ints, list[Repaging]]:
    """One set of pages for all plans: two entries of the table name one page if they do in every plan."""
    first = plans[0].tables
    names = np.stack([plan.tables.block_table for plan in plans], axis=1)
    _, where, page = np.unique(names, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(where)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    tables = first._replace(block_table=rank[page.reshape(-1)])
    entries = where[order]
    filled = np.zeros(len(order), dtype=np.int64)
    np.maximum.at(filled, tables.block_table, _tokens(tables, plans[0].page_size))
    return tables, filled, [_taking(plan, names[entries, number], filled) for number, plan in enumerate(plans)]


def _taking(plan: Repaging, pages: Ints, filled: Ints) -> Repaging:
    return replace(plan, pages=plan.pages[pages], starts=plan.starts[pages], filled=filled)


def _tokens(tables: Tables, page_size: int) -> Ints:
    """The tokens in the page of each entry of the table."""
    counts = np.diff(tables.seq_ptr)
    position = np.arange(len(tables.block_table)) - np.repeat(tables.seq_ptr[:-1], counts)
    tokens: Ints = np.minimum(np.repeat(tables.seq_lens, counts) - position * page_size, page_size)
    return tokens


def _is_table(page_ids: Any) -> bool:
    if isinstance(page_ids, list | tuple):
        return bool(page_ids) and np.ndim(page_ids[0]) > 0
    return not isinstance(page_ids, range) and as_array(page_ids, what="page_ids").ndim == 2

"""Heads over tensor-parallel ranks: which rank holds which, and moving n ranks' pools into those of m.

A rank holds a run of consecutive heads. Where there are more ranks than heads, each head is held by as many
neighbouring ranks as there are to a head, and all copies are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike, NDArray

from ..errors import BufferSizeError, IncompatibleError
from .copying import plan_copy

__all__ = ["HeadMove", "copy_heads", "count_heads", "head_moves", "head_range", "head_ranges", "split_heads"]


@dataclass(frozen=True, slots=True)
class HeadMove:
    """Heads ``take`` of the pool of rank ``source`` become heads ``give`` of that of rank ``destination``."""

    source: int
    take: slice
    destination: int
    give: slice


def head_range(num_heads: int, size: int, rank: int) -> range:
    """The heads of rank ``rank`` of ``size``: an equal share, or a copy where there are more ranks than heads.

    Raises IncompatibleError if neither number is a multiple of the other. Numbers may be of any size.
    """
    if size < 1 or num_heads < 1 or (num_heads % size and size % num_heads):
        raise IncompatibleError(
            f"{num_heads} heads cannot be shared equally by {size} ranks",
            rule="adapter.heads",
            declared=num_heads,
            found=size,
        )
    share, copies = max(num_heads // size, 1), max(size // num_heads, 1)
    return range(rank // copies * share, (rank // copies + 1) * share)


def head_ranges(num_heads: int, size: int) -> list[range]:
    """The heads of each of ``size`` ranks, see ``head_range``."""
    head_range(num_heads, size, 0)  # refuses for one rank what it refuses for any
    return [head_range(num_heads, size, rank) for rank in range(size)]


def count_heads(heads: range) -> int:
    """How many heads there are in a run of them; ``len`` ends at 2**63."""
    return heads.stop - heads.start


def head_moves(sources: Sequence[range], destinations: Sequence[range]) -> list[HeadMove]:
    """What to copy so that ranks with the heads ``sources`` fill ranks with the heads ``destinations``, each head once.

    Raises IncompatibleError for a head that no source has.
    """
    moves = []
    for number, wanted in enumerate(destinations):
        head = wanted.start
        while head < wanted.stop:
            rank = next((rank for rank, held in enumerate(sources) if head in held), None)
            if rank is None:
                raise IncompatibleError(f"head {head} is held by none of the sources", rule="adapter.heads", found=head)
            stop = min(sources[rank].stop, wanted.stop)
            take = slice(head - sources[rank].start, stop - sources[rank].start)
            moves.append(HeadMove(rank, take, number, slice(head - wanted.start, stop - wanted.start)))
            head = stop
    return moves


def split_heads(pool: NDArray[Any], size: int) -> list[NDArray[Any]]:
    """Views of a pool ``[num_pages, page_size, num_heads, head_dim]`` with the heads of each of ``size`` ranks."""
    return [pool[:, :, held.start : held.stop] for held in head_ranges(pool.shape[2], size)]


def copy_heads(
    sources: Sequence[NDArray[Any]],
    destinations: Sequence[NDArray[Any]],
    *,
    num_heads: int,
    source_ids: ArrayLike | None = None,
    destination_ids: ArrayLike | None = None,
) -> None:
    """Copy pages of the pools of n ranks into those of m ranks; ``num_heads`` is that of the model.

    Pools are ``[num_pages, page_size, heads of the rank, head_dim]``, in the order of their ranks. The page ids are
    the same on all ranks of a side (see ``copy_pages``, whose errors are raised too). One source splits, one
    destination merges.
    """
    held, wanted = head_ranges(num_heads, len(sources)), head_ranges(num_heads, len(destinations))
    for side, pools, ranges in (("source", sources, held), ("destination", destinations, wanted)):
        for rank, (pool, heads) in enumerate(zip(pools, ranges, strict=True)):
            count = count_heads(heads)
            if pool.ndim != 4 or pool.shape[2] != count:
                raise BufferSizeError(
                    f"rank {rank} of {len(pools)} of the {side} has {count} of {num_heads} heads, but its pool is "
                    f"{list(pool.shape)}",
                    rule="adapter.heads",
                    declared=count,
                    found=pool.shape,
                )
    copies = [
        plan_copy(
            sources[move.source][:, :, move.take],
            destinations[move.destination][:, :, move.give],
            source_ids=source_ids,
            destination_ids=destination_ids,
        )
        for move in head_moves(held, wanted)
    ]
    for copy in copies:
        copy()

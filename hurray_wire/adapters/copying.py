"""Copying pages from one pool into another: chosen pages to chosen places, in bounded pieces, on all cores.

The destination is a pool that its owner goes on using (an engine restores a snapshot into pages that its allocator
gave it), so all is checked before the first byte moves: no page is written that was not named, none twice, and no
value is converted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import parallel
from ..errors import BufferSizeError, IncompatibleError, InvalidDescriptorError
from .integers import Ints, as_ids

__all__ = ["CHUNK_BYTES", "PageReader", "PageSource", "copy_pages", "plan_copy"]

CHUNK_BYTES = 1 << 20  # what one thread holds at a time: it stays in its cache, and a call costs little beside it

PageReader: TypeAlias = Callable[[Ints], NDArray[Any]]
"""Reads pages by id: [n] int64 -> [n, page_size, num_heads, head_dim]. Called from several threads at once."""

PageSource: TypeAlias = NDArray[Any] | PageReader


def copy_pages(
    source: PageSource,
    destination: NDArray[Any],
    *,
    source_ids: ArrayLike | None = None,
    destination_ids: ArrayLike | None = None,
) -> None:
    """Copy page ``source_ids[i]`` of ``source`` to page ``destination_ids[i]`` of ``destination``, for each i.

    Both pools are ``[num_pages, page_size, num_heads, head_dim]`` of any strides and either byte order; a ``source``
    that is not in memory is a function that reads pages. Ids default to 0, 1, ...: as many as the other side names,
    or as the source array has. Other pages of ``destination`` stay as they are. Bits are kept: nothing is converted.

    Raises BufferSizeError for pools whose pages differ in shape or type, InvalidDescriptorError for an id outside its
    pool, IncompatibleError for a destination that is named twice, read-only, or the memory of the source.
    """
    plan_copy(source, destination, source_ids=source_ids, destination_ids=destination_ids)()


def plan_copy(
    source: PageSource,
    destination: NDArray[Any],
    *,
    source_ids: ArrayLike | None = None,
    destination_ids: ArrayLike | None = None,
) -> Callable[[], None]:
    """All that ``copy_pages`` checks, now; the copying itself when the result is called.

    For those who fill several pools, and refuse what can be refused before they write to the first.
    """
    reader = source if callable(source) else None
    pool = None if callable(source) else source
    check_destination(destination, pool)
    if pool is not None:
        check_pages(pool, destination)
    from_ids = None if source_ids is None else as_ids(source_ids, "source_ids", None if pool is None else len(pool))
    to_ids = None if destination_ids is None else as_ids(destination_ids, "destination_ids", len(destination))
    count = _count(pool, from_ids, to_ids)
    from_ids = _default_ids(from_ids, count, "source_ids", None if pool is None else len(pool))
    to_ids = _default_ids(to_ids, count, "destination_ids", len(destination))
    check_distinct(to_ids)

    def copy(part: slice) -> None:
        taken, given = from_ids[part], to_ids[part]
        if reader is None:
            assert pool is not None
            destination[as_index(given)] = pool[as_index(taken)]
            return
        pages = reader(taken)
        if len(pages) != len(taken):
            raise BufferSizeError(
                f"a page reader gave {len(pages)} pages for {len(taken)} ids",
                rule="adapter.copy-shape",
                declared=len(taken),
                found=len(pages),
            )
        check_pages(pages, destination)
        destination[as_index(given)] = pages

    def run() -> None:
        parallel.run(copy, chunks(count, page_bytes(destination)))

    return run


def chunks(count: int, each: int) -> Iterator[slice]:
    """Pieces of ``count`` things of ``each`` bytes, about CHUNK_BYTES long."""
    step = max(1, CHUNK_BYTES // max(each, 1))
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def page_bytes(pool: NDArray[Any]) -> int:
    return int(np.prod(pool.shape[1:], dtype=object)) * pool.dtype.itemsize


def as_index(ids: Ints) -> slice | Ints:
    """The same pages as a slice if they follow one another: a slice is copied without a temporary."""
    if len(ids) and bool((np.diff(ids) == 1).all()):
        return slice(int(ids[0]), int(ids[-1]) + 1)
    return ids


def check_destination(destination: NDArray[Any], source: NDArray[Any] | None) -> None:
    """The destination can be written, and writing it does not change the source."""
    if not destination.flags.writeable:
        raise IncompatibleError("the destination is read-only", rule="adapter.destination")
    if source is None:
        return
    try:
        # the exact answer takes exponential time at worst; ordinary pools take a few steps
        overlap = np.shares_memory(source, destination, max_work=10**6)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        overlap = True
    if overlap:
        raise IncompatibleError(
            "source and destination are the same memory: pages would be overwritten before they are read",
            rule="adapter.destination",
        )


def check_pages(source: NDArray[Any], destination: NDArray[Any], *, tokens: bool = True) -> None:
    """Pages of both pools are of one shape and type (of any number of tokens unless ``tokens``)."""
    first = 1 if tokens else 2
    if source.ndim != 4 or destination.ndim != 4 or source.shape[first:] != destination.shape[first:]:
        raise BufferSizeError(
            f"pages of a pool {list(source.shape)} do not fit into a pool {list(destination.shape)}",
            rule="adapter.copy-shape",
            declared=destination.shape,
            found=source.shape,
        )
    if source.dtype.newbyteorder("=") != destination.dtype.newbyteorder("="):
        raise BufferSizeError(
            f"a pool of {destination.dtype} cannot take pages of {source.dtype}; values are not converted",
            rule="adapter.copy-type",
            declared=str(destination.dtype),
            found=str(source.dtype),
        )


def check_distinct(ids: Ints) -> None:
    ordered = np.sort(ids)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise IncompatibleError(
            f"page {int(twice[0])} of the destination is named twice", rule="adapter.destination", found=int(twice[0])
        )


def _count(pool: NDArray[Any] | None, from_ids: Ints | None, to_ids: Ints | None) -> int:
    if from_ids is not None and to_ids is not None and len(from_ids) != len(to_ids):
        raise IncompatibleError(
            f"{len(from_ids)} pages cannot go to {len(to_ids)} places",
            rule="adapter.copy-count",
            declared=len(to_ids),
            found=len(from_ids),
        )
    for ids in (from_ids, to_ids):
        if ids is not None:
            return len(ids)
    if pool is None:
        raise TypeError("a page reader does not tell how many pages it has; pass source_ids=")
    return len(pool)


def _default_ids(ids: Ints | None, count: int, what: str, num_pages: int | None) -> Ints:
    if ids is not None:
        return ids
    if num_pages is not None and count > num_pages:
        raise InvalidDescriptorError(
            f"{what} run to page {count - 1} of a pool of {num_pages}",
            rule="block-paged.page-id",
            declared=num_pages,
            found=count - 1,
        )
    return np.arange(count, dtype=np.int64)

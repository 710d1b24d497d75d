"""Whole numbers from a caller: ids, lengths and sizes of any integer type, as int64, refused rather than wrapped.

What the numbers mean to one another is the work of ``tables.py``.
"""

from __future__ import annotations

import operator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import IncompatibleError, InvalidDescriptorError
from .intake import as_array

__all__ = ["INT64_MAX", "Ints", "as_ids", "as_lengths", "check_page_size", "first_outside", "integers", "to_int64"]

INT64_MAX = 2**63 - 1
MAX_PAGE_SIZE = 2**32 - 1  # a u32 on the wire

Ints: TypeAlias = NDArray[np.int64]


def as_lengths(seq_lens: Any) -> Ints:
    """A copy of lengths [num_seqs] as int64; refuses negative ones."""
    lengths = to_int64(integers(seq_lens, "seq_lens", 1), "seq_lens")
    if (lengths < 0).any():
        seq = int(np.argmax(lengths < 0))
        raise IncompatibleError(
            f"sequence {seq} has length {int(lengths[seq])}", rule="snapshot.seq-lens-pages", found=int(lengths[seq])
        )
    return lengths


def as_ids(ids: Any, what: str, num_pages: int | None) -> Ints:
    """A copy of page ids [n] as int64; refuses those that are not in a pool of ``num_pages``."""
    array = integers(ids, what, 1)
    at, pool = first_outside(array, num_pages)
    if at is not None:
        raise InvalidDescriptorError(
            f"{what} names page {int(array[at])} of {pool} at position {at}",
            rule="block-paged.page-id",
            declared=num_pages,
            found=int(array[at]),
        )
    return array.astype(np.int64)


def first_outside(ids: NDArray[Any], num_pages: int | None) -> tuple[int | None, str]:
    """The position of the first id that is not in the pool, and the pool in words."""
    limit = INT64_MAX + 1 if num_pages is None else min(operator.index(num_pages), INT64_MAX + 1)
    bad = (ids < 0) | (ids >= limit)
    at = int(np.argmax(bad)) if bad.any() else None
    return at, "the pool" if num_pages is None else f"a pool of {num_pages}"


def check_page_size(page_size: int) -> int:
    size = operator.index(page_size)
    if not 1 <= size <= MAX_PAGE_SIZE:
        raise IncompatibleError(
            f"page_size is {size}, not in 1..{MAX_PAGE_SIZE}", rule="block-paged.page-size", found=size
        )
    return size


def integers(values: Any, what: str, rank: int) -> NDArray[Any]:
    """An integer array of this rank, in its own type and byte order."""
    if isinstance(values, list | tuple | range):
        try:
            array = np.asarray(values)
        except (ValueError, OverflowError) as error:
            raise IncompatibleError(f"{what} is no array of integers: {error}", rule="adapter.table-type") from error
    else:
        array = as_array(values, what=what)
    if array.ndim != rank:
        raise IncompatibleError(
            f"{what} has {array.ndim} axes, not {rank}", rule="adapter.table-rank", declared=rank, found=array.ndim
        )
    if array.size == 0:
        return array.astype(np.int64)  # an empty list has no type of its own
    if array.dtype.kind not in "iu":
        raise IncompatibleError(
            f"{what} holds {array.dtype}, not integers of at most 64 bits",
            rule="adapter.table-type",
            found=str(array.dtype),
        )
    return array


def to_int64(array: NDArray[Any], what: str) -> Ints:
    if array.dtype.kind == "u" and (array > INT64_MAX).any():
        at = int(np.argmax(array > INT64_MAX))
        raise IncompatibleError(
            f"{what}[{at}] is {int(array[at])}, above {INT64_MAX}", rule="adapter.table-type", found=int(array[at])
        )
    return array.astype(np.int64)

"""Writing a floating cache as int8 ones (spec/snapshot.md, scales): the buffers of such a tensor, made in two passes.

The first pass finds the scales, before anything is written, since a value that no scale can hold is to be refused by
then; they are a few thousandths of the pool and are kept. The second makes the numbers piece by piece, while they are
written. The arithmetic is that of ``arrays/quantize.py``, the pages and what is scrubbed of them are those of the plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays.quantize import int8_slot_scales, quantize_int8_per_slot
from .selection import PagePlan, PoolInput, staged

__all__ = ["Int8Chunks", "slot_scales"]

_PIECE_ELEMENTS = 1 << 20  # quantized at once, all threads together


class Int8Chunks:
    """The int8 numbers of a pool, written by a plan, piece by piece (a ``Chunked`` of the writer).

    ``scales`` [num_pages * page_size] are those that ``slot_scales`` found.
    """

    def __init__(self, pool: PoolInput, plan: PagePlan, scales: NDArray[np.float32]) -> None:
        self._pool = pool
        self._plan = plan
        self._scales = scales
        self.nbytes = plan.num_pages * math.prod(pool.shape[1:])

    def chunks(self) -> Iterator[NDArray[np.uint8]]:
        """``nbytes`` bytes in pieces."""
        for start, values in _pieces(self._pool, self._plan):
            slots = slice(start * self._plan.page_size, (start + len(values)) * self._plan.page_size)
            codes, _ = quantize_int8_per_slot(values, self._scales[slots])
            yield codes.reshape(-1).view(np.uint8)


def slot_scales(pool: PoolInput, plan: PagePlan, name: str) -> NDArray[np.float32]:
    """The scale of every slot of the written pages, [num_pages * page_size]. Reads the pool once.

    Raises IncompatibleError, which names the tensor and the page, for values that int8 cannot stand for.
    """
    scales = np.ones(plan.num_pages * plan.page_size, dtype=np.float32)
    for start, values in _pieces(pool, plan):
        pages = plan.pages[start : start + len(values)] if plan.pages is not None else range(start, start + len(values))
        slots = slice(start * plan.page_size, (start + len(values)) * plan.page_size)
        scales[slots] = int8_slot_scales(values, what=f"{name!r}", pages=pages)
    return scales


def _pieces(pool: PoolInput, plan: PagePlan) -> Iterator[tuple[int, NDArray[Any]]]:
    """The written pages in order, in pieces of a bounded size, each with the number of its first page."""
    each = math.prod(pool.shape[1:])
    if not each:
        return
    step = max(1, _PIECE_ELEMENTS // each)
    start = 0
    for values in staged(pool, plan):
        for first in range(0, len(values), step):
            piece = values[first : first + step]
            yield start + first, piece
        start += len(values)

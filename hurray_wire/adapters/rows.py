"""A pool of any strides as rows of bytes that lie together in memory, so that pages are copied by ``numpy.take``.

NumPy copies an array of four axes in short runs, each with the cost of a step of its iterator, and gathers chosen pages
of one into a temporary first. Seen as rows, the same pages are one flat list of places, which ``take`` copies straight
to where they are wanted, several times as fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from .integers import Ints

__all__ = ["PageRows"]

_LEAST_ROW_BYTES = 64  # below this a row costs more to find than to copy


@dataclass(frozen=True, slots=True, eq=False)
class PageRows:
    """``rows`` [n, bytes of a row] are the memory of a pool. ``within`` tells those of page 0 in the order of elements;
    page p lies ``p * step`` rows further on. Rows between those of the pool are laid over memory that is not read.
    """

    rows: NDArray[np.uint8]
    within: Ints
    step: int

    @classmethod
    def of(cls, pool: NDArray[Any]) -> PageRows | None:
        """The rows of a pool ``[num_pages, ...]``; None where they would be too short, or run backwards."""
        if not pool.size or min(pool.strides) < 0:
            return None
        axes = [(size, stride) for size, stride in zip(pool.shape[1:], pool.strides[1:], strict=True) if size > 1]
        run = pool.dtype.itemsize
        while axes and axes[-1][1] == run:
            run *= axes.pop()[0]
        step = pool.strides[0] if len(pool) > 1 else run
        unit = math.gcd(run, step, *(stride for _, stride in axes))
        if unit < _LEAST_ROW_BYTES:
            return None
        within = np.zeros(1, dtype=np.int64)
        for size, stride in (*axes, (run // unit, unit)):
            within = (within[:, np.newaxis] + np.arange(size) * (stride // unit)).reshape(-1)
        count = (len(pool) - 1) * (step // unit) + int(within[-1]) + 1
        first = pool[(slice(1),) * pool.ndim].reshape(-1).view(np.uint8)[:1]
        rows = as_strided(first, (count, unit), (unit, 1), writeable=False)
        return cls(rows, within, step // unit)

    def take(self, pages: Ints, out: NDArray[Any]) -> None:
        """Copy pages that exist into ``out`` [len(pages), ...], C-contiguous and of the pool's element size."""
        places = (pages[:, np.newaxis] * self.step + self.within).reshape(-1)
        # "clip" is what lets NumPy write straight into `out`; "raise" would buffer all of it
        self.rows.take(places, 0, out.reshape(-1).view(np.uint8).reshape(len(places), self.rows.shape[1]), "clip")

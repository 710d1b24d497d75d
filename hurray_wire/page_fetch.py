"""Fetching tokens from where their pages are kept: the inner loop of ``gather`` where there is no pool to copy from.

A compressed file inflates frames, and every token of a frame goes from there to its own place in the result; a pool
between would be written and read for nothing. ``StoredPages`` stands for such a pool. What is fetched together, and
how, is left to the buffers.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .buffers import Buffers
from .page_copy import Piece

__all__ = ["PageFetch", "StoredPages"]


class StoredPages:
    """Buffer 0 of a tensor as a pool of ``shape`` [num_pages, page_size, *rest] and ``dtype`` that is not in memory."""

    def __init__(self, buffers: Buffers, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.buffers = buffers
        self.shape = shape
        self.dtype = dtype


class PageFetch:
    """Fetches from ``pool`` into ``values`` [..., tokens, *rest] of its dtype, which are C-contiguous and fresh.

    ``target`` is ``values`` as rows of bytes, one per token, to be cut into pieces.
    """

    def __init__(self, pool: StoredPages, block_table: NDArray[Any], values: NDArray[Any]) -> None:
        self.pool = pool
        self.table = block_table
        self.page_size = pool.shape[1]
        self.token_bytes = math.prod(pool.shape[2:]) * pool.dtype.itemsize
        lead = values.shape[: values.ndim - len(pool.shape) + 2]
        self.target = values.view(np.uint8).reshape(*lead, self.token_bytes)

    def write(self, pieces: list[Piece], padding: NDArray[Any] | None = None) -> None:
        """Write every piece, as ``PageCopy.write`` does; the order of reading is not that of the pieces."""
        page_bytes = self.page_size * self.token_bytes
        parts: list[tuple[int, memoryview]] = []
        for start, target in pieces:
            if start is None:
                if padding is None:
                    target[...] = 0
                else:
                    target.view(padding.dtype)[...] = padding
                continue
            count = -(-len(target) // self.page_size)
            pages = self.table[start : start + count].astype(np.int64)
            edges = [0, *(np.flatnonzero(np.diff(pages) != 1) + 1).tolist(), count]
            for first, behind in pairwise(edges):
                run = target[first * self.page_size : behind * self.page_size]
                parts.append((int(pages[first]) * page_bytes, run.reshape(-1).data))
        self.pool.buffers.fetch_parts(0, parts)

"""A pool of pages over a cache that has none: its tokens are cut into pages while they are written.

The tables that go with it come from ``adapters.dense.cut``, whose own pools are those of a whole layer; here no more
than the pages that are asked for is ever made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .adapters import Tables

__all__ = ["TokenPages"]


class TokenPages:
    """Pages [num_pages, page_size, num_heads, head_dim] of one layer and role, made when they are asked for.

    ``sequences`` are the tokens of each sequence, [tokens, num_heads, head_dim], borrowed, of any strides and byte
    order. Pages are numbered as ``tables`` name them: in turn, none shared.
    """

    def __init__(self, sequences: Sequence[NDArray[Any]], tables: Tables, *, page_size: int) -> None:
        self._sequences = sequences
        self._ptr = tables.seq_ptr
        self._page_size = page_size
        self.shape = (int(tables.seq_ptr[-1]), page_size, *sequences[0].shape[1:])
        self.dtype = sequences[0].dtype

    def fill(self, pages: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Write these pages into ``out`` [n, page_size, num_heads, head_dim]; slots past the tokens are zero."""
        done = 0
        while done < len(pages):
            page = int(pages[done])
            seq = int(np.searchsorted(self._ptr, page, side="right")) - 1
            # as many as follow one another in this sequence
            last = min(len(pages), done + int(self._ptr[seq + 1]) - page)
            count = int(np.argmax(np.append(np.diff(pages[done:last]) != 1, True))) + 1
            self._fill_run(self._sequences[seq], page - int(self._ptr[seq]), out[done : done + count])
            done += count

    def _fill_run(self, tokens: NDArray[Any], first: int, out: NDArray[Any]) -> None:
        size = self._page_size
        held = tokens[first * size : (first + len(out)) * size]
        whole, rest = divmod(len(held), size)
        np.copyto(out[:whole], held[: whole * size].reshape(whole, size, *held.shape[1:]), casting="equiv")
        if rest:
            np.copyto(out[whole, :rest], held[whole * size :], casting="equiv")
            out[whole, rest:] = np.zeros((), out.dtype)

"""The Hilbert curve (spec/layouts.md, Hilbert): which run of the curve fills which part of the cube.

The curve is Skilling's. Within one level the corners of a cube follow each other in Gray code: corner number w has the
coordinates of w ^ (w >> 1), the bit of dimension 0 highest. Within each corner runs the same curve again, one order
lower, in a cube that is turned: going through the dimensions in turn, where the corner lies high in dimension k the
first axis of its cube is reversed, where it lies low the first axis and axis k change places. And in every odd corner
the curve is run through backwards.

So a part of the cube is a view of it, with axes exchanged and reversed, and is filled from a run of the buffer through
one small table that is the same for all parts. Nothing is computed per element, and nothing is as large as the tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Part", "parts"]

_TABLE_BITS = 18  # a table of 2**18 places takes 2 MiB; smaller ones would cost more in calls than they save in cache


class Part(NamedTuple):
    """One run of the curve, and the cube it goes through.

    ``view`` is a part of the caller's array, its axes exchanged and reversed. ``steps`` is an int64 array of its shape:
    element ``view[at]`` comes ``steps[at]`` steps after the first of the run, which is elements ``start .. start +
    view.size`` of the buffer. If ``backwards``, the steps are counted from the end of the run.
    """

    view: NDArray[Any]
    start: int
    steps: NDArray[np.int64]
    backwards: bool


def parts(cube: NDArray[Any], order: int) -> Iterator[Part]:
    """Parts that together are all of ``cube``, an array of 2**order elements (order >= 1) along each dimension."""
    yield from _parts(cube, order, 0, backwards=False)


def _parts(cube: NDArray[Any], order: int, start: int, *, backwards: bool) -> Iterator[Part]:
    if cube.ndim * order <= _TABLE_BITS:
        yield Part(cube, start, _table(cube.ndim, order), backwards)
        return
    cut, count = (_half, 2) if order == 1 else (_corner, 1 << cube.ndim)
    for number in range(count):
        piece = cut(cube, number)
        place = count - 1 - number if backwards else number
        yield from _parts(piece, max(order - 1, 1), start + place * piece.size, backwards=backwards ^ bool(number & 1))


def _corner(cube: NDArray[Any], number: int) -> NDArray[Any]:
    """Corner ``number`` of a cube in the order of the curve, turned to where the curve starts in it."""
    rank, side = cube.ndim, cube.shape[0] // 2
    gray = number ^ number >> 1
    high = [gray >> (rank - 1 - k) & 1 for k in range(rank)]
    axes = list(range(rank))
    reverse = [False] * rank
    for k in range(rank):
        if high[k]:
            reverse[axes[0]] ^= True
        else:
            axes[0], axes[k] = axes[k], axes[0]
    corner = cube[tuple(slice(h * side, (h + 1) * side) for h in high)]
    return corner[tuple(slice(None, None, -1 if r else 1) for r in reverse)].transpose(axes)


def _half(cube: NDArray[Any], number: int) -> NDArray[Any]:
    """Half a cube of two elements a side, of one dimension less: Gray code counts up in half 0 and down in half 1."""
    half: NDArray[Any] = cube[number]
    return half


@lru_cache(maxsize=8)
def _table(rank: int, order: int) -> NDArray[np.int64]:
    """The number of steps from the start of the curve to each element of a cube, [2**order] * rank, read-only."""
    table = np.empty((1 << order,) * rank, np.int64)
    if order == 1:
        numbers = np.arange(table.size)
        table.reshape(-1)[numbers ^ numbers >> 1] = numbers
    else:
        steps = _table(rank, order - 1)
        last = steps.size - 1
        for number in range(1 << rank):
            _corner(table, number)[...] = number * steps.size + (last - steps if number & 1 else steps)
    table.flags.writeable = False
    return table

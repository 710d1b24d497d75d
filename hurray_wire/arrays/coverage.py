"""Whether boxes cover a larger box exactly, without overlap (spec/layouts.md, composites: partition).

If they do, their volumes add up; and if volumes add up, an overlap means a gap elsewhere. Comparing every box with
every other would take hours for 100,000 of them, so overlap is found another way. Give each coordinate of each
dimension a random number, and a box the product over the dimensions of the numbers of its two sides, end minus start.
Where boxes meet, the numbers of the common side cancel, and what covers the whole exactly has the product of the whole.
Conversely, the products are one polynomial in those numbers, which is zero everywhere only if every side cancels; at a
random point modulo a prime p it is zero by chance once in p / rank. Five points at p = 2**31 - 1 leave one chance in
2**125: less than that of the memory failing meanwhile. Nobody can prepare a file for it, since the numbers are fresh.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidFileError
from ..model.shape import Shape

__all__ = ["check_coverage"]

Corners: TypeAlias = NDArray[np.uint64]

_PRIME = (1 << 31) - 1  # a product of two residues fits 62 bits, and a sum of 2**32 residues fits 63
_POINTS = 5
_COMPARISONS = 1 << 24  # what an error may cost that names the boxes at fault


def check_coverage(shape: Shape, offsets: Sequence[Shape], shapes: Sequence[Shape]) -> None:
    """Raise InvalidFileError unless boxes at ``offsets`` of ``shapes``, all inside ``shape``, cover it exactly.

    The error says whether elements are missing (``composite.coverage``) or held twice (``composite.overlap``), and
    names two boxes that overlap by their numbers, where they are found with reasonable effort.
    """
    whole, total = math.prod(shape), sum(map(math.prod, shapes))
    if total < whole:
        raise InvalidFileError(
            f"the members of a partition hold {total} of its {whole} elements",
            rule="composite.coverage",
            declared=whole,
            found=total,
        )
    starts = np.array(offsets, np.uint64).reshape(len(offsets), len(shape))
    ends = starts + np.array(shapes, np.uint64).reshape(starts.shape)
    boxes = np.flatnonzero((starts < ends).all(axis=1))  # an empty box neither covers nor overlaps anything
    starts, ends = starts[boxes], ends[boxes]
    if not _sides_cancel(shape, starts, ends):
        _refuse_overlap(boxes, starts, ends, total, whole)


def _sides_cancel(shape: Shape, starts: Corners, ends: Corners) -> bool:
    random = np.random.default_rng()
    count = len(starts)
    products = np.ones((_POINTS, count + 1), np.uint64)  # of each box, and of the whole at the end
    for k, dim in enumerate(shape):
        sides = np.concatenate([starts[:, k], np.zeros(1, np.uint64), ends[:, k], np.array([dim], np.uint64)])
        distinct, place = np.unique(sides, return_inverse=True)
        if len(distinct) == 2:
            continue  # every box spans this dimension
        for product in products:
            numbers = random.integers(0, _PRIME, len(distinct), dtype=np.uint64)[place.reshape(-1)]
            product *= (numbers[count + 1 :] + np.uint64(_PRIME) - numbers[: count + 1]) % np.uint64(_PRIME)
            product %= np.uint64(_PRIME)
    return bool((products[:, :-1].sum(axis=1) % np.uint64(_PRIME) == products[:, -1]).all())


def _refuse_overlap(boxes: NDArray[np.intp], starts: Corners, ends: Corners, total: int, whole: int) -> NoReturn:
    pair = _overlapping_pair(starts, ends)
    found = None if pair is None else (int(boxes[pair[0]]), int(boxes[pair[1]]))
    where = "" if found is None else f", {found[0]} and {found[1]} among them"
    raise InvalidFileError(
        f"members of a partition overlap{where} ({total} elements for {whole} places)",
        rule="composite.overlap",
        found=found,
    )


def _overlapping_pair(starts: Corners, ends: Corners) -> tuple[int, int] | None:
    """Two boxes that overlap, looked for among those that are near to each other in order of their starts."""
    count = len(starts)
    order = np.lexsort(starts.T[::-1]) if starts.shape[1] else np.arange(count)
    first, last = starts[order], ends[order]
    for step in range(1, min(count, _COMPARISONS // count + 2)):
        meet = np.all((first[step:] < last[:-step]) & (first[:-step] < last[step:]), axis=1)
        if meet.any():
            at = int(np.argmax(meet))
            low, high = sorted((int(order[at]), int(order[at + step])))
            return low, high
    return None

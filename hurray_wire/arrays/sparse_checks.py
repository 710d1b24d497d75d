"""The rules on the index buffers of sparse tensors (spec/layouts.md): bounds, order, duplicates, pointers.

Each check raises InvalidFileError that names the first entry at fault. All compare uint64 with uint64: nothing is
narrowed before it is known to be small. Whether the buffers are long enough was checked with the descriptor.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidFileError
from ..model.shape import Shape, element_count

__all__ = [
    "check_bounds",
    "check_coordinates",
    "check_distinct",
    "check_fibers",
    "check_length",
    "check_pointers",
    "counts",
    "owners_of",
]

Words: TypeAlias = NDArray[np.uint64]


def check_length(words: Words, expected: int, name: str) -> None:
    """A level of a tree has as many entries as the level above calls for."""
    if len(words) != expected:
        raise InvalidFileError(
            f"{name} has {len(words)} entries, not {expected}",
            rule="sparse.level",
            declared=expected,
            found=len(words),
        )


def check_pointers(pointers: Words, end: int, name: str) -> None:
    """Pointers start at 0, never fall, and end at ``end``. At least one is there."""
    if pointers[0] != 0:
        raise InvalidFileError(
            f"{name} starts at {pointers[0]}, not 0", rule="sparse.pointer", declared=0, found=int(pointers[0])
        )
    falls = pointers[1:] < pointers[:-1]
    if falls.any():
        k = int(np.argmax(falls))
        raise InvalidFileError(
            f"{name} falls from {pointers[k]} to {pointers[k + 1]} at entry {k + 1}",
            rule="sparse.pointer",
            declared=int(pointers[k]),
            found=int(pointers[k + 1]),
        )
    if int(pointers[-1]) != end:
        raise InvalidFileError(
            f"{name} ends at {pointers[-1]}, not {end}", rule="sparse.pointer", declared=end, found=int(pointers[-1])
        )


def check_bounds(indices: Words, dims: Shape, name: str = "indices") -> None:
    """Each row of ``indices``, [n, len(dims)], lies within ``dims``."""
    if not len(indices):
        return
    limits = np.array(dims, dtype=np.uint64)
    if (indices.max(axis=0) < limits).all():
        return
    row, column = (int(place) for place in np.argwhere(indices >= limits)[0])
    found = int(indices[row, column])
    where = f"{name}[{row}]" if len(dims) == 1 else f"{name}[{row}, {column}]"
    raise InvalidFileError(
        f"{where} is {found}, but that dimension has {dims[column]} elements",
        rule="sparse.bounds",
        declared=dims[column],
        found=found,
    )


def check_coordinates(indices: Words, shape: Shape, *, is_sorted: bool) -> None:
    """The rows of ``indices``, already within ``shape``, are distinct, and ascend if they are said to be sorted."""
    ascends, equal = _compare_neighbours(indices)
    if ascends.all():
        return
    if is_sorted:
        row = int(np.argmin(ascends))
        if equal[row]:
            _refuse_twice(indices[row], row, row + 1)
        raise InvalidFileError(
            f"is_sorted is set, but coordinate {indices[row + 1].tolist()} of value {row + 1} comes after "
            f"{indices[row].tolist()}",
            rule="sparse.order",
            declared=indices[row].tolist(),
            found=indices[row + 1].tolist(),
        )
    if element_count(shape) <= 1 << 63:  # then a row is one number, which sorts in a fraction of the time
        keys = _row_major(indices, shape)
        ranked = np.sort(keys)
        equal = ranked[1:] == ranked[:-1]
        if equal.any():
            first, second = np.flatnonzero(keys == ranked[int(np.argmax(equal))])[:2]
            _refuse_twice(indices[first], int(first), int(second))
        return
    order = np.lexsort(indices.T[::-1])
    _, equal = _compare_neighbours(indices[order])
    if equal.any():
        at = int(np.argmax(equal))
        early, late = sorted((int(order[at]), int(order[at + 1])))
        _refuse_twice(indices[early], early, late)


def check_distinct(minor: Words, pointers: Words, name: str) -> None:
    """No index comes twice between two neighbouring pointers; their order is free."""
    if _ascends_within(minor, pointers).all():
        return
    owners = owners_of(pointers)
    order = np.lexsort((minor, owners))
    equal = (minor[order[1:]] == minor[order[:-1]]) & (owners[order[1:]] == owners[order[:-1]])
    if equal.any():
        at = int(np.argmax(equal))
        first, second = sorted((int(order[at]), int(order[at + 1])))
        _refuse_twice([owners[first], minor[first]], first, second, name)


def check_fibers(crd: Words, pos: Words, name: str) -> None:
    """Coordinates ascend within each fiber, without repeats."""
    ascends = _ascends_within(crd, pos)
    if ascends.all():
        return
    k = int(np.argmin(ascends))
    fiber = int(np.searchsorted(pos, k, side="right")) - 1
    twice = crd[k] == crd[k + 1]
    raise InvalidFileError(
        f"{name}[{k + 1}] is {crd[k + 1]} after {crd[k]} in fiber {fiber}: coordinates of a fiber ascend",
        rule="sparse.duplicate" if twice else "sparse.order",
        declared=int(crd[k]),
        found=int(crd[k + 1]),
    )


def counts(pointers: Words) -> NDArray[np.int64]:
    """How many entries lie between each two neighbours of checked ``pointers``."""
    wide = pointers.astype(np.int64)
    return wide[1:] - wide[:-1]


def owners_of(pointers: Words) -> NDArray[np.int64]:
    """For each entry that checked ``pointers`` run over, between which two of them it lies."""
    return np.repeat(np.arange(len(pointers) - 1), counts(pointers))


def _ascends_within(words: Words, pointers: Words) -> NDArray[np.bool_]:
    """For each entry but the first, whether it is above the one before it, or the first of its own stretch."""
    ascends = words[1:] > words[:-1]
    starts = pointers[1:-1].astype(np.int64)
    ascends[starts[(starts > 0) & (starts < len(words))] - 1] = True
    return ascends


def _compare_neighbours(rows: Words) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """For each row but the last: does the next one come after it in lexicographic order, and is it the same?"""
    count = max(len(rows) - 1, 0)
    ascends, equal = np.zeros(count, np.bool_), np.ones(count, np.bool_)
    for k in range(rows.shape[1]):
        before, after = rows[:-1, k], rows[1:, k]
        ascends |= equal & (after > before)
        equal &= after == before
    return ascends, equal


def _row_major(indices: Words, shape: Shape) -> Words:
    """The place of each row in the row-major array of ``shape``."""
    places = np.zeros(len(indices), np.uint64)
    for k, dim in enumerate(shape):
        places *= np.uint64(dim)
        places += indices[:, k]
    return places


def _refuse_twice(coordinate: Any, first: int, second: int, name: str = "indices") -> None:
    raise InvalidFileError(
        f"{name} has coordinate {[int(i) for i in coordinate]} twice, for values {first} and {second}",
        rule="sparse.duplicate",
        declared=first,
        found=second,
    )

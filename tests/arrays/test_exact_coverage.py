"""Boxes cover a larger box exactly, or the error says what is wrong; and 100,000 of them are as good as three."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hurray_wire.arrays import coverage
from hurray_wire.arrays.coverage import check_coverage
from hurray_wire.errors import InvalidFileError

Box = tuple[tuple[int, ...], tuple[int, ...]]  # offset, shape

# Four bricks around one in the middle: no line cuts this square without cutting a box.
PINWHEEL: list[Box] = [((0, 0), (1, 2)), ((0, 2), (2, 1)), ((2, 1), (1, 2)), ((1, 0), (2, 1)), ((1, 1), (1, 1))]


def check(shape: Sequence[int], boxes: Sequence[Box]) -> None:
    check_coverage(tuple(shape), [offset for offset, _ in boxes], [size for _, size in boxes])


def refused(rule: str, shape: Sequence[int], boxes: Sequence[Box]) -> InvalidFileError:
    with pytest.raises(InvalidFileError) as caught:
        check(shape, boxes)
    assert caught.value.rule == rule
    return caught.value


@pytest.mark.parametrize(
    ("shape", "boxes"),
    [
        ((3, 3), PINWHEEL),
        ((3, 3), [((0, 0), (3, 3))]),
        ((4,), [((1,), (3,)), ((0,), (1,))]),
        ((2, 2), [((0, 0), (2, 1)), ((1, 1), (1, 1)), ((0, 1), (1, 1))]),
        ((4, 2), [((0, 0), (4, 2)), ((0, 0), (0, 2)), ((2, 1), (1, 0))]),
        ((), [((), ())]),
        ((0, 5), []),
        ((0, 5), [((0, 0), (0, 2)), ((0, 1), (0, 4))]),
        ((1 << 40, 1 << 40), [((0, 0), (1, 1 << 40)), ((1, 0), ((1 << 40) - 1, 1 << 40))]),
        (((1 << 64) - 2,), [((0,), (1 << 63,)), ((1 << 63,), ((1 << 63) - 2,))]),
    ],
)
def test_boxes_that_cover_exactly_pass(shape: tuple[int, ...], boxes: list[Box]) -> None:
    check(shape, boxes)


@pytest.mark.parametrize(
    ("shape", "boxes", "declared", "found"),
    [
        ((3, 3), PINWHEEL[:4], 9, 8),
        ((3, 3), [], 9, 0),
        ((), [], 1, 0),
        ((1 << 40, 1 << 40), [((0, 0), ((1 << 40) - 1, 1 << 40))], 1 << 80, (1 << 80) - (1 << 40)),
    ],
)
def test_a_gap_is_a_fault_of_coverage(shape: tuple[int, ...], boxes: list[Box], declared: int, found: int) -> None:
    error = refused("composite.coverage", shape, boxes)
    assert (error.declared, error.found) == (declared, found)


@pytest.mark.parametrize(
    ("shape", "boxes", "pair"),
    [
        ((3, 3), [*PINWHEEL, ((2, 2), (1, 1))], (2, 5)),
        ((3, 3), [*PINWHEEL[:4], ((0, 1), (1, 1))], (0, 4)),
        ((4,), [((0,), (3,)), ((0,), (0,)), ((2,), (2,))], (0, 2)),
        ((4,), [((0,), (2,)), ((0,), (2,))], (0, 1)),
        ((), [((), ()), ((), ())], (0, 1)),
        ((1 << 33, 1 << 33), [((0, 0), (1 << 33, 1 << 32))] * 2, (0, 1)),
    ],
    ids=["extra", "gap-elsewhere", "one-dimension", "twice", "scalar", "large"],
)
def test_an_overlap_is_named(shape: tuple[int, ...], boxes: list[Box], pair: tuple[int, int]) -> None:
    error = refused("composite.overlap", shape, boxes)
    assert error.found == pair
    assert f"{pair[0]} and {pair[1]}" in str(error)


def test_volumes_that_add_up_are_not_enough() -> None:
    # an overlap of one element in one corner, a gap of one in another, in every dimension up to six
    for rank in range(1, 7):
        shape = (4,) * rank
        rest = [((k, *(0,) * (rank - 1)), (1, *(4,) * (rank - 1))) for k in range(3)]
        cells = [((3, *at), (1,) * rank) for at in itertools.product(range(4), repeat=rank - 1)]
        check(shape, [*rest, *cells])
        cells[-1] = ((0,) * rank, (1,) * rank)
        assert refused("composite.overlap", shape, [*rest, *cells]).found == (0, 2 + len(cells))


@st.composite
def boxes_in(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    """A box cut up at random, sometimes with one piece moved, grown, doubled or dropped."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    boxes: list[Box] = [((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 6))):
        offset, size = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        cut = draw(st.integers(0, size[axis]))
        boxes.append((offset, (*size[:axis], cut, *size[axis + 1 :])))
        moved = (*offset[:axis], offset[axis] + cut, *offset[axis + 1 :])
        boxes.append((moved, (*size[:axis], size[axis] - cut, *size[axis + 1 :])))
    for _ in range(draw(st.integers(0, 2))):
        offset, size = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        spans = [sorted(draw(st.tuples(st.integers(0, dim), st.integers(0, dim)))) for dim in shape]
        boxes.append(
            draw(st.sampled_from([(offset, size), (tuple(a for a, _ in spans), tuple(b - a for a, b in spans))]))
        )
    return shape, draw(st.permutations(boxes))


@given(boxes_in())
@settings(deadline=None, max_examples=300)
def test_the_verdict_is_that_of_counting_every_element(case: Any) -> None:
    shape, boxes = case
    counts = np.zeros(shape, int)
    for offset, size in boxes:
        counts[tuple(slice(o, o + s) for o, s in zip(offset, size, strict=True))] += 1
    if (counts == 1).all():
        check(shape, boxes)
    elif counts.sum() < counts.size:
        refused("composite.coverage", shape, boxes)
    else:
        first, second = refused("composite.overlap", shape, boxes).found
        spans = [
            {*itertools.product(*(range(o, o + s) for o, s in zip(*boxes[k], strict=True)))} for k in (first, second)
        ]
        assert spans[0] & spans[1]


def bricks(rows: int, columns: int) -> list[Box]:
    """Rows of bricks of two, every other row shifted by one."""
    boxes: list[Box] = []
    for row in range(rows):
        edges = [0, *range(2 - row % 2, columns, 2), columns]
        boxes += [((row, a), (1, b - a)) for a, b in itertools.pairwise(edges) if a < b]
    return boxes


def test_a_hundred_thousand_boxes_take_no_comparison_of_each_with_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "_overlapping_pair", lambda *_: pytest.fail("compared boxes"))
    boxes = bricks(200, 1000)
    assert len(boxes) > 100_000
    check((200, 1000), boxes)
    # one brick of the last row, on top of one of the first
    monkeypatch.undo()
    boxes[-2] = ((0, 4), boxes[-2][1])
    assert len(boxes) - 2 in refused("composite.overlap", (200, 1000), boxes).found


def test_the_search_for_a_name_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "_COMPARISONS", 1)
    boxes = [((0, 0), (9, 1)), *(((k, 1), (1, 9)) for k in range(9)), ((8, 0), (1, 1))]
    error = refused("composite.overlap", (9, 10), boxes)
    assert error.found is None


def test_64_dimensions_cost_as_many_steps() -> None:
    whole = (2,) * 63
    check((2, *whole), [((0,) * 64, (1, *whole)), ((1, *(0,) * 63), (1, *whole))])
    split = [(tuple(at), (1,) * 8) for at in itertools.product(range(2), repeat=8)]
    padded = [((*offset, *(0,) * 56), (*size, *(2,) * 56)) for offset, size in split]
    check((2,) * 64, padded)
    padded[3] = padded[4]
    refused("composite.overlap", (2,) * 64, padded)

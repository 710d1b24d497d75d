"""Requests for stretches of a file: all bytes come to their places, in few requests, none of them long."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hurray_wire.store import ranges
from hurray_wire.store.ranges import GAP_BYTES, PART_BYTES, Request, merged, plan

FILE = np.random.default_rng(5).integers(0, 256, 3 * PART_BYTES, dtype=np.uint8)
LENGTH = st.one_of(st.integers(0, 64), st.integers(0, PART_BYTES + 100))


def answered(requests: list[Request]) -> None:
    for request in requests:
        memory = request.memory()
        memory[:] = FILE[request.start : request.stop].data
        request.deliver(memory)


def stretches_of(places: list[tuple[int, int]]) -> list[tuple[int, memoryview]]:
    return [(offset, memoryview(bytearray(length))) for offset, length in places]


@given(st.lists(st.tuples(st.integers(0, len(FILE) - PART_BYTES - 100), LENGTH), max_size=12))
def test_every_stretch_is_filled_in_any_order_and_overlapping(places: list[tuple[int, int]]) -> None:
    stretches = stretches_of(places)
    requests = plan(stretches)
    answered(requests)
    for offset, memory in stretches:
        assert memory == FILE[offset : offset + len(memory)].data
    assert all(0 < request.stop - request.start <= PART_BYTES for request in requests)


def test_neighbours_share_a_request_up_to_the_gap() -> None:
    near = plan(stretches_of([(0, 10), (10 + GAP_BYTES, 10)]))
    assert [(request.start, request.stop) for request in near] == [(0, 20 + GAP_BYTES)]
    far = plan(stretches_of([(0, 10), (11 + GAP_BYTES, 10)]))
    assert [(request.start, request.stop) for request in far] == [(0, 10), (11 + GAP_BYTES, 21 + GAP_BYTES)]


def test_a_long_stretch_is_cut_into_parts_that_are_read_to_their_places() -> None:
    memory = memoryview(bytearray(2 * PART_BYTES + 5))
    requests = plan([(100, memory)])
    assert [request.stop - request.start for request in requests] == [PART_BYTES, PART_BYTES, 5]
    assert all(request.memory() is request.pieces[0][1] for request in requests)


def test_neighbours_share_no_request_that_would_be_too_long() -> None:
    requests = plan(stretches_of([(0, PART_BYTES - 10), (PART_BYTES - 10, 20)]))
    assert [(request.start, request.stop) for request in requests] == [
        (0, PART_BYTES - 10),
        (PART_BYTES - 10, PART_BYTES + 10),
    ]


def test_nothing_takes_no_request() -> None:
    assert plan([]) == []
    assert plan(stretches_of([(7, 0)])) == []


def test_spans_that_are_near_become_one() -> None:
    assert merged([(ranges.GAP_BYTES + 30, ranges.GAP_BYTES + 40), (0, 20), (5, 10)]) == [
        (0, 20),
        (ranges.GAP_BYTES + 30, ranges.GAP_BYTES + 40),
    ]
    assert merged([(GAP_BYTES + 20, GAP_BYTES + 40), (0, 20)]) == [(0, GAP_BYTES + 40)]

"""Opening a file of n tensors takes work in proportion to n, and touches header, trailer and index alone."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import hurray_wire as hw

from .building import many_tensors


class Counting(io.BytesIO):
    """Notes every range that is read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.ranges: list[tuple[int, int]] = []

    def read(self, size: int | None = -1) -> bytes:
        at = self.tell()
        piece = super().read(size)
        self.ranges.append((at, at + len(piece)))
        return piece


def calls(work: Callable[[], Any]) -> int:
    """How many functions, Python's and built-in, are called while this works."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def test_work_grows_in_proportion_to_the_number_of_tensors() -> None:
    once, twice = many_tensors(2_000), many_tensors(4_000)
    hw.open(once)
    first, second = calls(lambda: hw.open(once)), calls(lambda: hw.open(twice))
    assert second < 2.2 * first
    assert second < 4_000 * 50


def test_a_hundred_thousand_tensors_open_and_any_of_them_is_one_read_away() -> None:
    data = many_tensors(100_000)
    source = Counting(data)
    with hw.open(source) as file:
        opening = list(source.ranges)
        index_at = int.from_bytes(data[-40:-32], "little")
        assert all(end <= 64 or start >= index_at for start, end in opening)
        assert sum(end - start for start, end in opening) <= 64 + (len(data) - index_at) + 64
        assert len(file) == 100_000
        assert file.names[99_999] == "0099999"
        source.ranges.clear()
        assert file["0054321"].descriptor.layout.name == "composite"
        assert len(source.ranges) == 1
        ((start, end),) = source.ranges
        assert end - start == 37


def test_touching_every_tensor_takes_work_in_proportion_too() -> None:
    def touch(data: bytes) -> None:
        with hw.open(data) as file:
            for name in file:
                assert file[name].name == name

    once, twice = many_tensors(300), many_tensors(600)
    touch(once)
    assert calls(lambda: touch(twice)) < 2.2 * calls(lambda: touch(once))


def test_verify_takes_work_in_proportion_too() -> None:
    def verify(data: bytes) -> None:
        with hw.open(data) as file:
            assert file.verify().tensors == len(file)

    once, twice = many_tensors(300), many_tensors(600)
    verify(once)
    assert calls(lambda: verify(twice)) < 2.2 * calls(lambda: verify(once))

"""Attributes that are computed once, with no lock between the objects that have them."""

from __future__ import annotations

import threading

import pytest

from hurray_wire.lazy import lazy


class Square:
    """Computes when ``gate`` lets it."""

    def __init__(self, number: int, gate: threading.Barrier | None = None) -> None:
        self.number, self.gate, self.calls = number, gate, 0

    @lazy
    def value(self) -> int:
        """The square."""
        self.calls += 1
        if self.gate is not None:
            self.gate.wait(30)  # broken, and so an error, unless as many threads are here at once
        if self.number < 0:
            raise ValueError(self.number)
        return self.number**2


def test_it_is_computed_once_and_kept():
    square = Square(3)
    assert (square.value, square.value, square.calls) == (9, 9, 1)


def test_an_error_is_not_kept():
    square = Square(-2)
    for _ in range(2):
        with pytest.raises(ValueError, match="-2"):
            square.value  # noqa: B018
    square.number = 2
    assert square.value == 4


def test_two_objects_are_computed_side_by_side():
    gate = threading.Barrier(2)
    squares = [Square(2, gate), Square(3, gate)]
    threads = [threading.Thread(target=lambda square=square: square.value) for square in squares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [square.__dict__["value"] for square in squares] == [4, 9]


def test_the_class_gives_the_attribute_itself_with_its_documentation():
    assert Square.value.__doc__ == "The square."

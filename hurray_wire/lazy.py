"""An attribute that is computed on first use and then kept, as ``functools.cached_property`` of Python 3.12 does it.

That of Python 3.11 holds one lock for all objects of a class while it computes: two threads that read different
tensors would wait for each other, and a child forked meanwhile for ever. Here both may compute, and one answer stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

__all__ = ["lazy"]

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801 -- used like property
    """Decorates a method without arguments. The object has a ``__dict__``, where the answer is kept by its name."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        answer: T = instance.__dict__.setdefault(self._name, self._function(instance))
        return answer

"""Composites: several tensors of a file as one (spec/layouts.md, "Composites").

The members of a composite are the tensors that follow its head in write order, each with members of its own if it heads
a composite. ``CompositeTensor`` is the head with its members; which tensors these are is found by whoever holds the
file, how their values become one array is told in ``arrays/composite.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays.composite import Member, assemble, check_members, stored_by
from .arrays.memory import check_addressable, check_limit, within_memory
from .arrays.packing import memory_dtype
from .errors import InvalidFileError, UnsupportedError
from .lazy import lazy
from .limits import MAX_NESTING, Limits
from .model.descriptor import TensorDescriptor
from .model.layouts import CompositeLayout
from .tensors import Tensor

__all__ = ["CompositeTensor", "members_of"]


class CompositeTensor(Tensor):
    """The head of a composite. It has no buffers; its values are those of its members.

    The members are found, and checked against the head, when they are first asked for. Errors: InvalidFileError for
    missing members and for members that do not fit the head.
    """

    def __init__(
        self,
        name: str | None,
        descriptor: TensorDescriptor,
        *,
        find_members: Callable[[], Sequence[Tensor]],
        limits: Limits | None = None,
    ) -> None:
        super().__init__(name, descriptor, (), limits=limits)
        self._find_members = find_members

    @lazy
    def members(self) -> tuple[Tensor, ...]:
        """The members in write order; a member may be a CompositeTensor itself."""
        found = tuple(self._find_members())
        check_members(self.descriptor, [member.descriptor for member in found])
        return found

    @within_memory
    def numpy(self, *, dequantize: bool = False) -> NDArray[Any]:
        """A partition put together, or an overlay with its corrections applied: a new array of the head's shape.

        Quantized members count with their real values; ``dequantize`` makes the whole float32. Raises UnsupportedError
        for a group (whose members are not parts of one array) and for private rules, LimitError where the array would
        exceed what ``Limits`` allow.
        """
        layout = self.descriptor.layout
        if isinstance(layout, CompositeLayout) and layout.composition_rule == "group":
            raise UnsupportedError(
                f"{self.name!r} is a group of {len(self.members)} tensors and no array; see .members",
                rule="layout.dense",
            )
        members = [_value(self.descriptor, member) for member in self.members]
        if dequantize:
            what = f"{self.name!r} in float32"
            check_limit(4 * self.descriptor.element_count, self._limits, what, stored=stored_by(members))
        values = assemble(self.descriptor, members, limits=self._limits)
        assert not isinstance(values, tuple)
        return _converted(values, np.dtype(np.float32)) if dequantize else values

    def check_payload(self) -> None:
        """Check that the members are there and fit."""
        self.members  # noqa: B018 -- checked while they are found


def members_of(names: Sequence[str], place: int, tensor: Callable[[str], Tensor]) -> list[Tensor]:
    """The members of the composite at ``place`` in ``names`` (write order): the tensors after it, nested ones whole.

    Raises InvalidFileError where some are missing, or composites are nested more than 8 deep.
    """
    return _take(names, iter(range(place + 1, len(names))), tensor(names[place]), tensor, 1)


def _take(
    names: Sequence[str], places: Iterator[int], head: Tensor, tensor: Callable[[str], Tensor], depth: int
) -> list[Tensor]:
    layout = head.descriptor.layout
    assert isinstance(layout, CompositeLayout)
    if depth > MAX_NESTING:
        raise InvalidFileError(
            f"composites are nested more than {MAX_NESTING} deep", rule="composite.depth", declared=MAX_NESTING
        )
    members: list[Tensor] = []
    while len(members) < layout.member_count:
        place = next(places, None)
        if place is None:
            raise InvalidFileError(
                f"the composite {head.name!r} has {len(members)} members, but promises {layout.member_count}",
                rule="composite.torn",
                declared=layout.member_count,
                found=len(members),
            )
        member = tensor(names[place])
        members.append(member)
        if isinstance(member.descriptor.layout, CompositeLayout):
            _take(names, places, member, tensor, depth + 1)
    return members


def _value(head: TensorDescriptor, member: Tensor) -> Member:
    """A member's descriptor and values, in the form that ``assemble`` takes: made when they are needed, one by one."""
    descriptor = member.descriptor
    if isinstance(member, CompositeTensor):
        return descriptor, [_value(descriptor, inner) for inner in member.members]
    if not descriptor.layout.is_dense:
        return descriptor, member.sparse
    if descriptor.quantization is None:
        return descriptor, member.numpy

    def real() -> NDArray[Any]:
        return _converted(member.numpy(dequantize=True), memory_dtype(head.element_type))

    return descriptor, real


def _converted(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    check_addressable(values.shape, dtype)
    with np.errstate(all="ignore"):
        return values.astype(dtype)

"""Several tensors as one: the head of a composite and its members (spec/layouts.md, composites).

In a file and on a stream the members of a composite simply follow its head. ``group_members`` finds out who belongs to
whom, ``check_members`` asks whether descriptors may be the members of a head, and ``assemble`` makes one array of their
values: a partition is put together, an overlay is its base with corrections. Whether boxes cover their head exactly is
asked of ``coverage``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import IncompatibleError, InvalidFileError, LimitError, UnsupportedError
from ..limits import MAX_NESTING, Limits
from ..model.descriptor import TensorDescriptor
from ..model.layouts import CompositeLayout
from ..model.sections import Shard
from ..model.shape import element_count, is_dynamic
from .coverage import check_coverage
from .dense import checked_values
from .memory import allocate, check_together, stored_bytes
from .packing import memory_dtype
from .sparse import Sparse

__all__ = [
    "Member",
    "Node",
    "assemble",
    "check_member_count",
    "check_members",
    "check_tree",
    "group_members",
    "stored_by",
]

Member: TypeAlias = tuple[TensorDescriptor, Any]
"""A descriptor and its values: an array, a sparse tensor, or for the head of a composite a sequence of members. A
function gives its values when they are needed."""


@dataclass(frozen=True, slots=True)
class Node:
    """A tensor in its place: its number in write order, its descriptor, and its members if it heads a composite."""

    number: int
    descriptor: TensorDescriptor
    members: tuple[Node, ...] = ()


def group_members(descriptors: Iterable[TensorDescriptor], *, limits: Limits | None = None) -> tuple[Node, ...]:
    """The tensors that are not members of others, in write order, each with its members below it.

    ``descriptors`` are those of all tensors in write order. Raises InvalidFileError if the last members of a composite
    are missing or composites are nested more than 8 deep, LimitError for more than ``limits.max_members`` of one head.
    """
    most = (limits or Limits()).max_members
    roots: list[Node] = []
    heads: list[tuple[int, TensorDescriptor, list[Node]]] = []  # composites that wait for members, outermost first
    for number, descriptor in enumerate(descriptors):
        if isinstance(descriptor.layout, CompositeLayout):
            _check_head(descriptor, number, len(heads) + 1, most)
        if _member_count(descriptor):
            heads.append((number, descriptor, []))
            continue
        node = Node(number, descriptor)
        while heads:
            head_number, head, members = heads[-1]
            members.append(node)
            if len(members) < _member_count(head):
                break
            heads.pop()
            node = Node(head_number, head, tuple(members))
        else:
            roots.append(node)
    if heads:
        head_number, head, members = heads[-1]
        raise InvalidFileError(
            f"the composite of tensor {head_number} has {len(members)} members, but promises {_member_count(head)}",
            rule="composite.torn",
            declared=_member_count(head),
            found=len(members),
        )
    return tuple(roots)


def check_tree(roots: Iterable[Node]) -> None:
    """Check the members of every composite in what ``group_members`` found. Reads descriptors only.

    Raises InvalidFileError, as ``check_members`` does, and for a tensor that says it is a member but is not.
    """
    for node in roots:
        if node.descriptor.composite_member is not None:
            raise InvalidFileError(
                f"tensor {node.number} has a composite member section, but is no member of an overlay",
                rule="composite.member-section",
            )
        _check_below(node)


def check_members(head: TensorDescriptor, members: Sequence[TensorDescriptor]) -> None:
    """Check that tensors with these descriptors, in write order, are the members of a composite. Reads no payload.

    Members of partitions and overlays have the head's element type and are boxes of it; those of a partition cover it
    exactly; the first of an overlay is its base, which spans it, and the others are corrections. Of a group nothing is
    asked, and of a private rule nothing is known. Raises InvalidFileError that names the member by its number.
    """
    layout = _composite(head)
    if len(members) != layout.member_count:
        raise InvalidFileError(
            f"the composite has {len(members)} members, but promises {layout.member_count}",
            rule="composite.torn",
            declared=layout.member_count,
            found=len(members),
        )
    overlay = layout.composition_rule == "overlay"
    if not overlay and not isinstance(layout.composition_rule, int):
        for number, member in enumerate(members):
            if member.composite_member is not None:
                raise InvalidFileError(
                    f"member {number} of a {layout.composition_rule} has a composite member section",
                    rule="composite.member-section",
                )
    if layout.composition_rule not in ("partition", "overlay"):
        return
    shards = [_check_box(head, member, number) for number, member in enumerate(members)]
    if overlay:
        for number, member in enumerate(members):
            _check_role(head, member, number)
    else:
        offsets = [shard.shard_offset for shard in shards]
        check_coverage(head.shape, offsets, [member.shape for member in members])


def assemble(
    head: TensorDescriptor, members: Sequence[Member], *, limits: Limits | None = None
) -> NDArray[Any] | tuple[Any, ...]:
    """The values of a composite: a new array of the head's shape, or for a group the tuple of its members' values.

    ``members`` are checked as by ``check_members``. Values are arrays of just the shape and type that their descriptors
    declare, or what ``read_sparse`` gives; of a correction that is sparse only the stored elements replace or are
    added. Sums are made in the head's own type, in write order, as NumPy makes them.

    Raises InvalidFileError as ``check_members`` does, UnsupportedError for private rules and for sums of types without
    arithmetic, IncompatibleError for a group within an array, BufferSizeError for a value of another shape or type,
    LimitError if the array would exceed what ``limits`` allow.
    """
    layout = _composite(head)
    check_members(head, [descriptor for descriptor, _ in members])
    if layout.composition_rule == "group":
        return tuple(_values(descriptor, value, limits) for descriptor, value in members)
    if isinstance(layout.composition_rule, int):
        raise UnsupportedError(
            f"composition rule 0x{layout.composition_rule:02X} is private",
            rule="composite.private",
            found=layout.composition_rule,
        )
    dtype = memory_dtype(head.element_type)
    if layout.combine_op == "add" and dtype.type is np.void:
        raise UnsupportedError(
            f"{head.element_type.name} has no sums", rule="composite.add", found=head.element_type.name
        )
    stored = stored_by(members)
    shapes = [descriptor.shape for descriptor, _ in members if descriptor.layout.is_dense]
    dense = sum(element_count(shape) for shape in shapes if not is_dynamic(shape))
    check_together(dense * dtype.itemsize, limits, "what the members hold", stored=stored)
    out = allocate(head.shape, dtype, limits, stored=stored)
    for number, (descriptor, given) in enumerate(members):
        value = _values(descriptor, given, limits)
        corrects = layout.composition_rule == "overlay" and number > 0
        adds = corrects and layout.combine_op == "add"
        if isinstance(value, Sparse):
            _put_sparse(out, descriptor, value, adds=adds, blank=not corrects)
        else:
            _put(out, descriptor, value, adds=adds)
    return out


def _values(descriptor: TensorDescriptor, given: Any, limits: Limits | None) -> Any:
    """The values of a member that is part of something else."""
    if isinstance(descriptor.layout, CompositeLayout):
        return assemble(descriptor, given, limits=limits)
    return given() if callable(given) else given


def stored_by(members: Sequence[Member]) -> int:
    """The bytes that the members are made of, and theirs if they are composites themselves."""
    below: list[Sequence[Member]] = [
        value for descriptor, value in members if isinstance(descriptor.layout, CompositeLayout)
    ]
    return sum(stored_bytes(descriptor) for descriptor, _ in members) + sum(map(stored_by, below))


def _put(out: NDArray[Any], descriptor: TensorDescriptor, value: Any, *, adds: bool) -> None:
    """Put the values of a member into its box of ``out``, or add them."""
    if isinstance(value, tuple):
        raise IncompatibleError("a group has no values of its own to be part of an array", rule="composite.group")
    values, target = checked_values(value, descriptor.shape, out.dtype), out[_box(descriptor)]
    if adds:
        with np.errstate(all="ignore"):
            np.add(target, values, out=target)
    else:
        target[...] = values


def _put_sparse(out: NDArray[Any], descriptor: TensorDescriptor, value: Sparse, *, adds: bool, blank: bool) -> None:
    """Put or add stored values; if ``blank``, what the member does not store becomes zero."""
    assert descriptor.shard is not None
    values = checked_values(value.values, value.values.shape, out.dtype)
    if blank:
        out[_box(descriptor)] = np.zeros((), out.dtype)
    places = np.zeros(len(values), np.int64)  # in all of `out`: NumPy takes no index of 64 arrays
    at = np.unravel_index(value.positions(), value.shape)
    for dim, start, column in zip(out.shape, descriptor.shard.shard_offset, at, strict=True):
        places *= dim
        places += column + start
    flat = out.reshape(-1)
    with np.errstate(all="ignore"):
        flat[places] = flat[places] + values if adds else values


def _box(descriptor: TensorDescriptor) -> tuple[Any, ...]:
    assert descriptor.shard is not None
    spans = zip(descriptor.shard.shard_offset, descriptor.shape, strict=True)
    return (*(slice(offset, offset + dim) for offset, dim in spans), ...)


def _check_below(node: Node) -> None:
    if isinstance(node.descriptor.layout, CompositeLayout):
        check_members(node.descriptor, [member.descriptor for member in node.members])
        for member in node.members:
            _check_below(member)


def _check_head(head: TensorDescriptor, number: int, depth: int, most: int) -> None:
    if depth > MAX_NESTING:
        raise InvalidFileError(
            f"the composite of tensor {number} is nested {depth} deep, more than {MAX_NESTING}",
            rule="composite.depth",
            declared=MAX_NESTING,
            found=depth,
        )
    check_member_count(_member_count(head), most)


def check_member_count(count: int, most: int) -> None:
    """Raise LimitError for a composite that promises more members than the limit."""
    if count > most:
        raise LimitError(
            f"a composite of {count} members is above the limit of {most}",
            rule="limit.members",
            declared=most,
            found=count,
        )


def _check_box(head: TensorDescriptor, member: TensorDescriptor, number: int) -> Shard:
    # what a quantized member stores is not what it holds: its real values take the head's type when they are assembled
    stored_as_is = member.quantization is None
    if stored_as_is and (member.element_type, member.extension_type) != (head.element_type, head.extension_type):
        raise InvalidFileError(
            f"member {number} is of {member.element_type.name}, its composite of {head.element_type.name}",
            rule="composite.element-type",
            declared=head.element_type.name,
            found=member.element_type.name,
        )
    if member.shard is None:
        raise InvalidFileError(f"member {number} has no shard section", rule="composite.shard")
    if member.shard.parent_shape != head.shape:
        raise InvalidFileError(
            f"member {number} is a box of {list(member.shard.parent_shape)}, its composite of {list(head.shape)}",
            rule="composite.parent-shape",
            declared=head.shape,
            found=member.shard.parent_shape,
        )
    return member.shard


def _check_role(head: TensorDescriptor, member: TensorDescriptor, number: int) -> None:
    """The base comes first and spans its head. A head has no room for a role: its place alone tells it."""
    if member.composite_member is None and not isinstance(member.layout, CompositeLayout):
        raise InvalidFileError(
            f"member {number} of an overlay has no composite member section", rule="composite.member-section"
        )
    expected = "correction" if number else "base"
    role = expected if member.composite_member is None else member.composite_member.role
    if role != expected:
        raise InvalidFileError(
            f"member {number} of an overlay is a {role}, not a {expected}",
            rule="composite.base",
            declared=expected,
            found=role,
        )
    if not number and member.shape != head.shape:
        raise InvalidFileError(
            f"the base of an overlay has shape {list(member.shape)}, not {list(head.shape)}",
            rule="composite.base",
            declared=head.shape,
            found=member.shape,
        )


def _composite(head: TensorDescriptor) -> CompositeLayout:
    if not isinstance(head.layout, CompositeLayout):
        raise UnsupportedError(
            f"the {head.layout.name} layout is no composite", rule="layout.composite", found=head.layout.name
        )
    return head.layout


def _member_count(descriptor: TensorDescriptor) -> int:
    return descriptor.layout.member_count if isinstance(descriptor.layout, CompositeLayout) else 0

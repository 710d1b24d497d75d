"""Shapes and the integer arithmetic on them (spec/descriptor.md, "Shape").

Everything here is in Python integers: a product of sizes from outside must not wrap. A dimension may be 0 (the tensor
is empty) or ``DYNAMIC`` (its size is not known, and no size may be computed from it).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import SupportsIndex

from ..errors import InvalidDescriptorError
from ..limits import MAX_RANK
from .checks import check_uint

__all__ = ["DYNAMIC", "Shape", "checked_shape", "element_count", "is_dynamic", "is_empty", "reach"]

Shape = tuple[int, ...]

DYNAMIC = (1 << 64) - 1  # how the wire says "not known"


def checked_shape(shape: Iterable[SupportsIndex | None]) -> Shape:
    """A shape as a tuple of Python integers; None stands for ``DYNAMIC``. At most 64 dimensions."""
    dims = tuple(
        DYNAMIC if dim is None else check_uint(dim, 64, f"dimension {k} of the shape", "descriptor.shape")
        for k, dim in enumerate(shape)
    )
    if len(dims) > MAX_RANK:
        raise InvalidDescriptorError(
            f"rank {len(dims)} is above {MAX_RANK}", rule="descriptor.rank", declared=MAX_RANK, found=len(dims)
        )
    return dims


def is_empty(shape: Sequence[int]) -> bool:
    """True if some dimension is 0."""
    return 0 in shape


def is_dynamic(shape: Sequence[int]) -> bool:
    """True if some dimension is unknown, so that no size may be computed."""
    return DYNAMIC in shape


def element_count(shape: Sequence[int]) -> int:
    """The number of elements of a shape without dynamic dimensions."""
    count = 1
    for dim in shape:
        count *= dim
    return count


def reach(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Lowest and highest element offset that indices within a non-empty ``shape`` reach by ``strides``."""
    steps = [stride * (dim - 1) for dim, stride in zip(shape, strides, strict=True)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)

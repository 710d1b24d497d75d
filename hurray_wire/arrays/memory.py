"""Memory for arrays whose shape came from outside: asked for only after the limits have agreed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import LimitError
from ..limits import FREE_BYTES, Limits
from ..model.descriptor import TensorDescriptor
from ..model.shape import Shape

__all__ = [
    "allocate",
    "allowed_bytes",
    "check_addressable",
    "check_limit",
    "check_together",
    "stored_bytes",
    "within_memory",
]

P = ParamSpec("P")
R = TypeVar("R")

_ADDRESSABLE_BYTES = (1 << 63) - 1  # what NumPy can describe; zero strides describe it without having it


def within_memory(function: Callable[P, R]) -> Callable[P, R]:
    """The function with LimitError in place of MemoryError: for the gates at which shapes from outside come in."""

    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except MemoryError as cause:
            raise LimitError(f"there is no memory for it: {cause}", rule="limit.memory") from cause

    return guarded


def stored_bytes(descriptor: TensorDescriptor) -> int:
    """The bytes of all buffers of a tensor."""
    return sum(handle.byte_size for handle in descriptor.buffers)


def allocate(
    shape: Shape, dtype: np.dtype[Any], limits: Limits | None, *, stored: int | None = None, zeroed: bool = False
) -> NDArray[Any]:
    """A new array, all zeros or its contents undefined. Raises LimitError if limits or memory do not allow it.

    ``stored`` are the bytes that the array is made of, as for ``check_limit``.
    """
    check_addressable(shape, dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    check_limit(nbytes, limits, f"shape {list(shape)} of {dtype}", stored=stored)
    try:
        return np.zeros(shape, dtype) if zeroed else np.empty(shape, dtype)
    except MemoryError as cause:
        raise LimitError(
            f"there is no memory for {nbytes} bytes of shape {list(shape)}", rule="limit.memory", found=nbytes
        ) from cause


def check_addressable(shape: Shape, dtype: np.dtype[Any]) -> None:
    """Raise LimitError if NumPy has no array, not even a view, of this shape."""
    # NumPy multiplies what is left of a shape without its zeros, and so does the bound
    if math.prod(dim or 1 for dim in shape) * dtype.itemsize > _ADDRESSABLE_BYTES:
        raise LimitError(
            f"shape {list(shape)} of {dtype} is more than NumPy can address",
            rule="limit.addressable",
            declared=_ADDRESSABLE_BYTES,
            found=math.prod(shape) * dtype.itemsize,
        )


def check_limit(nbytes: int, limits: Limits | None, what: str, *, stored: int | None = None) -> None:
    """Raise LimitError if ``nbytes`` is more than the limits allow for ``what``, made of ``stored`` bytes of a file."""
    limits = limits or Limits()
    most = allowed_bytes(limits, stored)
    if nbytes > most:
        reason = "" if most == limits.max_dense_bytes else f" for {stored} bytes stored (see Limits.max_dense_ratio)"
        raise LimitError(
            f"{what} takes {nbytes} bytes, more than the limit of {most}{reason}",
            rule="limit.dense-bytes",
            declared=most,
            found=nbytes,
        )


def check_together(nbytes: int, limits: Limits | None, what: str, *, stored: int) -> None:
    """Raise LimitError if arrays of ``nbytes`` in all are out of proportion to the ``stored`` bytes they are made of.

    Each array has its own absolute bound, but thousands of small ones are no cheaper than a large one.
    """
    limits = limits or Limits()
    check_limit(nbytes, replace(limits, max_dense_bytes=max(nbytes, limits.max_dense_bytes)), what, stored=stored)


def allowed_bytes(limits: Limits, stored: int | None) -> int:
    """What one array that is made of this many bytes of a file may take; of None, nothing is known."""
    if stored is None:
        return limits.max_dense_bytes
    return min(limits.max_dense_bytes, max(FREE_BYTES, limits.max_dense_ratio * stored))

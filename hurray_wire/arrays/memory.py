"""Memory for arrays whose shape came from outside: asked for only after the limits have agreed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import LimitError
from ..limits import Limits
from ..model.shape import Shape

__all__ = ["allocate", "check_addressable", "check_limit"]

_ADDRESSABLE_BYTES = (1 << 63) - 1  # what NumPy can describe; zero strides describe it without having it


def allocate(shape: Shape, dtype: np.dtype[Any], limits: Limits | None, *, zeroed: bool = False) -> NDArray[Any]:
    """A new array, all zeros or its contents undefined. Raises LimitError if limits or memory do not allow it."""
    check_addressable(shape, dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    check_limit(nbytes, limits, f"shape {list(shape)} of {dtype}")
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


def check_limit(nbytes: int, limits: Limits | None, what: str) -> None:
    """Raise LimitError if ``nbytes`` is more than ``max_dense_bytes``."""
    most = (limits or Limits()).max_dense_bytes
    if nbytes > most:
        raise LimitError(
            f"{what} takes {nbytes} bytes, more than the limit of {most}",
            rule="limit.dense-bytes",
            declared=most,
            found=nbytes,
        )

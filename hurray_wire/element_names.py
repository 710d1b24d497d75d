"""The type of raw bits, as a caller names it: ``dtype=`` of what saves and exports.

Element types themselves are told in ``model/element_types.py``, the relabelling of arrays in ``adapters/intake.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import UnsupportedError
from .model.element_types import BY_NAME, ElementType

__all__ = ["array_type"]


def array_type(dtype: Any) -> np.dtype[Any] | None:
    """The NumPy type that ``dtype`` names: an element type or its name, or what NumPy takes for a type; None for None.

    Raises UnsupportedError for anything else (rule element-type.dtype).
    """
    if dtype is None:
        return None
    if isinstance(dtype, str) and dtype in BY_NAME:  # before NumPy: ml_dtypes has other types by some of these names
        dtype = BY_NAME[dtype]
    if isinstance(dtype, ElementType):
        if dtype.dtype is None:
            raise UnsupportedError(
                f"{dtype.name} is a private element type, which no array has",
                rule="element-type.dtype",
                found=dtype.name,
            )
        return dtype.dtype
    try:
        named: np.dtype[Any] = np.dtype(dtype)
    except TypeError as cause:
        raise UnsupportedError(
            f"dtype is {dtype!r}; it is a NumPy type or one of {', '.join(BY_NAME)}",
            rule="element-type.dtype",
            found=str(dtype),
        ) from cause
    return named

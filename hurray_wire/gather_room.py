"""What a gather asks for, checked before anything is read: the shape of the result, the given output, the fill value.

Two callers ask: ``gather.py`` for bits as they are stored, and ``paged_tensor.py`` for the real numbers that they stand
for, which have another type than the pool.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from .errors import BufferSizeError, IncompatibleError, LimitError
from .page_copy import as_bits
from .page_fetch import StoredPages

__all__ = ["Room", "check_apart", "check_limit", "checked_bytes", "checked_out", "checked_room"]

_ADDRESSABLE_BYTES = 1 << 62  # half of what NumPy can describe, and more than any machine maps


class Room(NamedTuple):
    """A batch that is asked for, checked: its shape [B, L, *rest], and what stands past a length.

    ``padding`` is a 0-d array of the bits that the fill value has in the dtype; None for zero bits.
    """

    shape: tuple[int, ...]
    padding: NDArray[Any] | None


def checked_room(
    lengths: Sequence[int],
    rest: tuple[int, ...],
    dtype: np.dtype[Any],
    *,
    max_len: SupportsIndex | None,
    out: NDArray[Any] | None,
    fill: Any,
    max_bytes: int | None,
) -> Room:
    """What ``gather_padded`` makes of these arguments for sequences of these lengths; raises what it raises."""
    if out is not None:
        _check_array(out)
    if max_len is not None:
        width = operator.index(max_len)
        if width < 0:
            raise IncompatibleError(f"max_len is {width}, below 0", rule="gather.max-len", found=width)
    elif out is not None and out.ndim >= 2:
        width = out.shape[1]
    else:
        width = max(lengths, default=0)
    shape = (len(lengths), width, *rest)
    padding = _fill_bits(fill, dtype)
    nbytes = checked_bytes(shape, dtype)
    check_limit(len(lengths) * width + (nbytes if out is None else 0), max_bytes)
    if out is not None:
        checked_out(out, shape, dtype)
    return Room(shape, padding)


def checked_out(out: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """``out``, which has just this shape and dtype and can be written. Raises BufferSizeError."""
    _check_array(out)
    if out.shape != shape:
        raise BufferSizeError(
            f"out has shape {out.shape}, the gathered values have {shape}",
            rule="gather.out",
            declared=shape,
            found=out.shape,
        )
    if out.dtype != dtype:
        raise BufferSizeError(
            f"out is of {out.dtype}, the gathered values of {dtype}", rule="gather.out", declared=dtype, found=out.dtype
        )
    if not out.flags.writeable:
        raise BufferSizeError("out is read-only", rule="gather.out")
    return out


def check_apart(out: NDArray[Any], pool: NDArray[Any] | StoredPages) -> None:
    """Raise BufferSizeError if ``out`` overlaps the pool, judged by first and last byte, or the pool has no memory."""
    if isinstance(pool, StoredPages) or np.may_share_memory(out, pool):
        raise BufferSizeError("out overlaps the pool it is gathered from", rule="gather.out")


def checked_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Bytes of such an array. NumPy multiplies what is left of a shape without its zeros, and so does the bound."""
    if math.prod(size or 1 for size in shape) * max(dtype.itemsize, 1) > _ADDRESSABLE_BYTES:
        raise LimitError(
            f"the gathered array would have shape {shape} of {dtype}, more than can be addressed",
            rule="gather.size",
            declared=_ADDRESSABLE_BYTES,
            found=math.prod(shape) * dtype.itemsize,
        )
    return math.prod(shape) * dtype.itemsize


def check_limit(nbytes: int, most: int | None) -> None:
    if most is not None and nbytes > most:
        raise LimitError(
            f"the gathered sequences take {nbytes} bytes, more than the limit of {most} (Limits.max_dense_bytes, and "
            "max_dense_ratio times what is stored)",
            rule="limit.dense-bytes",
            declared=most,
            found=nbytes,
        )


def _check_array(out: Any) -> None:
    if not isinstance(out, np.ndarray):
        raise BufferSizeError(
            f"out is a {type(out).__name__}, not a NumPy array", rule="gather.out", found=type(out).__name__
        )


def _fill_bits(fill: Any, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """``fill`` as a 0-d array of the bits it has in ``dtype``; None for zero bits."""
    if type(fill) is int and fill == 0:
        return None
    try:
        held = np.asarray(fill)
        if held.dtype != dtype or held.ndim:
            if held.ndim or held.dtype.kind not in "biufcVO" or dtype.type is np.void:
                raise TypeError(f"{held.ndim} dimensions of {held.dtype} do not convert to {dtype}")
            if held.dtype.kind == "c" and dtype.kind != "c":
                raise TypeError(f"{held.dtype} does not convert to {dtype}")
            with np.errstate(all="ignore"):
                held = held.astype(dtype)
                exact = _holds(held, fill)
            if not exact:
                raise ValueError(f"the nearest value is {held}")
    except (TypeError, ValueError, OverflowError) as error:
        raise IncompatibleError(f"{dtype} cannot hold fill={fill!r}", rule="gather.fill", found=repr(fill)) from error
    return as_bits(held) if any(held.tobytes()) else None


def _holds(held: NDArray[Any], fill: Any) -> bool:
    """Whether ``held`` is ``fill``: exactly if it is an integer, rounded but of its size if it is floating."""
    if held.dtype.kind in "biu" or held.dtype.name.startswith(("int", "uint")):
        return bool(int(held) == fill)
    want = complex(fill)
    have = complex(held.astype(np.complex128))
    if want != want:
        return have != have
    return have == want or abs(have - want) <= abs(want) / 2 < math.inf

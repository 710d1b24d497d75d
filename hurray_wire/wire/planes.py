"""Byte planes: the bytes of equal rank of many numbers side by side (spec/compressed.md, "Byte planes").

The high bytes of floating-point numbers resemble each other and compress well, the low ones do not; interleaved, they
spoil each other. A frame that holds nothing but elements of a page pool is therefore stored as plane 0 (the first,
least significant byte of every element), then plane 1, and so on. Here is which pools that concerns and how it is done
and undone; which frames lie in such a pool is for ``store/`` to know.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..model.block_paged import BlockPagedLayout
from ..model.descriptor import TensorDescriptor

__all__ = ["PLANES_MAGIC", "element_bytes", "merge", "split"]

PLANES_MAGIC = b"HRRYPLNS"  # stands in the inflated stream where a file has its own magic

Bytes = NDArray[np.uint8]

_SPLIT_BITS = (16, 32, 64)


def element_bytes(descriptor: TensorDescriptor) -> int:
    """Bytes of an element whose planes are split in buffer 0 of such a tensor: 2, 4 or 8; 1 if nothing is split."""
    paged = isinstance(descriptor.layout, BlockPagedLayout)
    return descriptor.element_type.bits // 8 if paged and descriptor.element_type.bits in _SPLIT_BITS else 1


def split(data: Bytes, size: int, out: Bytes | None = None) -> Bytes:
    """The planes of elements of ``size`` bytes (2, 4 or 8), one after another; uint8, in ``out`` or the caller's own.

    ``data`` is contiguous. Bytes behind the last whole element stay where they are.
    """
    count = len(data) // size
    if out is None:
        out = np.empty_like(data)
    numbers = data[: count * size].view(f"<u{size}")
    for plane in range(size):
        # shifting into a narrower output is a masked store to NumPy: 2 to 4 times faster than a strided copy
        np.right_shift(numbers, 8 * plane, out=out[plane * count : (plane + 1) * count], casting="unsafe")
    out[count * size :] = data[count * size :]
    return out


def merge(data: Bytes, size: int, out: Bytes | None = None) -> Bytes:
    """What :func:`split` was given: uint8, in ``out`` where that is given, otherwise the caller's own."""
    count = len(data) // size
    if out is None:
        out = np.empty_like(data)
    planes = data[: count * size].reshape(size, count)
    if size == 8:
        elements = out[: count * size].reshape(count, size)
        for rank, plane in enumerate(planes):
            elements[:, rank] = plane  # strided stores cost less than eight shifts
    else:
        numbers = out[: count * size].view(f"<u{size}")
        numbers[...] = planes[-1]
        for plane in planes[-2::-1]:
            np.left_shift(numbers, 8, out=numbers)
            np.bitwise_or(numbers, plane, out=numbers)
    out[count * size :] = data[count * size :]
    return out

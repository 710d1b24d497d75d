"""Elements narrower than a byte: packed bytes to arrays and back (spec/descriptor.md, "Packing").

On the wire elements follow each other LSB first without gaps: 8 booleans, 4 two-bit or 2 four-bit elements a byte, 4
six-bit elements in 3 bytes. In memory each has a byte of its own, as ml_dtypes itself stores it: its bits in the low
end and zeros above, for signed integers too. Where packed elements lie in a buffer is told by ``dense`` and by the page
pool; this module knows only runs of them.

A run is worked through in portions that stay in the cache. Each widens the bytes of a portion to integers that have
room for its elements and moves the bits apart by shift and mask, which NumPy does at several GB/s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidFileError
from ..model.element_types import ElementType
from ..parallel import run

__all__ = ["check_tail", "memory_dtype", "pack", "unpack"]

Bytes: TypeAlias = NDArray[np.uint8]

_PORTION_GROUPS = 1 << 17  # temporaries stay within 1 MiB: smaller portions spend their time in calls, not in bits
_SPREAD_GROUPS = 1 << 20  # below this, waking threads costs as much as their share of the work


def memory_dtype(element_type: ElementType) -> np.dtype[Any]:
    """The NumPy type that holds an element in memory.

    A private type is opaque: raw bytes (``V``) of its size, or if it is narrower than a byte its bits in a uint8.
    """
    if element_type.dtype is not None:
        return element_type.dtype
    return np.dtype(np.uint8 if element_type.is_packed else f"V{element_type.bits // 8}")


def unpack(raw: Bytes, element_type: ElementType, count: int, *, start: int = 0) -> NDArray[Any]:
    """Elements ``start .. start + count`` of a packed run, as a new 1-D array of ``memory_dtype(element_type)``.

    ``raw`` is 1-D uint8, holds element 0 in its lowest bits, and may go on beyond the last element.
    """
    per_group, group_bytes = element_type.group
    first, skip = divmod(start, per_group)
    groups = -(-(skip + count) // per_group)
    out = np.empty(groups * per_group, np.uint8)
    packed = raw[first * group_bytes : (first + groups) * group_bytes]
    spread = _SPREAD[element_type.bits]

    def work(group: int) -> None:
        end = group + _PORTION_GROUPS
        spread(packed[group * group_bytes : end * group_bytes], out[group * per_group : end * per_group])

    _in_portions(work, groups)
    return out[skip : skip + count].view(memory_dtype(element_type))


def pack(values: NDArray[Any], element_type: ElementType) -> Bytes:
    """The packed run of ``values`` in row-major order, a new uint8 array.

    ``values`` has any shape and is of ``memory_dtype(element_type)``. Bits of a value above its width are dropped (of a
    boolean: any bit makes it true), unused bits at the end are zero.
    """
    per_group, group_bytes = element_type.group
    elements = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    groups, left = divmod(len(elements), per_group)
    out = np.empty((groups + (left > 0)) * group_bytes, np.uint8)
    squeeze = _SQUEEZE[element_type.bits]

    def work(group: int) -> None:
        end = min(group + _PORTION_GROUPS, groups)
        squeeze(elements[group * per_group : end * per_group], out[group * group_bytes : end * group_bytes])

    _in_portions(work, groups)
    if left:
        last = np.zeros(per_group, np.uint8)
        last[:left] = elements[groups * per_group :]
        squeeze(last, out[groups * group_bytes :])
    return out


def check_tail(raw: Bytes, element_type: ElementType, count: int) -> None:
    """Raise InvalidFileError unless the unused bits after ``count`` packed elements are zero, up to their group's end.

    Bytes of ``raw`` beyond the last group are a producer's slack and not judged.
    """
    per_group, group_bytes = element_type.group
    groups, left = divmod(count, per_group)
    if not left:
        return
    last = int.from_bytes(raw[groups * group_bytes : (groups + 1) * group_bytes].tobytes(), "little")
    unused = last >> left * element_type.bits
    if unused:
        raise InvalidFileError(
            f"the unused bits after {count} elements of {element_type.name} hold 0x{unused:X}, not 0",
            rule="buffer.tail-bits",
            declared=0,
            found=unused,
        )


def _in_portions(work: Callable[[int], None], groups: int) -> None:
    starts = range(0, groups, _PORTION_GROUPS)
    if groups >= _SPREAD_GROUPS:
        run(work, starts)
    else:
        for start in starts:
            work(start)


# Whole groups of packed bytes to one byte an element. Integers are little-endian by name: byte k is element k.


def _spread_1(packed: Bytes, out: Bytes) -> None:
    out[:] = np.unpackbits(packed, bitorder="little")


def _spread_2(packed: Bytes, out: Bytes) -> None:
    wide, halves = out.view("<u4"), packed.astype("<u4")
    np.left_shift(halves, 12, out=wide)
    wide |= halves
    wide &= 0x000F000F
    np.left_shift(wide, 6, out=halves)
    wide |= halves
    wide &= 0x03030303


def _spread_4(packed: Bytes, out: Bytes) -> None:
    wide, pairs = out.view("<u2"), packed.astype("<u2")
    np.left_shift(pairs, 4, out=wide)
    wide |= pairs
    wide &= 0x0F0F


def _spread_6(packed: Bytes, out: Bytes) -> None:
    wide = out.view("<u4")
    groups = len(wide)
    # each group read as an integer of 4 bytes, one more than it has; the last one may have nothing after it
    threes: NDArray[Any] = np.ndarray((groups - 1,), "<u4", packed, strides=(3,))
    fours = np.empty(groups, "<u4")
    fours[:-1] = threes
    fours[-1] = int.from_bytes(packed[-3:].tobytes(), "little")
    low = fours & 0x0FFF
    fours <<= 4
    fours &= 0x0FFF0000
    fours |= low
    np.bitwise_and(fours, 0x003F003F, out=wide)
    fours <<= 2
    fours &= 0x3F003F00
    wide |= fours


# And back. The in-memory bytes may hold anything above an element's width.


def _squeeze_1(elements: Bytes, out: Bytes) -> None:
    out[:] = np.packbits(elements, bitorder="little")


def _squeeze_2(elements: Bytes, out: Bytes) -> None:
    wide = elements.view("<u4") & 0x03030303
    wide |= wide >> 6
    wide |= wide >> 12  # bits 8 and up hold leftovers, which the narrow result has no room for
    out[:] = wide


def _squeeze_4(elements: Bytes, out: Bytes) -> None:
    wide = elements.view("<u2") & 0x0F0F
    wide |= wide >> 4
    out[:] = wide


def _squeeze_6(elements: Bytes, out: Bytes) -> None:
    wide = elements.view("<u4") & 0x3F3F3F3F
    pairs = (wide >> 2) & 0x0FC00FC0
    wide &= 0x003F003F
    wide |= pairs
    high = (wide >> 4) & 0x00FFF000
    wide &= 0x0FFF
    wide |= high
    threes = out.reshape(-1, 3)
    fours = wide.view(np.uint8).reshape(-1, 4)
    for k in range(3):  # column by column is three times as fast as row by row
        threes[:, k] = fours[:, k]


_SPREAD: dict[int, Callable[[Bytes, Bytes], None]] = {1: _spread_1, 2: _spread_2, 4: _spread_4, 6: _spread_6}
_SQUEEZE: dict[int, Callable[[Bytes, Bytes], None]] = {1: _squeeze_1, 2: _squeeze_2, 4: _squeeze_4, 6: _squeeze_6}

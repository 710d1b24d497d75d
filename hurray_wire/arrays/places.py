"""Where elements lie in buffer 0 (spec/layouts.md: strided, tiled, Morton), and moving them there and back.

In these layouts the place of an element, its offset in elements from the one at ``byte_offset``, is a sum with one term
per dimension: i * stride; tile and rest of i, each times its stride; the bits of i, spread apart. So an array of places
is the outer sum of small tables, and is made block by block: whatever the size of the tensor, the places of some ten
thousand elements are in memory at a time.

Elements move as bytes and never as numbers, so every bit pattern survives and any alignment will do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..model.element_types import ElementType
from ..model.layouts import (
    ColMajorLayout,
    Layout,
    MortonLayout,
    RowMajorLayout,
    StridedLayout,
    TiledLayout,
)
from ..model.shape import Shape, element_count

__all__ = ["Term", "blocks", "place_terms", "take_packed", "take_whole"]

Offsets: TypeAlias = NDArray[np.int64]
Term: TypeAlias = Callable[[Offsets], Offsets]
"""Of indices along one dimension, their share of the place, in elements."""

_BLOCK_ELEMENTS = 1 << 16  # places of 8 bytes: half a megabyte at a time
_I64_MAX = (1 << 63) - 1


def place_terms(layout: Layout, shape: Shape) -> tuple[Term, ...]:
    """One term per dimension of a non-empty tensor of ``shape``; every place is the sum of its terms."""
    match layout:
        case RowMajorLayout() | ColMajorLayout() | StridedLayout():
            strides = _strides(layout.name, shape, layout.strides if isinstance(layout, StridedLayout) else None)
            return tuple(_digits_term(((1, stride),)) for stride in strides)
        case TiledLayout():
            return tuple(_digits_term(digits) for digits in _tile_digits(layout, shape))
        case MortonLayout(morton_bits=bits):
            return tuple(_bits_term(places, dim) for places, dim in zip(_bit_places(bits), shape, strict=True))
    raise TypeError(f"{layout!r} does not place elements dimension by dimension")


def blocks(shape: Shape, terms: Sequence[Term]) -> Iterator[tuple[tuple[Any, ...], Offsets]]:
    """Cut a non-empty ``shape`` into boxes of at most some ten thousand elements, in row-major order.

    Yields an index (integers, then slices) and the places of the elements that an array of ``shape`` holds there.
    """
    whole = len(shape)  # dimensions from here on lie whole within a box
    inner = 1
    while whole and inner * shape[whole - 1] <= _BLOCK_ELEMENTS:
        whole -= 1
        inner *= shape[whole]
    box: Offsets = np.zeros((), np.int64)
    for dim, term in zip(shape[whole:], terms[whole:], strict=True):
        box = box[..., np.newaxis] + term(np.arange(dim))
    if not whole:
        yield (...,), box
        return
    cut = whole - 1
    step = _BLOCK_ELEMENTS // inner
    rest = (slice(None),) * (len(shape) - whole)
    for lead in _indices(shape[:cut]):
        start = sum(int(term(np.array([i]))[0]) for i, term in zip(lead, terms, strict=False))
        for first in range(0, shape[cut], step):
            last = min(first + step, shape[cut])
            along = terms[cut](np.arange(first, last)) + start
            yield (*lead, slice(first, last), *rest), along.reshape(-1, *(1,) * box.ndim) + box


def take_whole(raw: NDArray[np.uint8], itemsize: int, origin: int, places: Offsets, out: NDArray[Any]) -> None:
    """Copy the elements of ``itemsize`` bytes at ``places`` into ``out``, which is contiguous and of their shape.

    ``origin`` is where place 0 lies in ``raw``, in bytes. Places that are not in ``raw`` are the caller's fault.
    """
    before, lost = divmod(origin, itemsize)
    items = raw[lost : lost + (len(raw) - lost) // itemsize * itemsize].reshape(-1, itemsize)
    rows = out.reshape(-1).view(np.uint8).reshape(-1, itemsize)
    # mode="clip" is the one that writes to `out` without a copy between
    np.take(items, (places + before).reshape(-1), axis=0, out=rows, mode="clip")


def take_packed(raw: NDArray[np.uint8], element_type: ElementType, origin: int, places: Offsets) -> NDArray[np.uint8]:
    """The bits of the packed elements at ``places``, one byte an element, zeros above them.

    ``origin`` is where place 0 lies in ``raw``, in bytes. Places that are not in ``raw`` are the caller's fault.
    """
    width = element_type.bits
    at = places * width
    at += origin * 8
    shift = (at & 7).astype(np.uint16)
    at >>= 3
    bits = raw.take(at, mode="clip").astype(np.uint16)
    if 8 % width:  # 6 bits may lie across two bytes; where they do not, the byte clipped at the end is not used
        at += 1
        bits |= raw.take(at, mode="clip").astype(np.uint16) << np.uint16(8)
    bits >>= shift
    bits &= np.uint16((1 << width) - 1)
    return bits.astype(np.uint8)


def _indices(shape: Shape) -> Iterator[tuple[int, ...]]:
    """Every index into ``shape`` in row-major order, none of them kept."""
    for number in range(element_count(shape)):
        index = []
        for dim in reversed(shape):
            number, i = divmod(number, dim)
            index.append(i)
        yield tuple(reversed(index))


def _strides(order: str, shape: Sequence[int], strides: Sequence[int] | None) -> list[int]:
    """The stride of each dimension, in units of whatever ``shape`` counts; 0 where it never counts, for one index."""
    if order == "strided":
        assert strides is not None
        found = list(strides)
    elif order == "row_major":
        found = [element_count(shape[k + 1 :]) for k in range(len(shape))]
    else:
        found = [element_count(shape[:k]) for k in range(len(shape))]
    return [stride if dim > 1 else 0 for stride, dim in zip(found, shape, strict=True)]


def _tile_digits(layout: TiledLayout, shape: Shape) -> list[tuple[tuple[int, int], ...]]:
    """For each dimension pairs (edge, stride), outermost first: index // edge counts for stride, the rest goes on."""
    tile = layout.tile_shape
    volume = layout.tile_elements
    outer = [stride * volume for stride in _strides(layout.outer_layout, layout.grid(shape), layout.outer_strides)]
    if layout.inner_tiled is not None:
        inner = _tile_digits(layout.inner_tiled, tile)
    else:
        inner = [((1, stride),) for stride in _strides(layout.inner_layout, tile, layout.inner_strides)]
    return [((edge, stride), *rest) for edge, stride, rest in zip(tile, outer, inner, strict=True)]


def _digits_term(digits: Sequence[tuple[int, int]]) -> Term:
    def term(index: Offsets) -> Offsets:
        total = np.zeros_like(index)
        for edge, stride in digits:
            if edge == 1:
                return total + index * stride
            # an edge that no index reaches may be more than an int64 holds
            digit, index = np.divmod(index, min(edge, _I64_MAX))
            total += digit * stride
        return total

    return term


def _bit_places(bits: Sequence[int]) -> list[list[int]]:
    """Where bit b of dimension k goes: round robin from dimension 0 up, over the dimensions that still have bits."""
    places: list[list[int]] = [[] for _ in bits]
    place = itertools.count()
    for b in range(max(bits, default=0)):
        for k, width in enumerate(bits):
            if b < width:
                places[k].append(next(place))
    return places


def _bits_term(places: Sequence[int], dim: int) -> Term:
    used = places[: (dim - 1).bit_length()]

    def term(index: Offsets) -> Offsets:
        total = np.zeros_like(index)
        for b, place in enumerate(used):
            total |= (index >> b & 1) << place
        return total

    return term

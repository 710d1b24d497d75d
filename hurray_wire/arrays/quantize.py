"""Floating caches to int8 ones, with a scale per page slot (spec/quantization.md, per-block on block-paged)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import IncompatibleError
from ..parallel import run

__all__ = ["int8_slot_scales", "quantize_int8_per_slot"]

_GREATEST_CODE = 127  # symmetric: -128 is not used
_LEAST_SCALE = np.finfo(np.float32).smallest_normal  # a subnormal one has too few bits: 127 of it may fall short
_PORTION_ELEMENTS = 1 << 16


def int8_slot_scales(
    pool: NDArray[Any], *, what: str = "the pool", pages: Sequence[int] | NDArray[Any] | None = None
) -> NDArray[np.float32]:
    """The scales of ``quantize_int8_per_slot``, [num_pages * page_size], without the int8 pool.

    ``what`` names the pool in an error, ``pages`` its pages (0, 1, ... by default).
    """
    num_pages, page_size, *rest = pool.shape
    width = math.prod(rest)
    # Without their sign, the bits of floating numbers are in the order of their magnitudes, infinity and NaN above.
    bits = np.dtype(f"u{pool.dtype.itemsize}").newbyteorder(pool.dtype.byteorder)
    unsigned = bits.newbyteorder("=").type((1 << 8 * bits.itemsize - 1) - 1)
    native = pool.dtype.newbyteorder("=")
    scales = np.empty((num_pages, page_size), np.float32)
    step = _pages_at_once(page_size, width)

    def work(page: int) -> None:
        some = pool[page : page + step].view(bits) & unsigned
        held: NDArray[Any] = some.reshape(len(some), page_size, width).max(axis=2, initial=0)
        with np.errstate(all="ignore"):
            greatest = held.view(native).astype(_wide(native))
            scale = (greatest / _GREATEST_CODE).astype(np.float32)
        bad = np.argwhere(~np.isfinite(scale))
        if len(bad):
            place, slot = (int(number) for number in bad[0])
            value = greatest[place, slot]
            reason = "too great for int8 with any scale" if np.isfinite(value) else "and int8 has no NaN or infinity"
            raise IncompatibleError(
                f"slot {slot} of page {page + place if pages is None else pages[page + place]} of {what} holds a value "
                f"of magnitude {value}, {reason}",
                rule="quantization.not-finite",
                found=float(value),
            )
        scales[page : page + step] = np.where(greatest == 0, np.float32(1), np.maximum(scale, _LEAST_SCALE))

    run(work, range(0, num_pages, step))
    return scales.reshape(-1)


def quantize_int8_per_slot(
    pool: NDArray[Any], scales: NDArray[np.float32] | None = None
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantize a page pool symmetrically, one scale per page slot: the int8 pool, and the scales.

    ``pool`` is float16, bfloat16, float32 or float64, [num_pages, page_size, num_heads, head_dim]; the scales are
    float32 [num_pages * page_size], as ``PerBlockAffine.symmetric`` on axis 0 wants them, and may be given where they
    are known from ``int8_slot_scales``. The scale of a slot is the greatest magnitude in it over 127, rounded to
    float32, and values are rounded half to even, so each comes back within half a scale (and the rounding of float32).
    A slot of zeros has scale 1, which gives zeros back; no scale is below the least normal float32.

    Raises IncompatibleError that names page and slot if a value is NaN, infinite, or so great that its scale would be:
    int8 has no code for it, and any other value in its place would be a silent change. Slots that no sequence uses may
    hold anything in a live pool: zero them first.
    """
    if scales is None:
        scales = int8_slot_scales(pool)
    num_pages, page_size, *rest = pool.shape
    width = math.prod(rest)
    by_slot = scales.reshape(num_pages, page_size, 1)
    codes = np.empty((num_pages, page_size, width), np.int8)
    step = _pages_at_once(page_size, width)

    def work(page: int) -> None:
        pages = pool[page : page + step]
        with np.errstate(all="ignore"):
            values: NDArray[Any] = pages.astype(_wide(pool.dtype)).reshape(len(pages), page_size, width)
            np.divide(values, by_slot[page : page + step], out=values)
            np.rint(values, out=values)  # a scale rounded down makes 127.00002 of the greatest, and still 127
            codes[page : page + step] = values

    run(work, range(0, num_pages, step))
    return codes.reshape(pool.shape), scales


def _pages_at_once(page_size: int, width: int) -> int:
    return max(1, _PORTION_ELEMENTS // max(1, page_size * width))


def _wide(dtype: np.dtype[Any]) -> type[np.floating[Any]]:
    return np.float64 if dtype.newbyteorder("=") == np.float64 else np.float32

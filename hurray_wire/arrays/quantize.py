"""Floating caches to int8 ones, with a scale per page slot (spec/quantization.md, per-block on block-paged)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import IncompatibleError
from ..parallel import run

__all__ = ["quantize_int8_per_slot"]

_GREATEST_CODE = 127  # symmetric: -128 is not used
_LEAST_SCALE = np.finfo(np.float32).smallest_normal  # a subnormal one has too few bits: 127 of it may fall short
_PORTION_ELEMENTS = 1 << 16


def quantize_int8_per_slot(pool: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantize a page pool symmetrically, one scale per page slot: the int8 pool, and the scales.

    ``pool`` is floating, [num_pages, page_size, num_heads, head_dim]; the scales are float32 [num_pages * page_size],
    as ``PerBlockAffine.symmetric`` on axis 0 wants them. The scale of a slot is the greatest magnitude in it over 127,
    rounded to float32, and values are rounded half to even, so each comes back within half a scale (and the rounding
    of float32). A slot of zeros has scale 1, which gives zeros back; no scale is below the least normal float32.

    Raises IncompatibleError that names page and slot if a value is NaN, infinite, or so great that its scale would be:
    int8 has no code for it, and any other value in its place would be a silent change. Slots that no sequence uses may
    hold anything in a live pool: zero them first.
    """
    num_pages, page_size, *rest = pool.shape
    width = math.prod(rest)
    wide = np.float64 if pool.dtype == np.float64 else np.float32
    codes = np.empty((num_pages, page_size, width), np.int8)
    scales = np.empty((num_pages, page_size), np.float32)
    step = max(1, _PORTION_ELEMENTS // max(1, page_size * width))

    def work(page: int) -> None:
        some = slice(page, page + step)
        pages = pool[some]
        values: NDArray[Any] = pages.astype(wide).reshape(len(pages), page_size, width)
        with np.errstate(all="ignore"):
            greatest = np.abs(values).max(axis=2, initial=0)
            scale = (greatest / wide(_GREATEST_CODE)).astype(np.float32)
            _check_finite(scale, greatest, page)
            scale = np.where(greatest == 0, np.float32(1), np.maximum(scale, _LEAST_SCALE))
            np.divide(values, scale[:, :, np.newaxis], out=values)
            np.rint(values, out=values)
            np.clip(values, -_GREATEST_CODE, _GREATEST_CODE, out=values)
        codes[some] = values
        scales[some] = scale

    run(work, range(0, num_pages, step))
    return codes.reshape(pool.shape), scales.reshape(-1)


def _check_finite(scale: NDArray[np.float32], greatest: NDArray[Any], first_page: int) -> None:
    bad = np.argwhere(~np.isfinite(scale))
    if len(bad):
        page, slot = (int(place) for place in bad[0])
        raise IncompatibleError(
            f"slot {slot} of page {first_page + page} holds a value of magnitude {greatest[page, slot]}, too great "
            "for int8 with any scale",
            rule="quantization.not-finite",
            found=float(greatest[page, slot]),
        )

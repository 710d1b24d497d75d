"""Quantizing a page pool to int8: every value comes back within half a scale, and what cannot is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hurray_wire.arrays import quantize
from hurray_wire.arrays.quantize import int8_slot_scales, quantize_int8_per_slot
from hurray_wire.errors import IncompatibleError


def test_codes_and_scales_by_hand() -> None:
    # two pages of two slots, one head of three dimensions
    pool = np.array([[[127, -1, 0.5], [0, 0, 0]], [[-254, 127, 3], [1.5, 2.5, 63.5]]], np.float32)
    codes, scales = quantize_int8_per_slot(pool.reshape(2, 2, 1, 3))
    assert scales.tolist() == [1, 1, 2, 0.5]
    # 0.5 and 1.5 lie half way between codes: to even
    assert codes.reshape(4, 3).tolist() == [[127, -1, 0], [0, 0, 0], [-127, 64, 2], [3, 5, 127]]
    assert codes.shape == (2, 2, 1, 3)


@pytest.mark.parametrize(
    ("dtype", "magnitude"),
    [
        *((np.float16, power) for power in (-8, -5, 0, 4)),
        *((dtype, power) for dtype in (ml_dtypes.bfloat16, np.float32, np.float64) for power in (-44, -38, 0, 37)),
    ],
)
def test_every_value_comes_back_within_half_a_scale(dtype: type, magnitude: int) -> None:
    random = np.random.default_rng(magnitude + 50)
    pool = (random.standard_normal((3, 4, 2, 8)) * 10.0**magnitude).astype(dtype)
    exact = pool.astype(np.float64)
    assert np.isfinite(exact).all()
    codes, scales = quantize_int8_per_slot(pool)
    assert codes.dtype == np.int8
    assert scales.dtype == np.float32
    assert scales.shape == (12,)
    assert (scales > 0).all()
    assert codes.min() >= -127
    per_slot = scales.astype(np.float64).reshape(3, 4, 1, 1)
    back = codes.astype(np.float64) * per_slot
    # the scale is rounded to float32, 127 of it may fall short of the greatest value by as many roundings; so may a
    # quotient that lies next to half way
    bound = per_slot * (0.5 + 127 * 2.0**-23)
    assert (np.abs(back - exact) <= bound).all()


def test_a_scale_is_no_larger_than_it_must_be() -> None:
    pool = np.random.default_rng(1).standard_normal((2, 3, 2, 5)).astype(np.float32)
    _, scales = quantize_int8_per_slot(pool)
    greatest = np.abs(pool.astype(np.float64)).reshape(6, -1).max(axis=1)
    assert scales == pytest.approx(greatest / 127, rel=2.0**-23)


def test_tiny_values_get_the_least_normal_scale() -> None:
    pool = np.full((1, 1, 1, 2), 2.0**-149, np.float32)
    codes, scales = quantize_int8_per_slot(pool)
    assert scales.tolist() == [2.0**-126]
    assert codes.reshape(-1).tolist() == [0, 0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_a_value_that_no_scale_reaches_is_refused_and_named(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize, "_PORTION_ELEMENTS", 1)
    pool = np.zeros((5, 3, 2, 2))
    pool[3, 1, 1, 0] = value
    with pytest.raises(IncompatibleError, match="slot 1 of page 3 ") as caught:
        quantize_int8_per_slot(pool)
    assert caught.value.rule == "quantization.not-finite"


def test_portions_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = np.random.default_rng(2).standard_normal((7, 2, 2, 4)).astype(np.float32)
    whole = quantize_int8_per_slot(pool)
    monkeypatch.setattr(quantize, "_PORTION_ELEMENTS", 32)
    parts = quantize_int8_per_slot(pool[:, :, ::-1][:, :, ::-1])
    assert [a.tolist() for a in parts] == [a.tolist() for a in whole]


@pytest.mark.parametrize("shape", [(0, 4, 2, 8), (2, 4, 0, 8), (2, 4, 2, 0)])
def test_an_empty_pool_has_scales_all_the_same(shape: tuple[int, ...]) -> None:
    codes, scales = quantize_int8_per_slot(np.zeros(shape, np.float16))
    assert codes.shape == shape
    assert scales.tolist() == [1.0] * (shape[0] * shape[1])


@pytest.mark.parametrize("dtype", [">f4", "<f2", ml_dtypes.bfloat16, ">f8"])
def test_scales_are_found_without_the_codes_in_any_strides_and_byte_order(dtype: Any) -> None:
    pool = np.random.default_rng(3).standard_normal((5, 3, 2, 4)).astype(dtype)
    greatest = np.abs(pool.astype(np.float64)).reshape(15, -1).max(axis=1)
    for turned in (pool, np.asfortranarray(pool), np.repeat(pool, 2, axis=3)[..., ::2]):
        assert int8_slot_scales(turned) == pytest.approx(greatest / 127, rel=2.0**-23)


def test_known_scales_are_used_as_they_are() -> None:
    pool = np.full((1, 2, 1, 2), 64, np.float32)
    codes, scales = quantize_int8_per_slot(pool, np.array([1, 2], np.float32))
    assert codes.reshape(-1).tolist() == [64, 64, 32, 32]
    assert scales.tolist() == [1, 2]


def test_an_error_names_the_pool_and_the_page_as_the_caller_does() -> None:
    pool = np.zeros((2, 2, 1, 1), np.float16)
    pool[1, 0] = np.nan
    with pytest.raises(IncompatibleError, match="slot 0 of page 70 of the keys holds a value of magnitude nan"):
        int8_slot_scales(pool, what="the keys", pages=[40, 70])

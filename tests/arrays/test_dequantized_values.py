"""Stored numbers become real ones by the formula of each scheme: by hand, and element by element."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from arrays_slow import buffer, dense, private
from hypothesis import given, settings
from hypothesis import strategies as st

from hurray_wire.arrays.dense import from_array, to_array
from hurray_wire.arrays.dequantize import dequantize_dense, dequantize_paged, parameters, scale_companion
from hurray_wire.errors import IncompatibleError, InvalidFileError, LimitError, UnsupportedError
from hurray_wire.limits import Limits
from hurray_wire.model import element_types as et
from hurray_wire.model.block_paged import BlockPagedLayout
from hurray_wire.model.descriptor import TensorDescriptor
from hurray_wire.model.element_types import ElementType, buffer_bytes
from hurray_wire.model.layouts import ColMajorLayout, Layout, MortonLayout, RowMajorLayout, StridedLayout
from hurray_wire.model.quantization import Mxfp, Nf4, PerBlockAffine, PerChannelAffine, PerTensorAffine, Quantization

# As the QLoRA paper lists them (appendix, NormalFloat 4-bit), by code.
QLORA_LEVELS = [
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
]

INTEGERS = [et.int2, et.uint2, et.int4, et.uint4, et.int8, et.uint8, et.int16, et.uint16, et.int32, et.uint32]
NARROW = INTEGERS[:6]


def tensor(
    element_type: ElementType,
    values: np.ndarray,
    quantization: Quantization,
    *held: bytes,
    layout: Layout | None = None,
) -> tuple[TensorDescriptor, np.ndarray, list[np.ndarray]]:
    """A quantized dense tensor: its descriptor, the array it is stored as, and its buffers."""
    layout = layout or RowMajorLayout()
    plain = dense(element_type, values.shape, layout)
    data = from_array(values, plain)
    sizes = [len(data), *map(len, held)]
    descriptor = TensorDescriptor.build(element_type, values.shape, layout, sizes, quantization=quantization)
    return descriptor, to_array(descriptor, data), [data, *map(buffer, held)]


def real(scale: Any, stored: int, zero_point: int) -> np.float32:
    with np.errstate(all="ignore"):
        return np.float32(np.float32(scale) * np.float32(stored - zero_point))


def as_bits(array: np.ndarray) -> list[int]:
    assert array.dtype == np.float32
    bits: list[int] = array.view(np.uint32).reshape(-1).tolist()
    return bits


def test_per_tensor_values_by_hand() -> None:
    values = np.array([0, 127, 128, 255], np.uint8)
    descriptor, stored, buffers = tensor(et.uint8, values, PerTensorAffine(0.5, 128))
    found = dequantize_dense(descriptor, stored, buffers)
    assert found.dtype == np.float32
    assert found.tolist() == [-64.0, -0.5, 0.0, 63.5]


def test_per_channel_values_by_hand() -> None:
    values = np.array([[1, -1, 7], [-8, 2, 3]], ml_dtypes.int4)
    scales, zeros = np.array([1, 0.5, 2], "<f4"), np.array([0, 1, -1], "<i4")
    quantization = PerChannelAffine.asymmetric(1, 1, 2)
    descriptor, stored, buffers = tensor(et.int4, values, quantization, scales.tobytes(), zeros.tobytes())
    assert dequantize_dense(descriptor, stored, buffers).tolist() == [[1, -1, 16], [-8, 0.5, 8]]


def test_blocks_of_a_line_are_neighbours_whatever_the_axis() -> None:
    # three rows in blocks of two: column j has scales 2j and 2j + 1, the latter for row 2 alone
    values = np.ones((3, 5), np.int8)
    scales = np.arange(10, dtype="<f4")
    descriptor, stored, buffers = tensor(
        et.int8, values, PerBlockAffine.symmetric(0, 2, 1, et.float32), scales.tobytes()
    )
    expected = [[0, 2, 4, 6, 8], [0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    assert dequantize_dense(descriptor, stored, buffers).tolist() == expected


def test_nf4_levels_are_those_of_qlora() -> None:
    values = np.arange(16, dtype=np.uint8).view(ml_dtypes.uint4)
    descriptor, stored, buffers = tensor(et.uint4, values, Nf4(0, 16, 1), np.array([1], "<f4").tobytes())
    expected = np.array(QLORA_LEVELS, np.float32)
    assert as_bits(dequantize_dense(descriptor, stored, buffers)) == as_bits(expected)


def test_nf4_scales_every_block_and_the_part_of_one() -> None:
    values = np.full(19, 15, np.uint8).view(ml_dtypes.uint4)
    scales = np.array([2, 3, 5], "<f4")
    descriptor, stored, buffers = tensor(et.uint4, values, Nf4(0, 8, 1), scales.tobytes())
    assert dequantize_dense(descriptor, stored, buffers).tolist() == [2.0] * 8 + [3.0] * 8 + [5.0] * 3


@pytest.mark.parametrize("axis", [0, 1])
def test_levels_belong_to_elements_and_not_to_places(axis: int) -> None:
    codes = np.random.default_rng(9).integers(0, 16, (8, 9), np.uint8)
    scales = np.arange(1, (9, 16)[axis] + 1, dtype="<f4")
    descriptor, stored, buffers = tensor(
        et.uint4, codes.view(ml_dtypes.uint4), Nf4(axis, 8, 1), scales.tobytes(), layout=ColMajorLayout()
    )
    found = dequantize_dense(descriptor, stored, buffers)
    for i, j in np.ndindex(8, 9):
        scale = scales[j] if axis == 0 else scales[2 * i + j // 8]
        assert found[i, j] == np.float32(QLORA_LEVELS[codes[i, j]]) * scale


def test_mxfp_scales_are_powers_of_two() -> None:
    values = np.array([0.5, -6] * 16, ml_dtypes.float4_e2m1fn)
    # 2**(130 - 127) and 2**(1 - 127)
    descriptor, stored, buffers = tensor(et.float4_e2m1, values, Mxfp(0, 16, 1), bytes([130, 1]))
    found = dequantize_dense(descriptor, stored, buffers)
    assert found.tolist() == [4.0, -48.0] * 8 + [2.0**-127, -6 * 2.0**-126] * 8


@pytest.mark.parametrize("scale", [0x00, 0xFF])
def test_an_mxfp_scale_that_is_no_number_is_refused(scale: int) -> None:
    values = np.zeros(48, np.int8)
    descriptor, stored, buffers = tensor(et.int8, values, Mxfp(0, 16, 1), bytes([127, scale, 127]))
    with pytest.raises(InvalidFileError) as caught:
        dequantize_dense(descriptor, stored, buffers)
    assert (caught.value.rule, caught.value.found) == ("quantization.mxfp-scale", scale)
    assert "block 1 " in str(caught.value)


def test_a_scale_in_the_slack_of_its_buffer_is_not_judged() -> None:
    descriptor, stored, buffers = tensor(et.int8, np.ones(16, np.int8), Mxfp(0, 16, 1), bytes([127, 0xFF]))
    assert dequantize_dense(descriptor, stored, buffers).tolist() == [1.0] * 16


@pytest.mark.parametrize("element_type", Mxfp.storage_types, ids=lambda t: t.name)
def test_mxfp_takes_every_value_of_its_storage_types(element_type: ElementType) -> None:
    assert element_type.dtype is not None
    codes = np.arange(256, dtype=np.uint8).reshape(2, 128) & np.uint8((1 << element_type.bits) - 1)
    values = codes.view(element_type.dtype)
    scales = [120, 127, 140, 200]
    descriptor, stored, buffers = tensor(element_type, values, Mxfp(1, 64, 1), bytes(scales))
    found = dequantize_dense(descriptor, stored, buffers)
    for i, j in np.ndindex(2, 128):
        expected = np.float32(float(values[i, j]) * 2.0 ** (scales[2 * i + j // 64] - 127))
        assert found[i, j] == expected or (np.isnan(found[i, j]) and np.isnan(expected))


def test_a_product_beyond_float32_is_infinite_without_a_warning() -> None:
    values = np.full(16, 448, ml_dtypes.float8_e4m3fn)
    descriptor, stored, buffers = tensor(et.float8_e4m3, values, Mxfp(0, 16, 1), bytes([254]))
    with np.errstate(all="raise"):
        assert dequantize_dense(descriptor, stored, buffers).tolist() == [np.inf] * 16


@pytest.mark.parametrize(
    ("element_type", "stored", "zero_point", "difference"),
    [
        (et.uint32, 4294967295, 2147483647, 2147483648),
        (et.int32, -2147483648, 2147483647, -4294967295),
        (et.int32, 2147483647, 2147483646, 1),  # both are 2**31 in float32
        (et.int32, 16777217, 0, 16777217),
        (et.uint8, 200, -2147483648, 2147483848),
        (et.int8, -128, 16777217, -16777345),
    ],
)
def test_the_difference_is_exact_before_it_is_rounded(
    element_type: ElementType, stored: int, zero_point: int, difference: int
) -> None:
    values = np.array([stored, stored], element_type.dtype)
    held = np.array([1, 0.1], "<f4").tobytes() + np.array([zero_point] * 2, "<i4").tobytes()
    descriptor, array, buffers = tensor(element_type, values, PerChannelAffine.asymmetric(0, 1, 1), held)
    expected = [np.float32(difference), np.float32(0.1) * np.float32(difference)]
    assert dequantize_dense(descriptor, array, buffers).tolist() == expected


@st.composite
def affine_cases(draw: st.DrawFn) -> Any:
    shape = tuple(draw(st.lists(st.sampled_from([2, 3, 4, 5, 7, 1, 0]), min_size=1, max_size=3)))
    axis = draw(st.integers(0, len(shape) - 1))
    per_block = draw(st.booleans())
    element_type = draw(st.sampled_from(NARROW if per_block else INTEGERS))
    scale_type = draw(st.sampled_from(PerBlockAffine.SCALE_TYPES)) if per_block else et.float32
    block = draw(st.sampled_from([2, 4])) if per_block else 1
    zeros = draw(st.sampled_from(["none", "shared", "own"]))
    layout: Layout = draw(st.sampled_from([RowMajorLayout(), ColMajorLayout(), StridedLayout, MortonLayout]))
    if layout is StridedLayout:
        layout = StridedLayout(tuple(7**k for k in range(len(shape))))
    elif layout is MortonLayout:
        layout = MortonLayout((3,) * len(shape))
    seed = draw(st.integers(0, 999))
    return shape, axis, element_type, scale_type, block, zeros, layout, seed


def parameter_number(at: Sequence[int], shape: Sequence[int], axis: int, block: int | None) -> int:
    """Which scale belongs to the element at these coordinates: its channel, or line(i) * B + i_axis div block_size."""
    if block is None:
        return at[axis]
    line = 0
    for k in range(len(shape)):
        if k != axis:
            line = line * shape[k] + at[k]
    return line * -(-shape[axis] // block) + at[axis] // block


@given(affine_cases())
@settings(deadline=None, max_examples=300)
def test_affine_values_are_those_of_the_formula_one_by_one(case: Any) -> None:
    shape, axis, element_type, scale_type, block, zeros, layout, seed = case
    random = np.random.default_rng(seed)
    whole = dense(element_type, shape, RowMajorLayout())
    values = to_array(whole, random.integers(0, 256, whole.buffers[0].byte_size, np.uint8))
    quantization: PerChannelAffine | PerBlockAffine
    zero_index = {"none": None, "shared": 1, "own": 2}[zeros]
    if block == 1:
        quantization = PerChannelAffine(axis, 1, zero_index)
    else:
        quantization = PerBlockAffine(axis, block, 1, scale_type, zero_index)
    count = quantization.parameter_count(shape, None)
    scales = random.standard_normal(count).astype(scale_type.dtype)
    points = random.integers(-(1 << 31), 1 << 31, count).astype("<i4")
    held = [scales.tobytes(), points.tobytes()] if zeros == "own" else [scales.tobytes()]
    if zeros == "shared":
        held = [scales.tobytes() + points.tobytes()]
    descriptor, stored, buffers = tensor(element_type, values, quantization, *held, layout=layout)

    found_scales, found_points = parameters(descriptor, buffers)
    assert found_scales.dtype == scale_type.dtype
    assert found_scales.tobytes() == scales.tobytes()
    assert (None if found_points is None else found_points.tolist()) == (None if zeros == "none" else points.tolist())

    found = dequantize_dense(descriptor, stored, buffers)
    assert found.shape == shape
    for at in itertools.product(*map(range, shape)):
        number = parameter_number(at, shape, axis, None if block == 1 else block)
        point = 0 if zeros == "none" else int(points[number])
        assert found[at] == real(scales[number], int(values[at]), point)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(
    "layout", [RowMajorLayout(), ColMajorLayout(), StridedLayout((1, 40, 7)), MortonLayout((2, 2, 3))]
)
def test_blocks_belong_to_elements_and_not_to_places(axis: int, layout: Layout) -> None:
    shape = 3, 4, 5
    values = np.arange(60, dtype=np.int8).reshape(shape)
    quantization = PerBlockAffine.symmetric(axis, 2, 1, et.float32)
    scales = np.arange(1, quantization.parameter_count(shape, None) + 1, dtype="<f4")
    descriptor, stored, buffers = tensor(et.int8, values, quantization, scales.tobytes(), layout=layout)
    found = dequantize_dense(descriptor, stored, buffers)
    for at in np.ndindex(shape):
        assert found[at] == int(values[at]) * (parameter_number(at, shape, axis, 2) + 1)


@pytest.mark.parametrize("axis", [0, 30, 63])
def test_blocks_in_64_dimensions(axis: int) -> None:
    shape = tuple(3 if k == axis else 1 for k in range(64))
    values = np.array([5, 6, 7], np.int8).reshape(shape)
    for layout in (RowMajorLayout(), ColMajorLayout()):
        descriptor, stored, buffers = tensor(
            et.int8,
            values,
            PerBlockAffine.symmetric(axis, 2, 1, et.float32),
            np.array([1, 10], "<f4").tobytes(),
            layout=layout,
        )
        found = dequantize_dense(descriptor, stored, buffers)
        assert found.shape == shape
        assert found.reshape(-1).tolist() == [5, 6, 70]


def test_the_result_is_new_and_bounded() -> None:
    descriptor = dense(et.int8, (4, 5), StridedLayout((0, 0)), quantization=PerTensorAffine(1.0))
    data = buffer(b"\x07")
    stored = to_array(descriptor, data)
    with pytest.raises(LimitError) as caught:
        dequantize_dense(descriptor, stored, [data], limits=Limits(max_dense_bytes=79))
    assert caught.value.rule == "limit.dense-bytes"
    found = dequantize_dense(descriptor, stored, [data], limits=Limits(max_dense_bytes=80))
    assert found.flags.writeable
    assert found.tolist() == [[7.0] * 5] * 4


@pytest.mark.parametrize("element_type", [et.bfloat16, et.float8_e5m2, et.float6_e3m2, et.uint2, et.bool_, et.int16])
def test_a_tensor_without_a_scheme_has_its_own_values(element_type: ElementType) -> None:
    values = np.array([[0, 1, 1], [1, 0, 1]]).astype(element_type.dtype)
    descriptor = dense(element_type, (2, 3), RowMajorLayout())
    data = from_array(values, descriptor)
    assert dequantize_dense(descriptor, to_array(descriptor, data), [data]).tolist() == [[0, 1, 1], [1, 0, 1]]


@pytest.mark.parametrize("element_type", [et.float128, et.complex64, private(16)[0]], ids=lambda t: t.name)
def test_a_type_without_real_values_is_refused(element_type: ElementType) -> None:
    extension = private(16)[1] if element_type.is_private else None
    descriptor = dense(element_type, (2,), RowMajorLayout(), extension_type=extension)
    data = buffer(bytes(buffer_bytes(element_type, 2)))
    with pytest.raises(UnsupportedError) as caught:
        dequantize_dense(descriptor, to_array(descriptor, data), [data])
    assert caught.value.rule == "quantization.storage"


def test_parameters_of_a_tensor_without_a_scheme_are_refused() -> None:
    with pytest.raises(IncompatibleError) as caught:
        parameters(dense(et.int8, (1,), RowMajorLayout()), [buffer(b"\x00")])
    assert caught.value.rule == "quantization.presence"


def test_parameters_of_a_tensor_as_a_whole_are_one_each() -> None:
    scales, points = parameters(dense(et.int8, (3,), RowMajorLayout(), quantization=PerTensorAffine(0.25, -3)), [])
    assert scales.tolist() == [0.25]
    assert points is not None
    assert points.tolist() == [-3]


# ---- pages -----------------------------------------------------------------------------------------------------------

PAGE_SIZE, NUM_PAGES, HEADS, DIM = 2, 3, 2, 4


def paged(quantization: Quantization, *held: bytes, element_type: ElementType = et.int8) -> Any:
    """A pool of 3 pages of 2 tokens, 5 tokens in one sequence over pages 2, 0, 1; stored values [5, 2, 4]."""
    layout = BlockPagedLayout(PAGE_SIZE, NUM_PAGES, 0, 1)
    pool = buffer_bytes(element_type, NUM_PAGES * PAGE_SIZE * HEADS * DIM)
    sizes = [pool, 12, 8, *map(len, held)]
    descriptor = TensorDescriptor.build(element_type, (5, HEADS, DIM), layout, sizes, quantization=quantization)
    buffers = [buffer(bytes(size)) for size in sizes[:3]] + [buffer(b) for b in held]
    stored = np.arange(40, dtype=np.int8).reshape(5, HEADS, DIM) - np.int8(20)
    return descriptor, stored, buffers


def test_pages_with_one_scale() -> None:
    descriptor, stored, buffers = paged(PerTensorAffine(0.5, -20))
    assert dequantize_paged(descriptor, stored, buffers).reshape(-1).tolist() == [n / 2 for n in range(40)]


@pytest.mark.parametrize("axis", [1, 2])
def test_pages_with_a_scale_for_each_head_or_dimension(axis: int) -> None:
    count = (HEADS, DIM)[axis - 1]
    scales, points = np.arange(1, count + 1, dtype="<f4"), np.arange(count, dtype="<i4")
    quantization = PerChannelAffine.asymmetric(axis, 3, 3)
    descriptor, stored, buffers = paged(quantization, scales.tobytes() + points.tobytes())
    found = dequantize_paged(descriptor, stored.reshape(1, 5, HEADS, DIM), buffers)
    assert found.shape == (1, 5, HEADS, DIM)
    for token, head, dim in np.ndindex(5, HEADS, DIM):
        k = (head, dim)[axis - 1]
        assert found[0, token, head, dim] == (k + 1) * (int(stored[token, head, dim]) - k)


@pytest.mark.parametrize("points", [None, [3, -2, 1 << 30, 0, 7]])
def test_pages_with_a_scale_for_each_slot(points: list[int] | None) -> None:
    slots = NUM_PAGES * PAGE_SIZE
    scales = np.array([0.5, 1.5, -2, 0.1, 3], np.float16)
    if points is None:
        quantization = PerBlockAffine.symmetric(0, PAGE_SIZE, 3, et.float16)
    else:
        quantization = PerBlockAffine.asymmetric(0, PAGE_SIZE, 3, 4, et.float16)
    held = [bytes(2 * slots)] + ([] if points is None else [bytes(4 * slots)])
    descriptor, stored, buffers = paged(quantization, *held)
    zeros = None if points is None else np.array(points, "<i4")
    found = dequantize_paged(descriptor, stored, buffers, scales, zeros)
    for token, head, dim in np.ndindex(5, HEADS, DIM):
        point = 0 if points is None else points[token]
        assert found[token, head, dim] == real(scales[token], int(stored[token, head, dim]), point)


@pytest.mark.parametrize(("symmetric", "given_points"), [(True, True), (False, False)])
def test_the_parameters_of_slots_must_be_those_of_the_scheme(symmetric: bool, given_points: bool) -> None:
    if symmetric:
        descriptor, stored, buffers = paged(PerBlockAffine.symmetric(0, PAGE_SIZE, 3, et.float32), bytes(24))
    else:
        descriptor, stored, buffers = paged(PerBlockAffine.asymmetric(0, PAGE_SIZE, 3, 3, et.float32), bytes(48))
    points = np.zeros(5, "<i4") if given_points else None
    for scales in (np.ones(5, np.float32), None):
        with pytest.raises(IncompatibleError) as caught:
            dequantize_paged(descriptor, stored, buffers, scales, points)
        assert caught.value.rule == "quantization.page-slots"


def test_the_parameters_of_a_pool_are_in_order_of_its_slots() -> None:
    scales, points = np.arange(6, dtype="<f4"), np.arange(10, 16, dtype="<i4")
    descriptor, _, buffers = paged(
        PerBlockAffine.asymmetric(0, PAGE_SIZE, 3, 3, et.float32), scales.tobytes() + points.tobytes()
    )
    found_scales, found_points = parameters(descriptor, buffers)
    assert found_scales.tolist() == scales.tolist()
    assert found_points is not None
    assert found_points.tolist() == points.tolist()


@pytest.mark.parametrize("scale", [np.array(0.5, np.float32), np.array([0.5, 2], np.float32)], ids=["layer", "heads"])
def test_a_companion_scale_multiplies_a_float8_cache(scale: np.ndarray) -> None:
    values = np.array([1.5, -448, 0.0625, 2] * 4).reshape(2, 2, 4).astype(ml_dtypes.float8_e4m3fn)
    found = scale_companion(values, scale)
    for token, head, dim in np.ndindex(2, 2, 4):
        factor = float(scale if scale.ndim == 0 else scale[head])
        assert found[token, head, dim] == float(values[token, head, dim]) * factor


@pytest.mark.parametrize("shape", [(3,), (1,), (2, 4), (2, 1)])
def test_a_companion_scale_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(IncompatibleError) as caught:
        scale_companion(np.zeros((5, 2, 4), ml_dtypes.float8_e5m2), np.ones(shape, np.float32))
    assert caught.value.rule == "snapshot.scale-shape"

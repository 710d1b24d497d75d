"""Dense tensors as arrays: what is borrowed, what is copied, what survives, what is refused."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from arrays_slow import PACKED, WHOLE, bits_of, buffer, dense, plain_bits, private
from dense_cases import dense_layouts, every_position, lowest
from hypothesis import given, settings
from hypothesis import strategies as st

from hurray_wire.arrays import places
from hurray_wire.arrays.dense import from_array, to_array
from hurray_wire.errors import BufferSizeError, IncompatibleError, LimitError, UnsupportedError
from hurray_wire.limits import Limits
from hurray_wire.model import element_types as et
from hurray_wire.model.block_paged import BlockPagedLayout
from hurray_wire.model.descriptor import TensorDescriptor
from hurray_wire.model.element_types import ElementType, buffer_bytes
from hurray_wire.model.layouts import (
    ColMajorLayout,
    CooLayout,
    HilbertLayout,
    Layout,
    MortonLayout,
    PrivateExtensionLayout,
    RowMajorLayout,
    StridedLayout,
    TiledLayout,
)

AS_VIEWS = [RowMajorLayout(), ColMajorLayout(), StridedLayout((1, 2))]


@pytest.mark.parametrize("layout", AS_VIEWS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("element_type", WHOLE, ids=lambda t: t.name)
@pytest.mark.parametrize("byte_offset", [0, 3])
def test_whole_bytes_are_a_read_only_view_at_any_alignment(
    layout: Layout, element_type: ElementType, byte_offset: int
) -> None:
    descriptor = dense(element_type, (2, 3), layout, byte_offset=byte_offset, slack=5)
    data = buffer(np.random.default_rng(3).integers(0, 256, descriptor.buffers[0].byte_size, np.uint8).tobytes())
    found = to_array(descriptor, data)
    assert found.dtype == element_type.dtype
    assert np.shares_memory(found, data)
    assert not found.flags.writeable
    assert bits_of(found, element_type.bits) == plain_bits(descriptor, data)


def test_negative_strides_start_inside_the_buffer() -> None:
    descriptor = dense(et.int16, (2, 3), StridedLayout((-3, -1)), byte_offset=10)
    data = np.arange(6, dtype="<i2").view(np.uint8)
    assert to_array(descriptor, data).tolist() == [[5, 4, 3], [2, 1, 0]]


def test_a_stride_of_a_dimension_of_one_does_not_count() -> None:
    descriptor = dense(et.int64, (1, 2), StridedLayout(((1 << 63) - 1, 1)))
    assert to_array(descriptor, np.arange(2, dtype="<i8").view(np.uint8)).tolist() == [[0, 1]]


@pytest.mark.parametrize("layout", [RowMajorLayout(), ColMajorLayout(), StridedLayout(())], ids=lambda v: v.name)
@pytest.mark.parametrize("element_type", [et.float32, et.int4], ids=lambda t: t.name)
def test_a_scalar_is_an_array_without_dimensions(layout: Layout, element_type: ElementType) -> None:
    descriptor = dense(element_type, (), layout)
    found = to_array(descriptor, buffer(b"\x07\x00\x80\x3f"[: descriptor.buffers[0].byte_size]))
    assert found.shape == ()
    assert bits_of(found, element_type.bits) == [0x3F800007 if element_type is et.float32 else 7]
    assert from_array(found, descriptor).tobytes() == b"\x07\x00\x80\x3f"[: descriptor.buffers[0].byte_size]


@pytest.mark.parametrize(
    "layout", [RowMajorLayout(), StridedLayout((1,) * 64), TiledLayout((1,) * 64)], ids=lambda v: v.name
)
def test_64_dimensions_are_as_good_as_any(layout: Layout) -> None:
    descriptor = dense(et.uint8, (1,) * 63 + (2,), layout)
    found = to_array(descriptor, buffer(b"\x05\x06"))
    assert found.shape == (1,) * 63 + (2,)
    assert found.reshape(-1).tolist() == [5, 6]


@pytest.mark.parametrize(
    "layout",
    [
        RowMajorLayout(),
        ColMajorLayout(),
        StridedLayout((9, 9)),
        TiledLayout((2, 2)),
        MortonLayout((2, 2)),
        HilbertLayout(2, 2),
    ],
    ids=lambda layout: layout.name,
)
@pytest.mark.parametrize("element_type", [et.bfloat16, et.bool_], ids=lambda t: t.name)
def test_an_empty_tensor_is_an_empty_array(layout: Layout, element_type: ElementType) -> None:
    descriptor = dense(element_type, (0, 4), layout, slack=6)
    found = to_array(descriptor, buffer(bytes(6)))
    assert found.shape == (0, 4)
    assert found.dtype == element_type.dtype
    assert from_array(found, descriptor).tobytes() == bytes(6)


def test_an_empty_tensor_that_numpy_cannot_describe_is_refused() -> None:
    descriptor = dense(et.uint8, (0, 1 << 63, 2), RowMajorLayout())
    with pytest.raises(LimitError) as caught:
        to_array(descriptor, buffer(b""))
    assert caught.value.rule == "limit.addressable"


@pytest.mark.parametrize(
    "layout", [RowMajorLayout(), StridedLayout((1,)), TiledLayout((2,)), MortonLayout((2,))], ids=lambda v: v.name
)
def test_nan_payloads_and_signs_survive(layout: Layout) -> None:
    patterns = np.array([0x7F800001, 0xFFC12345, 0x80000000, 0x00000001], "<u4")
    descriptor = dense(et.float32, (4,), layout)
    found = to_array(descriptor, patterns.view(np.uint8))
    places_of = [0, 1, 2, 3]
    assert bits_of(found, 32) == patterns[places_of].tolist()
    assert from_array(found, descriptor).tobytes() == patterns.tobytes()


def test_float128_and_private_types_are_raw_bytes() -> None:
    element_type, extension = private(24)
    descriptor = dense(element_type, (2,), TiledLayout((2,)), extension_type=extension)
    found = to_array(descriptor, buffer(b"abcdef"))
    assert found.dtype == np.dtype("V3")
    assert [item.tobytes() for item in found] == [b"abc", b"def"]
    quad = to_array(dense(et.float128, (1,), RowMajorLayout()), buffer(bytes(range(16))))
    assert quad.dtype == np.dtype("V16")
    assert quad.tobytes() == bytes(range(16))


def test_copies_are_the_callers_own() -> None:
    for element_type, layout in ((et.uint4, RowMajorLayout()), (et.int8, MortonLayout((1, 1)))):
        descriptor = dense(element_type, (2, 2), layout)
        found = to_array(descriptor, buffer(bytes(descriptor.buffers[0].byte_size)))
        assert found.flags.writeable


# ---- back ------------------------------------------------------------------------------------------------------------


@given(dense_layouts(), st.data())
@settings(deadline=None)
@pytest.mark.parametrize("block", [1 << 16, 5])
def test_what_is_written_is_read_back_and_the_rest_is_zero(
    block: int, case: tuple[tuple[int, ...], Layout], data: st.DataObject
) -> None:
    shape, layout = case
    element_type = data.draw(st.sampled_from(et.ALL))
    byte_offset = -(lowest(layout, shape) * element_type.bits // 8) + data.draw(st.integers(0, 3))
    descriptor = dense(element_type, shape, layout, byte_offset=byte_offset, slack=data.draw(st.integers(0, 3)))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    whole = dense(element_type, shape, RowMajorLayout())
    array = to_array(whole, random.integers(0, 256, whole.buffers[0].byte_size, np.uint8))
    taken = [] if isinstance(layout, MortonLayout | HilbertLayout) else every_position(shape, layout)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "_BLOCK_ELEMENTS", block)
        if len(set(taken)) < len(taken):
            with pytest.raises(IncompatibleError) as caught:
                from_array(array, descriptor)
            assert caught.value.rule == "layout.overlap"
            return
        written = from_array(array, descriptor)
    assert len(written) == descriptor.buffers[0].byte_size
    found = to_array(descriptor, written)
    assert bits_of(found, element_type.bits) == bits_of(array, element_type.bits)
    ones = int.from_bytes(written.tobytes(), "little").bit_count()
    assert ones == sum(bits.bit_count() for bits in bits_of(array, element_type.bits))


def test_a_contiguous_row_major_array_is_borrowed() -> None:
    array = np.arange(6, dtype="<f4").reshape(2, 3)
    written = from_array(array, dense(et.float32, (2, 3), RowMajorLayout()))
    assert np.shares_memory(written, array)
    assert written.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype="<i4").reshape(2, 3)),
        np.arange(12, dtype="<i4").reshape(2, 6)[:, ::2] // 2,
        np.arange(5, -1, -1, dtype="<i4")[::-1].reshape(2, 3),
    ],
    ids=["big-endian", "fortran-order", "strided", "reversed"],
)
@pytest.mark.parametrize("layout", [RowMajorLayout(), ColMajorLayout(), TiledLayout((2, 2))], ids=lambda v: v.name)
def test_arrays_of_any_order_are_written_by_value(array: np.ndarray, layout: Layout) -> None:
    descriptor = dense(et.int32, (2, 3), layout)
    assert to_array(descriptor, from_array(array, descriptor)).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_big_endian_nan_keeps_its_payload() -> None:
    array = np.array([0x7FA00001], ">u4").view(">f4")
    assert from_array(array, dense(et.float32, (1,), RowMajorLayout())).tobytes().hex() == "0100a07f"


def test_a_broadcast_array_is_written_by_value() -> None:
    array = np.broadcast_to(np.array([1, 2], np.int8), (3, 2))
    assert from_array(array, dense(et.int8, (3, 2), RowMajorLayout())).tolist() == [1, 2, 1, 2, 1, 2]


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (StridedLayout((0, 1)), (2, 3)),
        (StridedLayout((2, 1)), (2, 3)),
        (StridedLayout((2, 3)), (4, 3)),
        (TiledLayout((2, 2), "strided", "row_major", (0, 1)), (3, 2)),
        (TiledLayout((2,), inner_layout="strided", inner_strides=(0,)), (4,)),
        (
            TiledLayout((2,), inner_layout="tiled", inner_tiled=TiledLayout((2,), "row_major", "strided", None, (0,))),
            (4,),
        ),
    ],
)
@pytest.mark.parametrize("element_type", [et.int32, et.uint2], ids=lambda t: t.name)
def test_strides_that_join_places_are_not_written(
    layout: Layout, shape: tuple[int, ...], element_type: ElementType
) -> None:
    array = np.zeros(shape, element_type.dtype)
    with pytest.raises(IncompatibleError) as caught:
        from_array(array, dense(element_type, shape, layout))
    assert caught.value.rule == "layout.overlap"


def test_interleaved_strides_that_keep_places_apart_are_written() -> None:
    # 0 3 | 2 5 | 4 7: neither stride steps over all that the other reaches
    descriptor = dense(et.int8, (3, 2), StridedLayout((2, 3)))
    written = from_array(np.array([[1, 2], [3, 4], [5, 6]], np.int8), descriptor)
    assert written.tolist() == [1, 0, 3, 2, 5, 4, 0, 6]


@pytest.mark.parametrize(
    ("array", "rule"),
    [
        (np.zeros((3, 2), np.int8), "array.shape"),
        (np.zeros(6, np.int8), "array.shape"),
        (np.zeros((2, 3), np.uint8), "array.dtype"),
        (np.zeros((2, 3), ml_dtypes.int4), "array.dtype"),
    ],
)
def test_another_shape_or_type_is_refused_even_of_the_same_size(array: np.ndarray, rule: str) -> None:
    with pytest.raises(BufferSizeError) as caught:
        from_array(array, dense(et.int8, (2, 3), RowMajorLayout()))
    assert caught.value.rule == rule


@pytest.mark.parametrize("element_type", [*PACKED, et.int16, et.float128], ids=lambda t: t.name)
@pytest.mark.parametrize("byte_offset", [0, 1])
@pytest.mark.parametrize(("count", "stride"), [(5, -1), (5, -3), (2, -1), (3, -1), (3, -5), (4, -1)])
def test_elements_before_the_first_are_written_where_they_are_read(
    element_type: ElementType, count: int, stride: int, byte_offset: int
) -> None:
    low = (count - 1) * stride
    byte_offset -= low * element_type.bits // 8
    descriptor = dense(element_type, (count,), StridedLayout((stride,)), byte_offset=byte_offset)
    size = buffer_bytes(element_type, count)
    array = to_array(dense(element_type, (count,), RowMajorLayout()), buffer(bytes(range(0x9B, 0x9B + size))))
    written = from_array(array, descriptor)
    assert plain_bits(descriptor, written) == bits_of(array, element_type.bits)
    assert bits_of(to_array(descriptor, written), element_type.bits) == bits_of(array, element_type.bits)


def test_sizes_that_no_index_reaches_may_be_beyond_an_int64() -> None:
    far = TiledLayout((4,), "strided", "row_major", ((1 << 63) - 1,))
    assert to_array(dense(et.int8, (3,), far), buffer(b"\x05\x06\x07\x08")).tolist() == [5, 6, 7]
    wide = TiledLayout((1 << 63,), "row_major", "strided", None, (0,))
    assert to_array(dense(et.int8, (3,), wide), buffer(b"\x05")).tolist() == [5, 5, 5]


# ---- bounds ----------------------------------------------------------------------------------------------------------


def test_a_broadcast_of_terabytes_is_a_view() -> None:
    descriptor = dense(et.float32, (1 << 20, 1 << 20), StridedLayout((0, 0)), slack=60)
    found = to_array(descriptor, buffer(b"\x00\x00\x80\x3f" + bytes(60)))
    assert found.shape == (1 << 20, 1 << 20)
    assert found[-1, -1] == 1.0


def test_a_view_that_cannot_be_addressed_is_refused() -> None:
    descriptor = dense(et.float32, (1 << 40, 1 << 40), StridedLayout((0, 0)))
    with pytest.raises(LimitError) as caught:
        to_array(descriptor, buffer(bytes(4)))
    assert caught.value.rule == "limit.addressable"


@pytest.mark.parametrize(
    ("element_type", "layout", "shape"),
    [
        (et.bool_, StridedLayout((0, 0)), (1 << 10, 1 << 11)),
        (et.int8, TiledLayout((1, 1), "strided", outer_strides=(0, 0)), (1 << 10, 1 << 11)),
        (et.uint2, RowMajorLayout(), (1 << 21,)),
        (et.int8, MortonLayout((21,)), (1 << 21,)),
        (et.int8, HilbertLayout(7, 3), (1 << 7,) * 3),
    ],
    ids=["strided", "tiled", "row-major", "morton", "hilbert"],
)
def test_a_copy_is_bounded_before_memory_is_asked_for(
    element_type: ElementType, layout: Layout, shape: tuple[int, ...]
) -> None:
    descriptor = dense(element_type, shape, layout)
    data = buffer(bytes(descriptor.buffers[0].byte_size))
    size = 1 << 21
    tracemalloc.start()
    with pytest.raises(LimitError) as caught:
        to_array(descriptor, data, limits=Limits(max_dense_bytes=size - 1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (caught.value.rule, caught.value.declared, caught.value.found) == ("limit.dense-bytes", size - 1, size)
    assert peak < 1 << 19
    assert to_array(descriptor, data, limits=Limits(max_dense_bytes=size)).nbytes == size


@pytest.mark.parametrize(
    ("element_type", "layout", "shape"),
    [
        (et.uint4, StridedLayout((0,)), (1 << 23,)),
        (et.uint4, StridedLayout((0, 1)), (1 << 23, 1)),
        (et.int8, TiledLayout((8, 1), "strided", outer_strides=(0, 0)), (1 << 22, 2)),
        (et.int8, MortonLayout((23,)), (1 << 23,)),
        (et.uint4, HilbertLayout(1, 23), (2,) * 23),
    ],
    ids=["strided", "strided-column", "tiled", "morton", "hilbert"],
)
def test_temporaries_do_not_grow_with_the_tensor(
    element_type: ElementType, layout: Layout, shape: tuple[int, ...]
) -> None:
    descriptor = dense(element_type, shape, layout)
    data = buffer(bytes(descriptor.buffers[0].byte_size))
    tracemalloc.start()
    found = to_array(descriptor, data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.nbytes == 8 << 20
    assert peak < (8 << 20) + (8 << 20)


@pytest.mark.parametrize(
    "descriptor",
    [
        TensorDescriptor.build(et.int8, (2,), CooLayout(1), [1, 8]),
        TensorDescriptor.build(et.int8, (0, 1, 1), BlockPagedLayout(1, 0, 0, 0), [0, 0, 4]),
        TensorDescriptor.build(et.int8, (2,), PrivateExtensionLayout(0xF1, 7), [2]),
    ],
    ids=["coo", "block-paged", "private"],
)
def test_a_layout_that_is_not_dense_has_no_array(descriptor: TensorDescriptor) -> None:
    calls: list[Any] = [
        lambda: to_array(descriptor, buffer(bytes(2))),
        lambda: from_array(np.zeros(descriptor.shape, np.int8), descriptor),
    ]
    for call in calls:
        with pytest.raises(UnsupportedError) as caught:
            call()
        assert caught.value.rule == "layout.dense"


def test_a_dynamic_shape_has_no_array() -> None:
    descriptor = TensorDescriptor.build(et.int8, (None, 2), RowMajorLayout(), [64])
    with pytest.raises(UnsupportedError) as caught:
        to_array(descriptor, buffer(bytes(64)))
    assert caught.value.rule == "descriptor.dynamic"

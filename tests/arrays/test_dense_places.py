"""Where the dense layouts put their elements: written out by hand, and against the plain decoder and plain formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays_slow import bits_of, buffer, dense, plain_bits, private
from dense_cases import dense_layouts, every_position, lowest
from hypothesis import given, settings
from hypothesis import strategies as st
from requirements import reference

from hurray_wire.arrays import hilbert, places
from hurray_wire.arrays.dense import from_array, to_array
from hurray_wire.model import element_types as et
from hurray_wire.model.descriptor import TensorDescriptor
from hurray_wire.model.element_types import ElementType
from hurray_wire.model.layouts import (
    ColMajorLayout,
    HilbertLayout,
    Layout,
    MortonLayout,
    RowMajorLayout,
    StridedLayout,
    TiledLayout,
)

# Each grid says which element of the buffer stands at each coordinate.
BY_HAND: list[Any] = [
    pytest.param(RowMajorLayout(), [[0, 1, 2], [3, 4, 5]], id="row-major"),
    pytest.param(ColMajorLayout(), [[0, 2, 4], [1, 3, 5]], id="column-major"),
    pytest.param(StridedLayout((5, 2)), [[0, 2, 4], [5, 7, 9]], id="strided-with-gaps"),
    pytest.param(StridedLayout((0, 1)), [[0, 1, 2], [0, 1, 2]], id="strided-broadcast"),
    # tiles of 2 by 3 in row-major order, the last of each row and column partly used
    pytest.param(
        TiledLayout((2, 3)),
        [[0, 1, 2, 6, 7], [3, 4, 5, 9, 10], [12, 13, 14, 18, 19]],
        id="tiled-edges",
    ),
    pytest.param(
        TiledLayout((2, 2), "col_major", "col_major"),
        [[0, 2, 8, 10], [1, 3, 9, 11], [4, 6, 12, 14]],
        id="tiled-column-major",
    ),
    # tile (i, j) is number 3i + j, of 4 places each; within it place 2 is below place 0
    pytest.param(
        TiledLayout((2, 2), "strided", "strided", (3, 1), (2, 1)),
        [[0, 1, 4, 5], [2, 3, 6, 7], [12, 13, 16, 17]],
        id="tiled-strided",
    ),
    # tiles of 3 hold two tiles of 2, the second half used: 4 places for each 3 elements
    pytest.param(
        TiledLayout((3,), "row_major", "tiled", inner_tiled=TiledLayout((2,))),
        [0, 1, 2, 4, 5, 6, 8],
        id="tiled-padding-within-tiles",
    ),
    pytest.param(
        MortonLayout((2, 2)),
        [[0, 2, 8, 10], [1, 3, 9, 11], [4, 6, 12, 14], [5, 7, 13, 15]],
        id="morton",
    ),
    # one bit of dimension 0 at place 0; bits of dimension 1 at 1, 2, 3
    pytest.param(MortonLayout((1, 3)), [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]], id="morton-uneven"),
    pytest.param(HilbertLayout(1, 2), [[0, 1], [3, 2]], id="hilbert-2x2"),
    pytest.param(HilbertLayout(1, 3), [[[0, 1], [3, 2]], [[7, 6], [4, 5]]], id="hilbert-2x2x2"),
    pytest.param(
        HilbertLayout(2, 2),
        [[0, 3, 4, 5], [1, 2, 7, 6], [14, 13, 8, 9], [15, 12, 11, 10]],
        id="hilbert-4x4",
    ),
]


@pytest.mark.parametrize(("layout", "grid"), BY_HAND)
@pytest.mark.parametrize("element_type", [et.int16, et.uint4, et.float6_e2m3], ids=lambda t: t.name)
@pytest.mark.parametrize("byte_offset", [0, 1])
def test_places_written_out_by_hand(layout: Layout, grid: Any, element_type: ElementType, byte_offset: int) -> None:
    expected = np.array(grid)
    descriptor = dense(element_type, expected.shape, layout, byte_offset=byte_offset)
    # in the buffer element n is n modulo 16, whatever its width
    count = int(expected.max()) + 1
    width = element_type.bits
    stream = sum(n % 16 << n * width for n in range(count))
    raw = stream.to_bytes(descriptor.buffers[0].byte_size - byte_offset + 8, "little")
    data = buffer(b"\xff" * byte_offset + raw)[: descriptor.buffers[0].byte_size]
    found = to_array(descriptor, data)
    assert found.shape == expected.shape
    assert bits_of(found, width) == (expected % 16).reshape(-1).tolist()


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_steps_on_the_hilbert_curve_go_to_a_neighbour(rank: int, order: int) -> None:
    shape = (1 << order,) * rank
    descriptor = dense(et.uint32, shape, HilbertLayout(order, rank))
    steps = to_array(descriptor, np.arange(1 << order * rank, dtype="<u4").view(np.uint8))
    at = np.empty((steps.size, rank), np.int64)
    at[steps.reshape(-1)] = np.argwhere(np.ones(shape))
    assert at[0].tolist() == [0] * rank
    assert (np.abs(np.diff(at, axis=0)).sum(axis=1) == 1).all()


@pytest.mark.parametrize("table_bits", [1, 2, 3, 5, 18])
@pytest.mark.parametrize(("rank", "order"), [(2, 5), (3, 3), (4, 2), (5, 2), (7, 1)])
def test_the_size_of_the_hilbert_table_changes_nothing(
    rank: int, order: int, table_bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hilbert, "_TABLE_BITS", table_bits)
    descriptor = dense(et.uint16, (1 << order,) * rank, HilbertLayout(order, rank))
    data = np.arange(1 << order * rank, dtype="<u2").view(np.uint8)
    array = to_array(descriptor, data)
    assert bits_of(array, 16) == plain_bits(descriptor, data)
    assert from_array(array, descriptor).tolist() == data.tolist()


@given(dense_layouts(), st.data())
@settings(deadline=None)
@pytest.mark.parametrize("block", [1 << 16, 5])
def test_any_layout_and_type_is_read_as_the_plain_loop_reads_it(
    block: int, case: tuple[tuple[int, ...], Layout], data: st.DataObject
) -> None:
    shape, layout = case
    narrow_private, wide_private = private(2), private(40)
    element_type = data.draw(st.sampled_from([*et.ALL, narrow_private[0], wide_private[0]]))
    extension = {narrow_private[0]: narrow_private[1], wide_private[0]: wide_private[1]}.get(element_type)
    before = -(lowest(layout, shape) * element_type.bits // 8)
    byte_offset = before + data.draw(st.integers(0, 5))
    descriptor = dense(
        element_type,
        shape,
        layout,
        byte_offset=byte_offset,
        slack=data.draw(st.integers(0, 3)),
        extension_type=extension,
    )
    size = descriptor.buffers[0].byte_size
    raw = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 256, size, dtype=np.uint8).tobytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "_BLOCK_ELEMENTS", block)
        found = to_array(descriptor, buffer(raw))
    assert found.shape == shape
    if isinstance(layout, MortonLayout | HilbertLayout):
        expected = plain_bits(descriptor, raw)
    else:
        stream, width = int.from_bytes(raw, "little"), element_type.bits
        expected = [
            stream >> byte_offset * 8 + place * width & (1 << width) - 1 for place in every_position(shape, layout)
        ]
    assert bits_of(found, element_type.bits) == expected


@given(dense_layouts())
@settings(deadline=None)
def test_the_plain_decoder_agrees_where_tiles_divide_tiles(case: tuple[tuple[int, ...], Layout]) -> None:
    shape, layout = case
    level = layout
    while isinstance(level, TiledLayout) and level.inner_tiled is not None:
        if any(outer % inner for outer, inner in zip(level.tile_shape, level.inner_tiled.tile_shape, strict=True)):
            return  # the plain decoder steps by the tile's own elements there, and its tiles overlap
        level = level.inner_tiled
    descriptor = dense(et.uint16, shape, layout, byte_offset=-2 * lowest(layout, shape))
    raw = np.arange(descriptor.buffers[0].byte_size // 2, dtype="<u2").tobytes()
    assert bits_of(to_array(descriptor, buffer(raw)), 16) == plain_bits(descriptor, raw)


def test_the_morton_descriptor_of_the_rust_implementation() -> None:
    path = reference() / "conformance" / "descriptors" / "morton_f32_4x4.bin"
    descriptor = TensorDescriptor.decode(path.read_bytes())
    data = np.arange(16, dtype="<f4").view(np.uint8)
    expected = [[0, 2, 8, 10], [1, 3, 9, 11], [4, 6, 12, 14], [5, 7, 13, 15]]
    assert to_array(descriptor, data).tolist() == expected

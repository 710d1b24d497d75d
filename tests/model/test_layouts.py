"""The rules of the other layouts (spec/layouts.md): what each class refuses, and how many bytes its buffers need."""

import pytest

import hurray_wire as hw

ALL = [
    (hw.RowMajorLayout(), 0x01, 1),
    (hw.ColMajorLayout(), 0x02, 1),
    (hw.StridedLayout([4, 1]), 0x03, 1),
    (hw.TiledLayout([4, 4]), 0x04, 1),
    (hw.MortonLayout([3, 3]), 0x05, 1),
    (hw.CooLayout(nnz=2), 0x06, 2),
    (hw.CsrLayout(nnz=2), 0x07, 3),
    (hw.CscLayout(nnz=2), 0x08, 3),
    (hw.CsfLayout(nnz=2, mode_order=[0, 1, 2]), 0x09, 7),
    (hw.BlockPagedLayout(16, 64, 0, 2), 0x0A, 3),
    (hw.CompositeLayout("group", 2), 0x0B, 0),
    (hw.HilbertLayout(3, 2), 0x40, 1),
    (hw.PrivateExtensionLayout(0xF0, 7, b""), 0xF0, None),
    (hw.UnknownLayout(0x0C), 0x0C, None),
]


@pytest.mark.parametrize(("layout", "tag", "count"), ALL)
def test_every_layout_has_its_tag_and_buffers_and_is_equal_by_value(layout, tag, count):
    assert isinstance(layout, hw.Layout)
    assert layout.tag == tag
    assert layout.buffer_count == count
    assert layout == eval(repr(layout), vars(hw))  # noqa: S307 -- the repr names the class and its fields
    assert len({layout, eval(repr(layout), vars(hw))}) == 1  # noqa: S307


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: hw.StridedLayout([1 << 63]), "layout.strides"),
        (lambda: hw.TiledLayout([0]), "layout.tile-shape"),
        (lambda: hw.TiledLayout([]), "layout.rank-zero"),
        (lambda: hw.TiledLayout([2], outer_layout="tiled"), "layout.tile-outer"),
        (lambda: hw.TiledLayout([2], inner_layout="hilbert"), "layout.tile-inner"),
        (lambda: hw.TiledLayout([2], inner_layout="tiled"), "layout.tile-inner"),
        (lambda: hw.TiledLayout([2], inner_tiled=hw.TiledLayout([1])), "layout.tile-inner"),
        (lambda: hw.TiledLayout([2], outer_layout="strided"), "layout.tile-strides"),
        (lambda: hw.TiledLayout([2], inner_strides=[1]), "layout.tile-strides"),
        (lambda: hw.TiledLayout([2], inner_layout="strided", inner_strides=[1, 1]), "layout.tile-strides"),
        (lambda: nested_tiles(9), "layout.tile-depth"),
        (lambda: hw.MortonLayout([0]), "layout.morton-bits"),
        (lambda: hw.MortonLayout([2**32 - 1, 2**32 - 1]), "layout.morton-bits"),
        (lambda: hw.HilbertLayout(0, 2), "layout.hilbert-order"),
        (lambda: hw.HilbertLayout(2**32 - 1, 2), "layout.hilbert-order"),
        (lambda: hw.HilbertLayout(1, 1), "layout.hilbert-rank"),
        (lambda: hw.CooLayout(-1), "layout.nnz"),
        (lambda: hw.CsfLayout(1, [0, 0, 1]), "layout.mode-order"),
        (lambda: hw.CompositeLayout("sum", 2), "layout.composition-rule"),
        (lambda: hw.CompositeLayout(9, 2), "layout.composition-rule"),
        (lambda: hw.CompositeLayout("group", 2, "add"), "layout.combine-op"),
        (lambda: hw.CompositeLayout("overlay", 2), "layout.combine-op"),
        (lambda: hw.CompositeLayout("group", 2**32 - 1), "layout.member-count"),
        (lambda: hw.PrivateExtensionLayout(0x0C, 1), "layout.tag"),
        (lambda: hw.UnknownLayout(0x07), "layout.tag"),
        (lambda: hw.UnknownLayout(0xF1), "layout.tag"),
    ],
)
def test_parameters_that_no_tensor_could_have_are_refused_by_their_rule(make, rule):
    with pytest.raises(hw.InvalidDescriptorError) as caught:
        make()
    assert caught.value.rule == rule


def nested_tiles(depth):
    layout = hw.TiledLayout([2])
    for _ in range(depth - 1):
        layout = hw.TiledLayout([2], inner_layout="tiled", inner_tiled=layout)
    return layout


def test_eight_levels_of_tiles_are_valid():
    assert nested_tiles(8).depth == 8


@pytest.mark.parametrize(
    ("layout", "shape", "rule"),
    [
        (hw.StridedLayout([1]), [2, 2], "layout.strides"),
        (hw.TiledLayout([2, 2]), [4], "layout.tile-shape"),
        (hw.MortonLayout([2, 2]), [4, 5], "layout.morton-bits"),
        (hw.HilbertLayout(2, 2), [4, 3], "layout.hilbert-order"),
        (hw.HilbertLayout(2, 2), [4, 4, 4], "layout.hilbert-rank"),
        (hw.CooLayout(0), [], "layout.rank-zero"),
        (hw.CsrLayout(0), [2, 2, 2], "layout.sparse-rank"),
        (hw.CscLayout(0), [2], "layout.sparse-rank"),
        (hw.CsfLayout(0, [0, 1]), [2, 2], "layout.sparse-rank"),
        (hw.CsfLayout(0, [0, 1, 2]), [2, 2, 2, 2], "layout.mode-order"),
    ],
)
def test_a_shape_that_the_layout_cannot_have_is_refused_by_its_rule(layout, shape, rule):
    with pytest.raises(hw.InvalidDescriptorError) as caught:
        layout.validate_against_shape(shape)
    assert caught.value.rule == rule


@pytest.mark.parametrize(
    ("layout", "element_type", "shape", "sizes"),
    [
        (hw.RowMajorLayout(), hw.float32, (3, 4), (48,)),
        (hw.RowMajorLayout(), hw.float32, (), (4,)),
        (hw.RowMajorLayout(), hw.float32, (0, 1 << 63), (0,)),
        (hw.RowMajorLayout(), hw.bool, (10,), (2,)),
        (hw.RowMajorLayout(), hw.int4, (3,), (2,)),
        (hw.RowMajorLayout(), hw.uint2, (5,), (2,)),
        (hw.RowMajorLayout(), hw.float6_e2m3, (5,), (6,)),  # two groups of 4 elements in 3 bytes
        (hw.RowMajorLayout(), hw.uint8, (1 << 32, 1 << 32), (1 << 64,)),  # does not wrap to 0
        (hw.StridedLayout([10, -1]), hw.uint8, (2, 1), (11,)),
        (hw.StridedLayout([0, 2]), hw.uint16, (1 << 40, 3), (10,)),
        (hw.TiledLayout([4, 4]), hw.float32, (5, 5), (4 * 16 * 4,)),  # 2 x 2 whole tiles of 16
        (hw.MortonLayout([2, 3]), hw.uint8, (3, 5), (32,)),
        (hw.HilbertLayout(2, 3), hw.uint8, (4, 4, 4), (64,)),
        (hw.CooLayout(5), hw.float16, (7, 7), (10, 80)),
        (hw.CsrLayout(5), hw.float16, (7, 9), (10, 40, 64)),
        (hw.CscLayout(5), hw.float16, (7, 9), (10, 40, 80)),
        (hw.CsfLayout(5, [0, 1, 2]), hw.float16, (2, 2, 2), (10, 16, 0, 8, 0, 8, 40)),
        (hw.BlockPagedLayout(4, 5, 0, 2), hw.float16, (9, 2, 8), (640, 0, 12)),
        (hw.BlockPagedLayout(4, 5, 0, 2, block_table_index_type="uint64"), hw.int4, (9, 2, 8), (160, 0, 24)),
    ],
)
def test_the_bytes_that_each_buffer_must_hold_at_least(layout, element_type, shape, sizes):
    assert layout.minimum_buffer_bytes(element_type, shape, 0) == sizes


def test_strides_that_reach_before_the_buffer_are_refused():
    with pytest.raises(hw.InvalidDescriptorError) as caught:
        hw.StridedLayout([-1]).minimum_buffer_bytes(hw.uint8, (4,), 2)
    assert caught.value.rule == "layout.strided-reach"
    assert hw.StridedLayout([-1]).minimum_buffer_bytes(hw.uint8, (4,), 3) == (4,)

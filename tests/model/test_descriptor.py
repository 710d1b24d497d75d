"""The rules of the descriptor and its sections (spec/descriptor.md)."""

import numpy as np
import pytest

import hurray_wire as hw
from hurray_wire.model import element_types


def test_there_are_26_element_types_and_each_knows_its_size():
    assert len(element_types.ALL) == 26
    assert len(element_types.BY_TAG) == 26
    for element_type in element_types.ALL:
        assert getattr(hw, element_type.name) is element_type
        whole_bytes = -(-element_type.bits // 8)
        assert element_type.dtype.itemsize == whole_bytes
        assert element_types.from_dtype(element_type.dtype) is element_type


def test_a_numpy_type_of_either_byte_order_has_its_element_type():
    assert element_types.from_dtype(">f4") is hw.float32
    with pytest.raises(hw.UnsupportedError) as caught:
        element_types.from_dtype("U4")
    assert caught.value.rule == "element-type.dtype"


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"byte_size": -1}, "buffer.byte-size"),
        ({"byte_size": 1 << 64}, "buffer.byte-size"),
        ({"byte_size": 1, "alignment": 32}, "buffer.alignment"),
        ({"byte_size": 1, "alignment": 96}, "buffer.alignment"),
        ({"byte_size": 0, "alignment": 0}, "buffer.alignment"),
        ({"byte_size": 1, "device": "tpu"}, "buffer.device"),
        ({"byte_size": 1, "device": 9}, "buffer.device"),
        ({"byte_size": 1, "sync_mode": "later"}, "buffer.sync-mode"),
        ({"byte_size": 1, "sync_mode": "event"}, "buffer.sync-mode"),
        ({"byte_size": 1, "memory_class": "slow"}, "buffer.memory-class"),
        ({"byte_size": 1, "memory_class": 0xF0}, "buffer.device-memory"),
        ({"byte_size": 1, "memory_class": "peer"}, "buffer.device-memory"),
        ({"byte_size": 1, "device": "metal", "memory_class": "peer"}, "buffer.device-memory"),
        ({"byte_size": 1, "device": "webgpu", "memory_class": "host_pinned"}, "buffer.device-memory"),
        ({"byte_size": 1, "device": "webgpu", "memory_class": "unified"}, "buffer.device-memory"),
    ],
)
def test_a_buffer_handle_that_breaks_a_rule_is_refused(fields, rule):
    with pytest.raises(hw.InvalidDescriptorError) as caught:
        hw.BufferHandle(**fields)
    assert caught.value.rule == rule


@pytest.mark.parametrize(
    "fields",
    [
        {"byte_size": 0, "alignment": 1},
        {"byte_size": 1, "device": "cuda", "sync_mode": "event", "memory_class": "peer"},
        {"byte_size": 1, "device": "level_zero", "memory_class": "peer"},
        {"byte_size": 1, "device": 0xF0, "memory_class": 0xFE, "sync_mode": "consumer_stream"},
        {"byte_size": 1, "device": "opencl", "memory_class": "unified"},
    ],
)
def test_a_buffer_handle_of_any_valid_pair_survives_the_wire(fields):
    handle = hw.BufferHandle(**fields)
    made = hw.TensorDescriptor(hw.uint8, (fields["byte_size"],), hw.RowMajorLayout(), (handle,))
    assert hw.TensorDescriptor.decode(made.encode()).buffers == (handle,)


def row_major(**sections):
    return hw.TensorDescriptor.build(hw.float32, (3, 4), hw.RowMajorLayout(), (48,), **sections)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: row_major(shard=hw.Shard((3, 4, 1), (0, 0, 0))), "shard.rank"),
        (lambda: hw.Shard((3, 4), (0,)), "shard.rank"),
        (lambda: row_major(shard=hw.Shard((6, 4), (4, 0))), "shard.bounds"),
        (lambda: row_major(shard=hw.Shard((None, 4), (0, 0))), "shard.dynamic"),
        (lambda: hw.Statistics(value_min=1.0), "statistics.group"),
        (lambda: hw.Statistics(nnz=-1), "statistics.value"),
        (lambda: hw.Statistics(nm_n=2, nm_m=256), "statistics.value"),
        (lambda: hw.ExtensionType(bit_width=0), "extension-type.bit-width"),
        (lambda: hw.ExtensionType(bit_width=3), "extension-type.bit-width"),
        (lambda: hw.ExtensionType(bit_width=4, packing_factor=1), "extension-type.packing"),
        (lambda: hw.ExtensionType(bit_width=8, exponent_bits=4), "extension-type.integer"),
        (lambda: row_major(extension_type=hw.ExtensionType(bit_width=32)), "extension-type.presence"),
        (lambda: hw.CompositeMember("head"), "composite-member.role"),
        (lambda: row_major(byte_offset=49), "descriptor.byte-offset"),
        (lambda: row_major(byte_offset=4), "buffer.too-small"),
        (lambda: hw.TensorDescriptor.build(hw.float32, (3,) * 65, hw.RowMajorLayout(), (0,)), "descriptor.rank"),
        (lambda: hw.TensorDescriptor.build(hw.float32, (-1,), hw.RowMajorLayout(), (0,)), "descriptor.shape"),
        (lambda: hw.TensorDescriptor.build(hw.float32, (3,), hw.RowMajorLayout(), ()), "descriptor.buffer-count"),
        (lambda: hw.TensorDescriptor.build(hw.float32, (3,), hw.RowMajorLayout(), (12, 12)), "descriptor.buffer-count"),
        (
            lambda: hw.TensorDescriptor.build(hw.float32, (), hw.CompositeLayout("group", 1), (4,)),
            "descriptor.buffer-count",
        ),
        (lambda: hw.TensorDescriptor(hw.float32, (1,), hw.RowMajorLayout(), (hw.BufferHandle(3),)), "buffer.too-small"),
        (lambda: hw.TensorDescriptor("float32", (), hw.RowMajorLayout()), "element-type.tag"),
        (lambda: hw.TensorDescriptor(hw.float32, (), "row_major"), "layout.tag"),
    ],
)
def test_what_no_descriptor_may_say_is_refused_by_its_rule(make, rule):
    with pytest.raises((hw.InvalidDescriptorError, hw.BufferSizeError)) as caught:
        make()
    assert caught.value.rule == rule


@pytest.mark.parametrize("field", ["device", "memory_class"])
def test_all_handles_of_a_descriptor_share_device_and_memory_class(field):
    other = {"device": "cuda"} if field == "device" else {"memory_class": "unified"}
    handles = (hw.BufferHandle(8), hw.BufferHandle(16, **other))
    with pytest.raises(hw.InvalidDescriptorError) as caught:
        hw.TensorDescriptor(hw.float32, (2,), hw.CooLayout(2), handles)
    assert caught.value.rule == f"buffer.same-{field.replace('_', '-')}"


PAGED = hw.BlockPagedLayout(4, 5, 0, 2)


@pytest.mark.parametrize(
    ("sizes", "sections", "rule"),
    [
        ((639, 12, 12), {}, "buffer.too-small"),
        ((640, 13, 12), {}, "buffer.entries"),
        ((640, 12, 8), {}, "buffer.too-small"),
        ((640, 12, 12), {"byte_offset": 2}, "descriptor.byte-offset"),
        ((640, 12, 12), {"shard": hw.Shard((9, 2, 8), (0, 0, 0))}, "shard.layout"),
        ((640, 12), {}, "descriptor.buffer-count"),
    ],
)
def test_a_block_paged_descriptor_has_three_buffers_of_their_sizes_and_no_shard(sizes, sections, rule):
    with pytest.raises((hw.InvalidDescriptorError, hw.BufferSizeError)) as caught:
        hw.TensorDescriptor.build(hw.float16, (9, 2, 8), PAGED, sizes, **sections)
    assert caught.value.rule == rule


def test_a_product_of_sizes_does_not_wrap():
    with pytest.raises(hw.BufferSizeError) as caught:
        hw.TensorDescriptor.build(hw.float32, (1 << 32, 1 << 32), hw.RowMajorLayout(), (64,))
    assert caught.value.declared == 1 << 66


def test_a_dynamic_dimension_has_no_size():
    made = hw.TensorDescriptor.build(hw.float32, (None, 4), hw.RowMajorLayout(), (0,))
    assert made.shape == ((1 << 64) - 1, 4)
    with pytest.raises(hw.InvalidDescriptorError) as caught:
        _ = made.element_count
    assert caught.value.rule == "descriptor.dynamic"


def test_every_optional_section_survives_the_wire():
    statistics = hw.Statistics(
        nnz=3,
        sparsity_ratio=0.75,
        value_min=-1.0,
        value_max=2.0,
        value_abs_max=2.0,
        value_mean=0.25,
        value_stddev=0.5,
        nm_n=2,
        nm_m=4,
        has_nan=False,
        has_inf=True,
    )
    extension = hw.ExtensionType(
        bit_width=16, is_float=True, is_signed=True, sign_bits=1, exponent_bits=6, mantissa_bits=9, exponent_bias=31
    )
    made = hw.TensorDescriptor.build(
        extension.element_type(0xF3),
        (4, 2),
        hw.RowMajorLayout(),
        (16,),
        shard=hw.Shard((8, 4), (4, 2)),
        statistics=statistics,
        extension_type=extension,
        composite_member=hw.CompositeMember("base"),
    )
    assert hw.TensorDescriptor.decode(made.encode()) == made
    assert statistics.computed_mask == 0b111111


def test_shapes_take_numpy_integers_and_become_python_ones():
    made = hw.TensorDescriptor.build(hw.float32, np.array([3, 4]), hw.RowMajorLayout(), (48,))
    assert made.shape == (3, 4)
    assert all(type(dim) is int for dim in made.shape)


@pytest.mark.parametrize(
    ("sizes", "rule"),
    [((639, 12, 12), "buffer.too-small"), ((640, 5, 12), "buffer.entries"), ((640, 12, 8), "buffer.too-small")],
)
def test_sizes_that_do_not_depend_on_a_dynamic_dimension_are_still_checked(sizes, rule):
    with pytest.raises(hw.BufferSizeError) as caught:
        hw.TensorDescriptor.build(hw.float16, (None, 2, 8), PAGED, sizes)
    assert caught.value.rule == rule


def test_a_private_device_has_no_peer_memory():
    with pytest.raises(hw.InvalidDescriptorError) as caught:
        hw.BufferHandle(1, device=0xF0, memory_class="peer")
    assert caught.value.rule == "buffer.device-memory"

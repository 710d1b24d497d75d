"""Descriptors as bytes (spec/descriptor.md): both directions, cut short, with bytes left over, and field by field."""

import struct

import pytest

import hurray_wire as hw
from hurray_wire.wire.descriptors import descriptor_length

# The worked example, byte for byte as the specification prints it.
WORKED_EXAMPLE = bytes.fromhex(
    "48525259 01 00 85000000 00000000 01 0a 03000000"
    "0900000000000000 0200000000000000 0800000000000000 0000000000000000"
    "04000000 0500000000000000 00000000 02000000 00 03000000 00 000000000000"
    "03 8002000000000000 40000000 00 00 00 00"
    "   0c00000000000000 40000000 00 00 00 00"
    "   0c00000000000000 40000000 00 00 00 00"
)


def worked_example():
    layout = hw.BlockPagedLayout(4, 5, 0, 2, kv_role="key", layer_index=3)
    return hw.TensorDescriptor.build(hw.float16, (9, 2, 8), layout, (640, 12, 12))


def test_the_worked_example_is_133_bytes_in_both_directions():
    assert len(WORKED_EXAMPLE) == 133
    assert worked_example().encode() == WORKED_EXAMPLE
    assert hw.TensorDescriptor.decode(WORKED_EXAMPLE) == worked_example()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_bytes_like_object_is_decoded_and_not_kept(kind):
    assert hw.TensorDescriptor.decode(kind(WORKED_EXAMPLE)) == worked_example()


def test_a_descriptor_cut_anywhere_is_truncated():
    for length in range(len(WORKED_EXAMPLE)):
        with pytest.raises(hw.TruncatedError):
            hw.TensorDescriptor.decode(WORKED_EXAMPLE[:length])


def test_bytes_left_over_are_refused():
    with pytest.raises(hw.InvalidDescriptorError) as caught:
        hw.TensorDescriptor.decode(WORKED_EXAMPLE + b"\0")
    assert (caught.value.rule, caught.value.declared, caught.value.found) == ("descriptor.length", 133, 134)


def test_the_header_alone_tells_the_length():
    assert descriptor_length(WORKED_EXAMPLE[:20]) == 133


def test_no_layer_is_the_sentinel():
    layout = hw.BlockPagedLayout(4, 5, 0, 2, kv_role="fused")
    encoded = hw.TensorDescriptor.build(hw.float16, (9, 2, 8), layout, (640, 12, 12)).encode()
    assert encoded[72:77] == b"\x02\xff\xff\xff\xff"  # kv_role, then layer_index
    assert hw.TensorDescriptor.decode(encoded).layout.layer_index is None


PATCHES = [  # offset, struct format, value, rule
    (0, "<4s", b"HRRX", "descriptor.magic"),
    (4, "<B", 2, "descriptor.version-major"),
    (4, "<B", 0, "descriptor.version-major"),
    (6, "<I", 19, "descriptor.length"),
    (6, "<I", 134, "descriptor.length"),
    (6, "<I", (1 << 32) - 1, "limit.descriptor-bytes"),
    (10, "<I", 1 << 5, "descriptor.flags"),
    (10, "<I", 1 << 31, "descriptor.flags"),
    (10, "<I", 1, "descriptor.truncated"),  # announces a quantization section that is not there
    (14, "<B", 0x00, "element-type.tag"),
    (14, "<B", 0x47, "element-type.tag"),
    (14, "<B", 0xFF, "element-type.tag"),
    (14, "<B", 0xF0, "extension-type.presence"),
    (15, "<B", 0x00, "layout.tag"),
    (15, "<B", 0x0C, "layout.tag"),
    (15, "<B", 0xFF, "layout.tag"),
    (16, "<I", 65, "descriptor.rank"),
    (16, "<I", (1 << 32) - 1, "descriptor.rank"),
    (44, "<Q", 1, "descriptor.byte-offset"),
    (52, "<I", 0, "block-paged.page-size"),
    (64, "<I", 1, "block-paged.paged-axis"),
    (72, "<B", 3, "block-paged.kv-role"),
    (77, "<B", 2, "block-paged.index-type"),
    (78, "<6s", b"\0\0\0\0\0\1", "descriptor.reserved"),
    (84, "<B", 0, "descriptor.buffer-count"),
    (84, "<B", 2, "descriptor.buffer-count"),
    (84, "<B", 255, "descriptor.truncated"),
    (93, "<I", 0, "buffer.alignment"),
    (93, "<I", 65, "buffer.alignment"),
    (97, "<B", 9, "buffer.device"),
    (98, "<B", 1, "buffer.sync-mode"),
    (98, "<B", 3, "buffer.sync-mode"),
    (99, "<B", 4, "buffer.memory-class"),
    (99, "<B", 3, "buffer.device-memory"),
    (100, "<B", 1, "descriptor.reserved"),
    (85, "<Q", 639, "buffer.too-small"),
    (20, "<Q", 0, None),  # an empty tensor is valid everywhere
    (36, "<Q", 1 << 63, "buffer.too-small"),
    (56, "<Q", 1 << 63, "buffer.too-small"),
]


@pytest.mark.parametrize(("offset", "form", "value", "rule"), PATCHES)
def test_a_field_that_breaks_its_rule_is_refused_by_it(offset, form, value, rule):
    patched = bytearray(WORKED_EXAMPLE)
    struct.pack_into(form, patched, offset, value)
    if rule is None:
        assert hw.TensorDescriptor.decode(patched).encode() == bytes(patched)
        return
    with pytest.raises(hw.HurrayError) as caught:
        hw.TensorDescriptor.decode(patched)
    assert caught.value.rule == rule
    assert caught.value.offset is not None


def test_a_reserved_byte_is_told_by_its_own_offset():
    patched = bytearray(WORKED_EXAMPLE)
    patched[80] = 7
    with pytest.raises(hw.InvalidDescriptorError) as caught:
        hw.TensorDescriptor.decode(patched)
    assert caught.value.offset == 78
    assert caught.value.__cause__ is not None


def minor_version_one():
    newer = bytearray(WORKED_EXAMPLE + b"news")
    newer[5] = 1
    struct.pack_into("<I", newer, 6, len(newer))
    return bytes(newer)


def test_a_newer_minor_version_is_read_and_what_it_adds_is_kept():
    decoded = hw.TensorDescriptor.decode(minor_version_one())
    assert (decoded.version_minor, decoded.unknown_tail) == (1, b"news")
    assert decoded.layout == worked_example().layout
    assert decoded.encode() == minor_version_one()


def test_an_unknown_layout_is_kept_whole_in_permissive_mode_only():
    unknown = bytearray(WORKED_EXAMPLE)
    unknown[15] = 0x0C
    with pytest.raises(hw.UnsupportedError):
        hw.TensorDescriptor.decode(unknown)
    kept = hw.TensorDescriptor.decode(unknown, permissive=True)
    assert kept.layout == hw.UnknownLayout(0x0C, bytes(unknown[52:]))
    assert kept.encode() == bytes(unknown)


LAYOUTS = [
    (hw.RowMajorLayout(), (3, 4), (48,)),
    (hw.ColMajorLayout(), (3, 4), (48,)),
    (hw.StridedLayout([1, 3]), (3, 4), (48,)),
    (hw.TiledLayout([2, 2], "strided", "col_major", [1, 2]), (3, 4), (128,)),
    (hw.TiledLayout([2, 2], "col_major", "strided", None, [1, 2]), (3, 4), (128,)),
    (hw.TiledLayout([4, 4], inner_layout="tiled", inner_tiled=hw.TiledLayout([2, 2])), (3, 4), (64,)),
    (hw.MortonLayout([2, 2]), (3, 4), (64,)),
    (hw.CooLayout(2, is_sorted=True), (3, 4), (8, 32)),
    (hw.CsrLayout(2), (3, 4), (8, 16, 32)),
    (hw.CscLayout(2), (3, 4), (8, 16, 40)),
    (hw.CsfLayout(2, [2, 0, 1]), (3, 4, 5), (8, 16, 8, 16, 8, 16, 16)),
    (hw.HilbertLayout(2, 2), (4, 4), (64,)),
    (hw.CompositeLayout("partition", 2), (3, 4), ()),
    (hw.CompositeLayout("overlay", 2, "add"), (3, 4), ()),
    (hw.CompositeLayout(0xF3, 2), (3, 4), ()),
    (hw.PrivateExtensionLayout(0xFE, 1 << 60, b"what only we know"), (3, 4), (1, 2)),
]


@pytest.mark.parametrize(("layout", "shape", "sizes"), LAYOUTS, ids=lambda v: getattr(v, "name", None))
def test_every_layout_survives_the_wire_and_is_refused_when_cut(layout, shape, sizes):
    made = hw.TensorDescriptor.build(hw.float32, shape, layout, sizes)
    encoded = made.encode()
    assert hw.TensorDescriptor.decode(encoded) == made
    for length in range(20, len(encoded)):
        shorter = bytearray(encoded[:length])
        struct.pack_into("<I", shorter, 6, length)  # the length admits the cut, so the fields must notice it
        with pytest.raises(hw.HurrayError):
            hw.TensorDescriptor.decode(shorter)


def test_padding_behind_a_scheme_is_zero_and_survives():
    scheme = hw.PerTensorAffine(0.5, 3)
    made = hw.TensorDescriptor.build(
        hw.uint8, (2,), hw.RowMajorLayout(), (2,), quantization=scheme, quantization_padding=8
    )
    encoded = made.encode()
    assert struct.unpack_from("<I", encoded, len(encoded) - 28) == (24,)  # 16 bytes of scheme, 8 of padding
    assert hw.TensorDescriptor.decode(encoded) == made
    with pytest.raises(hw.InvalidDescriptorError) as caught:
        hw.TensorDescriptor.decode(encoded[:-1] + b"\1")
    assert caught.value.rule == "quantization.padding"


def test_a_negative_zero_among_the_statistics_keeps_its_sign():
    made = hw.TensorDescriptor.build(
        hw.uint8, (2,), hw.RowMajorLayout(), (2,), statistics=hw.Statistics(value_mean=-0.0, value_stddev=0.0)
    )
    assert struct.pack("<dd", -0.0, 0.0) in made.encode()
    assert hw.TensorDescriptor.decode(made.encode()).encode() == made.encode()

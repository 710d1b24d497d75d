"""Header, index and trailer (spec/container.md), and the rule that every byte belongs to exactly one thing."""

import struct

import pytest

import hurray_wire as hw
from hurray_wire.limits import Limits
from hurray_wire.wire import container as c
from hurray_wire.wire import index as ix
from hurray_wire.wire.checksum import crc32c
from hurray_wire.wire.regions import check_regions


def test_the_checksum_is_crc32c():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283


# Packed by hand: header, trailer, and an index of two entries
HEADER = struct.pack("<8sBB2xIIQQ28x", b"HRRYFILE", 1, 0, 4, 4096, 64, 2**64 - 1)
ENTRY = struct.Struct("<QIQQI")
FILE_SIZE = 20000


def index(*entries, count=None):
    parts = [struct.pack("<Q", len(entries) if count is None else count)]
    for name, *places in entries:
        parts.append(struct.pack("<H", len(name)) + name + ENTRY.pack(*places))
    return b"".join(parts)


GOOD = index((b"b", 64, 61, 4096, 16, 0), (b"a", 4112, 53, 8192, 3, 0))


def trailer_for(raw, **changes):
    fields = {"index_offset": 8200, "index_length": len(raw), "index_crc32c": crc32c(raw)} | changes
    return c.Trailer(**fields)


def read_index(raw, header=None, **changes):
    header = header or c.FileHeader()
    trailer = trailer_for(raw, **changes)
    return ix.decode_index(memoryview(raw), header=header, trailer=trailer, file_size=FILE_SIZE, limits=Limits())


def test_the_header_is_64_bytes_in_both_directions():
    assert len(HEADER) == 64
    assert c.decode_header(memoryview(HEADER)) == c.FileHeader()
    assert c.encode_header(c.FileHeader()) == HEADER


@pytest.mark.parametrize(
    ("offset", "form", "value", "rule"),
    [
        (0, "<8s", b"HRRYPLNS", "container.magic"),
        (8, "<B", 2, "container.version-major"),
        (8, "<B", 0, "container.version-major"),
        (9, "<B", 9, None),  # a newer minor version
        (10, "<H", 1, "container.reserved"),
        (12, "<I", 8, "container.flags"),
        (16, "<I", 2048, "container.alignment"),
        (16, "<I", 0, "container.alignment"),
        (16, "<I", 12288, "container.alignment"),
        (16, "<I", 4 << 20, "container.alignment"),
        (16, "<I", 2 << 20, None),
        (20, "<Q", 56, "container.first-descriptor"),
        (20, "<Q", 68, "container.first-descriptor"),
        (20, "<Q", 4096, None),
        (28, "<Q", 3, None),  # a hint is never relied on
        (63, "<B", 1, "container.reserved"),
    ],
)
def test_a_header_field_that_breaks_its_rule_is_refused_by_it(offset, form, value, rule):
    patched = bytearray(HEADER)
    struct.pack_into(form, patched, offset, value)
    if rule is None:
        assert c.encode_header(c.decode_header(memoryview(patched))) == bytes(patched)
        return
    with pytest.raises(hw.HurrayError) as caught:
        c.decode_header(memoryview(patched))
    assert caught.value.rule == rule


def test_the_trailer_is_40_bytes_in_both_directions():
    packed = struct.pack("<QQQIII4s", 8200, 100, 4200, 12, 0xDEADBEEF, 0, b"HRRY")
    made = c.Trailer(index_offset=8200, index_length=100, kv_offset=4200, kv_length=12, index_crc32c=0xDEADBEEF)
    assert len(packed) == 40
    assert c.encode_trailer(made) == packed
    arguments = {"file_size": FILE_SIZE, "header": c.FileHeader(), "limits": Limits()}
    assert c.decode_trailer(memoryview(packed), **arguments) == made


@pytest.mark.parametrize(
    ("fields", "header", "rule"),
    [
        ((8201, 100, 0, 0, 0, 0, b"HRRY"), {}, "trailer.index-place"),
        ((56, 100, 0, 0, 0, 0, b"HRRY"), {}, "trailer.index-place"),
        ((8200, FILE_SIZE - 40 - 8200 + 1, 0, 0, 0, 0, b"HRRY"), {}, "trailer.index-place"),
        ((2**64 - 8, 100, 0, 0, 0, 0, b"HRRY"), {}, "trailer.index-place"),
        ((8200, 100, 0, 0, 0, 1, b"HRRY"), {}, "trailer.reserved"),
        ((8200, 100, 0, 0, 0, 0, b"HRRX"), {}, "trailer.magic"),
        ((8200, 100, 4200, 0, 0, 0, b"HRRY"), {}, "trailer.kv-place"),
        ((8200, 100, 0, 8, 0, 0, b"HRRY"), {}, "trailer.kv-place"),
        ((8200, 100, 0, 0, 0, 0, b"HRRY"), {"has_kv_metadata": True}, "trailer.kv-place"),
        ((8200, 100, 4201, 8, 0, 0, b"HRRY"), {}, "trailer.kv-place"),
        ((8200, 100, 19960, 8, 0, 0, b"HRRY"), {}, "trailer.kv-place"),
        ((8200, 100, 0, 0, 5, 0, b"HRRY"), {"has_index_crc32c": False}, "trailer.crc-unused"),
    ],
)
def test_a_trailer_that_breaks_a_rule_is_refused_by_it(fields, header, rule):
    packed = struct.pack("<QQQIII4s", *fields)
    with pytest.raises(hw.InvalidFileError) as caught:
        c.decode_trailer(memoryview(packed), file_size=FILE_SIZE, header=c.FileHeader(**header), limits=Limits())
    assert caught.value.rule == rule


def test_metadata_is_there_if_the_flag_or_both_fields_say_so():
    packed = struct.pack("<QQQIII4s", 8200, 100, 4200, 12, 0, 0, b"HRRY")
    for flag in (False, True):
        header = c.FileHeader(has_kv_metadata=flag)
        read = c.decode_trailer(memoryview(packed), file_size=FILE_SIZE, header=header, limits=Limits())
        assert (read.kv_offset, read.kv_length) == (4200, 12)


def test_an_index_keeps_write_order_and_gives_back_its_bytes():
    read = read_index(GOOD)
    assert read.names == ("b", "a")
    assert read.entry("a") == ix.IndexEntry("a", 4112, 53, 8192, 3)
    assert ix.encode_index(read, sorted_index=False) == GOOD


def test_a_sorted_index_is_told_in_write_order():
    by_name = index((b"a", 4112, 53, 8192, 3, 0), (b"b", 64, 61, 4096, 16, 0))
    read = read_index(by_name, c.FileHeader(sorted_index=True))
    assert read.names == ("b", "a")
    assert ix.encode_index(read, sorted_index=True) == by_name


@pytest.mark.parametrize(
    ("raw", "rule"),
    [
        (index(count=2**64 - 1), "limit.tensors"),
        (index(count=1), "index.truncated"),
        (index((b"a", 64, 61, 4096, 16, 0))[:-1], "index.truncated"),
        (index((b"a", 64, 61, 4096, 16, 0)) + b"\0", "index.length"),
        (index((b"", 64, 61, 4096, 16, 0)) + b"\0" * 2, "index.length"),
        (index((b"\xff", 64, 61, 4096, 16, 0)), "index.name-utf8"),
        (index((b"a", 64, 61, 4096, 16, 0), (b"a", 4112, 53, 8192, 3, 0)), "index.name-duplicate"),
        (index((b"a", 4112, 53, 8192, 3, 0), (b"b", 64, 61, 4096, 16, 0)), "index.order"),
        (index((b"a", 68, 61, 4096, 16, 0)), "index.descriptor-place"),
        (index((b"a", 2**64 - 8, 61, 4096, 16, 0)), "index.descriptor-place"),
        (index((b"a", 19952, 61, 4096, 16, 0)), "index.descriptor-place"),
        (index((b"a", 64, 19, 4096, 16, 0)), "index.descriptor-length"),
        (index((b"a", 64, 61, 4097, 16, 0)), "index.data-place"),
        (index((b"a", 64, 61, 2**64 - 4096, 4096, 0)), "index.data-place"),
        (index((b"a", 64, 61, 4096, 2**64 - 1, 0)), "index.data-place"),
        (index((b"a", 64, 61, 4096, 16, 1)), "index.flags"),
    ],
)
def test_an_index_that_breaks_a_rule_is_refused_by_it(raw, rule):
    with pytest.raises(hw.HurrayError) as caught:
        read_index(raw)
    assert caught.value.rule == rule


def test_an_empty_name_is_refused():
    # one byte longer than the shortest index, so that the count alone does not refuse it
    raw = index((b"", 64, 61, 4096, 16, 0), (b"ab", 4112, 53, 8192, 3, 0))
    with pytest.raises(hw.InvalidFileError) as caught:
        read_index(raw)
    assert caught.value.rule == "index.name-length"


def test_a_duplicate_name_is_named():
    with pytest.raises(hw.InvalidFileError, match="duplicate tensor name 'a'"):
        read_index(index((b"a", 64, 61, 4096, 16, 0), (b"a", 4112, 53, 8192, 3, 0)))


def test_the_index_checksum_is_checked():
    with pytest.raises(hw.ChecksumError) as caught:
        read_index(GOOD, index_crc32c=crc32c(GOOD) ^ 1)
    assert caught.value.rule == "index.crc"
    read_index(GOOD, c.FileHeader(has_index_crc32c=False), index_crc32c=0)


def regions(raw, header=None, **changes):
    header = header or c.FileHeader()
    trailer = trailer_for(raw, **changes)
    file_size = trailer.index_offset + len(raw) + 40
    read = ix.decode_index(memoryview(raw), header=header, trailer=trailer, file_size=file_size, limits=Limits())
    return check_regions(header, trailer, read, file_size)


def test_every_region_is_listed_in_order():
    words = [region.what for region in regions(GOOD)]
    assert words == [
        "the header",
        "the descriptor of 'b'",
        "the data of 'b'",
        "the descriptor of 'a'",
        "the data of 'a'",
        "the index",
        "the trailer",
    ]


@pytest.mark.parametrize(
    ("raw", "changes", "rule"),
    [
        # the second tensor's data is the first one's: K aliased as V
        (
            index((b"b", 64, 61, 4096, 16, 0), (b"a", 4112, 53, 4096, 16, 0)),
            {"index_offset": 4168},
            "container.overlap",
        ),
        # a descriptor inside the data before it
        (index((b"b", 64, 61, 4096, 4096, 0), (b"a", 4112, 53, 8192, 3, 0)), {}, "container.overlap"),
        # data that reaches into the index
        (index((b"b", 64, 61, 4096, 16, 0), (b"a", 4112, 53, 8192, 16, 0)), {}, "container.overlap"),
        # 4096 bytes that belong to nothing
        (index((b"b", 64, 61, 8192, 16, 0)), {"index_offset": 8208}, "container.hole"),
        (index((b"b", 64, 61, 4096, 16, 0)), {"index_offset": 4120}, "container.hole"),
        # the header tells another first descriptor
        (index((b"b", 72, 61, 4096, 16, 0)), {"index_offset": 4112}, "container.first-descriptor"),
        # metadata on top of the index
        (GOOD, {"kv_offset": 8200, "kv_length": 8}, "container.overlap"),
    ],
)
def test_overlaps_and_holes_are_refused(raw, changes, rule):
    with pytest.raises(hw.InvalidFileError) as caught:
        regions(raw, **changes)
    assert caught.value.rule == rule


def test_a_composite_head_may_be_padded_or_not():
    for second, data in ((128, 4096), (4096, 8192)):
        raw = index((b"head", 64, 61, 4096, 0, 0), (b"a", second, 53, data, 3, 0))
        assert len(regions(raw, index_offset=data + 8)) == 6


@pytest.mark.parametrize("name", ["", "x" * 65536, 7, None, "\ud800"])
def test_a_name_that_no_reader_takes_is_refused_when_writing(name):
    with pytest.raises(hw.InvalidFileError):
        ix.check_name(name)

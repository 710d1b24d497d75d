"""The seek table (spec/compressed.md): its bytes, and every number in it held to the file and to what frames can be."""

import struct

import pytest

import hurray_wire as hw
from hurray_wire.limits import Limits
from hurray_wire.wire import seektable


def packed(entries, *, flag=0x80, count=None, length=None, magic=b"\x5e\x2a\x4d\x18", end=b"\xb1\xea\x92\x8f"):
    """A table by hand."""
    rows = b"".join(struct.pack(f"<{len(entry)}I", *entry) for entry in entries)
    length = len(rows) + 9 if length is None else length
    count = len(entries) if count is None else count
    return magic + struct.pack("<I", length) + rows + struct.pack("<IB", count, flag) + end


CHECKED = [(18, 5, 0x592586C7), (15, 300, 0x3A00EA90)]
BARE = [entry[:2] for entry in CHECKED]
FRAMES = bytes(18 + 15)


def read(data, **limits):
    footer = seektable.decode_seek_footer(memoryview(data)[-9:], file_size=len(data), limits=Limits(**limits))
    return seektable.decode_seek_table(memoryview(data)[-footer.table_bytes :], footer, file_size=len(data))


def test_a_table_is_what_the_specification_says_in_both_directions():
    table = read(FRAMES + packed(CHECKED))
    assert table.compressed_sizes.tolist() == [18, 15]
    assert table.decompressed_sizes.tolist() == [5, 300]
    assert table.checksums.tolist() == [0x592586C7, 0x3A00EA90]
    assert seektable.encode_seek_table([18, 15], [5, 300], [0x592586C7, 0x3A00EA90]) == packed(CHECKED)


def test_a_table_may_have_no_checksums():
    table = read(FRAMES + packed(BARE, flag=0))
    assert table.decompressed_sizes.tolist() == [5, 300]
    assert table.checksums is None


def test_a_table_may_list_nothing():
    assert len(read(packed([]))) == 0
    assert seektable.encode_seek_table([], [], []) == packed([])


def test_sizes_up_to_the_bounds_are_taken():
    table = read(bytes(8 + 32768) + packed([(8, 8 << 15, 0), (32768, 1 << 30, 0)]))
    assert table.decompressed_sizes.tolist() == [8 << 15, 1 << 30]


@pytest.mark.parametrize(
    ("data", "kind", "rule"),
    [
        (FRAMES + packed(CHECKED, flag=0x84), hw.InvalidFileError, "compressed.reserved"),
        (FRAMES + packed(CHECKED, flag=0xC0), hw.InvalidFileError, "compressed.reserved"),
        (FRAMES + packed(CHECKED, flag=0x83), None, None),  # the two lowest bits mean nothing
        (FRAMES + packed(CHECKED, count=2**32 - 1), hw.LimitError, "limit.frames"),
        (FRAMES + packed(CHECKED, count=10), hw.TruncatedError, "compressed.truncated"),
        (FRAMES + packed(CHECKED, count=1), hw.InvalidFileError, "compressed.table-magic"),
        (FRAMES + packed(CHECKED, count=3), hw.InvalidFileError, "compressed.table-magic"),
        (FRAMES + packed(CHECKED, flag=0), hw.InvalidFileError, "compressed.table-magic"),
        (FRAMES + packed(CHECKED, magic=b"\x5f\x2a\x4d\x18"), hw.InvalidFileError, "compressed.table-magic"),
        (FRAMES + packed(CHECKED, length=32), hw.InvalidFileError, "compressed.table-length"),
        (FRAMES + packed(CHECKED, length=34), hw.InvalidFileError, "compressed.table-length"),
        (FRAMES + packed(CHECKED, length=0), hw.InvalidFileError, "compressed.table-length"),
        (FRAMES + packed([(18, 5, 0), (8, 0, 0), (7, 0, 0)]), hw.InvalidFileError, "compressed.entry"),
        (FRAMES + packed([(0, 0, 0), (33, 5, 0)]), hw.InvalidFileError, "compressed.entry"),
        (bytes(32769) + packed([(32769, (1 << 30) + 1, 0)]), hw.LimitError, "compressed.frame-limit"),
        (FRAMES + packed([(18, 18 * 32768 + 1, 0), (15, 1, 0)]), hw.InvalidFileError, "compressed.ratio"),
        (FRAMES + packed([(18, 1, 0), (15, 2**30, 0)]), hw.InvalidFileError, "compressed.ratio"),
        (FRAMES + packed([(18, 5, 0), (14, 300, 0)]), hw.InvalidFileError, "compressed.table-sum"),
        (FRAMES + packed([(18, 5, 0), (16, 300, 0)]), hw.InvalidFileError, "compressed.table-sum"),
        (FRAMES + packed([(33, 5, 0), (2**32 - 1, 300, 0)]), hw.InvalidFileError, "compressed.table-sum"),
        (FRAMES + packed([]), hw.InvalidFileError, "compressed.table-sum"),
        (b"x" + FRAMES + packed(CHECKED), hw.InvalidFileError, "compressed.table-sum"),
        (packed(CHECKED), hw.InvalidFileError, "compressed.table-sum"),
    ],
)
def test_a_number_that_breaks_its_rule_is_refused_by_it(data, kind, rule):
    if kind is None:
        assert len(read(data)) == 2
        return
    with pytest.raises(kind) as caught:
        read(data)
    assert caught.value.rule == rule


@pytest.mark.parametrize("size", range(9))
def test_a_file_shorter_than_a_footer_is_refused(size):
    with pytest.raises(hw.TruncatedError) as caught:
        seektable.decode_seek_footer(memoryview(packed([])[-size:] if size else b""), file_size=size, limits=Limits())
    assert caught.value.rule == "compressed.truncated"


def test_the_number_of_frames_meets_its_limit_before_the_file_size():
    with pytest.raises(hw.LimitError) as caught:
        read(FRAMES + packed(CHECKED), max_frames=1)
    assert (caught.value.rule, caught.value.declared, caught.value.found) == ("limit.frames", 1, 2)
    assert len(read(FRAMES + packed(CHECKED), max_frames=2)) == 2

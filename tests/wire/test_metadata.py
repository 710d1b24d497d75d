"""The key-value section (spec/container.md): kinds of values, and what is refused."""

import math
import struct

import numpy as np
import pytest

import hurray_wire as hw
from hurray_wire.limits import Limits
from hurray_wire.wire.metadata import decode_metadata, encode_metadata


def section(*entries):
    """A section packed by hand: (key bytes, tag, payload)."""
    parts = [struct.pack("<I", len(entries))]
    for key, tag, payload in entries:
        parts.append(struct.pack("<H", len(key)) + key + bytes([tag]) + payload)
    return b"".join(parts)


def text(value):
    return struct.pack("<I", len(value)) + value


def array(tag, count, payload):
    return bytes([tag]) + struct.pack("<I", count) + payload


KINDS = [
    ("llama-β", 1, text("llama-β".encode())),
    ("", 1, text(b"")),
    (-7, 2, struct.pack("<q", -7)),
    (2**63 - 1, 2, struct.pack("<q", 2**63 - 1)),
    (2**63, 3, struct.pack("<Q", 2**63)),
    (2**64 - 1, 3, struct.pack("<Q", 2**64 - 1)),
    (0.1, 4, struct.pack("<d", 0.1)),
    (-math.inf, 4, struct.pack("<d", -math.inf)),
    (True, 5, b"\1"),
    (False, 5, b"\0"),
    (b"\x00\xff", 6, text(b"\x00\xff")),
    (["a", ""], 7, array(1, 2, text(b"a") + text(b""))),
    ([-1, 2], 7, array(2, 2, struct.pack("<qq", -1, 2))),
    ([1, 2**63], 7, array(3, 2, struct.pack("<QQ", 1, 2**63))),
    ([0.5], 7, array(4, 1, struct.pack("<d", 0.5))),
    ([True, False], 7, array(5, 2, b"\1\0")),
    ([b"x", b""], 7, array(6, 2, text(b"x") + text(b""))),
    ([], 7, array(1, 0, b"")),
]


@pytest.mark.parametrize(("value", "tag", "payload"), KINDS)
def test_every_kind_of_value_has_its_bytes_in_both_directions(value, tag, payload):
    packed = section((b"key", tag, payload))
    decoded = decode_metadata(memoryview(packed))
    assert decoded == {"key": value}
    assert type(decoded["key"]) is type(value)
    assert encode_metadata({"key": value}) == packed


def test_a_nan_keeps_its_bits():
    bits = struct.pack("<Q", 0x7FF8_0000_0000_1234)
    decoded = decode_metadata(memoryview(section((b"n", 4, bits))))
    assert struct.pack("<d", decoded["n"]) == bits


@pytest.mark.parametrize(
    ("value", "same"),
    [
        (np.int32(-3), -3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.array([1, 2], np.uint64), [1, 2]),
        (np.array([1.5]), [1.5]),
        ((1, 2), [1, 2]),
        (bytearray(b"ab"), b"ab"),
    ],
)
def test_numpy_values_and_tuples_are_written_as_their_plain_kin(value, same):
    assert decode_metadata(memoryview(encode_metadata({"k": value}))) == {"k": same}


def test_a_uint64_array_says_its_type_itself():
    assert encode_metadata({"k": np.array([1], np.uint64)}) == section((b"k", 7, array(3, 1, struct.pack("<Q", 1))))


@pytest.mark.parametrize(
    ("packed", "rule"),
    [
        (b"\1\0\0", "metadata.truncated"),
        (section((b"", 5, b"\1")), "metadata.key-empty"),
        (section((b"k", 5, b"\1"), (b"k", 5, b"\1")), "metadata.key-duplicate"),
        (section((b"\xff", 5, b"\1")), "metadata.utf8"),
        (section((b"k", 1, text(b"\xff"))), "metadata.utf8"),
        (section((b"k", 0, b"")), "metadata.value-tag"),
        (section((b"k", 8, b"")), "metadata.value-tag"),
        (section((b"k", 7, array(7, 0, b""))), "metadata.value-tag"),
        (section((b"k", 7, array(0, 0, b""))), "metadata.value-tag"),
        (section((b"k", 5, b"\2")), "metadata.bool"),
        (section((b"k", 7, array(5, 1, b"\2"))), "metadata.bool"),
        (section((b"k", 1, struct.pack("<I", 9) + b"short")), "metadata.truncated"),
        (section((b"k", 7, array(3, 2**32 - 1, b""))), "metadata.truncated"),
        (section((b"k", 5, b"\1")) + b"\0", "metadata.length"),
        (struct.pack("<I", 2**32 - 1), "limit.metadata-entries"),
        (section((b"k", 7, array(1, 2**32 - 1, b""))), "limit.metadata-entries"),
    ],
)
def test_a_section_that_breaks_a_rule_is_refused_by_it(packed, rule):
    with pytest.raises(hw.HurrayError) as caught:
        decode_metadata(memoryview(packed), base=1000, limits=Limits())
    assert caught.value.rule == rule


def test_entries_and_elements_count_together_and_numbers_do_not():
    texts, numbers = array(1, 2, text(b"") * 2), array(3, 9, bytes(72))
    packed = section((b"a", 7, texts), (b"b", 7, numbers), (b"c", 7, texts))
    expected = {"a": ["", ""], "b": [0] * 9, "c": ["", ""]}
    assert decode_metadata(memoryview(packed), limits=Limits(max_metadata_entries=7)) == expected
    with pytest.raises(hw.LimitError) as caught:
        decode_metadata(memoryview(packed), limits=Limits(max_metadata_entries=6))
    assert caught.value.rule == "limit.metadata-entries"


@pytest.mark.parametrize(
    ("metadata", "rule"),
    [
        ({"": 1}, "metadata.key-empty"),
        ({1: 1}, "metadata.key-empty"),
        ({"k" * 65536: 1}, "metadata.key-empty"),
        ({"k": None}, "metadata.value-tag"),
        ({"k": [1, "a"]}, "metadata.value-tag"),
        ({"k": [[1]]}, "metadata.value-tag"),
        ({"k": [True, 1]}, "metadata.value-tag"),
        ({"k": 2**64}, "metadata.number"),
        ({"k": [-1, 2**63]}, "metadata.value-tag"),
        ({"k": "\ud800"}, "metadata.utf8"),
    ],
)
def test_a_value_that_no_reader_could_give_back_is_refused(metadata, rule):
    with pytest.raises(hw.InvalidFileError) as caught:
        encode_metadata(metadata)
    assert caught.value.rule == rule


def test_a_section_cut_anywhere_is_refused():
    packed = encode_metadata({f"k{n}": value for n, (value, _, _) in enumerate(KINDS)})
    for length in range(len(packed)):
        with pytest.raises(hw.HurrayError):
            decode_metadata(memoryview(packed)[:length])

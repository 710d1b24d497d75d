"""Bytes that nobody made on purpose, and fixtures that somebody damaged: an error of ours, or a valid object."""

from __future__ import annotations

import io
import struct
from typing import Any

from fixtures.corpus import Entry, accepted, entry
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hurray_wire as hw
from hurray_wire.wire.checksum import crc32c

from . import exercise

quickly = settings(
    max_examples=150, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)  # fmt: skip

DESCRIPTORS = accepted("descriptor")
FILES = [
    entry(f"accepted/{name}.hrry")
    for name in (
        "two-heads-sorted", "metadata-sealed", "one-tensor", "paged-one-sequence", "composite-partition",
        "paged-packed-across-pages", "index-without-crc",
    )
]  # fmt: skip
COMPRESSED = [e for e in accepted("compressed") if len(e.data) < 5000]
STREAMS = [e for e in accepted("stream") if len(e.data) < 5000]


@st.composite
def damaged(draw: Any, entries: list[Entry]) -> tuple[bytes, dict[str, Any]]:
    """A fixture with a few bytes changed, put in or taken out, and the options it is read with."""
    chosen = draw(st.sampled_from(entries))
    data = bytearray(chosen.data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        match draw(st.sampled_from(("byte", "bit", "word", "insert", "delete", "copy"))):
            case "byte":
                data[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "bit":
                data[at : at + 1] = bytes([byte ^ (1 << draw(st.integers(0, 7))) for byte in data[at : at + 1]])
            case "word":
                value = draw(st.sampled_from((0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, len(data))))
                data[at : at + 8] = struct.pack("<Q", value)
            case "insert":
                data[at:at] = draw(st.binary(max_size=16))
            case "delete":
                del data[at : at + draw(st.integers(1, 16))]
            case "copy":
                other = draw(st.integers(0, max(len(data) - 1, 0)))
                data[at : at + 8] = data[other : other + 8]
    return bytes(data), chosen.options


@quickly
@given(st.binary(max_size=300))
def test_any_bytes_are_no_descriptor(data: bytes) -> None:
    exercise.descriptor(data)


@quickly
@given(st.binary(max_size=250), st.integers(0, 255), st.integers(0, 255), st.integers(0, 4))
def test_any_bytes_behind_a_header_are_no_surprise(body: bytes, type_tag: int, layout_tag: int, rank: int) -> None:
    head = b"HRRY\x01\x00" + struct.pack("<IIBBI", 20 + len(body), 0, type_tag, layout_tag, rank)
    exercise.descriptor(head + body)
    exercise.descriptor(head + body, permissive=True)
    exercise.stream(head + body)


@quickly
@given(damaged(DESCRIPTORS))
def test_a_damaged_descriptor_is_refused_or_valid(damage: tuple[bytes, dict[str, Any]]) -> None:
    exercise.descriptor(damage[0], **damage[1])


@quickly
@given(damaged(FILES))
def test_a_damaged_file_is_refused_or_valid(damage: tuple[bytes, dict[str, Any]]) -> None:
    exercise.file(damage[0], **damage[1])


@quickly
@given(damaged(FILES))
def test_a_damaged_file_under_a_good_checksum_is_refused_or_valid(damage: tuple[bytes, dict[str, Any]]) -> None:
    """The index's checksum is made right again, as by somebody who means it."""
    data = bytearray(damage[0])
    if len(data) >= 104 and data[12] & 4:
        offset, length = struct.unpack_from("<QQ", data, len(data) - 40)
        if offset + length <= len(data):
            data[-12:-8] = struct.pack("<I", crc32c(bytes(data[offset : offset + length])))
    exercise.file(bytes(data), **damage[1])


@quickly
@given(damaged(COMPRESSED))
def test_a_damaged_compressed_file_is_refused_or_valid(damage: tuple[bytes, dict[str, Any]]) -> None:
    exercise.file(damage[0], **damage[1])


@quickly
@given(damaged(STREAMS))
def test_a_damaged_stream_is_refused_or_valid(damage: tuple[bytes, dict[str, Any]]) -> None:
    exercise.stream(damage[0])


@quickly
@given(st.sampled_from(FILES + COMPRESSED), st.data())
def test_a_file_that_verifies_reads_the_same_from_every_source(given_entry: Entry, data: st.DataObject) -> None:
    raw = bytearray(given_entry.data)
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    lent, read = outcome(bytes(raw), given_entry), outcome(io.BytesIO(raw), given_entry)
    assert lent == read


def outcome(target: Any, given_entry: Entry) -> Any:
    """The rule that is broken, or the names and descriptors that are there."""
    try:
        with hw.open(target, **given_entry.options) as file:
            file.verify()
            return [(name, tensor.descriptor) for name, tensor in file.items()]
    except hw.HurrayError as error:
        return error.rule


@quickly
@given(st.binary(max_size=200))
def test_any_bytes_are_no_metadata(section: bytes) -> None:
    """A file whose key-value section is anything at all."""
    padded = section + bytes(-len(section) % 8)
    header = entry("accepted/no-tensors.hrry").data[:64]
    index = bytes(8)
    trailer = struct.pack("<QQQII4x4s", 64 + len(padded), 8, 64, len(section), crc32c(index), b"HRRY")
    exercise.file(header + padded + index + trailer)

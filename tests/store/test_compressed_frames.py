"""One frame (spec/compressed.md, "Frames"): each rule, broken by hand."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
import xxhash
import zstandard
from compressed_cases import SKIPPABLE, compressed

import hurray_wire as hw
from hurray_wire.store import frames

MAGIC = b"\x28\xb5\x2f\xfd"
CONTENT = bytes(range(200)) * 3
SUM = xxhash.xxh64_intdigest(CONTENT) & 0xFFFFFFFF
FRAME = compressed(CONTENT)
UNTOLD = compressed(CONTENT, write_content_size=False)
BARE = compressed(CONTENT, write_checksum=False)

RAW, RLE, COMPRESSED, RESERVED = range(4)


def block(kind, size, content=b"", *, last=True):
    return (int(last) | kind << 1 | size << 3).to_bytes(3, "little") + content


def told(size, *blocks):
    """A frame whose header tells a content size, in 8 bytes, and no checksum."""
    return MAGIC + b"\xe0" + struct.pack("<Q", size) + b"".join(blocks)


def untold(window, *blocks):
    """A frame whose header tells a window (an exponent above 10), no content size and no checksum."""
    return MAGIC + b"\x00" + bytes([window - 10 << 3]) + b"".join(blocks)


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


EMPTY = compressed(b"")
BOMB = [block(RLE, 128 << 10, b"\0", last=False)] * 2000


def inflate(frame, size, **options):
    return frames.inflate(memoryview(frame), size, offset=7, **options)


@pytest.mark.parametrize("frame", [FRAME, UNTOLD, BARE])
@pytest.mark.parametrize("checksum", [None, SUM])
def test_a_frame_inflates_to_its_content(frame, checksum):
    assert inflate(frame, len(CONTENT), checksum=checksum) == CONTENT


@pytest.mark.parametrize("frame", [EMPTY, compressed(b"", write_content_size=False), told(0, block(RAW, 0)), SKIPPABLE])
def test_a_frame_of_nothing_inflates_to_nothing(frame):
    assert inflate(frame, 0) == b""
    assert inflate(frame, 0, checksum=0x51D8E999) == b""


def test_frames_written_by_hand_are_what_they_seem():
    assert inflate(told(5, block(RAW, 5, b"pages")), 5) == b"pages"
    assert inflate(untold(10, block(RLE, 3, b"x", last=False), block(RAW, 2, b"yz")), 5) == b"xxxyz"


@pytest.mark.parametrize(
    ("frame", "size", "kind", "rule"),
    [
        (b"", 5, hw.InvalidFileError, "compressed.frame-magic"),
        (b"HRRYFILE", 5, hw.InvalidFileError, "compressed.frame-magic"),
        (FRAME[1:], len(CONTENT), hw.InvalidFileError, "compressed.frame-magic"),
        (SKIPPABLE, 4, hw.InvalidFileError, "compressed.frame-magic"),
        (SKIPPABLE + b"x", 0, hw.InvalidFileError, "compressed.frame-end"),
        (SKIPPABLE[:-1], 0, hw.TruncatedError, "compressed.truncated"),
        (SKIPPABLE[:6], 0, hw.TruncatedError, "compressed.truncated"),
        (MAGIC, 5, hw.InvalidFileError, "compressed.frame-header"),
        (MAGIC + b"\xe0\0\0", 5, hw.InvalidFileError, "compressed.frame-header"),
        (MAGIC + b"\x28\x05" + block(RAW, 5, b"pages"), 5, hw.InvalidFileError, "compressed.frame-header"),
        (MAGIC + b"\x21\x07\x05" + block(RAW, 5, b"pages"), 5, hw.UnsupportedError, "compressed.dictionary"),
        (MAGIC + b"\x21\x07\x00" + block(RAW, 0), 0, hw.UnsupportedError, "compressed.dictionary"),
        (untold(28, block(RAW, 5, b"pages")), 5, hw.LimitError, "limit.window"),
        (FRAME, len(CONTENT) - 1, hw.InvalidFileError, "compressed.content-size"),
        (FRAME, len(CONTENT) + 1, hw.InvalidFileError, "compressed.content-size"),
        (FRAME, 0, hw.InvalidFileError, "compressed.content-size"),
        (EMPTY, 1, hw.InvalidFileError, "compressed.content-size"),
        (told(1 << 40, block(RAW, 5, b"pages")), 5, hw.InvalidFileError, "compressed.content-size"),
        (told((1 << 64) - 2, block(RAW, 5, b"pages")), 5, hw.InvalidFileError, "compressed.content-size"),
        (UNTOLD, len(CONTENT) + 1, hw.InvalidFileError, "compressed.produced"),
        (UNTOLD, len(CONTENT) - 1, hw.InvalidFileError, "compressed.inflate"),
        (UNTOLD, 0, hw.InvalidFileError, "compressed.produced"),
        (told(6, block(RAW, 5, b"pages")), 6, hw.InvalidFileError, "compressed.inflate"),
        (told(4, block(RAW, 5, b"pages")), 4, hw.InvalidFileError, "compressed.inflate"),
        (told(5, block(RESERVED, 5, b"pages")), 5, hw.InvalidFileError, "compressed.inflate"),
        (told(5, block(RAW, (128 << 10) + 1, bytes((128 << 10) + 1))), 5, hw.InvalidFileError, "compressed.inflate"),
        (told(5, block(COMPRESSED, 5, b"pages")), 5, hw.InvalidFileError, "compressed.inflate"),
        (FRAME + b"x", len(CONTENT), hw.InvalidFileError, "compressed.frame-end"),
        (UNTOLD + FRAME, len(CONTENT), hw.InvalidFileError, "compressed.frame-end"),
        (FRAME + SKIPPABLE, len(CONTENT), hw.InvalidFileError, "compressed.frame-end"),
        (EMPTY + b"x", 0, hw.InvalidFileError, "compressed.frame-end"),
        (EMPTY + FRAME, 0, hw.InvalidFileError, "compressed.frame-end"),
        (told(0, block(RAW, 0), b"pages"), 0, hw.InvalidFileError, "compressed.frame-end"),
        (told(0, block(RAW, 5, b"pages")), 0, hw.InvalidFileError, "compressed.produced"),
        (told(0, block(COMPRESSED, 5, b"pages")), 0, hw.InvalidFileError, "compressed.produced"),
        (flipped(FRAME, len(FRAME) - 1), len(CONTENT), hw.ChecksumError, "compressed.frame-checksum"),
        (flipped(EMPTY, len(EMPTY) - 1), 0, hw.ChecksumError, "compressed.frame-checksum"),
    ],
)
def test_a_frame_that_breaks_a_rule_is_refused_by_it(frame, size, kind, rule):
    with pytest.raises(kind) as caught:
        inflate(frame, size)
    assert caught.value.rule == rule
    assert caught.value.offset is None or caught.value.offset >= 7


@pytest.mark.parametrize("frame", [FRAME, UNTOLD, BARE])
def test_a_frame_cut_at_any_byte_is_refused(frame):
    for size in range(len(frame)):
        with pytest.raises(hw.InvalidFileError) as caught:
            inflate(frame[:size], len(CONTENT))
        assert caught.value.rule in ("compressed.frame-magic", "compressed.frame-header", "compressed.truncated")


@pytest.mark.parametrize("frame", [FRAME, UNTOLD])
def test_a_frame_with_any_byte_changed_is_refused_or_inflates_to_its_content(frame):
    for at in range(len(frame)):
        try:
            assert inflate(flipped(frame, at), len(CONTENT)) == CONTENT
        except (hw.InvalidFileError, hw.LimitError, hw.UnsupportedError):
            continue


@pytest.mark.parametrize("frame", [FRAME, BARE])
@pytest.mark.parametrize("wrong", [0, SUM ^ 1, SUM ^ 1 << 31])
def test_the_checksum_of_the_table_is_compared_whether_or_not_the_frame_has_one(frame, wrong):
    with pytest.raises(hw.ChecksumError) as caught:
        inflate(frame, len(CONTENT), checksum=wrong)
    assert (caught.value.rule, caught.value.declared, caught.value.found) == ("compressed.table-checksum", wrong, SUM)


@pytest.mark.parametrize(
    "frame",
    [
        told(1 << 40, *BOMB, block(RAW, 0)),
        told(0, *BOMB, block(RAW, 0)),
        told(1000, *BOMB, block(RAW, 0)),
        untold(17, *BOMB, block(RAW, 0)),
    ],
    ids=["large", "empty", "small", "untold"],
)
@pytest.mark.parametrize("size", [0, 1, 1000])
def test_a_frame_that_would_inflate_to_more_than_was_said_costs_no_memory(frame, size):
    tracemalloc.start()
    try:
        with pytest.raises(hw.InvalidFileError):
            inflate(frame, size)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_frame_is_the_same_whatever_was_compressed_before_it():
    assert frames.compress(CONTENT, 3) == compressed_at(3)
    frames.compress(bytes(100000), 3)
    frames.compress(CONTENT, 9)
    assert frames.compress(CONTENT, 3) == compressed_at(3)


def compressed_at(level):
    return zstandard.ZstdCompressor(level=level, write_checksum=True).compress(CONTENT)

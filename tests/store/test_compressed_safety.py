"""Hostile and damaged compressed files (spec/threats.md): refused, or read right, quickly and in little memory."""

from __future__ import annotations

import io
import itertools
import struct
import tracemalloc

import numpy as np
import pytest
from compressed_cases import (
    SKIPPABLE,
    assembled,
    compressed,
    entry_of,
    everything,
    frames_of,
    lengths,
    paged,
    refusal,
    table_of,
    written,
)

import hurray_wire as hw
from hurray_wire.store import compressed_sink, plain_zstd

LENS = (9, 5)
TENSORS = [lengths(LENS), paged(num_pages=24, lens=LENS), paged("layers.0.value", num_pages=24, lens=LENS, seed=1)]
PLAIN = written(TENSORS)
EVERYTHING = everything(PLAIN)
TOKENS = {(name, seq): hw.open(PLAIN)[name].ragged([seq]).tobytes() for name, *_ in TENSORS[1:] for seq in range(2)}
MEMORY = 64 << 20


@pytest.fixture(params=[False, True], ids=["plain", "planes"])
def data(request, monkeypatch):
    """A small file with two frames to a pool."""
    monkeypatch.setattr(compressed_sink, "FRAME_BYTES", 2048)
    return written(TENSORS, zstd=1, planes=request.param)


def check_read_right_or_refused(data):
    """Read every part of a file on its own, without verifying; nothing that comes out may be wrong."""
    try:
        file = hw.open(data)
    except hw.HurrayError:
        return
    expected, metadata = EVERYTHING
    for name, pieces in expected.items():
        for index, piece in enumerate(pieces):
            try:
                found = file[name].buffers[index].tobytes()
            except hw.HurrayError:
                continue
            assert found == piece, f"buffer {index} of {name} is wrong"
    for (name, seq), tokens in TOKENS.items():
        try:
            found = file[name].ragged([seq]).tobytes()
        except hw.HurrayError:
            continue
        assert found == tokens, f"sequence {seq} of {name} is wrong"
    try:
        assert file.metadata == metadata
    except hw.HurrayError:
        return


def edits_of(value, other):
    """Values to put in place of a 32-bit number."""
    values = {value - 1, value + 1, value ^ 1 << 7, other, 0, 1, 1 << 30, 2**31 - 1, 2**31, 2**32 - 1}
    return sorted(v for v in values - {value} if 0 <= v < 1 << 32)


def test_no_edit_of_any_field_of_any_entry_gives_wrong_data_in_silence(data):
    frames, table = frames_of(data), table_of(data)
    assert assembled(frames, table) == data
    for row, field in itertools.product(range(len(table)), range(3)):
        for value in edits_of(table[row][field], table[row - 1][field]):
            entries = [list(entry) for entry in table]
            entries[row][field] = value
            edited = assembled(frames, entries)
            assert refusal(edited) is not None, f"field {field} of entry {row} as {value} went unnoticed"
            check_read_right_or_refused(edited)


def test_sizes_moved_from_one_entry_to_the_next_are_refused(data):
    frames, table = frames_of(data), table_of(data)
    for row, field in itertools.product(range(len(table) - 1), range(2)):
        entries = [list(entry) for entry in table]
        entries[row][field] += 1
        entries[row + 1][field] -= 1
        edited = assembled(frames, entries)
        assert refusal(edited) is not None
        check_read_right_or_refused(edited)


def test_any_byte_of_the_file_changed_is_refused_or_read_right(data):
    readable = []
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]
        if refusal(damaged) is None:
            readable.append(at)
            assert everything(damaged) == EVERYTHING
    assert len(readable) < 20  # a bit that means nothing, another way to say the same


def test_a_file_cut_at_any_byte_is_refused_or_read_right(data):
    planes = hw.open(data).compression.planes
    readable = []
    for size in range(len(data)):
        error = refusal(data[:size])
        if error is None:
            readable.append(size)
            assert everything(data[:size]) == EVERYTHING
        else:
            assert isinstance(error, hw.InvalidFileError)
    # without its table, and nothing of it left, the file is a plain zstd file
    assert readable == ([] if planes else [sum(entry[0] for entry in table_of(data))])


@pytest.mark.parametrize("junk", [b"\0", b"junk", b"\x28\xb5\x2f\xfd", b"\xb1\xea\x92\x8f", bytes(100)])
def test_junk_before_between_and_behind_the_frames_is_refused(data, junk):
    frames, table = frames_of(data), table_of(data)
    for where in range(len(frames) + 1):
        mixed = [*frames[:where], junk, *frames[where:]]
        assert refusal(assembled(mixed, table)) is not None
    assert refusal(data + junk) is not None


def test_an_unlisted_skippable_frame_is_refused_and_a_listed_one_holds_nothing(data):
    frames, table = frames_of(data), table_of(data)
    middle = len(frames) // 2
    mixed = [*frames[:middle], SKIPPABLE, *frames[middle:]]
    assert refusal(assembled(mixed, table)).rule == "compressed.table-sum"
    listed = [*table[:middle], entry_of(SKIPPABLE, b""), *table[middle:]]
    assert everything(assembled(mixed, listed)) == EVERYTHING


def test_an_empty_frame_with_bytes_after_it_is_refused(data):
    frames, table = frames_of(data), table_of(data)
    empty = compressed(b"")
    for extra in (b"x", bytes(100), frames[3]):
        mixed = [*frames[:2], empty + extra, *frames[2:]]
        listed = [*table[:2], entry_of(empty + extra, b""), *table[2:]]
        assert refusal(assembled(mixed, listed)).rule == "compressed.frame-end"


@pytest.mark.parametrize("count", [0, 1, -1, 2**31 - 1, 2**31, 2**32 - 1])
def test_a_count_of_frames_that_lies_is_refused(data, count):
    frames, table = frames_of(data), table_of(data)
    count = len(table) + count if abs(count) == 1 else count
    assert refusal(assembled(frames, table, count=count)) is not None


def test_missing_doubled_and_exchanged_frames_are_refused(data):
    frames, table = frames_of(data), table_of(data)
    for row in range(len(frames)):
        for other_frames, other_table in (
            (frames[:row] + frames[row + 1 :], table[:row] + table[row + 1 :]),
            (frames[: row + 1] + frames[row:], table[: row + 1] + table[row:]),
            (frames[:row] + frames[row + 1 :], table),
            (frames, table[:row] + table[row + 1 :]),
        ):
            assert refusal(assembled(other_frames, other_table)) is not None
    for a, b in itertools.combinations(range(len(frames)), 2):
        if frames[a] == frames[b]:
            continue
        exchanged = list(frames)
        exchanged[a], exchanged[b] = frames[b], frames[a]
        check_read_right_or_refused(assembled(exchanged, table))
        assert refusal(assembled(exchanged, table)) is not None
        # with their entries, the frames make a file in good order: of zeros in another order, or of other contents
        entries = list(table)
        entries[a], entries[b] = table[b], table[a]
        other = assembled(exchanged, entries)
        assert refusal(other) is not None or everything(other) == EVERYTHING


def told(size, content=b"\x01\x00\x00"):
    return b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", size) + content


@pytest.mark.parametrize("claim", [2**31, 2**32 - 1, 2**35, 2**40, 2**63, 2**64 - 2])
def test_a_frame_that_claims_terabytes_is_refused_without_asking_for_them(data, claim):
    frames, table = frames_of(data), table_of(data)
    liar = told(claim)
    tracemalloc.start()
    try:
        for size in (0, 1, 1 << 18, 2**32 - 1):
            for row in (0, 3, len(frames) - 1):
                entries = [*table[:row], (len(liar), size, 0), *table[row + 1 :]]
                mixed = [*frames[:row], liar, *frames[row + 1 :]]
                assert refusal(assembled(mixed, entries)) is not None
        for plain in (liar, compressed(b"x") + liar, liar + compressed(bytes(5000))):
            assert refusal(plain).rule in ("limit.inflated-bytes", "compressed.content-size")
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


def test_blocks_that_inflate_to_more_than_a_plain_frame_tells_cost_no_memory():
    zeros = (2 | (128 << 10) << 3).to_bytes(3, "little") + b"\0"
    tracemalloc.start()
    try:
        for claim in (0, 10, 5000):
            assert refusal(told(claim, zeros * 5000 + b"\x01\x00\x00")).rule in (
                "compressed.produced",
                "compressed.inflate",
            )
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


def zeros(size):
    """A valid frame of zeros: 4 bytes for each 128 KiB."""
    count, rest = divmod(size, 128 << 10)
    assert not rest
    blocks = [(2 | (128 << 10) << 3 | (row == count - 1)).to_bytes(3, "little") + b"\0" for row in range(count)]
    return told(size, b"".join(blocks))


@pytest.mark.parametrize("before", [True, False])
def test_a_valid_frame_of_a_gigabyte_of_zeros_costs_nothing_of_that(data, before):
    """A file of 33 KB. Opening needs its first frame, for the magic, and its last, for the trailer."""
    bomb = zeros(1 << 30)
    frames, table = frames_of(data), table_of(data)
    entry = [(len(bomb), 1 << 30, 0)]
    mixed = [bomb, *frames] if before else [*frames, bomb]
    entries = entry + table if before else table + entry
    tracemalloc.start()
    try:
        assert refusal(assembled(mixed, entries)).rule == "limit.inflated-bytes"
        assert refusal(b"".join([*frames, *[zeros(128 << 20)] * 3])).rule == "limit.inflated-bytes"
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


def test_who_asks_for_it_may_have_more_out_of_little():
    frame = zeros(384 << 20)
    file = assembled([frame], [(len(frame), 384 << 20, 0)])
    assert refusal(file).rule == "limit.inflated-bytes"
    with pytest.raises(hw.InvalidFileError) as caught:
        hw.open(file, limits=hw.Limits(max_inflated_ratio=1 << 15))
    assert caught.value.rule == "compressed.table-checksum"  # it has been inflated


class Zeros:
    """A buffer of so many zeros."""

    def __init__(self, nbytes):
        self.nbytes = nbytes

    def chunks(self):
        piece = np.zeros(1 << 20, dtype=np.uint8)
        for start in range(0, self.nbytes, len(piece)):
            yield piece[: self.nbytes - start]


def test_a_buffer_of_zeros_is_held_to_the_frames_that_it_comes_from():
    """Frames of usual size, and a vector of 257 MiB in a file of some KB."""
    out = io.BytesIO()
    size = 257 << 20
    with hw.create(out, zstd=1) as writer:
        writer.add("t", hw.TensorDescriptor.build(hw.uint8, (size,), hw.RowMajorLayout(), (size,)), [Zeros(size)])
    assert len(out.getvalue()) < 1 << 16
    with hw.open(out.getvalue()) as file:
        with pytest.raises(hw.LimitError) as caught:
            file["t"].buffers[0]
        assert caught.value.rule == "limit.inflated-bytes"
        file.verify()  # piece by piece
    with hw.open(out.getvalue(), limits=hw.Limits(max_inflated_ratio=1 << 20)) as file:
        assert file["t"].buffers[0].nbytes == size


def test_pages_that_many_sequences_share_are_held_to_the_compressed_file():
    """One page of 64 MiB, 200 sequences of it: 12.5 GiB."""
    page = 1 << 26
    layout = hw.BlockPagedLayout(page_size=1, num_pages=1, paged_axis=0, num_seqs=200)
    out = io.BytesIO()
    descriptor = hw.TensorDescriptor.build(hw.uint8, (200, 1, page), layout, (page, 800, 804))
    with hw.create(out, zstd=1) as writer:
        writer.add("key", descriptor, [Zeros(page), bytes(800), np.arange(201, dtype=np.uint32)])
    with hw.open(out.getvalue(), seq_lens=[1] * 200) as file:
        for use in (file["key"].gather, file["key"].ragged):
            with pytest.raises(hw.LimitError) as caught:
                use()
            assert caught.value.rule == "limit.dense-bytes"
        assert file["key"].gather([7]).values.nbytes == page


def test_a_plain_file_that_does_not_begin_as_a_file_is_not_inflated_further(monkeypatch):
    inflate, produced = plain_zstd._pieces, []

    def counted(*arguments):
        for piece in inflate(*arguments):
            produced.append(len(piece))
            yield piece

    monkeypatch.setattr(plain_zstd, "_pieces", counted)
    assert refusal(zeros(128 << 20)).rule == "container.magic"
    assert 0 < sum(produced) <= 8 << 20
    assert refusal(compressed(b"HRRYPLNS" + bytes(90)) + zeros(128 << 20)).rule == "compressed.planes-table"
    assert sum(produced) <= 16 << 20


def test_a_table_of_many_frames_costs_what_it_takes_itself():
    """A million frames that all claim what a frame of their size could hold: a file of 20 MB for 256 GB."""
    frame = compressed(b"")[:8]
    rows = np.tile(np.array([8, 8 << 15, 0], dtype="<u4"), (1 << 20, 1)).tobytes()
    table = b"\x5e\x2a\x4d\x18" + struct.pack("<I", len(rows) + 9) + rows
    data = frame * (1 << 20) + table + struct.pack("<IB", 1 << 20, 0x80) + b"\xb1\xea\x92\x8f"
    tracemalloc.start()
    try:
        with pytest.raises(hw.InvalidFileError) as caught:
            hw.open(data)
        assert caught.value.rule == "compressed.content-size"
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


def test_the_error_of_one_frame_spares_the_tensors_in_others(data):
    frames, table = frames_of(data), table_of(data)
    starts = np.cumsum([0, *(entry[1] for entry in table)])
    pool = written(TENSORS).index(TENSORS[1][2][0])
    row = int(np.searchsorted(starts, pool))  # the first frame of the first pool
    damaged = list(frames)
    damaged[row] = frames[row][:-1] + bytes([frames[row][-1] ^ 1])
    file = hw.open(assembled(damaged, table))
    with pytest.raises(hw.ChecksumError) as caught:
        _ = file["layers.0.key"].page_pool
    assert caught.value.offset == sum(entry[0] for entry in table[:row])
    assert file["layers.0.value"].buffers[0].tobytes() == TENSORS[2][2][0]
    with pytest.raises(hw.ChecksumError):
        file.verify()

"""Reading the compressed form (spec/compressed.md): the same values as from the file itself, and no frame too many."""

from __future__ import annotations

import io
import random
import sys
import threading
import tracemalloc

import numpy as np
import pytest
import zstandard
from compressed_cases import (
    assembled,
    cut,
    everything,
    frames_of,
    lengths,
    paged,
    table_of,
    written,
)

import hurray_wire as hw
from hurray_wire import parallel
from hurray_wire.limits import Limits
from hurray_wire.store import compressed_sink, compressed_source
from hurray_wire.store.frame_cache import FrameCache

# 200 pages of 128 bytes: with frames of 4 KiB, 32 pages in each, 7 frames a pool
LENS = (100, 3, 60)
TENSORS = [lengths(LENS), *(paged(f"layers.{k}.key", num_pages=200, lens=LENS, seed=k) for k in range(3))]
PAGES_PER_FRAME = 32
PLAIN = written(TENSORS)
EVERYTHING = everything(PLAIN)


@pytest.fixture(autouse=True)
def small_frames(monkeypatch):
    monkeypatch.setattr(compressed_sink, "FRAME_BYTES", 4096)


@pytest.fixture(params=[False, True], ids=["plain", "planes"])
def data(request, small_frames):
    return written(TENSORS, zstd=1, planes=request.param)


def inflated(file):
    return file.compression.inflated


def pages_of(tensor, seq):
    return tensor.block_table[tensor.seq_ptr[seq] : tensor.seq_ptr[seq + 1]].tolist()


class Stingy(io.BytesIO):
    """A file that gives one byte at a time."""

    def read(self, size=-1):
        return super().read(min(size, 1) if size >= 0 else 1)


def test_everything_is_what_the_file_itself_holds(data, tmp_path):
    (tmp_path / "cache").write_bytes(data)
    assert everything(data) == EVERYTHING
    assert everything(tmp_path / "cache") == EVERYTHING
    assert everything(tmp_path / "cache", mmap=False) == EVERYTHING
    assert everything(io.BytesIO(data)) == EVERYTHING
    assert everything(Stingy(data)) == EVERYTHING


def test_gathered_values_and_pages_are_those_of_the_file_itself(data):
    with hw.open(PLAIN) as plain, hw.open(data) as file:
        for name in plain.names[1:]:
            a, b = plain[name], file[name]
            for seqs in (None, [1], [2, 0, 2], []):
                assert a.gather(seqs).values.tobytes() == b.gather(seqs).values.tobytes()
                assert a.ragged(seqs).tobytes() == b.ragged(seqs).tobytes()
            assert a.page_pool.tobytes() == b.page_pool.tobytes()
            assert not b.page_pool.flags.writeable


def test_opening_inflates_the_first_and_the_last_frame():
    with hw.open(written(TENSORS, zstd=1)) as file:
        assert inflated(file) == 2


def test_a_gather_inflates_the_frames_that_hold_its_pages_and_no_others(data):
    for seq in range(3):
        with hw.open(data) as file:
            tensor = file["layers.1.key"]
            needed = {page // PAGES_PER_FRAME for page in pages_of(tensor, seq)}
            tensor.seq_lens  # noqa: B018 -- the frames of lengths and tables are inflated by now
            before = inflated(file)
            tensor.gather([seq])
            assert inflated(file) - before == len(needed)


def test_frames_that_pages_share_are_inflated_once(data, monkeypatch):
    monkeypatch.setattr(compressed_source, "_CACHE_BYTES", 0)
    with hw.open(data) as file:
        tensor = file["layers.1.key"]
        tensor.seq_lens  # noqa: B018
        before = inflated(file)
        tensor.gather([0, 2, 0])
        needed = {page // PAGES_PER_FRAME for seq in (0, 2) for page in pages_of(tensor, seq)}
        assert inflated(file) - before == len(needed)


def test_verify_inflates_each_frame_once_however_little_is_kept(data, monkeypatch):
    monkeypatch.setattr(compressed_source, "_CACHE_BYTES", 20000)
    file = hw.open(data)
    before = inflated(file)
    report = file.verify()
    found = file.compression
    # the last frame was inflated when the file was opened, and is still there
    assert found.inflated - before in (found.frames - 1, found.frames - 2)
    assert report == hw.open(PLAIN).verify()


def test_verify_inflates_a_file_without_checksums_too():
    file = hw.open(written(TENSORS, zstd=1, checksums=False))
    assert file.verify().checksums == 0
    assert inflated(file) == file.compression.frames


def test_what_was_just_read_is_not_inflated_again(data):
    with hw.open(data) as file:
        tensor = file["layers.1.key"]
        tensor.gather([1])
        before = inflated(file)
        tensor.gather([1])
        assert inflated(file) == before


def test_how_a_file_is_compressed_can_be_asked(data):
    with hw.open(data) as file, hw.open(PLAIN) as plain:
        found = file.compression
        assert plain.compression is None
        assert found.seekable
        assert found.frames == len(table_of(data))
        assert (found.compressed_bytes, found.inflated_bytes) == (len(data), len(PLAIN))
        assert found.planes == (data == written(TENSORS, zstd=1, planes=True))


def test_the_recorded_checksums_are_checked_on_what_was_inflated():
    name, _, (pool, *_) = TENSORS[2]
    broken = bytearray(PLAIN)
    broken[PLAIN.index(pool) + 5000] ^= 1
    with hw.open(cut(bytes(broken), [4096] * 3)) as file, pytest.raises(hw.ChecksumError) as caught:
        file.verify()
    assert caught.value.rule == "verify.crc"
    assert name in str(caught.value)


def test_eight_threads_read_one_file_and_inflate_nothing_twice(data):
    expected = [hw.open(PLAIN)[name].gather().values.tobytes() for name in hw.open(PLAIN).names[1:]]
    file = hw.open(data)
    start = threading.Barrier(8)
    wrong = []

    def read(number):
        start.wait(timeout=20)
        order = list(enumerate(file.names[1:]))
        random.Random(number).shuffle(order)
        wrong.extend(name for k, name in order if file[name].gather().values.tobytes() != expected[k])

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert wrong == []
    assert inflated(file) <= file.compression.frames


def test_frames_are_inflated_side_by_side(monkeypatch, data):
    """The first two frames wait for each other; the read ends because two threads are at it."""
    monkeypatch.setattr(parallel, "_state", parallel._State())
    monkeypatch.setattr(parallel, "cpu_count", lambda: 2)
    monkeypatch.setattr(compressed_source, "_SPREAD_BYTES", 0)
    file = hw.open(data)
    tensor = file["layers.0.key"]
    tensor.seq_lens  # noqa: B018
    together = threading.Barrier(2)
    inflate = compressed_source.inflate
    met = []

    def meet(*args, **options):
        met.append(threading.get_ident())
        if len(met) <= 2:
            together.wait(timeout=20)
        return inflate(*args, **options)

    monkeypatch.setattr(compressed_source, "inflate", meet)
    assert tensor.buffers[0].tobytes() == TENSORS[1][2][0]
    assert len(set(met[:2])) == 2


def test_a_closed_file_is_not_read_and_closing_twice_is_fine(data):
    file = hw.open(data)
    values = file["layers.0.key"].gather([0]).values
    kept = values.tobytes()
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file["layers.0.key"].gather([1])
    assert values.tobytes() == kept


def test_the_path_of_a_compressed_file_is_closed_with_it(tmp_path, data):
    (tmp_path / "cache").write_bytes(data)
    file = hw.open(tmp_path / "cache", mmap=False)
    descriptor = file._source._inner._fd
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        io.FileIO(descriptor, closefd=False)


def test_rows_are_read_as_from_any_source(data):
    """The fast way to a few pages gives what slicing gives."""
    source = compressed_source.inflating(hw.open(data)._source._inner, Limits())
    rng = np.random.default_rng(3)
    for row_bytes in (1, 7, 128, 5000):
        rows = rng.integers(0, (len(PLAIN) - 4096) // row_bytes, 5).astype(np.int64)
        rows = np.concatenate([rows, [3, 4, 5, 5, 0]])
        out = np.zeros((len(rows), row_bytes), dtype=np.uint8)
        stream = compressed_source.inflating(hw.open(written(TENSORS, zstd=1))._source._inner, Limits())
        stream.read_rows(4096, row_bytes, rows, out)
        for k, row in enumerate(rows.tolist()):
            at = 4096 + row * row_bytes
            assert out[k].tobytes() == PLAIN[at : at + row_bytes]
    with pytest.raises(hw.TruncatedError):
        source.read_rows(0, 4096, np.array([len(PLAIN) // 4096], dtype=np.int64), np.zeros((1, 4096), np.uint8))


def test_positions_past_a_length_hold_the_fill(data):
    with hw.open(PLAIN) as plain, hw.open(data) as file:
        for options in ({"fill": 1.5}, {"fill": 1.5, "max_len": 70}, {"max_len": 120}, {"max_len": 0}):
            expected = plain["layers.0.key"].gather([1, 0], **options)
            found = file["layers.0.key"].gather([1, 0], **options)
            assert found.values.tobytes() == expected.values.tobytes()
            assert found.mask.tobytes() == expected.mask.tobytes()


def test_memory_that_was_given_is_not_touched_if_a_frame_is_broken(data):
    frames, table = frames_of(data), table_of(data)
    start = PLAIN.index(TENSORS[1][2][0])
    row = int(np.searchsorted(np.cumsum([entry[1] for entry in table]), start + 4096, side="right"))
    frames[row] = frames[row][:-1] + bytes([frames[row][-1] ^ 1])
    with hw.open(assembled(frames, table)) as file:
        tensor = file["layers.0.key"]
        out = np.ones((3, 100, 2, 8), dtype=hw.bfloat16.dtype)
        with pytest.raises(hw.ChecksumError):
            tensor.gather(out=out)
        assert (out == 1).all()


@pytest.mark.parametrize("planes", [False, True])
def test_a_gather_takes_no_memory_for_a_second_pool(planes, monkeypatch):
    monkeypatch.setattr(compressed_sink, "FRAME_BYTES", 1 << 18)
    lens = (1000,) * 8
    tensors = [lengths(lens), paged("t", page_size=10, num_pages=800, heads=8, dim=128, lens=lens)]
    with hw.open(written(tensors, zstd=1, planes=planes)) as file:
        tensor = file["t"]
        tensor.seq_lens  # noqa: B018
        monkeypatch.setattr(file._source._cache, "_capacity", 1 << 20)
        tracemalloc.start()
        try:
            values = tensor.gather().values
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert values.nbytes == 16384000
        assert peak < values.nbytes * 1.25


@pytest.mark.parametrize("told", [True, False], ids=["size told", "size not told"])
def test_a_frame_of_nothing_is_an_empty_file(told):
    empty = zstandard.ZstdCompressor(write_content_size=told).compress(b"")
    with pytest.raises(hw.TruncatedError, match="the file is empty"):
        hw.open(empty)


def test_a_compressed_stream_is_called_so():
    out = io.BytesIO()
    hw.send_snapshot(out, [(np.zeros((2, 4, 1, 8)),) * 2], block_tables=[[1]], seq_lens=[3])
    with pytest.raises(hw.InvalidFileError, match="a compressed stream; inflate it with zstd -d first"):
        hw.open(zstandard.compress(out.getvalue()))


def test_an_interrupt_anywhere_leaves_no_frame_that_others_wait_for():
    """A KeyboardInterrupt at every line of the store in turn, in the thread that inflates."""
    code = FrameCache.get.__code__
    lines = sorted({line for _, _, line in code.co_lines() if line is not None and line > code.co_firstlineno})
    frame = np.arange(5, dtype=np.uint8)
    interrupted = 0
    for line in lines:
        cache = FrameCache(100)

        def trace(where, event, _, line=line):
            if where.f_code is code and event == "line" and where.f_lineno == line:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            cache.get(3, lambda _: frame)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(None)
        reader = threading.Thread(target=cache.get, args=(3, lambda _: frame), daemon=True)
        reader.start()
        reader.join(30)
        assert not reader.is_alive(), f"line {line}"
        assert 3 in cache
    assert interrupted > 8


def test_who_waits_for_a_thread_that_is_interrupted_inflates_the_frame():
    cache, begun, leave = FrameCache(100), threading.Event(), threading.Event()

    def interrupted(_):
        begun.set()
        leave.wait(30)
        raise KeyboardInterrupt

    def first():
        with pytest.raises(KeyboardInterrupt):
            cache.get(0, interrupted)

    one = threading.Thread(target=first)
    one.start()
    begun.wait(30)
    found = []
    other = threading.Thread(target=lambda: found.append(cache.get(0, lambda _: np.ones(2, np.uint8)).tolist()))
    other.start()
    leave.set()
    one.join(30)
    other.join(30)
    assert found == [[1, 1]]

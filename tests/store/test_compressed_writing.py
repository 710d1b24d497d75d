"""Writing the compressed form (spec/compressed.md, "Writing"): what a file looks like, and that zstd reads it."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import time
from itertools import pairwise

import numpy as np
import pytest
import xxhash
import zstandard
from compressed_cases import frames_of, lengths, paged, table_of, written
from requirements import require

import hurray_wire as hw
from hurray_wire import parallel
from hurray_wire.preparing import prepare
from hurray_wire.selection import PoolChunks
from hurray_wire.store import compressed_sink

TENSORS = [lengths(), paged(), paged("layers.0.value", seed=1)]
PAGE_BYTES = 4 * 2 * 8 * 2


@pytest.fixture
def small_frames(monkeypatch):
    """Frames of 4 KiB, so that small pools have several."""
    monkeypatch.setattr(compressed_sink, "FRAME_BYTES", 4096)
    return 4096


def edges(data):
    """Where the frames of a file begin and end in the inflated bytes."""
    return np.cumsum([0, *(entry[1] for entry in table_of(data))]).tolist()


def places(plain):
    """Offset and size of every buffer of a file, found by content."""
    return [(name, k, plain.index(piece), len(piece)) for name, _, pieces in TENSORS for k, piece in enumerate(pieces)]


def zstd_program():
    found = shutil.which("zstd")
    require(found, "the zstd program is not installed (package zstd)")
    return found


@pytest.mark.parametrize("level", [True, -3, 1, 19])
def test_the_zstd_program_gives_the_file_back_byte_for_byte(level, tmp_path, small_frames):
    path = tmp_path / "cache.hrry.zst"
    path.write_bytes(written(TENSORS, zstd=level))
    result = subprocess.run([zstd_program(), "-dc", str(path)], stdout=subprocess.PIPE, check=True)
    assert result.stdout == written(TENSORS)


def test_with_planes_the_zstd_program_gives_pools_split_and_another_magic(tmp_path, small_frames):
    path = tmp_path / "cache.hrry.zst"
    path.write_bytes(written(TENSORS, zstd=True, planes=True))
    inflated = subprocess.run([zstd_program(), "-dc", str(path)], stdout=subprocess.PIPE, check=True).stdout
    expected = bytearray(written(TENSORS))
    cuts = edges(path.read_bytes())
    pools = [(at, at + size) for _, k, at, size in places(bytes(expected)) if k == 0 and size > 100]
    assert len(pools) == 2
    for start, end in pairwise(cuts):
        if any(first <= start and end <= last for first, last in pools):
            expected[start:end] = expected[start:end:2] + expected[start + 1 : end : 2]
    expected[:8] = b"HRRYPLNS"
    assert inflated == bytes(expected)


def test_every_frame_has_its_size_and_checksum_and_is_listed_and_nothing_follows(small_frames):
    data = written(TENSORS, zstd=True)
    frames, table = frames_of(data), table_of(data)
    assert sum(map(len, frames)) + 8 + 12 * len(table) + 9 == len(data)
    assert data[-5] == 0x80
    for frame, (_, size, checksum) in zip(frames, table, strict=True):
        header = zstandard.get_frame_parameters(frame)
        assert (header.content_size, header.has_checksum, header.dict_id) == (size, True, 0)
        content = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
        assert xxhash.xxh64_intdigest(content) & 0xFFFFFFFF == checksum
        assert size > 0


def test_a_frame_holds_bytes_of_one_buffer_or_of_none(small_frames):
    cuts = set(edges(written(TENSORS, zstd=True)))
    for _, _, at, size in places(written(TENSORS)):
        assert at in cuts
        assert at + size in cuts


def test_metadata_and_index_begin_frames_of_their_own():
    plain = written(TENSORS, metadata={"k": "v"})
    index_offset, _, kv_offset = np.frombuffer(plain[-40:-16], dtype="<u8").tolist()
    assert {index_offset, kv_offset, len(plain)} <= set(edges(written(TENSORS, metadata={"k": "v"}, zstd=True)))


def test_pool_frames_hold_as_many_whole_pages_as_fit_into_one_mebibyte():
    tensor = paged(page_size=16, num_pages=700, heads=3, dim=64, lens=(5,))  # pages of 6144 bytes
    cuts = edges(written([tensor], zstd=1))
    start = written([tensor]).index(tensor[2][0])
    page, whole = 6144, 170 * 6144  # 1048576 // 6144 = 170
    expected = [start + k * whole for k in range(5)] + [start + 700 * page]
    assert [place for place in cuts if start <= place <= start + 700 * page] == expected


def test_a_page_above_one_mebibyte_has_a_frame_of_its_own():
    tensor = paged(element_type=hw.uint8, page_size=1024, num_pages=3, heads=10, dim=128, lens=(5,))
    cuts = edges(written([tensor], zstd=1))
    start = written([tensor]).index(tensor[2][0])
    assert [place - start for place in cuts if 0 <= place - start <= 3 * 1310720] == [0, 1310720, 2621440, 3932160]


def test_pages_of_packed_elements_are_kept_together_in_whole_bytes(monkeypatch):
    monkeypatch.setattr(compressed_sink, "FRAME_BYTES", 10)
    layout = hw.BlockPagedLayout(page_size=1, num_pages=9, paged_axis=0, num_seqs=0)
    # 3 elements of 6 bits a page: 4 pages fill 9 bytes, and 9 pages 21, that is 27 elements in 7 groups of 4
    descriptor = hw.TensorDescriptor.build(hw.float6_e2m3, (0, 1, 3), layout, (21, 0, 4))
    pool = bytes([*range(1, 21), 3])  # the 6 unused bits are zero
    tensor = ("t", descriptor, [pool, b"", bytes(4)])
    start = written([tensor]).index(pool)
    cuts = edges(written([tensor], zstd=1))
    assert [place - start for place in cuts if 0 <= place - start <= 21] == [0, 9, 18, 21]


def test_a_page_that_no_frame_holds_is_refused_and_the_writer_goes_on():
    layout = hw.BlockPagedLayout(page_size=1 << 20, num_pages=0, paged_axis=0, num_seqs=0)
    descriptor = hw.TensorDescriptor.build(hw.uint8, (0, 5, 256), layout, (0, 0, 4))
    out = io.BytesIO()
    with hw.create(out, zstd=1) as writer:
        with pytest.raises(hw.UnsupportedError) as caught:
            writer.add("large", descriptor, [b"", b"", bytes(4)])
        assert (caught.value.rule, caught.value.found) == ("compressed.page-size", 5 << 28)
        writer.add(*lengths())
    with hw.open(out.getvalue()) as file:
        assert file.names == ("seq_lens",)


@pytest.mark.parametrize("planes", [False, True])
def test_the_bytes_do_not_depend_on_the_number_of_threads(planes, monkeypatch):
    tensors = [paged(f"t{k}", page_size=16, num_pages=100, heads=8, dim=64, lens=(9,), seed=k) for k in range(3)]
    files = []
    for cpus in (1, 2, 5):
        state = parallel._State()
        monkeypatch.setattr(parallel, "_state", state)
        monkeypatch.setattr(parallel, "cpu_count", lambda cpus=cpus: cpus)
        files.append(written(tensors, zstd=1, planes=planes))
    assert files[0] == files[1] == files[2]


class Pieces:
    """A buffer that comes in pieces of the given sizes."""

    def __init__(self, data, sizes):
        self.nbytes, self._data, self._sizes = len(data), data, sizes

    def chunks(self):
        scratch = bytearray()
        at = 0
        while at < self.nbytes:
            for size in self._sizes:
                scratch[:] = self._data[at : at + size]
                at += size
                yield bytes(scratch)


@pytest.mark.parametrize("sizes", [(1, 4095), (4096,), (4097, 3), (100, 9000), (10**6,)])
def test_the_bytes_do_not_depend_on_the_pieces_they_come_in(sizes, small_frames):
    name, descriptor, (pool, *rest) = paged(num_pages=200)
    assert written([(name, descriptor, [Pieces(pool, sizes), *rest])], zstd=1) == written(
        [paged(num_pages=200)], zstd=1
    )


class OwnBuffer:
    """A buffer whose pieces all lie in the same memory, one after another."""

    def __init__(self, data, size):
        self.nbytes, self._data, self._memory = len(data), data, bytearray(size)

    def chunks(self):
        for at in range(0, self.nbytes, len(self._memory)):
            piece = self._data[at : at + len(self._memory)]
            self._memory[: len(piece)] = piece
            yield memoryview(self._memory)[: len(piece)]
        self._memory[:] = bytes(len(self._memory))


def test_a_piece_is_the_callers_again_when_the_next_one_is_asked_for():
    tensor = name, descriptor, (pool, *rest) = paged(page_size=16, num_pages=900, heads=8, dim=32, lens=(9,))
    assert written([(name, descriptor, [OwnBuffer(pool, 3 << 20), *rest])], zstd=1) == written([tensor], zstd=1)


def test_an_array_may_be_changed_as_soon_as_it_is_added():
    name, descriptor, (pool, *rest) = paged(page_size=16, num_pages=900, heads=8, dim=32, lens=(9,))
    out = io.BytesIO()
    array = np.frombuffer(pool, dtype=np.uint8).copy()
    with hw.create(out, zstd=1) as writer:
        writer.add(name, descriptor, [array, *rest])
        array[:] = 255
    with hw.open(out.getvalue()) as file:
        assert file[name].buffers[0].tobytes() == pool


class Narrow(io.RawIOBase):
    """Takes a few bytes at a time, and can do nothing but that."""

    def __init__(self):
        self.data = bytearray()

    def writable(self):
        return True

    def write(self, view):
        self.data += bytes(view[:1000])
        return min(len(view), 1000)

    def seek(self, *_):
        raise AssertionError("a writer never seeks")


def test_one_forward_pass_to_an_object_that_takes_little_at_a_time():
    out = Narrow()
    with hw.create(out, zstd=1) as writer:
        for tensor in TENSORS:
            writer.add(*tensor)
    assert bytes(out.data) == written(TENSORS, zstd=1)


def add_all(writer, tensors):
    with writer:
        for tensor in tensors:
            writer.add(*tensor)


class Closed(io.RawIOBase):
    def writable(self):
        return True

    def write(self, view):
        raise BrokenPipeError


def test_an_object_that_breaks_breaks_the_writer_with_its_own_error():
    tensors = [paged(f"t{k}", page_size=16, num_pages=100, heads=8, dim=64, lens=(9,)) for k in range(20)]
    writer = hw.create(Closed(), zstd=1)
    with pytest.raises(BrokenPipeError):
        add_all(writer, tensors)


def test_an_error_in_the_block_leaves_the_old_file(tmp_path):
    path = tmp_path / "cache.hrry.zst"
    path.write_bytes(b"old")
    with contextlib.suppress(KeyboardInterrupt), hw.create(path, zstd=1) as writer:
        writer.add(*paged(num_pages=5000))
        raise KeyboardInterrupt
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("cache.hrry.zst", b"old")]


@pytest.mark.parametrize("level", [0, 23, -8, 10**9])
def test_a_level_that_does_not_exist_is_refused_before_anything_is_made(level, tmp_path):
    with pytest.raises(hw.IncompatibleError) as caught:
        hw.create(tmp_path / "new", zstd=level)
    assert (caught.value.rule, caught.value.found) == ("compressed.level", level)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("zstd", [None, False])
def test_planes_without_zstd_are_refused(zstd, tmp_path):
    with pytest.raises(hw.IncompatibleError) as caught:
        hw.create(tmp_path / "new", zstd=zstd, planes=True)
    assert caught.value.rule == "compressed.planes-without-zstd"
    assert list(tmp_path.iterdir()) == []


def test_true_is_the_default_level_and_false_is_none():
    for planes in (False, True):
        assert written(TENSORS, zstd=True, planes=planes) == written(TENSORS, zstd=1, planes=planes)
        assert written(TENSORS, zstd=True, planes=planes) != written(TENSORS, zstd=3, planes=planes)
    assert written(TENSORS, zstd=False) == written(TENSORS, zstd=None) == written(TENSORS)


def test_no_more_frames_are_written_than_a_reader_takes(monkeypatch, small_frames):
    frames = len(table_of(written(TENSORS, zstd=1)))
    monkeypatch.setattr(compressed_sink, "_MAX_FRAMES", frames)
    assert len(table_of(written(TENSORS, zstd=1))) == frames
    monkeypatch.setattr(compressed_sink, "_MAX_FRAMES", frames - 1)
    with pytest.raises(hw.LimitError) as caught:
        written(TENSORS, zstd=1)
    assert caught.value.rule == "limit.frames"


def test_a_snapshot_is_saved_compressed(tmp_path):
    rng = np.random.default_rng(5)
    layers = [(rng.random((6, 4, 2, 8), dtype=np.float32), rng.random((6, 4, 2, 8), dtype=np.float32))]
    batch = {"seq_lens": [7, 4], "block_tables": [[5, 2], [0, -1]]}
    for options in ({}, {"zstd": 5}, {"zstd": True, "planes": True}):
        hw.save_snapshot(tmp_path / "cache", layers, **batch, **options)
        with hw.load_snapshot(tmp_path / "cache") as snapshot:
            keys = snapshot.gather(0)["keys"]
            assert keys[0, :7].tobytes() == layers[0][0][[5, 2]].reshape(8, 2, 8)[:7].tobytes()
            assert keys[1, :4].tobytes() == layers[0][0][0].tobytes()
            found = snapshot.file.compression
            assert (found is not None, found is not None and found.planes) == ("zstd" in options, "planes" in options)


@pytest.mark.parametrize("planes", [False, True])
@pytest.mark.parametrize("chunk_bytes", [512, 4096, 40_960, 131_072])
def test_a_chunk_is_the_callers_again_when_the_next_one_is_asked_for(chunk_bytes, planes, monkeypatch, small_frames):
    """Whole frames are compressed out of the chunk itself, in other threads, which here take their time."""
    monkeypatch.setattr(compressed_sink, "_UNDER_WAY_PER_CPU", 4096)
    monkeypatch.setattr(compressed_sink, "_INLINE_BYTES", 0)
    compress = compressed_sink._compressed

    def slow(job):
        time.sleep(0.002)
        return compress(job)

    monkeypatch.setattr(compressed_sink, "_compressed", slow)
    content = np.random.default_rng(5).integers(0, 99, 262_144, dtype=np.uint8)

    class Reused:
        nbytes = len(content)

        def chunks(self):
            memory = np.empty(chunk_bytes, dtype=np.uint8)
            for start in range(0, len(content), chunk_bytes):
                part = content[start : start + chunk_bytes]
                memory[: len(part)] = part
                yield memory[: len(part)]
                memory[:] = 255

    layout = hw.BlockPagedLayout(page_size=4, num_pages=1024, paged_axis=0, num_seqs=0)
    descriptor = hw.TensorDescriptor.build(hw.uint16, (0, 1, 32), layout, (len(content), 0, 4))
    data = written([("key", descriptor, [Reused(), b"", bytes(4)])], zstd=1, planes=planes)
    with hw.open(data) as file:
        assert file["key"].page_pool.tobytes() == content.tobytes()
        file.verify()


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("planes", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"compact": False, "scrub": False}, {"deduplicate": True}, {"layout": "split-hnd"}]
)
def test_parts_made_by_many_threads_are_the_file_that_chunks_make_in_order(
    options, planes, checksums, monkeypatch, small_frames
):
    monkeypatch.setattr(compressed_sink, "_INLINE_BYTES", 0)
    pools = np.random.default_rng(1).integers(0, 50, (4, 30, 4, 8, 16), dtype=np.uint16)
    pools[:, 20] = pools[:, 7]
    heads_first = options.get("layout") == "split-hnd"
    layers = [tuple(pool.transpose(0, 2, 1, 3) if heads_first else pool for pool in pools[k : k + 2]) for k in (0, 2)]
    tables = [[*range(3, 17)], [20, 7, 3]]

    def saved():
        out = io.BytesIO()
        batch = {"block_tables": tables, "seq_lens": [53, 9], "dtype": "float16", "page_size": 4, "num_heads": 8}
        prepared = prepare(layers, **batch, **options)
        with hw.create(out, zstd=1, planes=planes, checksums=checksums) as writer:
            for tensor in prepared.tensors:
                writer.add(*tensor)
        return out.getvalue()

    by_parts = saved()
    monkeypatch.setattr(PoolChunks, "parts", lambda *_: None)
    assert by_parts == saved()
    with hw.open(by_parts) as file:
        assert file.verify().checksums == (2 + 4 * 4 if checksums else 0)  # descriptors and buffers
        assert file.compression.frames > 20


def test_an_error_while_a_part_is_made_leaves_no_file(tmp_path):
    class Broken:
        nbytes = 1 << 20

        def chunks(self):
            raise AssertionError("it is asked for its parts")

        def parts(self, part_bytes):
            yield part_bytes, self.fail

        def fail(self, memory):
            raise ZeroDivisionError("in another thread")

    layout = hw.BlockPagedLayout(page_size=4, num_pages=8192, paged_axis=0, num_seqs=0)
    descriptor = hw.TensorDescriptor.build(hw.uint16, (0, 1, 16), layout, (1 << 20, 0, 4))
    with pytest.raises(ZeroDivisionError), hw.create(tmp_path / "cache", zstd=1) as writer:
        writer.add("key", descriptor, [Broken(), b"", bytes(4)])
    assert list(tmp_path.iterdir()) == []

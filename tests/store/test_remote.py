"""Files at URLs: the answers of a disk, by few requests for little more than is needed, or a clear refusal."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from requirements import REQUIRE_ALL

import hurray_wire as hw

if os.environ.get(REQUIRE_ALL) != "1":
    pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")
    pytest.importorskip("aiohttp", reason="the extra 'remote' is not installed")

import fsspec
import range_server
from fsspec.asyn import AsyncFileSystem

from hurray_wire.annotate import annotate
from hurray_wire.store import remote_files
from hurray_wire.store.remote import RemoteSource, _Extents
from hurray_wire.store.target import is_url

FIXTURES = Path(__file__).parents[2] / "fixtures"
PAGE = (16, 8, 256)  # page_size, heads, dim: 64 KiB in float16, more than is read for the sake of a neighbour
PAGE_BYTES = 64 << 10
PAGES = 24
TABLES = [[3, 9, 10, 20], [0, 1, 2, -1], [23, 8, -1, -1]]
LENS = [60, 41, 17]
LAYERS = 2


def snapshot_bytes(**options: object) -> bytes:
    rng = np.random.default_rng(11)
    # numbers close together, as those of a cache are
    pools = [rng.integers(0, 99, (PAGES, *PAGE)).astype(np.float16) for _ in range(2 * LAYERS)]
    out = io.BytesIO()
    layers = list(zip(pools[::2], pools[1::2], strict=True))
    hw.save_snapshot(
        out, layers, block_tables=TABLES, seq_lens=LENS, page_size=16, compact=False, scrub=False, **options
    )
    return out.getvalue()


PLAIN = snapshot_bytes()
FORMS = {
    "plain": PLAIN,
    "compressed": snapshot_bytes(zstd=1),
    "planes": snapshot_bytes(zstd=1, planes=True),
}
SOURCE_DATA = np.random.default_rng(3).integers(0, 256, 5 << 20, dtype=np.uint8).tobytes()


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param]


@pytest.fixture
def server():
    made = range_server.RangeServer()
    yield made
    made.close()


@pytest.fixture
def memory():
    """A folder of memory:// that is this test's own."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)


def refused(error, call):
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value).__module__ in ("builtins", "hurray_wire.errors")
    return caught.value


# -- the same answers


def test_a_url_gives_what_the_file_holds(server, form):
    with (
        hw.load_snapshot(server.put("/a", form)) as far,
        hw.load_snapshot(form) as near,
    ):
        assert far.layers == near.layers
        assert far.metadata == near.metadata
        for layer in far.layers:
            assert_same(far.gather(layer), near.gather(layer))
            assert_same(far.gather(layer, seqs=[2, 0]), near.gather(layer, seqs=[2, 0]))
            assert np.array_equal(far[layer].key.page_pool, near[layer].key.page_pool)
        assert far.verify() == near.verify()


def test_memory_urls_are_read_too(memory, form):
    memory.pipe_file("/folder/a.hrry", form)
    with hw.load_snapshot("memory://folder/a.hrry") as far, hw.load_snapshot(form) as near:
        assert_same(far.gather(1), near.gather(1))
        assert far.verify() == near.verify()


def test_urls_of_several_file_systems_are_read_too(memory, tmp_path):
    memory.pipe_file("/a.hrry", PLAIN)
    with hw.load_snapshot(
        "simplecache::memory://a.hrry", storage_options={"simplecache": {"cache_storage": str(tmp_path)}}
    ) as far:
        assert far.layers == (0, 1)


def outcome(target):
    """What comes of reading all of a file: what was looked at, or the rule it breaks and where."""
    try:
        with hw.open(target) as file:
            return file.names, file.metadata, file.verify()
    except hw.HurrayError as error:
        return type(error), error.rule, error.offset


def test_every_file_of_the_corpus_is_taken_or_refused_alike(memory):
    paths = sorted(path for path in FIXTURES.glob("*/*") if path.name.endswith((".hrry", ".zst")))
    assert len(paths) > 200
    for path in paths:
        memory.pipe_file("/file", path.read_bytes())
        assert repr(outcome("memory://file")) == repr(outcome(path)), path.name


@pytest.mark.parametrize("use_mmap", [True, False])
def test_a_file_url_is_a_path(tmp_path, use_mmap):
    path = tmp_path / "a b%c.hrry"
    path.write_bytes(PLAIN)
    for url in (path.as_uri(), path.as_uri().replace("file://", "FILE://localhost")):
        with hw.open(url, mmap=use_mmap) as file:
            assert file["layers.0.key"].buffers.lends is use_mmap
            assert file.snapshot().layers == (0, 1)


@pytest.mark.parametrize("url", ["file://elsewhere/a.hrry", "file://a.hrry"])
def test_a_file_url_of_another_machine_is_refused(url):
    assert refused(hw.UnsupportedError, lambda: hw.open(url)).rule == "file.url"


def test_a_url_begins_with_a_scheme():
    assert is_url("s3://bucket/key")
    assert is_url("zip://a.hrry::https://host/all.zip")
    assert is_url("simplecache::s3://bucket/key")
    assert not is_url("folder/s3://key")
    assert not is_url("C:/a.hrry")
    assert not is_url("a::b.hrry")
    assert not is_url(b"s3://bucket/key")


@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, 0), (0, 5), (16300, 200), (100_000, 70_000), (len(SOURCE_DATA) - 1, 1), (0, len(SOURCE_DATA))],
)
def test_a_remote_source_gives_the_same_read_only_bytes(server, offset, length):
    source = RemoteSource(server.put("/a", SOURCE_DATA), {})
    view = source.view(offset, length)
    assert view == SOURCE_DATA[offset : offset + length]
    assert view.readonly
    out = bytearray(length)
    source.read_into(offset, memoryview(out))
    assert out == SOURCE_DATA[offset : offset + length]


@pytest.mark.parametrize("size", [1, 64, 16 << 10, (16 << 10) + 1, 80 << 10, (80 << 10) + 1, 300_000])
def test_a_file_of_any_size_is_opened_by_two_requests_at_most(server, size):
    source = RemoteSource(server.put("/a", SOURCE_DATA[:size]), {})
    assert source.size == size
    assert len(server.requests) <= 2
    assert source.view(0, min(size, 64)) == SOURCE_DATA[: min(size, 64)]
    assert source.view(max(0, size - 64 * 1024), min(size, 64 * 1024)) == SOURCE_DATA[max(0, size - 64 * 1024) : size]
    assert len(server.requests) <= 2


def test_rows_come_in_any_order_and_repeated(server):
    source = RemoteSource(server.put("/a", SOURCE_DATA), {})
    rows = np.array([900, 901, 30, 900, 4000, 4001, 4002, 0])
    out = np.empty((len(rows), 1000), dtype=np.uint8)
    source.read_rows(77, 1000, rows, out)
    for row, values in zip(rows.tolist(), out, strict=True):
        assert values.tobytes() == SOURCE_DATA[77 + row * 1000 : 77 + (row + 1) * 1000]
    with pytest.raises(hw.TruncatedError):
        source.read_rows(77, 1000, np.array([len(SOURCE_DATA) // 1000]), out[:1])


# -- few requests, few bytes


def test_opening_takes_the_two_ends(server, form):
    with hw.open(server.put("/a", form)) as file:
        assert len(file.names) == 2 * LAYERS + 1
        assert "producer" in file.metadata
    assert len(server.requests) == 2
    assert server.asked <= 100 << 10


def test_a_gather_takes_the_tokens_of_the_sequence(server):
    with hw.load_snapshot(server.put("/a", PLAIN)) as far:
        _ = far.seq_lens
        server.forget()
        far.gather(1, seqs=[0])
    # pages 3, 9 and 10, and 12 tokens of page 20; the tables of the tensors came with their descriptors
    last = 12 * PAGE_BYTES // 16
    assert sorted(count for _, count in server.requests) == [last] * 2 + [PAGE_BYTES] * 2 + [2 * PAGE_BYTES] * 2


def test_one_tensor_takes_little_more_than_its_pages(server):
    with hw.open(server.put("/a", PLAIN)) as file:
        server.forget()
        file["layers.0.value"].gather([1], max_len=20)
    assert server.asked <= 2 * PAGE_BYTES + 3 * (64 << 10)
    assert len(server.requests) <= 4


def test_a_compressed_gather_takes_the_frames_of_the_pages(server):
    data = FORMS["compressed"]
    with hw.load_snapshot(server.put("/a", data)) as far:
        server.forget()
        far.gather(1, seqs=[1])  # the first three pages of 24, in one of the two frames of each pool
        assert len(server.requests) == 2
        assert server.asked < len(data) * 2 // 5


def test_the_descriptors_of_a_snapshot_are_asked_for_side_by_side(server):
    tensors = [(np.full((1, *PAGE), k, np.float16), np.full((1, *PAGE), -k, np.float16)) for k in range(20)]
    out = io.BytesIO()
    hw.save_snapshot(out, tensors, block_tables=[[0]], seq_lens=[1], page_size=16)
    with hw.open(server.put("/a", out.getvalue())) as far:
        server.answer = range_server.together(8)
        assert len(far.snapshot().layers) == 20
    assert len(server.requests) <= 2 + 40
    assert server.most_at_once >= 8


def test_a_long_stretch_is_asked_for_in_parts_side_by_side(server):
    data = SOURCE_DATA * 3
    source = RemoteSource(server.put("/a", data), {})
    server.forget()
    server.answer = range_server.together(4)
    assert source.view(0, len(data)) == data
    assert len(server.requests) == 4  # 15 MiB
    assert server.most_at_once == 4


def test_small_neighbours_come_together(server):
    source = RemoteSource(server.put("/a", SOURCE_DATA), {})
    server.forget()
    for offset in range(1 << 20, (1 << 20) + (60 << 10), 4096):
        assert source.view(offset, 100) == SOURCE_DATA[offset : offset + 100]
    assert len(server.requests) == 1


def test_verify_takes_every_byte_about_once(server, form):
    with hw.open(server.put("/a", form)) as file:
        file.verify()
    assert server.asked <= len(form) + (200 << 10)
    assert len(server.requests) <= 12


def test_what_is_prefetched_is_bounded_and_told(server):
    data = SOURCE_DATA * 4
    source = RemoteSource(server.put("/a", data), {})
    ranges = [(k << 20, 1 << 20) for k in range(20)]
    taken = source.prefetch(ranges)
    assert 0 < taken < 20
    server.forget()
    for offset, length in ranges[:taken]:
        assert source.view(offset, length) == data[offset : offset + length]
    assert server.requests == []
    assert source.prefetch([(0, 20 << 20)]) == 1  # more than is held: left to the reading
    assert server.requests == []


def test_what_is_held_is_bounded_and_the_newest():
    held = _Extents(100)
    for start in range(0, 1000, 40):
        held.add(start, memoryview(bytes([start % 251]) * 40))
    assert held.find(0, 1) is None
    assert held.find(960, 40) == bytes([960 % 251]) * 40
    assert held.find(925, 30) == bytes([920 % 251]) * 30
    assert held.find(955, 10) is None  # in two pieces
    held.add(900, memoryview(bytes(100)))
    assert held.find(955, 10) == bytes(10)
    assert held.find(920, 40) == bytes(40)  # what it covers is not found in its stead
    held.clear()
    assert held.find(900, 1) is None


# -- servers that do not do as they are asked


@pytest.mark.parametrize("answer", [range_server.whole, range_server.unnamed])
def test_a_server_that_ignores_ranges_is_refused(server, answer):
    server.answer = answer
    url = server.put("/a", PLAIN)
    error = refused(hw.UnsupportedError, lambda: hw.open(url))
    assert error.rule == "file.range"
    assert "fetch the file first" in error.message


def test_a_whole_file_that_comes_unasked_is_not_taken(server):
    server.answer = range_server.whole
    url = server.put("/a", bytes(64 << 20))
    refused(hw.UnsupportedError, lambda: hw.open(url))
    server.close()  # what is still being sent has ended
    assert server.sent < 32 << 20


@pytest.mark.parametrize(
    ("answer", "error", "rule"),
    [
        (range_server.whole, hw.UnsupportedError, "file.range"),
        (range_server.elsewhere, hw.InvalidFileError, "file.range"),
        (range_server.shorter, hw.InvalidFileError, "file.range"),
        (range_server.too_little, hw.TruncatedError, "file.range"),
        (range_server.too_much, hw.InvalidFileError, "file.range"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_an_answer_that_is_not_what_was_asked_for_is_refused(server, answer, error, rule, late):
    server.tags = False
    url = server.put("/a", PLAIN)
    if not late:
        server.answer = answer
        assert refused(error, lambda: hw.open(url)).rule == rule
        return
    with hw.load_snapshot(url) as far:
        server.answer = answer
        assert refused(error, lambda: far.gather(1)).rule == rule
        server.answer = None
        assert_same(far.gather(1), hw.load_snapshot(PLAIN).gather(1))


def test_a_file_of_impossible_size_is_refused(server):
    server.answer = range_server.endless
    assert refused(hw.InvalidFileError, lambda: hw.open(server.put("/a", PLAIN))).rule == "file.range"


def test_a_connection_that_ends_early_is_an_error_of_the_system(server):
    server.tags = False
    url = server.put("/a", PLAIN)
    with hw.load_snapshot(url) as far:
        server.answer = range_server.cut_off
        error = refused(OSError, lambda: far.gather(1))
    assert error.__cause__ is not None
    pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize(
    ("status", "error"), [(404, FileNotFoundError), (403, PermissionError), (401, PermissionError), (500, OSError)]
)
def test_a_refusal_of_the_server_is_an_error_of_the_system(server, status, error):
    url = server.put("/a", PLAIN)
    server.answer = range_server.refusing(status)
    assert type(refused(error, lambda: hw.open(url))) is error


def test_a_server_that_is_not_there_is_an_error_of_the_system(server):
    server.close()
    refused(ConnectionError, lambda: hw.open(server.url + "/a"))


def test_a_server_that_does_not_encrypt_is_not_taken_for_a_missing_permission(server):
    url = server.put("/a", PLAIN).replace("http://", "https://")
    assert type(refused(OSError, lambda: hw.open(url))) is OSError


def test_an_empty_file_is_truncated(server):
    refused(hw.TruncatedError, lambda: hw.open(server.put("/a", b"")))


def test_what_is_no_such_file_is_refused_as_from_a_disk(server):
    refused(hw.InvalidFileError, lambda: hw.open(server.put("/a", SOURCE_DATA)))


def test_secrets_of_a_url_are_not_told(server):
    url = server.url.replace("://", "://me:pass@") + "/a?signature=secret"
    error = refused(FileNotFoundError, lambda: hw.open(url))
    assert str(server.url) + "/a" in str(error)
    assert "secret" not in str(error)
    assert "pass" not in str(error)


def test_secrets_of_an_impossible_url_are_not_told():
    error = refused(OSError, lambda: hw.open("http://me:pass@127.0.0.1:99999/a?signature=secret"))
    assert "http://127.0.0.1:99999/a" in str(error)
    assert "secret" not in str(error)
    assert "pass" not in str(error)


def test_a_file_that_is_compressed_in_the_servers_words_is_read_as_it_is_stored(server):
    server.extra = {"Content-Encoding": "gzip"}
    with hw.load_snapshot(server.put("/a", FORMS["compressed"])) as far:
        assert far.layers == (0, 1)


# -- files that change


@pytest.mark.parametrize(
    ("tags", "change"),
    [
        (True, PLAIN[:-1] + bytes([PLAIN[-1] ^ 1])),
        (True, PLAIN + b"more"),
        (False, PLAIN + b"more"),
        (False, PLAIN[:1000]),
        (False, b""),
    ],
    ids=["bytes", "longer, tagged", "longer", "shorter", "empty"],
)
def test_a_file_that_changes_is_noticed(server, tags, change):
    server.tags = tags
    with hw.load_snapshot(server.put("/a", PLAIN)) as far:
        server.put("/a", change)
        assert refused(hw.InvalidFileError, lambda: far.gather(1)).rule == "file.changed"


def test_a_file_that_changes_without_a_tag_is_noticed_by_its_date(server):
    server.tags = False
    server.extra = {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
    with hw.load_snapshot(server.put("/a", PLAIN)) as far:
        server.extra = {"Last-Modified": "Thu, 01 Jan 2026 00:00:01 GMT"}
        assert refused(hw.InvalidFileError, lambda: far.gather(1)).rule == "file.changed"


def test_a_file_that_is_gone_is_not_found(server):
    with hw.load_snapshot(server.put("/a", PLAIN)) as far:
        del server.files["/a"]
        refused(FileNotFoundError, lambda: far.gather(1))


@pytest.mark.parametrize("change", [PLAIN, PLAIN + b"more", b""], ids=["written again", "longer", "empty"])
def test_a_file_in_memory_that_changes_is_noticed(memory, change):
    memory.pipe_file("/a.hrry", PLAIN)
    with hw.load_snapshot("memory://a.hrry") as far:
        memory.pipe_file("/a.hrry", change)
        error = refused(hw.InvalidFileError, lambda: far.gather(1))
        assert error.rule in ("file.changed", "file.range")


def test_a_name_that_is_missing_or_a_folder_is_an_error_of_the_system(memory):
    memory.pipe_file("/folder/a.hrry", PLAIN)
    refused(FileNotFoundError, lambda: hw.open("memory://nothing.hrry"))
    refused(IsADirectoryError, lambda: hw.open("memory://folder"))


# -- other file systems


class _ForeignError(Exception):
    """As a library would raise it."""


class _OddFileSystem(AsyncFileSystem):
    """A file system of the asynchronous kind, with one file, that can misbehave."""

    protocol = "odd"
    cachable = False
    data = PLAIN
    misbehaves = ""

    async def _info(self, path, **_):
        if self.misbehaves == "no size":
            return {"name": path, "size": None, "type": "file"}
        return {"name": path, "size": len(self.data), "type": "file", "etag": zlib.crc32(self.data)}

    async def _cat_file(self, path, start=None, end=None, **_):
        if self.misbehaves == "foreign":
            raise _ForeignError("of its own")
        if self.misbehaves == "timeout":
            raise TimeoutError
        if self.misbehaves == "whole":
            return self.data
        return self.data[start : end - (self.misbehaves == "short")]


@pytest.fixture
def odd(monkeypatch):
    fsspec.register_implementation("odd", _OddFileSystem, clobber=True)
    return lambda misbehaves, data=PLAIN: (
        monkeypatch.setattr(_OddFileSystem, "misbehaves", misbehaves),
        monkeypatch.setattr(_OddFileSystem, "data", data),
    )


def test_any_file_system_of_fsspec_is_read(odd):
    odd("")
    with hw.load_snapshot("odd://a.hrry") as far, hw.load_snapshot(PLAIN) as near:
        assert_same(far.gather(0), near.gather(0))
        odd("", PLAIN[:-1] + b"?")
        assert refused(hw.InvalidFileError, lambda: far.gather(1)).rule == "file.changed"


@pytest.mark.parametrize(
    ("misbehaves", "error"),
    [
        ("no size", hw.UnsupportedError),
        ("short", hw.TruncatedError),
        ("whole", hw.InvalidFileError),
        ("foreign", OSError),
        ("timeout", TimeoutError),
    ],
)
def test_a_file_system_that_misbehaves_is_refused(odd, misbehaves, error):
    odd(misbehaves)
    raised = refused(error, lambda: hw.open("odd://a.hrry"))
    if misbehaves in ("foreign", "timeout"):
        assert raised.__cause__ is not None
        assert "odd://a.hrry" in str(raised)


def test_an_unknown_kind_of_url_is_refused():
    assert refused(hw.UnsupportedError, lambda: hw.open("nosuch://a.hrry")).rule == "file.url"


def test_without_fsspec_a_url_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setattr(remote_files, "fsspec", None)
    error = refused(hw.UnsupportedError, lambda: hw.open("https://host/a.hrry?secret"))
    assert error.rule == "file.url"
    assert "hurray_wire[remote]" in error.message
    assert "secret" not in error.message


def test_the_library_is_imported_without_fsspec():
    code = "import sys, hurray_wire, hurray_wire.cli.unpack; print('fsspec' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


# -- how it is held


def test_storage_options_reach_the_server(server):
    options = {"headers": {"Authorization": "Bearer it"}}
    with hw.open(server.put("/a", PLAIN), storage_options=options) as file:
        assert file.names
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer it"}


def test_storage_options_need_a_url(tmp_path):
    with pytest.raises(ValueError, match="storage_options"):
        hw.open(PLAIN, storage_options={"anon": True})


def test_a_closed_file_asks_for_nothing(server):
    file = hw.open(server.put("/a", PLAIN))
    tensor = file["layers.0.key"]
    table = tensor.block_table
    file.close()
    file.close()
    server.forget()
    with pytest.raises(ValueError, match="closed"):
        tensor.gather()
    assert table.tolist() == [3, 9, 10, 20, 0, 1, 2, 23, 8]  # what was taken stays
    assert server.requests == []


def test_tables_are_as_well_aligned_as_in_the_file(server, form):
    with hw.load_snapshot(server.put("/a", form)) as far:
        for tensor in far.tensors:
            assert tensor.block_table.flags.aligned
            assert tensor.seq_ptr.flags.aligned


def test_threads_share_one_file(server, form):
    url = server.put("/a", form)
    near = hw.load_snapshot(form)
    with hw.load_snapshot(url) as far:
        start = threading.Barrier(8)

        def gather(number):
            start.wait()
            return far.gather(number % LAYERS, seqs=[number % 3])

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(gather, range(8)))
    for number, result in enumerate(found):
        assert_same(result, near.gather(number % LAYERS, seqs=[number % 3]))


def test_a_forked_process_connects_anew(server):
    url = server.put("/a", FORMS["compressed"])
    code = f"""
import os, sys, warnings
import hurray_wire as hw
warnings.simplefilter("ignore")
with hw.load_snapshot({url!r}) as far:
    far.gather(0)
    child = os.fork()
    if not child:
        os._exit(0 if far.gather(1)["keys"].shape[0] == 3 else 1)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_annotate_takes_a_url(server):
    assert list(annotate(server.put("/a", PLAIN))) == list(annotate(PLAIN))

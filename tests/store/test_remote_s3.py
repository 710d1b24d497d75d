"""Files in an object store, which is moto's S3 server on the loopback."""

from __future__ import annotations

import io
import os

import numpy as np
import pytest
from requirements import REQUIRE_ALL

import hurray_wire as hw

if os.environ.get(REQUIRE_ALL) != "1":
    pytest.importorskip("s3fs", reason="the extra 'dev-s3' is not installed")
    pytest.importorskip("moto.server", reason="the extra 'dev-s3' is not installed")

import s3fs
from moto.server import ThreadedMotoServer

# what these libraries say about themselves and each other is no concern of ours
pytestmark = pytest.mark.filterwarnings("ignore")

PAGES = 24
PAGE_BYTES = 64 << 10


def snapshot_bytes(seed: int, **options: object) -> bytes:
    rng = np.random.default_rng(seed)
    pools = [rng.integers(0, 99, (PAGES, 16, 8, 256)).astype(np.float16) for _ in range(4)]
    out = io.BytesIO()
    layers = [(pools[0], pools[1]), (pools[2], pools[3])]
    tables = [[3, 9, 10, 20], [0, 1, 2, -1]]
    hw.save_snapshot(
        out, layers, block_tables=tables, seq_lens=[60, 41], page_size=16, compact=False, scrub=False, **options
    )
    return out.getvalue()


FORMS = {
    "a.hrry": snapshot_bytes(1),
    "a.hrry.zst": snapshot_bytes(1, zstd=1),
    "planes.hrry.zst": snapshot_bytes(1, zstd=1, planes=True),
}


class Bucket:
    def __init__(self, options: dict[str, object]) -> None:
        self.options = options
        self.files = s3fs.S3FileSystem(**options)
        self.files.mkdir("bucket")
        self.asked: list[tuple[int, int]] = []  # first byte and number of bytes of each request

    def put(self, key: str, data: bytes) -> str:
        self.files.pipe_file(f"bucket/{key}", data)
        return f"s3://bucket/{key}"


@pytest.fixture(scope="module")
def store():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {
        "key": "testing",
        "secret": "testing",
        "endpoint_url": f"http://{host}:{port}",
        "client_kwargs": {"region_name": "eu-west-1"},
    }
    yield Bucket(options)
    server.stop()


@pytest.fixture
def bucket(store, monkeypatch):
    send = s3fs.S3FileSystem._call_s3

    async def counting(self, method, *args, **options):
        if method == "get_object":
            first, last = map(int, options["Range"].removeprefix("bytes=").split("-"))
            store.asked.append((first, last + 1 - first))
        return await send(self, method, *args, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", counting)
    store.asked.clear()
    return store


@pytest.mark.parametrize("key", FORMS)
def test_an_object_gives_what_the_file_holds(bucket, key):
    url = bucket.put(key, FORMS[key])
    with hw.load_snapshot(url, storage_options=bucket.options) as far, hw.load_snapshot(FORMS[key]) as near:
        for layer in near.layers:
            found, wanted = far.gather(layer), near.gather(layer)
            assert all(np.array_equal(found[name], wanted[name]) for name in ("keys", "values", "mask"))
        assert far.verify() == near.verify()


def test_opening_and_gathering_take_ranges(bucket):
    url = bucket.put("a.hrry", FORMS["a.hrry"])
    with hw.open(url, storage_options=bucket.options) as file:
        assert len(bucket.asked) == 2
        far = file.snapshot()
        _ = far.seq_lens
        bucket.asked.clear()
        far.gather(1, seqs=[0])
    # pages 3, 9 and 10, and 12 tokens of page 20, of two pools
    last = 12 * PAGE_BYTES // 16
    assert sorted(count for _, count in bucket.asked) == [last] * 2 + [PAGE_BYTES] * 2 + [2 * PAGE_BYTES] * 2


@pytest.mark.parametrize("change", [snapshot_bytes(2), FORMS["a.hrry"][:1000], b""], ids=["bytes", "shorter", "empty"])
def test_an_object_that_changes_is_noticed(bucket, change):
    url = bucket.put("changing.hrry", FORMS["a.hrry"])
    with hw.load_snapshot(url, storage_options=bucket.options) as far:
        bucket.put("changing.hrry", change)
        with pytest.raises(hw.InvalidFileError) as caught:
            far.gather(1)
        assert caught.value.rule == "file.changed"


def test_an_object_that_is_gone_is_not_found(bucket):
    url = bucket.put("gone.hrry", FORMS["a.hrry"])
    with hw.load_snapshot(url, storage_options=bucket.options) as far:
        bucket.files.rm_file("bucket/gone.hrry")
        with pytest.raises(FileNotFoundError):
            far.gather(1)


def test_an_object_that_is_missing_is_not_found(bucket):
    with pytest.raises(FileNotFoundError):
        hw.open("s3://bucket/nothing.hrry", storage_options=bucket.options)
    with pytest.raises(FileNotFoundError):
        hw.open("s3://nowhere/nothing.hrry", storage_options=bucket.options)


def test_an_empty_object_is_truncated(bucket):
    with pytest.raises(hw.TruncatedError):
        hw.open(bucket.put("empty.hrry", b""), storage_options=bucket.options)


def test_an_object_store_that_is_not_there_is_an_error_of_the_system(bucket):
    options = bucket.options | {"endpoint_url": "http://127.0.0.1:1", "config_kwargs": {"retries": {"max_attempts": 0}}}
    with pytest.raises(OSError, match=r"s3://bucket/a\.hrry") as caught:
        hw.open("s3://bucket/a.hrry", storage_options=options)
    assert type(caught.value).__module__ == "builtins"

"""Compressed files that others made (spec/compressed.md): plain zstd, other cuts, and a judge of the seekable form."""

from __future__ import annotations

import io
import random

import pytest
import zstandard
from compressed_cases import (
    SKIPPABLE,
    assembled,
    compressed,
    cut,
    entry_of,
    everything,
    lengths,
    paged,
    refusal,
    table_of,
    written,
)
from pyzstd import SeekableZstdFile

import hurray_wire as hw
from hurray_wire.limits import Limits
from hurray_wire.store import compressed_source

LENS = (100, 3, 60)
TENSORS = [lengths(LENS), *(paged(f"layers.{k}.key", num_pages=200, lens=LENS, seed=k) for k in range(3))]
PLAIN = written(TENSORS)
EVERYTHING = everything(PLAIN)


def streamed(content, *, size):
    """A frame that does not tell its size, in blocks of so many bytes."""
    context = zstandard.ZstdCompressor(level=1, write_checksum=True, write_content_size=False).compressobj()
    parts = []
    for start in range(0, len(content), size):
        parts += [context.compress(content[start : start + size]), context.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)]
    return b"".join([*parts, context.flush()])


EMPTY = compressed(b"")
UNTOLD_EMPTY = compressed(b"", write_content_size=False)
HALF = len(PLAIN) // 2


@pytest.mark.parametrize(
    "plain",
    [
        compressed(PLAIN),
        compressed(PLAIN, write_checksum=False),
        compressed(PLAIN, write_content_size=False),
        compressed(PLAIN, write_content_size=False, write_checksum=False),
        streamed(PLAIN, size=1000),
        compressed(PLAIN[:HALF]) + compressed(PLAIN[HALF:], write_content_size=False),
        SKIPPABLE + compressed(PLAIN[:HALF]) + SKIPPABLE + SKIPPABLE + compressed(PLAIN[HALF:]) + SKIPPABLE,
        EMPTY + compressed(PLAIN) + UNTOLD_EMPTY + EMPTY,
        b"".join(compressed(PLAIN[at : at + 1]) for at in range(50)) + compressed(PLAIN[50:]),
    ],
    ids=["one", "no-checksum", "no-size", "neither", "blocks", "two", "skippable", "empty", "many"],
)
def test_a_plain_zstd_file_is_read(plain, tmp_path):
    assert everything(plain) == EVERYTHING
    (tmp_path / "cache").write_bytes(plain)
    assert everything(tmp_path / "cache") == EVERYTHING
    assert everything(tmp_path / "cache", mmap=False) == EVERYTHING
    assert not hw.open(plain).compression.seekable


def test_a_file_whose_table_is_gone_is_a_plain_zstd_file():
    data = written(TENSORS, zstd=1)
    for missing in (data[: -len(table_of(data)) * 12 - 17], data[:-1] + b"\0"):
        assert everything(missing) == EVERYTHING
        assert not hw.open(missing).compression.seekable


def test_arrays_of_a_plain_zstd_file_are_views_that_outlive_it():
    with hw.open(compressed(PLAIN)) as file:
        pool = file["layers.0.key"].page_pool
        assert pool.base is not None
    assert pool.tobytes() == TENSORS[1][2][0]


@pytest.mark.parametrize("size", [1, 37, 1000, 5000, 2**30])
def test_pyzstd_reads_ours_at_any_offset_and_we_read_what_it_wrote(size):
    rng = random.Random(size)
    with SeekableZstdFile(io.BytesIO(written(TENSORS, zstd=1)), "r") as file:
        assert file.seek(0, io.SEEK_END) == len(PLAIN)
        for _ in range(100):
            at = rng.randrange(len(PLAIN))
            file.seek(at)
            length = rng.randrange(3000)
            assert file.read(length) == PLAIN[at : at + length]
    out = io.BytesIO()
    part = PLAIN if size > 1 else written([paged(num_pages=14)], checksums=False)
    with SeekableZstdFile(out, "w", max_frame_content_size=size) as file:
        file.write(part)
    assert everything(out.getvalue()) == everything(part)


@pytest.mark.parametrize("options", [{}, {"write_checksum": False}, {"write_content_size": False}])
def test_frames_may_be_cut_anywhere_and_tell_as_little_as_the_table_allows(options):
    rng = random.Random(7)
    for _ in range(5):
        sizes = [rng.choice((0, 1, 5, 100, 4095, 4096, 5000)) for _ in range(12)]
        data = cut(PLAIN, sizes, **options)
        assert everything(data) == EVERYTHING
        frames, entries = data[: -len(table_of(data)) * 12 - 17], table_of(data)
        assert everything(assembled([frames], [entry[:2] for entry in entries], flag=0)) == EVERYTHING


def test_a_listed_skippable_frame_holds_nothing():
    pieces = [PLAIN[:5000], b"", PLAIN[5000:]]
    frames = [compressed(pieces[0]), SKIPPABLE, compressed(pieces[2])]
    assert everything(assembled(frames, [entry_of(*p) for p in zip(frames, pieces, strict=True)])) == EVERYTHING


def test_a_frame_larger_than_what_is_kept_is_inflated_once_for_neighbouring_requests(monkeypatch):
    monkeypatch.setattr(compressed_source, "_CACHE_BYTES", 1000)
    with hw.open(cut(PLAIN, [])) as file:
        file.verify()
        assert file.compression.inflated == 1


def test_a_plain_file_is_inflated_within_its_limit():
    for plain in (compressed(PLAIN), compressed(PLAIN, write_content_size=False), streamed(PLAIN, size=999)):
        assert hw.open(plain, limits=Limits(max_inflated_bytes=len(PLAIN))).verify()
        found = refusal(plain, limits=Limits(max_inflated_bytes=len(PLAIN) - 1))
        assert isinstance(found, hw.LimitError)
        assert found.rule == "limit.inflated-bytes"


def wide(content, window):
    """A frame with a window of 2**window bytes, made before it is known how little there is to come."""
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=window)
    context = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return context.compress(content) + context.flush()


def test_a_plain_frame_has_a_window_that_every_zstd_tool_takes():
    assert everything(wide(PLAIN, 27)) == EVERYTHING
    found = refusal(wide(PLAIN, 28))
    assert isinstance(found, hw.LimitError)
    assert (found.rule, found.found) == ("limit.window", 1 << 28)


def test_the_number_of_frames_has_a_limit():
    data = written(TENSORS, zstd=1)
    assert hw.open(data, limits=Limits(max_frames=len(table_of(data)))).verify()
    assert refusal(data, limits=Limits(max_frames=len(table_of(data)) - 1)).rule == "limit.frames"

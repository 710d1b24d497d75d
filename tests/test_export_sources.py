"""Where the pages of an export come from: any source, any tables, any page size, and only the pages that are needed."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from export_cases import DIM, HEADS, LAYERS, LENS, PAGE, ROLES, TABLES, numbered, pairs, pool, resaved, saved, tokens

import hurray_wire as hw

SOURCES = ["mapped", "plain", "object", "zstd", "planes"]


def loaded(tmp_path: Path, source: str, layers: Any = None, **options: Any) -> hw.Snapshot:
    more = {"zstd": {"zstd": 1}, "planes": {"zstd": 1, "planes": True}}.get(source, {})
    data = saved(layers, **more, **options)
    if source == "object":
        return hw.load_snapshot(io.BytesIO(data))
    path = tmp_path / "cache.hrry"
    path.write_bytes(data)
    return hw.load_snapshot(path, mmap=source != "plain")


def check(exported: hw.Exported, layers: Any = None) -> None:
    for layer, pair in enumerate(pairs() if layers is None else layers):
        for array, source in zip(exported.arrays[layer], pair, strict=True):
            for seq in range(len(LENS)):
                assert tokens(array, seq, tables=exported.block_tables) == tokens(source, seq)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("page_size", [None, 6, 16])
def test_every_source_gives_the_same_pages(tmp_path, source, page_size) -> None:
    with loaded(tmp_path, source) as snapshot:
        check(snapshot.export(page_size=page_size))
        dense = snapshot.export(layout="dense-thd", form="ragged").arrays[1][1]
    expected = [token for seq in range(len(LENS)) for token in tokens(pool(1, "value"), seq)]
    assert [token.tobytes() for token in dense] == expected


@pytest.mark.parametrize("source", SOURCES)
def test_real_numbers_come_from_every_source(tmp_path, source) -> None:
    layers = [(np.arange(7 * PAGE * 2 * 6, dtype=np.float16).reshape(7, PAGE, 2, 6), None)]
    with loaded(tmp_path, source, layers, quantize="int8") as snapshot:
        keys = snapshot.export(dequantize=True).arrays[0]["key"]
        gathered = snapshot.gather(0, dequantize=True)["keys"]
    for seq, length in enumerate(LENS):
        for token in range(length):
            old = layers[0][0][TABLES[seq][token // PAGE], token % PAGE].astype(np.float64)
            for found in (gathered[seq, token], keys[[[0, 1], [0, 2, 3], [], [4]][seq][token // PAGE], token % PAGE]):
                assert np.abs(found - old).max() <= np.abs(old).max() / 254 * (1 + 2**-15)


class Recorder(io.BytesIO):
    """A file that remembers which of its bytes were read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.touched: set[int] = set()

    def read(self, size: int | None = -1) -> bytes:
        start = self.tell()
        data = super().read(size)
        self.touched.update(range(start, start + len(data)))
        return data


@pytest.mark.parametrize("page_size", [None, 8])
def test_only_the_pages_of_the_chosen_sequences_and_layers_are_read(page_size) -> None:
    file = Recorder(saved())
    snapshot = hw.load_snapshot(file)
    file.touched.clear()
    snapshot.export(seqs=[3, 0], layers=[1], page_size=page_size)
    data = file.getvalue()
    expected = set()
    for role in ROLES:
        for page in (3, 5, 2):
            whole = pool(1, role)[page].copy()
            whole[[3, 4, 2][[3, 5, 2].index(page)] :] = 0  # scrubbed when it was saved
            start = data.index(whole.tobytes())
            expected |= set(range(start, start + whole.nbytes))
    pools = set()
    for layer, role in np.ndindex(LAYERS, 2):
        start = data.index(pool(layer, ROLES[role])[5].tobytes())
        pools |= set(range(start, start + 5 * pool(0, "key")[0].nbytes))
    assert file.touched & pools == expected


def foreign(tables: list[list[list[int]]], sizes: list[int]) -> bytes:
    """A snapshot whose tensors have tables, and page sizes, of their own: as another writer may make it."""
    out = io.BytesIO()
    with hw.create(out) as writer:
        lens = np.array(LENS, np.uint32)
        writer.add("seq_lens", hw.TensorDescriptor.build(hw.uint32, (4,), hw.RowMajorLayout(), (16,)), [lens])
        for number, (table, size) in enumerate(zip(tables, sizes, strict=True)):
            pages = max(page for row in table for page in row) + 1
            stored = np.zeros((pages, size, HEADS, DIM), ml_dtypes.bfloat16)
            for seq, row in enumerate(table):
                for token in range(LENS[seq]):
                    source = pool(number // 2, ROLES[number % 2])[TABLES[seq][token // PAGE], token % PAGE]
                    stored[row[token // size], token % size] = source
            flat = np.array([page for row in table for page in row], np.uint32)
            ptr = np.cumsum([0, *map(len, table)]).astype(np.uint32)
            layout = hw.BlockPagedLayout(
                page_size=size, num_pages=pages, paged_axis=0, num_seqs=4, kv_role=ROLES[number % 2],
                layer_index=number // 2, block_table_index_type="uint32",
            )  # fmt: skip
            buffers = (stored, flat, ptr)
            descriptor = hw.TensorDescriptor.build(
                hw.bfloat16, (sum(LENS), HEADS, DIM), layout, [buffer.nbytes for buffer in buffers]
            )
            writer.add(f"t{number}", descriptor, [stored.view(np.uint8), flat, ptr])
    return out.getvalue()


SHARED = [[0, 1], [0, 2, 3], [], [4]]
APART = [[5, 1], [0, 4, 2], [], [3]]
RENUMBERED = [[3, 0], [3, 4, 1], [], [2]]
HALVES = [[0, 1, 2], [0, 1, 3, 4, 5, 6], [], [8, 7]]
SPARE = [[0, 1, 9, 9], [0, 2, 3], [7], [4]]  # pages beyond the lengths


@pytest.mark.parametrize(
    ("tables", "sizes", "pages"),
    [
        ([SHARED, RENUMBERED, SHARED, SPARE], [4, 4, 4, 4], 5),
        ([SHARED, APART, RENUMBERED, SHARED], [4, 4, 4, 4], 6),
        ([SHARED, HALVES, HALVES, APART], [4, 2, 2, 4], 6),
        ([HALVES, SHARED, RENUMBERED, HALVES], [2, 4, 4, 2], 5),
    ],
    ids=["numbered-differently", "shared-differently", "cut-differently", "first-is-smaller"],
)
@pytest.mark.parametrize("page_size", [4, 6])
def test_one_table_serves_tensors_that_have_their_own(tables, sizes, pages, page_size) -> None:
    snapshot = hw.load_snapshot(foreign(tables, sizes))
    exported = snapshot.export(page_size=page_size)
    check(exported)
    if page_size == 4:
        assert exported.arrays[0][0].shape[0] == snapshot.count_pages(page_size=4) == pages
    ids = list(range(20, 0, -1))[: snapshot.count_pages(page_size=page_size)]
    out = [tuple(np.zeros((24, page_size, HEADS, DIM), ml_dtypes.bfloat16) for _ in ROLES) for _ in range(LAYERS)]
    check(snapshot.export(page_size=page_size, out=out, page_ids=ids))
    assert not any(array[0].view(np.uint16).any() for entry in out for array in entry)


def test_a_page_is_kept_as_far_as_its_longest_sequence_needs(monkeypatch) -> None:
    monkeypatch.setattr(f"{__name__}.LENS", lens := [3, 1, 0, 2])
    monkeypatch.setattr(f"{__name__}.TABLES", table := [[2], [2], [], [2]])
    snapshot = hw.load_snapshot(foreign([[[0], [0], [], [0]], [[1], [1], [], [1]]] * 2, [4, 4, 4, 4]))
    exported = snapshot.export()
    assert exported.block_tables.tolist() == [[0], [0], [-1], [0]]
    for array, role in zip(exported.arrays[1], ROLES, strict=True):
        found = tokens(array, 0, tables=exported.block_tables, lens=lens)
        assert found == tokens(pool(1, role), 0, tables=table, lens=lens)
        assert not array[0, 3].view(np.uint16).any()


@pytest.mark.parametrize("sizes", [(16, 64), (64, 16), (4, 6), (6, 4), (3, 1)])
def test_pages_are_cut_anew_and_back(sizes) -> None:
    old, new = sizes
    lens = [old * 5 + 1, 2, 0, old * 4, new * 2]
    table, page = [], 0
    for length in lens:
        count = -(-length // old)
        table.append(list(range(page, page + count)))
        page += count
    table[3] = table[0][:4]  # shares the first four pages of sequence 0
    source = numbered(page, old, 2, 3)
    there = hw.load_snapshot(saved([(source, source)], block_tables=table, seq_lens=lens))
    repaged = there.export(page_size=new)
    assert repaged.arrays[0][0].shape[1] == new
    back = hw.load_snapshot(resaved(repaged)).export(page_size=old)
    for exported in (repaged, back):
        for seq in range(len(lens)):
            assert tokens(exported.arrays[0][0], seq, tables=exported.block_tables, lens=lens) == tokens(
                source, seq, tables=table, lens=lens
            )


@pytest.mark.parametrize("source", ["mapped", "plain", "zstd"])
@pytest.mark.parametrize("layout", ["split-nhd", "split-hnd", "vllm-packed"])
def test_no_pool_is_held_while_pages_are_written(tmp_path, source, layout) -> None:
    pages, size = 512, 16
    big = np.random.default_rng(0).integers(0, 4, (pages, size, 8, 64), dtype=np.uint16)  # 8 MiB
    table = np.random.default_rng(1).permutation(pages).reshape(8, -1)
    with loaded(tmp_path, source, [(big, big)], block_tables=table, seq_lens=[1024] * 8) as snapshot:
        out = snapshot.export(layout=layout).arrays  # arrays of that shape; the file's pages are in the page cache
        tracemalloc.start()
        try:
            snapshot.export(layout=layout, out=out, page_ids=np.arange(pages)[::-1])
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # a MiB for each of the threads and what they work on; inflated frames are kept in addition
    frames = 18 << 20 if source == "zstd" else 0
    assert peak < frames + (6 << 20)


def test_pages_are_read_by_id(tmp_path) -> None:
    for source in SOURCES:
        with loaded(tmp_path, source, compact=False, scrub=False) as snapshot:
            read = snapshot[1].key.read_pages([6, 0, 6])
            assert read.dtype == ml_dtypes.bfloat16
            assert read.tobytes() == pool(1, "key")[[6, 0, 6]].tobytes()
            assert read.flags.writeable
            assert snapshot[1].key.read_pages(np.empty(0, int)).shape == (0, PAGE, HEADS, DIM)
            for bad in ([7], [-1], np.array([2**64 - 1], np.uint64)):
                with pytest.raises(hw.InvalidDescriptorError, match="has no page") as refusal:
                    snapshot[1].key.read_pages(bad)
                assert refusal.value.rule == "block-paged.page-id"
            for bad in ([[1]], [1.0], 3):
                with pytest.raises(hw.BufferSizeError, match="a vector of integers"):
                    snapshot[1].key.read_pages(bad)
            assert snapshot[1].key.lends_pages == (source == "mapped")


def test_pages_of_packed_elements_are_read_unpacked(tmp_path) -> None:
    for shape in ((7, PAGE, HEADS, DIM), (7, 3, 1, 3)):  # a page of the second does not fill whole bytes
        codes = np.random.default_rng(2).integers(0, 8, shape).astype(np.uint8).view(ml_dtypes.uint4)
        for source in ("mapped", "plain"):
            with loaded(
                tmp_path, source, [(codes, None)], compact=False, scrub=False, block_tables=[[0]], seq_lens=[1]
            ) as snapshot:
                assert not snapshot[0].key.lends_pages
                assert (
                    snapshot[0].key.read_pages([5, 2]).view(np.uint8).tolist() == codes[[5, 2]].view(np.uint8).tolist()
                )


def test_real_numbers_of_pages_are_read(tmp_path) -> None:
    values = np.random.default_rng(3).standard_normal((7, PAGE, HEADS, DIM)).astype(np.float32)
    for source in ("mapped", "plain", "zstd"):
        with loaded(tmp_path, source, [(values, None)], quantize="int8", compact=False, scrub=False) as snapshot:
            read = snapshot[0].key.read_pages([6, 0], dequantize=True)
            worst = np.abs(values[[6, 0]]).max(axis=(2, 3), keepdims=True)
            assert read.dtype == np.float32
            assert (np.abs(read - values[[6, 0]].astype(np.float64)) <= worst / 254 * (1 + 2**-15)).all()

"""A cache without pages is saved as one with pages: cut while it is written, token for token."""

from __future__ import annotations

import io
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from export_cases import numbered

import hurray_wire as hw

HEADS, DIM, PADDED = 2, 3, 11
LENS = [7, 0, 11, 4]


def batch(start: int, dtype=ml_dtypes.bfloat16) -> np.ndarray:
    return numbered(len(LENS), HEADS, PADDED, DIM, start=start, dtype=dtype)


def forms(array: np.ndarray, *, left_padded: bool = False) -> dict:
    rows = [row.transpose(1, 0, 2) for row in array]
    mine = [row[PADDED - length :] if left_padded else row[:length] for row, length in zip(rows, LENS, strict=True)]
    return {"batch": array, "ragged": np.concatenate(mine), "sequences": mine}


def check(snapshot: hw.Snapshot, layer: int, role: str, start: int, *, left_padded: bool = False) -> None:
    gathered = getattr(snapshot[layer], role).gather()
    array = batch(start)
    for seq, length in enumerate(LENS):
        for token in range(length):
            at = PADDED - length + token if left_padded else token
            assert gathered.values[seq, token].tobytes() == array[seq, :, at].tobytes()
    assert gathered.mask.sum(axis=1).tolist() == LENS


def dense(layers, **options) -> bytes:
    out = io.BytesIO()
    hw.save_snapshot(out, layers, layout="dense-thd", **({"seq_lens": LENS} | options))
    return out.getvalue()


@pytest.mark.parametrize("form", ["batch", "ragged", "sequences"])
@pytest.mark.parametrize("page_size", [1, 2, 3, 4, 16, None])
@pytest.mark.parametrize("options", [{}, {"compact": False}, {"scrub": False, "compact": False}, {"zstd": 1}])
def test_tokens_are_found_in_pages(form, page_size, options) -> None:
    layers = {5: (forms(batch(1))[form], forms(batch(50))[form]), 6: (forms(batch(100))[form], forms(batch(150))[form])}
    snapshot = hw.load_snapshot(dense(layers, page_size=page_size, **options))
    assert snapshot.metadata["source.layout"] == "dense-thd"
    for layer, starts in ((5, (1, 50)), (6, (100, 150))):
        check(snapshot, layer, "key", starts[0])
        check(snapshot, layer, "value", starts[1])
    size = 16 if page_size is None else page_size
    assert snapshot[5].key.layout.page_size == size
    assert snapshot[5].key.layout.num_pages == sum(-(-length // size) for length in LENS)
    snapshot.verify()


def test_padding_may_come_first() -> None:
    snapshot = hw.load_snapshot(dense([(batch(1), batch(50))], left_padded=True, page_size=4))
    check(snapshot, 0, "key", 1, left_padded=True)
    check(snapshot, 0, "value", 50, left_padded=True)


@pytest.mark.parametrize("scrub", [True, False])
def test_padding_of_the_batch_and_of_the_pages_is_not_written(scrub, monkeypatch) -> None:
    monkeypatch.setattr("hurray_wire.selection._CHUNK_BYTES", 1)  # 8 pages at once, in memory that is used again
    pool = hw.load_snapshot(dense([(batch(1), None)], page_size=2, scrub=scrub))[0].key.page_pool.view(np.uint16)
    used = np.array([2, 2, 2, 1, 2, 2, 2, 2, 2, 1, 2, 2])  # of the pages of 7, 11 and 4 tokens
    assert pool[np.arange(2) < used[:, np.newaxis]].all()
    assert not pool[np.arange(2) >= used[:, np.newaxis]].any()


def test_any_strides_and_byte_order_are_written_by_value() -> None:
    expected = dense([(batch(1, np.uint16), None)], page_size=4)
    spread = np.zeros((len(LENS), HEADS, PADDED, DIM, 2), np.uint16)
    spread[..., 1] = batch(1, np.uint16)
    for turned in (spread[..., 1], batch(1, np.uint16).astype(">u2"), np.asfortranarray(batch(1, np.uint16))):
        assert dense([(turned, None)], page_size=4) == expected


@pytest.mark.parametrize("staging", [1, 300, 4 << 20])
def test_the_size_of_the_staging_changes_nothing(staging, monkeypatch) -> None:
    expected = dense([(batch(1), batch(50))], page_size=2)
    monkeypatch.setattr("hurray_wire.selection._CHUNK_BYTES", staging)
    assert dense([(batch(1), batch(50))], page_size=2) == expected


def test_equal_pages_are_written_once_where_that_is_asked_for() -> None:
    array = batch(1)
    array[2, :, 4:8] = array[0, :, :4]
    snapshot = hw.load_snapshot(dense([(array, array)], page_size=4, deduplicate=True))
    assert snapshot[0].key.block_table.tolist() == [0, 1, 2, 0, 3, 4]  # the second page of sequence 2 was there
    gathered = snapshot[0].value.gather()
    for seq, length in enumerate(LENS):
        assert gathered.values[seq, :length].tobytes() == array[seq, :, :length].transpose(1, 0, 2).tobytes()


def test_a_cache_without_pages_is_quantized() -> None:
    values = np.random.default_rng(1).standard_normal((len(LENS), HEADS, PADDED, DIM)).astype(np.float32)
    values[0, :, 8] = np.nan  # padding
    found = hw.load_snapshot(dense([(values, None)], page_size=4, quantize="int8")).gather(0, dequantize=True)["keys"]
    for seq, length in enumerate(LENS):
        for token in range(length):
            exact = values[seq, :, token].astype(np.float64)
            assert np.abs(found[seq, token] - exact).max() <= np.abs(exact).max() / 254 * (1 + 2**-15)


def test_it_goes_over_a_stream() -> None:
    wire = io.BytesIO()
    hw.send_snapshot(wire, [(batch(1), batch(50))], layout="dense-thd", seq_lens=LENS, page_size=4)
    wire.seek(0)
    check(hw.receive_snapshot(wire), 0, "value", 50)


def test_a_batch_comes_back_as_a_batch() -> None:
    snapshot = hw.load_snapshot(dense([(batch(1), batch(50))]))
    ((keys, values),) = snapshot.export(layout="dense-thd").arrays
    for found, start in ((keys, 1), (values, 50)):
        for seq, length in enumerate(LENS):
            assert found[seq, :, :length].tobytes() == batch(start)[seq, :, :length].tobytes()


def test_what_has_no_pages_has_no_tables() -> None:
    for name in ("block_tables", "token_slots"):
        with pytest.raises(TypeError, match=f"a dense-thd cache has no block tables, so {name}= means nothing"):
            dense([(batch(1), None)], **{name: [[0]]})
    with pytest.raises(TypeError, match="form= is not for dense-thd: its arrays tell their form"):
        dense([(batch(1), None)], form="batch")
    with pytest.raises(TypeError, match="left_padded= is about a batch without pages, not split-nhd"):
        hw.save_snapshot(io.BytesIO(), [], block_tables=[[0]], seq_lens=[1], left_padded=True)
    with pytest.raises(hw.IncompatibleError, match="pass seq_lens="):
        dense([(batch(1), None)], seq_lens=None)
    with pytest.raises(hw.IncompatibleError, match="page_size is 0"):
        dense([(batch(1), None)], page_size=0)


def test_no_pool_is_held_while_pages_are_cut(tmp_path) -> None:
    keys = np.random.default_rng(2).integers(0, 9, (4, 8, 4096, 128), dtype=np.uint16)  # 32 MiB
    tracemalloc.start()
    try:
        hw.save_snapshot(tmp_path / "big.hrry", [(keys, keys)], layout="dense-thd", seq_lens=[4096, 4000, 4090, 1])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "big.hrry").stat().st_size > 47 << 20
    assert peak < 8 << 20

"""Tensor-parallel ranks: heads are split, merged, and moved from n ranks to m, with the scales that belong to them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from export_cases import LENS, PAGE, TABLES, numbered, saved, tokens

import hurray_wire as hw

HEADS, DIM = 4, 6
WHOLE = [
    (numbered(7, PAGE, HEADS, DIM, start=layer), numbered(7, PAGE, HEADS, DIM, start=layer + 96)) for layer in (0, 48)
]


def rank_file(rank: int, size: int, *, told: bool = True, layers: Any = WHOLE, **options: Any) -> bytes:
    """What one rank saves: its run of heads, under the same tables."""
    share = HEADS // size
    heads = slice(rank * share, (rank + 1) * share)
    mine = [tuple(None if array is None else array[:, :, heads] for array in pair) for pair in layers]
    return saved(mine, **({"tp_rank": rank, "tp_size": size} if told else {}), **options)


def check_heads(exported: hw.Exported, heads: slice, layers: Any = WHOLE) -> None:
    for pair, arrays in zip(layers, exported.arrays, strict=True):
        for source, array in zip(pair, arrays, strict=True):
            for seq in range(len(LENS)):
                assert tokens(array, seq, tables=exported.block_tables) == tokens(source[:, :, heads], seq)


@pytest.mark.parametrize("page_size", [PAGE, 16])
@pytest.mark.parametrize("size", [2, 4])
def test_a_snapshot_is_split_into_the_heads_of_each_rank_and_merged_again(size, page_size) -> None:
    whole = hw.load_snapshot(saved(WHOLE))
    shards = []
    for rank in range(size):
        exported = whole.export(tp_rank=rank, tp_size=size, page_size=page_size)
        share = HEADS // size
        check_heads(exported, slice(rank * share, (rank + 1) * share))
        again = saved(
            exported.arrays, block_tables=exported.block_tables, seq_lens=exported.seq_lens, tp_rank=rank, tp_size=size
        )
        shards.append(hw.load_snapshot(again))
    check_heads(hw.export_merged(shards), slice(HEADS))


@pytest.mark.parametrize("told", [True, False], ids=["by-metadata", "in-order"])
def test_ranks_are_merged(told) -> None:
    shards = [hw.load_snapshot(rank_file(rank, 2, told=told)) for rank in range(2)]
    check_heads(hw.export_merged(shards), slice(HEADS))
    if told:
        check_heads(hw.export_merged(shards[::-1]), slice(HEADS))


def test_two_ranks_become_four_or_one_each_from_the_snapshots_that_hold_its_heads() -> None:
    shards = [hw.load_snapshot(rank_file(rank, 2)) for rank in range(2)]
    for rank in range(4):
        check_heads(hw.export_merged(shards, tp_rank=rank, tp_size=4), slice(rank, rank + 1))
        check_heads(shards[rank // 2].export(tp_rank=rank, tp_size=4), slice(rank, rank + 1))
    check_heads(hw.export_merged(shards, tp_rank=0, tp_size=1), slice(HEADS))
    with pytest.raises(hw.IncompatibleError, match="head 3 is held by none"):
        shards[0].export(tp_rank=3, tp_size=4)


def test_a_rank_exports_its_own_heads_unless_it_is_asked_for_others() -> None:
    check_heads(hw.load_snapshot(rank_file(1, 2)).export(), slice(2, 4))


def test_a_merge_needs_no_rank_whose_heads_others_hold() -> None:
    rows = numbered(7, PAGE, 9)
    latent = hw.load_snapshot(saved([rows], layout="mla", tp_rank=1, tp_size=2))
    exported = hw.export_merged([latent], layout="mla")
    assert tokens(exported.arrays[0], 1, tables=exported.block_tables) == tokens(rows, 1)
    check_heads(hw.export_merged([hw.load_snapshot(rank_file(0, 4))], tp_rank=0, tp_size=4), slice(0, 1))


def test_four_ranks_become_two() -> None:
    shards = [hw.load_snapshot(rank_file(rank, 4)) for rank in range(4)]
    check_heads(hw.export_merged(shards, tp_rank=1, tp_size=2), slice(2, 4))
    check_heads(hw.export_merged(shards[2:], tp_rank=1, tp_size=2), slice(2, 4))


def test_heads_that_ranks_hold_copies_of_are_taken_once() -> None:
    two = [tuple(array[:, :, :2] for array in pair) for pair in WHOLE]
    copies = [
        hw.load_snapshot(
            saved(
                [tuple(array[:, :, rank // 2 :][:, :, :1] for array in pair) for pair in two], tp_rank=rank, tp_size=4
            )
        )
        for rank in range(4)
    ]
    check_heads(hw.export_merged(copies, num_heads=2), slice(2), two)
    check_heads(hw.export_merged(copies, num_heads=2, tp_rank=7, tp_size=8), slice(1, 2), two)
    check_heads(copies[3].export(num_heads=2, tp_rank=1, tp_size=2), slice(1, 2), two)
    with pytest.raises(hw.IncompatibleError, match="has 2 of 8 heads, but the snapshot has 1"):
        hw.export_merged(copies, num_heads=8)


def test_latent_rows_are_the_same_on_every_rank() -> None:
    rows = numbered(7, PAGE, 9)
    ranks = [hw.load_snapshot(saved([rows], layout="mla", tp_rank=rank, tp_size=2)) for rank in range(2)]
    for exported in (hw.export_merged(ranks, layout="mla"), ranks[1].export(layout="mla", tp_rank=5, tp_size=8)):
        for seq in range(len(LENS)):
            assert tokens(exported.arrays[0], seq, tables=exported.block_tables) == tokens(rows, seq)


def test_ranks_may_number_their_pages_and_cut_them_differently() -> None:
    """Each rank compacts, or not, and one has pages of another size."""
    first = hw.load_snapshot(rank_file(0, 2, compact=False))
    again = hw.load_snapshot(rank_file(1, 2)).export(page_size=8)
    second = hw.load_snapshot(saved(again.arrays, block_tables=again.block_tables, seq_lens=LENS, tp_rank=1, tp_size=2))
    for layout in ("split-nhd", "dense-thd"):
        exported = hw.export_merged([first, second], layout=layout)
        if layout == "split-nhd":
            assert exported.page_size == PAGE
            check_heads(exported, slice(HEADS))
        else:
            keys = exported.arrays[0][0][1].transpose(1, 0, 2)
            assert [token.tobytes() for token in keys] == tokens(WHOLE[0][0], 1)


def test_merging_writes_into_pools_of_the_caller() -> None:
    shards = [hw.load_snapshot(rank_file(rank, 2)) for rank in range(2)]
    out = [tuple(np.full((9, PAGE, HEADS, DIM), 7, ml_dtypes.bfloat16) for _ in pair) for pair in WHOLE]
    exported = hw.export_merged(shards, out=out, page_ids=[8, 1, 6, 3, 2])
    check_heads(exported, slice(HEADS))
    for pair in out:
        for array in pair:
            assert (array[[0, 4, 5, 7]] == 7).all()


def fp8(pair_scales: Any, rank: int | None = None) -> hw.Snapshot:
    layers = [
        tuple(array.view(np.uint8)[..., :DIM].view(ml_dtypes.float8_e4m3fn) for array in pair) for pair in WHOLE[:1]
    ]
    if rank is None:
        return hw.load_snapshot(saved(layers, scales=pair_scales))
    return hw.load_snapshot(rank_file(rank, 2, layers=layers, scales=pair_scales))


def test_scales_are_handed_back_whole_split_and_merged() -> None:
    by_head = np.array([1.5, 2, 4, 8], np.float32)
    whole = fp8([(by_head, 0.25)])
    scales = whole.export().scales
    assert list(scales) == [0]
    assert (scales[0]["key"].tolist(), scales[0]["value"].tolist()) == ([1.5, 2, 4, 8], 0.25)
    assert {scale.dtype for scale in scales[0].values()} == {np.dtype("f4")}
    part = whole.export(tp_rank=1, tp_size=2).scales
    assert (part[0]["key"].tolist(), part[0]["value"].tolist()) == ([4, 8], 0.25)
    ranks = [fp8([(by_head[:2], 0.25)], 0), fp8([(3.0, 0.25)], 1)]
    merged = hw.export_merged(ranks).scales
    assert (merged[0]["key"].tolist(), merged[0]["value"].tolist()) == ([1.5, 2, 3, 3], 0.25)
    unlike = hw.export_merged([fp8([(1.0, 0.5)], 0), fp8([(1.0, 0.25)], 1)]).scales
    assert (unlike[0]["key"].tolist(), unlike[0]["value"].tolist()) == (1.0, [0.5, 0.5, 0.25, 0.25])


def test_scales_come_back_as_save_snapshot_takes_them() -> None:
    exported = fp8([(np.array([1.5, 2, 4, 8], np.float32), 0.25)]).export()
    again = saved(
        exported.arrays, block_tables=exported.block_tables, seq_lens=exported.seq_lens, scales=exported.scales
    )
    with hw.open(again) as file:
        assert file["layers.0.key.scale"].numpy().tolist() == [1.5, 2, 4, 8]
        assert file["layers.0.value.scale"].numpy().tolist() == 0.25


def test_real_numbers_of_float8_caches_are_exported_with_their_scales_applied() -> None:
    by_head = np.array([1.5, 2, 4, 8], np.float32)
    ranks = [fp8([(by_head[:2], 0.25)], 0), fp8([(by_head[2:], 0.25)], 1)]
    stored = WHOLE[0][0].view(np.uint8)[..., :DIM].view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    real = stored * by_head.astype(np.float64)[:, np.newaxis]
    exported = hw.export_merged(ranks, dequantize=True)
    assert exported.scales == {}
    assert exported.arrays[0][0].dtype == np.float32
    for seq, length in enumerate(LENS):
        for token in range(length):
            found = exported.arrays[0][0][exported.block_tables[seq, token // PAGE], token % PAGE]
            np.testing.assert_array_equal(found, real[TABLES[seq][token // PAGE], token % PAGE].astype(np.float32))


@pytest.mark.parametrize(
    ("files", "options", "match"),
    [
        ([], {}, "no snapshot to export"),
        ([(0, 2), (0, 2)], {}, "two snapshots are the same rank"),
        ([(0, 2), (1, 4)], {}, "not ranks of one group"),
        ([(0, 2), (1, 2, {"told": False})], {}, "not ranks of one group"),
        ([(0, 2)], {"tp_rank": 0, "tp_size": 1}, "head 2 is held by none"),
        ([(0, 4)], {}, "ranks 1, 2, 3 of 4 are missing"),
        ([(0, 4), (1, 4)], {}, "ranks 2, 3 of 4 are missing"),
        ([(0, 2), (1, 2, {"layers": WHOLE[:1]})], {}, "different layers"),
        ([(0, 2), (1, 2, {"layer_indices": [0, 7]})], {}, "different layers"),
        ([(0, 2), (1, 2, {"layers": [(pair[0], None) for pair in WHOLE]})], {}, "different roles in layer 0"),
        ([(0, 2), (1, 2, {"layers": [(a[..., :5], b) for a, b in WHOLE]})], {}, "not shares of one tensor"),
        (
            [(0, 2), (1, 2, {"layers": [(a.view(np.float16), b) for a, b in WHOLE]})],
            {},
            "not shares of one tensor",
        ),
        ([(0, 2), (1, 2, {"seq_lens": [6, 11, 0, 3]})], {}, "another batch"),
        ([(0, 2), (1, 2)], {"num_heads": 3}, "3 heads cannot be shared equally"),
    ],
)
def test_snapshots_that_do_not_go_together_are_refused(files, options, match) -> None:
    snapshots = [hw.load_snapshot(rank_file(rank, size, **dict(*more))) for rank, size, *more in files]
    with pytest.raises(hw.IncompatibleError, match=match):
        hw.export_merged(snapshots, **options)


def test_a_scale_on_some_ranks_only_is_refused() -> None:
    with pytest.raises(hw.IncompatibleError, match="has a scale on 1 of 2 ranks"):
        hw.export_merged([fp8([(1.0, None)], 0), fp8(None, 1)])


class Told:
    """A snapshot under other metadata."""

    def __init__(self, snapshot: hw.Snapshot, **metadata: Any) -> None:
        self.snapshot = snapshot
        self.metadata = {name.replace("_", "."): value for name, value in metadata.items()}
        self.layers = snapshot.layers

    def __getitem__(self, layer: int | None) -> Any:
        return self.snapshot[layer]


def test_a_group_of_any_number_of_ranks_is_told_apart_without_counting_them() -> None:
    size = 1 << 62
    shard = Told(hw.load_snapshot(saved(WHOLE)), tp_rank=5, tp_size=size)
    with pytest.raises(hw.IncompatibleError) as refusal:
        hw.export_merged([shard])
    assert f"ranks 0, 1, 2, 3, 4, 6, 7, 8 and {size - 9} more of {size} are missing" in str(refusal.value)
    assert (refusal.value.rule, refusal.value.declared, refusal.value.found) == ("export.ranks", size, 1)
    check_heads(hw.export_merged([shard], tp_rank=5, tp_size=size), slice(HEADS))
    with pytest.raises(hw.IncompatibleError, match="head 0 is held by none"):
        hw.export_merged([shard], tp_rank=0, tp_size=size)
    with pytest.raises(hw.IncompatibleError, match="say how many the model has"):
        hw.export_merged([shard], num_heads=8)


def test_missing_ranks_are_named() -> None:
    shards = [Told(hw.load_snapshot(rank_file(rank, 4)), tp_rank=rank, tp_size=4) for rank in (0, 2)]
    with pytest.raises(hw.IncompatibleError, match="ranks 1, 3 of 4 are missing"):
        hw.export_merged(shards)

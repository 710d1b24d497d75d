"""A cache without pages: its tokens as views, its pages cut a layer at a time, and pages joined into tokens again."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hurray_wire import adapters
from hurray_wire.adapters import LayerSpec, PoolSpec, Tables, dense, normalise
from hurray_wire.errors import BufferSizeError, HurrayError, IncompatibleError

HEADS, DIM = 3, 5
LENGTHS = [7, 0, 8, 1]


def numbered(*shape: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + np.prod(shape), dtype=np.uint32).reshape(shape)


def batch(start: int = 0) -> np.ndarray:
    """[batch, heads, tokens, dim], padded to 9 tokens."""
    return numbered(4, HEADS, 9, DIM, start=start)


def ragged(start: int = 0) -> np.ndarray:
    return numbered(sum(LENGTHS), HEADS, DIM, start=start)


def sequences(start: int = 0) -> list[np.ndarray]:
    return [numbered(length, HEADS, DIM, start=start + 1000 * seq) for seq, length in enumerate(LENGTHS)]


def token_of(cache: Any, seq: int, token: int, *, left_padded: bool = False) -> np.ndarray:
    """[heads, dim] of one token, by the formula of each form."""
    if isinstance(cache, list):
        return np.asarray(cache[seq][token])
    if cache.ndim == 3:
        return np.asarray(cache[sum(LENGTHS[:seq]) + token])
    at = token + 9 - LENGTHS[seq] if left_padded else token
    return np.array([[cache[seq, head, at, dim] for dim in range(DIM)] for head in range(HEADS)])


FORMS = pytest.mark.parametrize("make", [batch, ragged, sequences])


@FORMS
def test_tokens_are_views_of_the_callers_memory(make: Any) -> None:
    layers = {4: (make(), make(start=50_000)), 2: {"value": make(start=90_000)}}
    found = dense.views(layers, seq_lens=LENGTHS, num_heads=HEADS, head_dim=DIM)
    assert [(layer.index, list(layer.sequences)) for layer in found] == [(4, ["key", "value"]), (2, ["value"])]
    for layer in found:
        entry = layers[layer.index]
        for role, views in layer.sequences.items():
            cache = entry[role] if isinstance(entry, dict) else entry[("key", "value").index(role)]
            assert [view.shape for view in views] == [(length, HEADS, DIM) for length in LENGTHS]
            for seq, view in enumerate(views):
                for token in range(LENGTHS[seq]):
                    np.testing.assert_array_equal(view[token], token_of(cache, seq, token))
                owner = cache[seq] if isinstance(cache, list) else cache
                assert np.shares_memory(view, owner) == (LENGTHS[seq] > 0)


def test_padding_may_come_first() -> None:
    cache = batch()
    (layer,) = dense.views([(cache, None)], seq_lens=LENGTHS, left_padded=True)
    for seq, view in enumerate(layer.sequences["key"]):
        for token in range(LENGTHS[seq]):
            np.testing.assert_array_equal(view[token], token_of(cache, seq, token, left_padded=True))


@FORMS
@pytest.mark.parametrize("page_size", [1, 3, 4, 16])
def test_pages_are_cut_with_tables_of_their_own(make: Any, page_size: int) -> None:
    caches = [(make(), make(start=50_000)), (make(start=90_000), make(start=130_000))]
    cut = dense.cut(dense.views(caches, seq_lens=LENGTHS, layer_indices=[8, 9]), page_size=page_size)
    pages = [-(-length // page_size) for length in LENGTHS]
    assert cut.tables.block_table.tolist() == list(range(sum(pages)))
    assert cut.tables.seq_ptr.tolist() == [sum(pages[:n]) for n in range(5)]
    assert cut.tables.seq_lens.tolist() == LENGTHS
    assert [layer.spec for layer in cut.layers] == [
        LayerSpec(index, dict.fromkeys(("key", "value"), PoolSpec(HEADS, DIM, np.dtype(np.uint32)))) for index in (8, 9)
    ]
    assert len(cut) == 2
    for caches_of_layer, layer, index in zip(caches, cut, (8, 9), strict=True):
        assert layer.index == index
        for cache, pool in zip(caches_of_layer, layer.pools.values(), strict=True):
            expected = np.zeros((sum(pages), page_size, HEADS, DIM), np.uint32)
            for seq, length in enumerate(LENGTHS):
                for token in range(length):
                    page = sum(pages[:seq]) + token // page_size
                    expected[page, token % page_size] = token_of(cache, seq, token)
            np.testing.assert_array_equal(pool, expected, strict=True)


@pytest.mark.parametrize("form", ["batch", "ragged", "sequences", None])
@pytest.mark.parametrize("as_reader", [False, True])
def test_pages_are_joined_into_tokens(form: str | None, as_reader: bool) -> None:
    tables = normalise(block_tables=[[3, 1], [], [3, 0], [5]], seq_lens=LENGTHS, page_size=4)
    pools = {"key": numbered(6, 4, HEADS, DIM), "value": numbered(6, 4, HEADS, DIM, start=5000)}
    specs = [LayerSpec(0, {role: PoolSpec(HEADS, DIM, pool.dtype) for role, pool in pools.items()})]
    made = dense.allocate(specs, seq_lens=LENGTHS, form=form)
    (layer,) = dense.views(made, seq_lens=LENGTHS, writable=True)
    arrays = dict(zip(("key", "value"), made[0], strict=True))
    for role, views in layer.sequences.items():
        dense.restore(views, pools[role].__getitem__ if as_reader else pools[role], tables)
        for seq, length in enumerate(LENGTHS):
            for token in range(length):
                page = tables.block_table[tables.seq_ptr[seq] + token // 4]
                np.testing.assert_array_equal(token_of(arrays[role], seq, token), pools[role][page, token % 4])
    if form in (None, "batch"):
        assert arrays["key"].shape == (4, HEADS, 8, DIM)
        assert not arrays["key"][0, :, 7:].any()  # padding is left alone
        assert not arrays["key"][1].any()


def test_cutting_and_joining_gives_the_same_bits() -> None:
    bits = np.random.default_rng(3).integers(0, 2**16, (4, HEADS, 9, DIM), dtype=np.uint16)
    for cache in (bits.view(ml_dtypes.bfloat16), bits.view(np.float16)[:, ::-1, :, ::-1], bits.astype(">u2")):
        layers = dense.views([{"key": cache}], seq_lens=LENGTHS)
        cut = dense.cut(layers, page_size=4)
        target = np.zeros(cache.shape, cache.dtype)
        (views,) = dense.views([{"key": target}], seq_lens=LENGTHS, writable=True)
        dense.restore(views.sequences["key"], cut[0].pools["key"], cut.tables)
        for seq, length in enumerate(LENGTHS):
            assert target[seq, :, :length].tobytes() == np.ascontiguousarray(cache[seq, :, :length]).tobytes()


def test_one_ragged_sequence_needs_no_lengths() -> None:
    (layer,) = dense.views([(ragged(), None)])
    assert [view.shape for view in layer.sequences["key"]] == [(16, HEADS, DIM)]


def test_lists_tell_their_own_lengths() -> None:
    (layer,) = dense.views([(sequences(), None)])
    assert [len(view) for view in layer.sequences["key"]] == LENGTHS


@pytest.mark.parametrize(
    ("layers", "options", "error", "words"),
    [
        ([(batch(), None)], {}, IncompatibleError, "padded to 9 tokens; pass seq_lens="),
        (
            [(batch(), None)],
            {"seq_lens": [7, 0, 10, 1]},
            IncompatibleError,
            "has 9 tokens of sequence 2, whose length is 10",
        ),
        ([(batch(), None)], {"seq_lens": [7, 0]}, IncompatibleError, "4 sequences, but there are 2 lengths"),
        ([(ragged(), None)], {"seq_lens": [7, 8]}, BufferSizeError, "16 tokens, but the lengths sum to 15"),
        ([(ragged(), None)], {"seq_lens": [17, -1]}, IncompatibleError, "sequence 1 has length -1"),
        ([(sequences(), None)], {"seq_lens": [7, 0, 8, 2]}, IncompatibleError, "has 1 tokens of sequence 3"),
        ([(ragged(), None)], {"num_heads": 4}, BufferSizeError, "layer 0 key has 3 for num_heads, where .* declared 4"),
        ([(None, ragged())], {"value_head_dim": 4}, BufferSizeError, "layer 0 value has 5 for head_dim"),
        ([(ragged(), ragged()[:, :2])], {}, BufferSizeError, "3 heads of keys and 2 of values"),
        ([(ragged(), ragged()[1:])], {}, BufferSizeError, r"layer 0 value has sequences of \[15\] tokens"),
        ([(ragged(), None), (ragged()[1:], None)], {}, BufferSizeError, r"layer 1 key has sequences of \[15\] tokens"),
        ([(numbered(3, 4), None)], {}, BufferSizeError, "is none of"),
        ([([numbered(3, 4)], None)], {}, BufferSizeError, "is none of"),
        ([([ragged(), ragged()[:, :1]], None)], {}, BufferSizeError, r"sequence 1 has tokens of \[1, 5\]"),
        ([([ragged(), ragged().astype(np.int32)], None)], {}, BufferSizeError, "int32, sequence 0"),
        ([([], None)], {}, IncompatibleError, "has no sequence"),
        ([{"fused": ragged()}], {}, BufferSizeError, "the roles are key, value"),
        ([ragged()], {}, BufferSizeError, "not a pair"),
        (ragged(), {}, BufferSizeError, "sequence with an entry a layer"),
    ],
)
def test_what_cannot_be_a_dense_cache_is_refused(
    layers: Any, options: dict[str, Any], error: type[HurrayError], words: str
) -> None:
    with pytest.raises(error, match=words):
        dense.views(layers, **options)


def test_a_destination_of_other_lengths_is_refused() -> None:
    pool = numbered(3, 4, HEADS, DIM)
    tables = Tables(*(np.array(values, np.int64) for values in ([0, 1, 2], [0, 2, 3], [7, 2])))
    targets = [np.zeros((length, HEADS, DIM), np.uint32) for length in (7, 3)]
    with pytest.raises(BufferSizeError, match=r"\[7, 3\] tokens, the tables are for \[7, 2\]"):
        dense.restore(targets, pool, tables)
    with pytest.raises(BufferSizeError, match="not converted"):
        dense.restore(
            [target[:2].astype(np.int32) for target in targets], pool, tables._replace(seq_lens=np.array([2, 2]))
        )


def test_a_pool_of_another_page_size_is_refused() -> None:
    tables = normalise(block_tables=[[0, 1]], seq_lens=[7], page_size=4)
    for slots in (2, 8):
        target = np.zeros((7, HEADS, DIM), np.uint32)
        with pytest.raises(BufferSizeError, match=f"2 pages for its 7 tokens, but the pool has pages of {slots}"):
            dense.restore([target], numbered(4, slots, HEADS, DIM), tables)
        assert not target.any()


def test_what_a_dense_cache_cannot_hold_is_not_allocated() -> None:
    fused = LayerSpec(0, {"fused": PoolSpec(1, 576, np.dtype(np.float16))})
    with pytest.raises(IncompatibleError, match="layer 0 has fused"):
        dense.allocate([fused], seq_lens=[1])
    with pytest.raises(IncompatibleError, match="no form 'thd'"):
        dense.allocate([], seq_lens=[1], form="thd")


def test_only_a_cache_without_pages_is_dense() -> None:
    pairs = [(batch(), batch())]
    assert "dense-thd" in adapters.detect_layout(pairs)
    assert "dense-thd" not in adapters.detect_layout(pairs, page_size=9)
    assert adapters.detect_layout([(sequences(), sequences())]) == ("dense-thd",)
    with pytest.raises(IncompatibleError, match="dense-thd has no pages of its own"):
        adapters.resolve("auto", [(sequences(), sequences())])


def test_one_layer_at_a_time_is_held_twice() -> None:
    """8 layers of 2 MiB a role: iterating holds the pools of one layer, or of two while one replaces the other."""
    layers = [(np.ones((1, 4, 1024, 256), np.float16),) * 2 for _ in range(8)]
    cut = dense.cut(dense.views(layers, seq_lens=[1023]), page_size=16)
    tracemalloc.start()
    try:
        for layer in cut:
            assert layer.pools["key"].shape == (64, 16, 4, 256)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 9 << 20

"""A snapshot becomes a cache of any layout: the same bits, in the places that the layout says, with tables that fit."""

from __future__ import annotations

import io

import ml_dtypes
import numpy as np
import pytest
from export_cases import (
    DIM,
    FORMS,
    HEADS,
    LAYERS,
    LAYOUTS,
    LENS,
    PAGE,
    ROLES,
    TABLES,
    cache_in,
    held,
    numbered,
    pairs,
    pool,
    resaved,
    saved,
    tokens,
)

import hurray_wire as hw


@pytest.mark.parametrize("into", LAYOUTS)
@pytest.mark.parametrize(("layout", "form"), FORMS)
@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
def test_a_cache_goes_from_any_layout_into_any_other_bit_for_bit(layout, form, into, strided) -> None:
    cache = cache_in(layout, form, strided=strided)
    there = saved(cache, layout=layout, form=form, page_size=PAGE, num_heads=HEADS, head_dim=DIM)
    exported = hw.load_snapshot(there).export(layout=into)
    back = hw.load_snapshot(resaved(exported, num_heads=HEADS, head_dim=DIM))
    assert back.seq_lens.tolist() == LENS
    for layer in range(LAYERS):
        for role in ROLES:
            assert held(back, layer, role) == [tokens(pool(layer, role), seq) for seq in range(len(LENS))]


def test_the_arrays_are_in_the_layout_by_its_formula() -> None:
    """The axes of each layout, written out once more: where the token of a sequence lies."""
    places = {
        ("split-nhd", "nhd"): lambda a, layer, role, p, s, h, d: a[layer][role][p, s, h, d],
        ("split-hnd", "hnd"): lambda a, layer, role, p, s, h, d: a[layer][role][p, h, s, d],
        ("vllm-kv-first", "nhd"): lambda a, layer, role, p, s, h, d: a[layer][role, p, s, h, d],
        ("vllm-blocks-first", "hnd"): lambda a, layer, role, p, s, h, d: a[layer][p, role, h, s, d],
        ("vllm-packed", "nhd"): lambda a, layer, role, p, s, h, d: a[layer][p, h, s, role * DIM + d],
        ("sglang-slots", "slots"): lambda a, layer, role, p, s, h, d: a[layer][role][p * PAGE + s, h, d],
        ("trtllm-pool", None): lambda a, layer, role, p, s, h, d: a[p, layer, role, h, s, d],
        ("vllm-cross-layer", "pair"): lambda a, layer, role, p, s, h, d: a[p, layer, role, s, h, d],
        ("jax-paged", None): lambda a, layer, role, p, s, h, d: a[layer][role][h, p, s, d],
        ("jax-rpa", None): lambda a, layer, role, p, s, h, d: a[layer][p, s, 2 * h + role, d],
    }
    snapshot = hw.load_snapshot(saved(pairs(np.uint16)))
    for (layout, form), at in places.items():
        form = form if layout not in ("split-nhd", "split-hnd") else None
        exported = snapshot.export(layout=layout, form=form)
        for layer in range(LAYERS):
            for number, role in enumerate(ROLES):
                source = pool(layer, role, np.uint16)
                for seq, length in enumerate(LENS):
                    for token in range(length):
                        page, slot = exported.block_tables[seq, token // PAGE], token % PAGE
                        old = source[TABLES[seq][token // PAGE], slot]
                        for head, dim in np.ndindex(HEADS, DIM):
                            assert at(exported.arrays, layer, number, page, slot, head, dim) == old[head, dim], layout


def test_pages_are_numbered_as_the_sequences_first_use_them_and_shared_ones_come_once() -> None:
    exported = hw.load_snapshot(saved(compact=False)).export()
    assert exported.block_tables.tolist() == [[0, 1, -1], [0, 2, 3], [-1, -1, -1], [4, -1, -1]]
    assert exported.block_table.tolist() == [0, 1, 0, 2, 3, 4]
    assert exported.seq_ptr.tolist() == [0, 2, 5, 5, 6]
    assert exported.seq_lens.tolist() == LENS
    assert {array.dtype for array in (exported.block_tables, exported.block_table, exported.seq_lens)} == {
        np.dtype("i4")
    }
    assert (exported.page_size, exported.layers) == (PAGE, (0, 1))
    assert exported.arrays[0][0].shape == (5, PAGE, HEADS, DIM)


def test_slots_that_no_chosen_sequence_uses_are_zero() -> None:
    verbatim = hw.load_snapshot(saved(compact=False, scrub=False))
    keys = verbatim.export(seqs=[0, 3]).arrays[0][0]
    # sequence 0 has 4 + 2 tokens, sequence 3 has 3; sequence 1 uses more of page 5, but was not chosen
    assert [int((page.view(np.uint16) != 0).any(axis=(1, 2)).sum()) for page in keys] == [4, 2, 3]
    repaged = verbatim.export(page_size=8, seqs=[3]).arrays[0][0]
    assert not repaged[0, 3:].view(np.uint16).any()


def test_sequences_come_in_the_order_in_which_they_are_chosen() -> None:
    snapshot = hw.load_snapshot(saved())
    exported = snapshot.export(seqs=iter([3, 0, 3]))
    assert exported.seq_lens.tolist() == [3, 6, 3]
    assert exported.block_tables.tolist() == [[0, -1], [1, 2], [0, -1]]
    back = hw.load_snapshot(resaved(exported))
    assert held(back, 1, "value") == [tokens(pool(1, "value"), seq) for seq in (3, 0, 3)]
    with pytest.raises(hw.IncompatibleError, match="no sequence 4 in a batch of 4"):
        snapshot.export(seqs=[4])


def test_layers_come_in_the_order_in_which_they_are_chosen_and_keep_their_index() -> None:
    snapshot = hw.load_snapshot(saved(layer_indices=[8, 31]))
    exported = snapshot.export(layers=[31, 8])
    assert exported.layers == (31, 8)
    back = hw.load_snapshot(resaved(exported))
    assert held(back, 31, "key") == [tokens(pool(1, "key"), seq) for seq in range(4)]
    assert snapshot.export(layers=[31], layout="trtllm-pool").arrays.shape[1] == 1
    with pytest.raises(KeyError, match="layer 0 is not in the snapshot"):
        snapshot.export(layers=[0])
    with pytest.raises(hw.IncompatibleError, match="no layer to export"):
        snapshot.export(layers=[])


@pytest.mark.parametrize("form", ["batch", "ragged", "sequences", None])
def test_pages_are_joined_for_a_cache_without_pages(form) -> None:
    exported = hw.load_snapshot(saved(pairs(np.uint16))).export(layout="dense-thd", form=form)
    assert (exported.page_size, exported.block_tables, exported.seq_ptr) == (None, None, None)
    assert exported.seq_lens.tolist() == LENS
    for layer, entry in enumerate(exported.arrays):
        for role, array in zip(ROLES, entry, strict=True):
            for seq, length in enumerate(LENS):
                if form == "ragged":
                    mine = array[sum(LENS[:seq]) :][:length]
                elif form == "sequences":
                    mine = array[seq]
                else:
                    mine = array[seq, :, :length].transpose(1, 0, 2)
                    assert not array[seq, :, length:].any()
                assert [token.tobytes() for token in mine] == tokens(pool(layer, role, np.uint16), seq)


@pytest.mark.parametrize("form", ["blocks", "hnd", "slots"])
@pytest.mark.parametrize("into", ["blocks", "hnd", "slots"])
def test_latent_rows_keep_their_bits_in_every_form(form, into) -> None:
    rows = numbered(7, PAGE, 9)
    arrays = {"blocks": rows, "hnd": rows[:, np.newaxis], "slots": rows.reshape(28, 1, 9)}
    there = saved([arrays[form]], layout="mla", form=form, page_size=PAGE)
    exported = hw.load_snapshot(there).export(layout="mla", form=into)
    shapes = {"blocks": (5, PAGE, 9), "hnd": (5, 1, PAGE, 9), "slots": (20, 1, 9)}
    assert exported.arrays[0].shape == shapes[into]
    pages = exported.arrays[0].reshape(5, PAGE, 9)
    for seq in range(4):
        assert tokens(pages, seq, tables=exported.block_tables) == tokens(rows, seq)


def test_a_layout_holds_only_its_roles() -> None:
    latent = hw.load_snapshot(saved([numbered(7, PAGE, 9)], layout="mla"))
    with pytest.raises(hw.IncompatibleError, match="holds key and value, but layer 0 has fused"):
        latent.export(layout="vllm-packed")
    with pytest.raises(hw.IncompatibleError, match="holds fused, but layer 0 has key and value"):
        hw.load_snapshot(saved()).export(layout="mla")
    with pytest.raises(hw.IncompatibleError, match="holds key and value, but layer 0 has fused"):
        latent.export(layout="dense-thd")


def test_layers_of_a_hybrid_model_each_keep_their_heads() -> None:
    layers = [(numbered(7, 4, 2, 6), numbered(7, 4, 2, 6)), (numbered(7, 4, 1, 8), numbered(7, 4, 1, 10))]
    snapshot = hw.load_snapshot(saved(layers))
    exported = snapshot.export(layout="vllm-packed")
    assert [array.shape for array in exported.arrays] == [(5, 2, 4, 12), (5, 1, 4, 18)]
    for (keys, values), array in zip(layers, exported.arrays, strict=True):
        both = array.transpose(0, 2, 1, 3)
        for part, source in ((both[..., : keys.shape[-1]], keys), (both[..., keys.shape[-1] :], values)):
            for seq in range(4):
                assert tokens(part, seq, tables=exported.block_tables) == tokens(source, seq)
    with pytest.raises(hw.IncompatibleError, match="in layer 1 they differ"):
        snapshot.export(layout="trtllm-pool")


@pytest.mark.parametrize(
    "dtype", [np.bool_, ml_dtypes.int4, ml_dtypes.float8_e4m3fn, np.complex64, "V16"], ids=lambda t: np.dtype(t).name
)
@pytest.mark.parametrize("page_size", [4, 6])
def test_every_element_type_is_exported(dtype, page_size) -> None:
    raw = np.random.default_rng(4).integers(0, 256, (7, 4, 2, 6 * np.dtype(dtype).itemsize), dtype=np.uint8)
    if np.dtype(dtype) in (np.dtype(bool), np.dtype(ml_dtypes.int4)):
        raw &= 1
    layers = [(raw.view(dtype), None)]
    exported = hw.load_snapshot(saved(layers)).export(page_size=page_size)
    keys = exported.arrays[0]["key"]
    assert keys.dtype == np.dtype(dtype)
    for seq in range(4):
        assert tokens(keys, seq, tables=exported.block_tables) == tokens(layers[0][0], seq)


def test_an_empty_batch_is_exported_empty() -> None:
    snapshot = hw.load_snapshot(saved(block_tables=np.zeros((0, 3), int), seq_lens=[]))
    assert snapshot.count_pages() == 0
    exported = snapshot.export()
    assert exported.block_tables.shape == (0, 0)
    assert exported.arrays[0][0].shape == (0, PAGE, HEADS, DIM)
    assert snapshot.export(layout="dense-thd").arrays[0][0].shape == (0, HEADS, 0, DIM)


def test_a_snapshot_from_a_stream_is_exported() -> None:
    wire = io.BytesIO()
    hw.send_snapshot(wire, pairs(), block_tables=TABLES, seq_lens=LENS)
    wire.seek(0)
    exported = hw.receive_snapshot(wire).export(layout="split-hnd")
    keys = exported.arrays[0][0].transpose(0, 2, 1, 3)
    assert [tokens(keys, seq, tables=exported.block_tables) for seq in range(4)] == [
        tokens(pool(0, "key"), seq) for seq in range(4)
    ]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"page_ids": [0]}, "page_ids"),
        ({"dtype": np.uint8}, "dtype"),
        ({"left_padded": True}, "left_padded"),
        ({"layout": "dense-thd", "page_size": 4}, "page_size"),
        ({"layout": "dense-thd", "page_ids": [0], "out": []}, "page_ids"),
        ({"tp_rank": 0}, "tp_size"),
    ],
)
def test_arguments_that_mean_nothing_together_are_refused(options, what) -> None:
    with pytest.raises(TypeError, match=what):
        hw.load_snapshot(saved()).export(**options)


def test_pages_of_a_size_that_no_memory_holds_are_refused() -> None:
    wide = saved([numbered(1, 2, 1 << 18)], layout="mla", block_tables=[[0]], seq_lens=[2])
    with pytest.raises(hw.LimitError, match="more than the limit") as refusal:
        hw.load_snapshot(wide).export(layout="mla", page_size=2**32 - 1)
    assert refusal.value.rule == "limit.dense-bytes"


@pytest.mark.parametrize("call", ["export", "count_pages"])
def test_memory_that_runs_out_is_an_error_of_ours(call, monkeypatch) -> None:
    def repage(*args: object, **options: object) -> None:
        raise MemoryError("Unable to allocate 2.00 GiB")

    monkeypatch.setattr("hurray_wire.export_pages.repage", repage)
    with pytest.raises(hw.LimitError, match=r"no memory for it: Unable to allocate 2\.00 GiB") as refusal:
        getattr(hw.load_snapshot(saved()), call)()
    assert refusal.value.rule == "limit.memory"
    assert isinstance(refusal.value.__cause__, MemoryError)


@pytest.mark.parametrize(
    ("options", "tokens"),
    [({}, 20), ({"page_size": 16}, 48), ({"layout": "dense-thd"}, 48), ({"layout": "dense-thd", "form": "ragged"}, 21)],
)
def test_fresh_arrays_keep_to_the_limits_of_the_file(options, tokens) -> None:
    nbytes = tokens * HEADS * DIM * 2
    for most in (nbytes, nbytes - 1):
        snapshot = hw.load_snapshot(saved(), limits=hw.Limits(max_dense_bytes=most))
        if most == nbytes:
            assert snapshot.export(**options).arrays[0][0].nbytes <= nbytes
            continue
        with pytest.raises(hw.LimitError, match="the key of layer 0 takes") as refusal:
            snapshot.export(**options)
        assert refusal.value.rule == "limit.dense-bytes"


def test_pages_are_counted_of_one_batch_only() -> None:
    """What an export refuses, counting its pages refuses too, and in the same words."""
    out = io.BytesIO()
    with hw.create(out) as writer:
        for role, pages in (("key", 3), ("value", 2)):
            layout = hw.BlockPagedLayout(
                page_size=2, num_pages=3, paged_axis=0, num_seqs=1, kv_role=role, layer_index=0
            )
            sizes = (6, 4 * pages, 8)
            descriptor = hw.TensorDescriptor(
                hw.uint8, (2 * pages, 1, 1), layout, tuple(hw.BufferHandle(size) for size in sizes)
            )
            writer.add(role, descriptor, [bytes(6), np.arange(pages, dtype="<u4"), np.array([0, pages], "<u4")])
    snapshot = hw.load_snapshot(out.getvalue())
    for call in (snapshot.count_pages, snapshot.export):
        with pytest.raises(hw.IncompatibleError, match="'value' is of another batch than 'key'") as refusal:
            call()
        assert refusal.value.rule == "export.batch"

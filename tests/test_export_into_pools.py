"""Restoring into pools that an engine goes on using: the pages that were named, and not a byte more; or nothing."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from export_cases import (
    DIM,
    FORMS,
    HEADS,
    LAYERS,
    LENS,
    PAGE,
    ROLES,
    TABLES,
    numbered,
    pairs,
    pool,
    saved,
    tokens,
)

import hurray_wire as hw
from hurray_wire import adapters
from hurray_wire.adapters import LayerSpec, PoolSpec

STALE = 0xA5
SLOTS = 11  # pages of the caller's pools
IDS = [9, 2, 10, 0, 5]


def engine_cache(
    layout: str = "split-nhd", form: str | None = None, *, page_size: int = PAGE, dtype: Any = "bf16"
) -> Any:
    """Arrays of a running engine, full of its own bytes, not contiguous: every second element is somebody else's."""
    held = np.dtype(ml_dtypes.bfloat16 if dtype == "bf16" else dtype)
    specs = [LayerSpec(layer, dict.fromkeys(ROLES, PoolSpec(HEADS, DIM, held))) for layer in range(LAYERS)]
    plain = adapters.get(layout).allocate(specs, num_pages=SLOTS, page_size=page_size, form=form)
    return nested(lambda array: np.full((*array.shape, 2), 0, array.dtype), plain)


def nested(change: Any, arrays: Any) -> Any:
    if isinstance(arrays, list | tuple):
        return type(arrays)(nested(change, array) for array in arrays)
    return change(arrays)


def stale(arrays: Any) -> Any:
    def fill(array: np.ndarray) -> np.ndarray:
        array.view(np.uint8)[...] = STALE
        return array

    return nested(fill, arrays)


def usable(arrays: Any) -> Any:
    """The half of the memory that is the pool."""
    return nested(lambda array: array[..., 1], arrays)


def all_bytes(arrays: Any) -> bytes:
    if isinstance(arrays, list | tuple):
        return b"".join(map(all_bytes, arrays))
    return arrays.tobytes()


def pools_of(arrays: Any, layout: str, form: str | None, page_size: int = PAGE) -> dict[tuple[int, str], np.ndarray]:
    views = adapters.get(layout).views(
        arrays, page_size=page_size, num_heads=HEADS, head_dim=DIM, form=form, writable=True
    )
    return {(layer.index or 0, role): view for layer in views for role, view in layer.pools.items()}


@pytest.mark.parametrize(("layout", "form"), FORMS)
@pytest.mark.parametrize("page_size", [PAGE, 6])
def test_pages_go_where_they_are_sent_and_every_other_byte_stays(layout, form, page_size) -> None:
    snapshot = hw.load_snapshot(saved())
    memory = stale(engine_cache(layout, form, page_size=page_size))
    out = usable(memory)
    count = snapshot.count_pages(page_size=page_size)
    ids = IDS[:count]
    exported = snapshot.export(layout=layout, form=form, page_size=page_size, out=out, page_ids=ids)
    assert exported.arrays is out
    views = pools_of(out, layout, form, page_size)
    for (layer, role), view in views.items():
        for seq in range(len(LENS)):
            assert tokens(view, seq, tables=exported.block_tables) == tokens(pool(layer, role), seq)
    assert set(exported.block_table.tolist()) == set(ids)
    for view in views.values():  # what was written, taken back
        for page in ids:
            view.view(np.uint16)[page] = STALE << 8 | STALE
    assert set(all_bytes(memory)) == {STALE}


@pytest.mark.parametrize(
    "table",
    [
        [[9, 2, -1], [9, 10, 0], [-1, -1, -1], [5, 77, 77]],
        [[9, 2], [9, 10, 0, 4], [], [5]],
        np.array([[9, 2, 2**31 - 1], [9, 10, 0], [0, 0, 0], [5, -1, -1]]),
    ],
    ids=["padded", "lists", "array"],
)
def test_a_table_says_where_the_pages_of_each_sequence_go(table) -> None:
    out = usable(stale(engine_cache()))
    exported = hw.load_snapshot(saved()).export(out=out, page_ids=table)
    assert exported.block_tables.tolist() == [[9, 2, -1], [9, 10, 0], [-1, -1, -1], [5, -1, -1]]
    for seq in range(len(LENS)):
        assert tokens(out[1][0], seq, tables=exported.block_tables) == tokens(pool(1, "key"), seq)


@pytest.mark.parametrize("page_size", [PAGE, 2])
def test_a_shared_page_may_be_given_several_places(page_size) -> None:
    snapshot = hw.load_snapshot(saved())
    blocks = [-(-length // page_size) for length in LENS]
    table = [list(range(sum(blocks[:seq]), sum(blocks[: seq + 1]))) for seq in range(len(LENS))]
    out = [{"key": np.zeros((sum(blocks), page_size, HEADS, DIM), ml_dtypes.bfloat16)} for _ in range(LAYERS)]
    keys_only = hw.load_snapshot(saved([(pool(layer, "key"), None) for layer in range(LAYERS)]))
    assert keys_only.count_pages(page_size=page_size) < sum(blocks)
    exported = keys_only.export(out=out, page_ids=table, page_size=page_size)
    for seq in range(len(LENS)):
        assert tokens(out[0]["key"], seq, tables=exported.block_tables) == tokens(pool(0, "key"), seq)
    with pytest.raises(hw.IncompatibleError, match="page 1 for two different pages"):
        snapshot.export(out=usable(engine_cache()), page_ids=[[0, 1], [0, 1, 2], [], [3]])


def test_without_page_ids_a_pool_is_filled_that_has_room_for_just_this_batch() -> None:
    snapshot = hw.load_snapshot(saved())
    out = [tuple(np.zeros((5, PAGE, HEADS, DIM), ml_dtypes.bfloat16) for _ in ROLES) for _ in range(LAYERS)]
    exported = snapshot.export(out=out)
    assert exported.block_table.tolist() == [0, 1, 0, 2, 3, 4]
    assert tokens(out[1][1], 1, tables=exported.block_tables) == tokens(pool(1, "value"), 1)


def test_a_mapping_names_the_layers_that_are_restored() -> None:
    snapshot = hw.load_snapshot(saved(layer_indices=[4, 9]))
    caches = dict(enumerate(usable(stale(engine_cache())), start=8))  # layers 8 and 9
    snapshot.export(out=caches, page_ids=IDS, layers=[9])
    assert set(all_bytes(list(caches[8]))) == {STALE}
    assert caches[9][0][9].tobytes() == pool(1, "key")[5].tobytes()
    with pytest.raises(hw.IncompatibleError, match="out has no layer 4"):
        snapshot.export(out=caches, page_ids=IDS)


def test_raw_bits_take_a_float8_cache_if_the_caller_says_what_they_are() -> None:
    layers = [(numbered(7, PAGE, HEADS, DIM, dtype=ml_dtypes.float8_e4m3fn), None)]
    snapshot = hw.load_snapshot(saved(layers))
    slots = np.full((SLOTS * PAGE, HEADS, DIM), STALE, np.uint8)
    with pytest.raises(hw.BufferSizeError, match="the key of layer 0 is float8_e4m3fn, but out is uint8"):
        snapshot.export(layout="sglang-slots", out=[(slots, None)], page_ids=IDS)
    for said in (ml_dtypes.float8_e4m3fn, hw.float8_e4m3):
        snapshot.export(layout="sglang-slots", out=[(slots, None)], page_ids=IDS, dtype=said)
        assert slots[9 * PAGE : 10 * PAGE].tobytes() == layers[0][0][5].tobytes()


def test_a_pool_of_the_other_byte_order_gets_the_same_values() -> None:
    out = usable(engine_cache(dtype=">f2"))
    exported = hw.load_snapshot(saved(pairs(np.float16))).export(out=out, page_ids=IDS)
    swapped = out[0][0].byteswap().view("<f2")
    assert tokens(swapped, 1, tables=exported.block_tables) == tokens(pool(0, "key", np.float16), 1)


@pytest.mark.parametrize("left_padded", [False, True])
def test_tokens_go_into_a_batch_and_its_padding_stays(left_padded) -> None:
    out = [
        tuple(np.full((len(LENS), HEADS, 14, DIM), STALE << 8 | STALE, np.uint16) for _ in ROLES) for _ in range(LAYERS)
    ]
    snapshot = hw.load_snapshot(saved(pairs(np.uint16)))
    snapshot.export(layout="dense-thd", out=out, left_padded=left_padded)
    for layer, entry in enumerate(out):
        for role, array in zip(ROLES, entry, strict=True):
            for seq, length in enumerate(LENS):
                row = array[seq].transpose(1, 0, 2)
                mine, padding = (
                    (row[14 - length :], row[: 14 - length]) if left_padded else (row[:length], row[length:])
                )
                assert [token.tobytes() for token in mine] == tokens(pool(layer, role, np.uint16), seq)
                assert set(padding.tobytes()) == {STALE}


def good() -> dict[str, Any]:
    return {"out": usable(stale(engine_cache())), "page_ids": IDS}


def last(change: Any) -> list[Any]:
    """The caller's arrays with something wrong with the very last of them."""
    (first, (keys, values)) = good()["out"]
    return [first, (keys, change(values))]


def smaller_layer() -> list[Any]:
    (first, pair) = good()["out"]
    return [first, tuple(array[:10] for array in pair)]


def locked(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


REFUSED = {
    "id-beyond": ({"page_ids": [9, 2, 10, 0, 11]}, hw.InvalidDescriptorError, "block-paged.page-id"),
    "id-negative": ({"page_ids": [9, 2, 10, 0, -1]}, hw.InvalidDescriptorError, "block-paged.page-id"),
    "id-twice": ({"page_ids": [9, 2, 10, 0, 9]}, hw.IncompatibleError, "adapter.destination"),
    "too-few-ids": ({"page_ids": [9, 2, 10, 0]}, hw.IncompatibleError, "adapter.copy-count"),
    "too-many-ids": ({"page_ids": [*IDS, 1]}, hw.IncompatibleError, "adapter.copy-count"),
    "ids-not-whole": ({"page_ids": [9.0, 2, 10, 0, 5]}, hw.IncompatibleError, "adapter.table-type"),
    "no-ids": ({"page_ids": None}, hw.IncompatibleError, "adapter.copy-count"),
    "short-row": ({"page_ids": [[9, 2], [9, 10], [], [5]]}, hw.IncompatibleError, "snapshot.seq-lens-pages"),
    "too-few-rows": ({"page_ids": [[9, 2], [9, 10, 0], []]}, hw.IncompatibleError, "snapshot.seq-lens-count"),
    "conflict": ({"page_ids": [[9, 2], [9, 2, 0], [], [5]]}, hw.IncompatibleError, "adapter.destination"),
    "row-id-beyond": ({"page_ids": [[9, 2], [9, 10, 99], [], [5]]}, hw.InvalidDescriptorError, "block-paged.page-id"),
    "type": ({"out": last(lambda a: np.zeros(a.shape, np.float16))}, hw.BufferSizeError, "adapter.copy-type"),
    "same-size-type": ({"out": last(lambda a: np.zeros(a.shape, np.int16))}, hw.BufferSizeError, "adapter.copy-type"),
    "heads": ({"out": last(lambda a: a[:, :, :1])}, hw.BufferSizeError, "adapter.axis-size"),
    "dim": ({"out": last(lambda a: a[..., 1:])}, hw.BufferSizeError, "adapter.axis-size"),
    "page-size": ({"out": last(lambda a: a[:, 1:])}, hw.BufferSizeError, "adapter.axis-size"),
    "fewer-pages": ({"out": last(lambda a: a[:10])}, hw.BufferSizeError, "adapter.agreement"),
    "smaller-layer": ({"out": smaller_layer()}, hw.InvalidDescriptorError, "block-paged.page-id"),
    "transposed": ({"out": last(lambda a: a.transpose(0, 2, 1, 3))}, hw.BufferSizeError, "adapter.axis-size"),
    "read-only": ({"out": last(locked)}, hw.IncompatibleError, "adapter.destination"),
    "role-missing": ({"out": last(lambda a: None)}, hw.IncompatibleError, "adapter.roles"),
    "no-array": ({"out": last(lambda a: 7)}, hw.BufferSizeError, "adapter.array-kind"),
    "broadcast": (
        {"out": last(lambda a: np.broadcast_to(a[:1], a.shape))},
        hw.IncompatibleError,
        "adapter.destination",
    ),
    "layer-count": ({"out": good()["out"][:1]}, hw.IncompatibleError, "adapter.layer-index"),
    "layout": ({"layout": "split-hnd"}, hw.BufferSizeError, "adapter.axis-size"),
    "no-layout": ({"layout": "nhd"}, hw.IncompatibleError, "adapter.name"),
    "page-size-0": ({"page_size": 0}, hw.IncompatibleError, "block-paged.page-size"),
    "seqs": ({"seqs": [0, 9]}, hw.IncompatibleError, "gather.seqs"),
    "rank": ({"tp_rank": 2, "tp_size": 2}, hw.IncompatibleError, "export.ranks"),
    "ranks": ({"tp_rank": 0, "tp_size": 3}, hw.IncompatibleError, "adapter.heads"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_refused_before_a_byte_is_written(case) -> None:
    options, error, rule = REFUSED[case]
    arguments = good() | options
    before = [all_bytes(array) for entry in arguments["out"] for array in entry if hasattr(array, "tobytes")]
    with pytest.raises(error) as refusal:
        hw.load_snapshot(saved()).export(**arguments)
    assert refusal.value.rule == rule
    assert [all_bytes(array) for entry in arguments["out"] for array in entry if hasattr(array, "tobytes")] == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"page_ids": [9, 2, 10, 0, 11]}, "page_ids names page 11 of a pool of 11 at position 4"),
        ({"page_ids": [9, 2, 10, 0, 9]}, "page_ids names page 9 for two different pages"),
        ({"page_ids": [[9, 2], [9, 10, 99], [], [5]]}, "sequence 1 names page 99 of a pool of 11 at position 2"),
        (
            {"out": last(lambda a: np.zeros((a.shape[0], 32, *a.shape[2:]), a.dtype))},
            f"has 32 on axis 1, page_size, where the export has {PAGE}; page_size=32 exports such pages",
        ),
        ({"out": last(lambda a: a[:, :, :1])}, f"has 1 on axis 2, num_heads, where the export has {HEADS}"),
    ],
)
def test_what_does_not_fit_is_told_in_the_words_of_the_call(options, said) -> None:
    with pytest.raises(hw.HurrayError) as refusal:
        hw.load_snapshot(saved()).export(**(good() | options))
    assert said in refusal.value.message


def test_one_layer_or_sequence_alone_is_written_as_a_list() -> None:
    snapshot = hw.load_snapshot(saved())
    for export in (snapshot.export, snapshot.count_pages, lambda **options: hw.export_merged([snapshot], **options)):
        with pytest.raises(TypeError, match=r"layers is 0, not several of them; for one alone it is layers=\[0\]"):
            export(layers=0)
        with pytest.raises(TypeError, match=r"it is seqs=\[1\]"):
            export(seqs=1)


def test_an_array_that_is_given_for_two_layers_is_refused() -> None:
    one = usable(stale(engine_cache()))[0]
    with pytest.raises(hw.IncompatibleError, match="the same memory in two places"):
        hw.load_snapshot(saved()).export(out=[one, one], page_ids=IDS)
    batch = np.zeros((len(LENS), HEADS, 12, DIM), ml_dtypes.bfloat16)
    with pytest.raises(hw.IncompatibleError, match="the same memory in two places"):
        hw.load_snapshot(saved()).export(layout="dense-thd", out=[(batch, batch), (batch.copy(), batch.copy())])


def test_the_snapshot_is_not_restored_into_itself() -> None:
    memory = bytearray(saved())
    snapshot = hw.load_snapshot(memory)
    place = memory.index(pool(0, "key")[5].tobytes())
    keys = np.frombuffer(memory, ml_dtypes.bfloat16, 5 * PAGE * HEADS * DIM, place).reshape(5, PAGE, HEADS, DIM)
    out = [(keys, np.zeros_like(keys)), (np.zeros_like(keys), np.zeros_like(keys))]
    before = bytes(memory)
    with pytest.raises(hw.IncompatibleError, match="source and destination are the same memory"):
        snapshot.export(out=out, page_ids=[4, 3, 2, 1, 0])
    rows = np.frombuffer(memory, ml_dtypes.bfloat16, sum(LENS) * HEADS * DIM, place).reshape(sum(LENS), HEADS, DIM)
    fine, well, also = (np.zeros_like(rows) for _ in range(3))
    with pytest.raises(hw.IncompatibleError, match="source and destination are the same memory"):
        snapshot.export(layout="dense-thd", layers=[1, 0], out=[(fine, well), (rows, also)])
    assert not any(array.view(np.uint16).any() for array in (fine, well, also))
    assert bytes(memory) == before


BATCH = (len(LENS), HEADS, 12, DIM)
REFUSED_DENSE = {
    "heads": (np.zeros((len(LENS), 3, 12, DIM), ml_dtypes.bfloat16), hw.BufferSizeError, "adapter.agreement"),
    "dim": (np.zeros((len(LENS), HEADS, 12, 5), ml_dtypes.bfloat16), hw.BufferSizeError, "adapter.copy-shape"),
    "type": (np.zeros(BATCH, np.float16), hw.BufferSizeError, "adapter.copy-type"),
    "too-short": (np.zeros((len(LENS), HEADS, 11, DIM), ml_dtypes.bfloat16), hw.IncompatibleError, None),
    "too-few": (np.zeros((3, HEADS, 12, DIM), ml_dtypes.bfloat16), hw.IncompatibleError, None),
    "role": (None, hw.IncompatibleError, "adapter.roles"),
    "read-only": (locked(np.zeros(BATCH, ml_dtypes.bfloat16)), hw.IncompatibleError, "adapter.destination"),
}


@pytest.mark.parametrize("case", REFUSED_DENSE)
def test_a_batch_that_does_not_fit_is_refused_before_a_byte_is_written(case) -> None:
    wrong, error, rule = REFUSED_DENSE[case]
    arrays = [np.full(BATCH, 7, ml_dtypes.bfloat16) for _ in range(3)]
    with pytest.raises(error) as refusal:
        hw.load_snapshot(saved()).export(layout="dense-thd", out=[(arrays[0], arrays[1]), (arrays[2], wrong)])
    if rule is not None:
        assert refusal.value.rule == rule
    assert all((array == 7).all() for array in arrays)


def test_the_form_of_a_batch_is_told_by_its_arrays() -> None:
    with pytest.raises(TypeError, match="form= is for fresh ones"):
        hw.load_snapshot(saved()).export(layout="dense-thd", form="batch", out=[])


def test_the_tables_are_those_of_the_pages_written() -> None:
    assert TABLES[0][:2] == [5, 2]  # what the ids below stand for
    out = usable(stale(engine_cache()))
    exported = hw.load_snapshot(saved()).export(out=out, page_ids=np.array(IDS, np.uint8))
    assert exported.block_tables.tolist() == [[9, 2, -1], [9, 10, 0], [-1, -1, -1], [5, -1, -1]]
    assert exported.block_table.tolist() == [9, 2, 9, 10, 0, 5]
    assert exported.seq_ptr.tolist() == [0, 2, 5, 5, 6]

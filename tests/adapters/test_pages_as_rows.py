"""Pages of strided pools copied as rows of bytes are the pages, whatever the strides."""

from __future__ import annotations

import io
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from export_cases import numbered
from hypothesis import given
from hypothesis import strategies as st

import hurray_wire as hw
from hurray_wire import adapters
from hurray_wire.adapters import LayerSpec, PoolSpec
from hurray_wire.adapters.rows import PageRows

PAGES, PAGE, HEADS, DIM = 5, 4, 3, 32
FORMS = [(name, form.name) for name in adapters.names() if name != "mla" for form in adapters.get(name).forms]


def as_engine_holds_it(layout: str, form: str, dtype: Any, value_dim: int = DIM) -> tuple[Any, dict[str, np.ndarray]]:
    """A cache with a bit pattern of its own in every element, and its pools."""
    specs = {"key": PoolSpec(HEADS, DIM, np.dtype(dtype)), "value": PoolSpec(HEADS, value_dim, np.dtype(dtype))}
    adapter = adapters.get(layout)
    cache = adapter.allocate([LayerSpec(0, specs)], num_pages=PAGES, page_size=PAGE, form=form)
    (layer,) = adapter.views(cache, page_size=PAGE, num_heads=HEADS, head_dim=DIM, value_head_dim=value_dim, form=form)
    for number, pool in enumerate(layer.pools.values()):
        pool[...] = numbered(*pool.shape, start=number * 97, dtype=dtype)
    return cache, layer.pools


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize(("layout", "form"), FORMS)
def test_pages_of_every_layout_are_taken_bit_by_bit(layout: str, form: str, dtype: Any) -> None:
    _, pools = as_engine_holds_it(layout, form, dtype)
    ids = np.array([3, 0, 3, 4])
    for pool in pools.values():
        rows = PageRows.of(pool)
        assert rows is not None
        out = np.zeros((len(ids), *pool.shape[1:]), dtype)
        rows.take(ids, out)
        for page, taken in zip(ids.tolist(), out, strict=True):
            assert taken.tobytes() == np.ascontiguousarray(pool[page]).tobytes()


@pytest.mark.parametrize("value_dim", [DIM, 16, 48])
@pytest.mark.parametrize("compact", [True, False])
def test_a_snapshot_of_rows_of_keys_and_values_side_by_side_is_that_of_apart_ones(
    value_dim: int, compact: bool
) -> None:
    cache, pools = as_engine_holds_it("vllm-packed", "nhd", np.float32, value_dim)
    options: dict[str, Any] = {"block_tables": [[4, 1], [2, 0]], "seq_lens": [7, 8], "compact": compact}
    found, expected = io.BytesIO(), io.BytesIO()
    sizes = {"num_heads": HEADS, "head_dim": DIM, "value_head_dim": value_dim}
    hw.save_snapshot(found, cache, layout="vllm-packed", form="nhd", page_size=PAGE, **sizes, **options)
    hw.save_snapshot(expected, [tuple(np.ascontiguousarray(pool) for pool in pools.values())], **options)
    with hw.load_snapshot(found.getvalue()) as ours, hw.load_snapshot(expected.getvalue()) as theirs:
        for role in ("key", "value"):
            one, other = (getattr(snapshot[0], role) for snapshot in (ours, theirs))
            assert one.page_pool.tobytes() == other.page_pool.tobytes()
            assert one.block_table.tolist() == other.block_table.tolist()


@given(st.data())
def test_any_strides_of_whole_rows_are_taken(data: st.DataObject) -> None:
    memory = numbered(6, 4, 5, 96, dtype=np.uint16)
    axes = data.draw(st.permutations(range(3)))
    steps = [data.draw(st.integers(1, 3), label="step") for _ in range(3)]
    starts = [data.draw(st.integers(0, 2), label="start") for _ in range(3)]
    pool = memory[tuple(slice(start, None, step) for start, step in zip(starts, steps, strict=True))]
    pool = pool[..., data.draw(st.sampled_from([slice(None), slice(0, 64), slice(32, 64)]), label="dim")]
    pool = pool.transpose(*axes, 3)
    if data.draw(st.booleans(), label="broadcast"):
        pool = np.broadcast_to(pool[:, :1], pool.shape)
    ids = np.array(data.draw(st.lists(st.integers(0, len(pool) - 1), max_size=7), label="ids"), np.int64)
    rows = PageRows.of(pool)
    assert rows is not None
    out = np.zeros((len(ids), *pool.shape[1:]), np.uint16)
    rows.take(ids, out)
    assert out.tobytes() == np.ascontiguousarray(pool[ids]).tobytes()


@pytest.mark.parametrize(
    "pool",
    [
        np.zeros((3, 4, 2, 31), np.int16)[:, :, ::2],
        np.zeros((3, 4, 2, 64), np.float32)[..., ::2],
        np.zeros((3, 4, 2, 64), np.float32)[::-1],
        np.zeros((3, 4, 0, 64), np.float32),
        np.zeros((0, 4, 2, 64), np.float32),
        np.zeros((3, 4, 2, 65), np.float32)[..., :64],
    ],
    ids=["short", "spread", "backwards", "no-heads", "no-pages", "between-rows"],
)
def test_pools_without_rows_of_some_length_have_none(pool: np.ndarray) -> None:
    assert PageRows.of(pool) is None


def test_a_contiguous_page_is_one_row() -> None:
    pool = np.zeros((3, 2, 4, 2, 64), np.float32)[:, 1]
    rows = PageRows.of(pool)
    assert rows is not None
    assert rows.rows.shape == (5, 4 * 2 * 64 * 4)
    assert (rows.within.tolist(), rows.step) == ([0], 2)
    assert not rows.rows.flags.writeable

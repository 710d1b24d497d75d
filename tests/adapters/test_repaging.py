"""The same tokens in pages of another size: every token is where the new tables say, nothing stale comes along."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hurray_wire import parallel
from hurray_wire.adapters import Tables, normalise, plan_bytes, repage
from hurray_wire.errors import BufferSizeError, IncompatibleError, InvalidDescriptorError

STALE = 0xDEAD


def numbered(pages: int, slots: int) -> np.ndarray:
    return np.arange(1, pages * slots * 2 * 3 + 1, dtype=np.uint32).reshape(pages, slots, 2, 3)


def assert_same_tokens(old: Tables, pool: np.ndarray, new: Tables, moved: np.ndarray, places: list[int]) -> None:
    """Token by token, by the formula of the format on both sides; slots that no sequence uses are zero."""
    used = np.zeros(moved.shape[:2], bool)
    assert new.seq_lens.tolist() == old.seq_lens.tolist()
    for seq, length in enumerate(old.seq_lens.tolist()):
        for token in range(length):
            page, slot = divmod(token, pool.shape[1])
            expected = pool[old.block_table[old.seq_ptr[seq] + page], slot]
            page, slot = divmod(token, moved.shape[1])
            place = places[new.block_table[new.seq_ptr[seq] + page]]
            np.testing.assert_array_equal(moved[place, slot], expected)
            used[place, slot] = True
    assert not moved[places][~used[places]].any()


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tables, int, int]:
    """A batch whose sequences may share pages, the size of its pool, and the page size."""
    size = draw(st.integers(1, 9))
    num_pages = draw(st.integers(1, 12))
    lengths = draw(st.lists(st.integers(0, 30), max_size=5))
    rows = [
        draw(st.lists(st.integers(0, num_pages - 1), min_size=-(-n // size), max_size=-(-n // size))) for n in lengths
    ]
    return normalise(block_tables=rows, seq_lens=lengths, page_size=size, num_pages=num_pages), num_pages, size


@given(batches(), st.integers(1, 9), st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_every_token_is_where_the_new_tables_say(
    batch: tuple[Tables, int, int], new_size: int, strided: bool, as_reader: bool, rng: Any
) -> None:
    old, num_pages, size = batch
    plan = repage(old, page_size=size, new_page_size=new_size)
    pool = numbered(num_pages, size)
    if strided:
        pool = np.ascontiguousarray(pool.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)[:, :, ::-1]
    places = rng.sample(range(plan.num_pages + 2), plan.num_pages)
    moved = np.full((plan.num_pages + 2, 2, new_size, 3), STALE, np.uint32).transpose(0, 2, 1, 3)
    plan.copy(pool.__getitem__ if as_reader else pool, moved, destination_ids=places)
    assert_same_tokens(old, pool, plan.tables, moved, places)
    untouched = sorted(set(range(plan.num_pages + 2)) - set(places))
    assert (moved[untouched] == STALE).all()

    start, stop = sorted((rng.randrange(plan.num_pages + 1), rng.randrange(plan.num_pages + 1)))
    piece = plan.read(pool.__getitem__ if as_reader else pool, start, stop)
    np.testing.assert_array_equal(piece, moved[places[start:stop]], strict=True)


@pytest.mark.parametrize(
    ("old", "new", "block_table", "num_pages"),
    [
        # two sequences of 40 and 35 tokens; pages of 16, the first two shared
        (16, 32, [0, 1, 0, 2], 3),  # the prefix is a new page
        (16, 16, [0, 1, 2, 0, 1, 3], 4),
        (16, 8, [0, 1, 2, 3, 4, 0, 1, 2, 3, 5], 6),
        (16, 64, [0, 1], 2),  # the prefix ends within a new page: it is copied for each
        (16, 24, [0, 1, 0, 2], 3),  # 24 of the 32 shared tokens fill a page
    ],
)
def test_a_shared_prefix_stays_shared_where_it_fills_a_page(
    old: int, new: int, block_table: list[int], num_pages: int
) -> None:
    tables = normalise(block_tables=[[4, 7, 5], [4, 7, 6]], seq_lens=[40, 35], page_size=old)
    plan = repage(tables, page_size=old, new_page_size=new)
    assert plan.tables.block_table.tolist() == block_table
    assert plan.num_pages == num_pages


def test_a_shared_last_page_keeps_the_tokens_of_the_longer_sequence() -> None:
    tables = normalise(block_tables=[[3, 1], [3, 1]], seq_lens=[5, 7], page_size=4)
    plan = repage(tables, page_size=4, new_page_size=8)
    assert plan.tables.block_table.tolist() == [0, 0]
    pool = numbered(4, 4)
    moved = plan.read(pool, 0, plan.num_pages)
    assert_same_tokens(tables, pool, plan.tables, moved, [0])
    assert not moved[0, 7:].any()


def test_stale_slots_do_not_come_along() -> None:
    pool = np.full((3, 16, 1, 2), np.nan, np.float32)
    pool[2, :5] = 1
    plan = repage(normalise(block_tables=[[2]], seq_lens=[5], page_size=16), page_size=16, new_page_size=4)
    assert plan.read(pool, 0, plan.num_pages)[:, :, 0, 0].tolist() == [[1, 1, 1, 1], [1, 0, 0, 0]]


def test_a_page_outside_the_pool_is_refused_before_anything_is_written() -> None:
    plan = repage(normalise(block_tables=[[0, 9]], seq_lens=[8], page_size=4), page_size=4, new_page_size=2)
    target = np.full((4, 2, 2, 3), STALE, np.uint32)
    with pytest.raises(InvalidDescriptorError, match="page 9 of a pool of 9") as refusal:
        plan.copy(numbered(9, 4), target)
    assert refusal.value.rule == "block-paged.page-id"
    assert (target == STALE).all()


@pytest.mark.parametrize(
    ("pool", "target", "places"),
    [
        (numbered(4, 5), np.zeros((4, 2, 2, 3), np.uint32), None),
        (numbered(4, 4), np.zeros((4, 4, 2, 3), np.uint32), None),
        (numbered(4, 4), np.zeros((4, 2, 2, 4), np.uint32), None),
        (numbered(4, 4), np.zeros((4, 2, 2, 3), np.int32), None),
        (numbered(4, 4), np.zeros((3, 2, 2, 3), np.uint32), None),
        (numbered(4, 4), np.zeros((9, 2, 2, 3), np.uint32), [1, 2, 3]),
        (numbered(4, 4), np.zeros((9, 2, 2, 3), np.uint32), [1, 2, 3, 1]),
        (numbered(4, 4), np.zeros((9, 2, 2, 3), np.uint32), [1, 2, 3, 9]),
    ],
)
def test_pools_that_do_not_fit_the_plan_are_refused(pool: np.ndarray, target: np.ndarray, places: Any) -> None:
    plan = repage(normalise(block_tables=[[0, 2]], seq_lens=[8], page_size=4), page_size=4, new_page_size=2)
    with pytest.raises((BufferSizeError, IncompatibleError, InvalidDescriptorError)):
        plan.copy(pool, target, destination_ids=places)
    assert not target.any()


@pytest.mark.parametrize("size", [0, -3, 2**32])
def test_page_sizes_the_format_cannot_carry_are_refused(size: int) -> None:
    tables = normalise(block_tables=[[0]], seq_lens=[1], page_size=4)
    with pytest.raises(IncompatibleError) as refusal:
        repage(tables, page_size=4, new_page_size=size)
    assert refusal.value.rule == "block-paged.page-size"


def test_repaging_holds_no_second_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 MiB of pages of 16 become pages of 64 in a caller's pool: two threads hold a few MiB between them."""
    monkeypatch.setattr(parallel, "cpu_count", lambda: 2)
    pages = 256
    pool = np.ones((pages, 16, 8, 256), np.float16)
    order = np.random.default_rng(1).permutation(pages)
    tables = normalise(block_tables=[order], seq_lens=[pages * 16], page_size=16)
    target = np.zeros((pages // 4, 64, 8, 256), np.float16)
    tracemalloc.start()
    try:
        plan = repage(tables, page_size=16, new_page_size=64)
        plan.copy(pool, target)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert pool.nbytes == 16 << 20
    assert peak < 6 << 20
    assert (target == 1).all()


@pytest.mark.parametrize("shared", [0, 1, 2], ids=["apart", "nearly-apart", "shared"])
@pytest.mark.parametrize(("old", "new"), [(16, 1), (16, 7), (16, 64), (2, 4096)])
def test_a_plan_takes_no_more_memory_than_is_told_before(old: int, new: int, shared: int) -> None:
    each = 16_000 // old
    table = np.arange(10 * each) if shared < 2 else np.zeros(10 * each, np.int64)
    if shared:
        table[1] = table[0]  # now every page is compared with all others
    tables = Tables(table, np.arange(0, 10 * each + 1, each), np.full(10, 16_000))
    told = plan_bytes(tables.seq_lens, page_size=old, new_page_size=new)
    tracemalloc.start()
    try:
        plan = repage(tables, page_size=old, new_page_size=new)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert plan.tables.total_tokens == 160_000
    assert plan.pages.nbytes < peak <= told


def test_a_page_of_a_million_granules_is_shared_like_any_other() -> None:
    tables = Tables(np.zeros(4, np.int64), np.array([0, 2, 4]), np.array([2, 2]))
    plan = repage(tables, page_size=1, new_page_size=1 << 20)
    assert (plan.num_pages, plan.tables.block_table.tolist(), plan.filled.tolist()) == (1, [0, 0], [2])
    assert plan.pages.shape == (1, 1 << 20)

"""Heads of tensor-parallel ranks: shares, copies, and pools of n ranks moved into those of m."""

from __future__ import annotations

import numpy as np
import pytest

from hurray_wire.adapters import copy_heads, count_heads, head_moves, head_range, head_ranges, split_heads
from hurray_wire.errors import BufferSizeError, IncompatibleError


def numbered(heads: int, pages: int = 5) -> np.ndarray:
    return np.arange(1, pages * 2 * heads * 3 + 1, dtype=np.uint32).reshape(pages, 2, heads, 3)


@pytest.mark.parametrize(
    ("num_heads", "size", "shares"),
    [
        (8, 1, [[0, 1, 2, 3, 4, 5, 6, 7]]),
        (8, 2, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (4, 4, [[0], [1], [2], [3]]),
        (2, 8, [[0], [0], [0], [0], [1], [1], [1], [1]]),
        (1, 3, [[0], [0], [0]]),
    ],
)
def test_ranks_share_heads_or_hold_copies(num_heads: int, size: int, shares: list[list[int]]) -> None:
    assert [list(share) for share in head_ranges(num_heads, size)] == shares


@pytest.mark.parametrize(
    ("num_heads", "size", "rank", "first", "count"),
    [
        (8 << 62, 1 << 62, (1 << 62) - 1, 8 * ((1 << 62) - 1), 8),
        (1 << 70, 2, 1, 1 << 69, 1 << 69),
        (2, 1 << 62, 1 << 61, 1, 1),
        (2, 1 << 62, (1 << 61) - 1, 0, 1),
    ],
)
def test_one_rank_of_any_number_has_its_heads_at_once(
    num_heads: int, size: int, rank: int, first: int, count: int
) -> None:
    heads = head_range(num_heads, size, rank)
    assert (heads.start, count_heads(heads)) == (first, count)


@pytest.mark.parametrize(("num_heads", "size"), [(8, 3), (3, 8), (0, 1), (1, 0), (6, 4), ((1 << 62) + 1, 1 << 62)])
def test_unequal_shares_are_refused(num_heads: int, size: int) -> None:
    for call in (lambda: head_ranges(num_heads, size), lambda: head_range(num_heads, size, 0)):
        with pytest.raises(IncompatibleError) as refusal:
            call()
        assert refusal.value.rule == "adapter.heads"


def test_a_model_of_more_heads_than_can_be_counted_is_refused_by_an_error_of_ours() -> None:
    with pytest.raises(BufferSizeError, match=f"rank 0 of 1 of the source has {1 << 70} of {1 << 70} heads"):
        copy_heads([numbered(2)], [numbered(2)], num_heads=1 << 70)


def test_a_split_is_made_of_views() -> None:
    pool = numbered(6)
    parts = split_heads(pool, 3)
    for rank, part in enumerate(parts):
        assert np.shares_memory(part, pool)
        np.testing.assert_array_equal(part, pool[:, :, [2 * rank, 2 * rank + 1]])


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 4), (4, 1), (2, 4), (4, 2), (1, 8), (8, 1), (8, 2), (2, 8), (8, 8)])
def test_n_ranks_fill_m_ranks_at_the_named_pages(n: int, m: int) -> None:
    whole = numbered(4)

    def part(rank: int, size: int) -> np.ndarray:
        heads = [head for head in range(4) if head * size // 4 == rank] or [rank * 4 // size]
        return whole[:, :, heads].copy()

    targets = [np.zeros((7, *part(rank, m).shape[1:]), np.uint32) for rank in range(m)]
    copy_heads([part(rank, n) for rank in range(n)], targets, num_heads=4, source_ids=[4, 0], destination_ids=[6, 2])
    for rank, target in enumerate(targets):
        expected = np.zeros_like(target)
        expected[6], expected[2] = part(rank, m)[4], part(rank, m)[0]
        np.testing.assert_array_equal(target, expected)


def test_a_pool_with_other_heads_than_its_share_is_refused() -> None:
    with pytest.raises(BufferSizeError, match="rank 1 of 2 of the source has 2 of 4 heads") as refusal:
        copy_heads([numbered(2), numbered(3)], [numbered(4)], num_heads=4)
    assert refusal.value.rule == "adapter.heads"


def test_nothing_is_written_if_one_rank_does_not_fit() -> None:
    targets = [numbered(2) * 0, (numbered(2) * 0).astype(np.int32)]
    with pytest.raises(BufferSizeError, match="not converted"):
        copy_heads([numbered(4)], targets, num_heads=4)
    assert not targets[0].any()


def test_a_head_that_nobody_holds_is_refused() -> None:
    with pytest.raises(IncompatibleError, match="head 2 is held by none"):
        head_moves([range(2), range(3, 4)], [range(4)])

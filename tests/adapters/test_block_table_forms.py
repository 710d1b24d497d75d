"""Block tables in every form come out as the same ids, pointers and lengths; what is beyond a length has no say."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hurray_wire.adapters import Tables, normalise
from hurray_wire.adapters import tables as forms
from hurray_wire.errors import IncompatibleError, InvalidDescriptorError

# Two sequences that share their first page, one without tokens, one whose last page is full. Pages of 4.
PAGE_SIZE = 4
LENGTHS = [7, 0, 8, 1]
PAGES = [[3, 5], [], [3, 0], [6]]
EXPECTED = ([3, 5, 3, 0, 6], [0, 2, 2, 4, 5], LENGTHS)


def assert_tables(found: Tables, expected: tuple[list[int], list[int], list[int]] = EXPECTED) -> None:
    for array, values in zip(found, expected, strict=True):
        assert array.dtype == np.int64
        assert array.tolist() == values


@pytest.mark.parametrize("pad", [-1, 0, 2**31 - 1, 99])
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", ">i4"])
def test_padding_of_any_value_is_ignored(pad: int, dtype: str) -> None:
    pad = min(pad, int(np.iinfo(dtype).max))
    table = np.full((4, 3), pad, dtype=dtype)
    for row, pages in enumerate(PAGES):
        table[row, : len(pages)] = pages
    assert_tables(normalise(block_tables=table, seq_lens=LENGTHS, page_size=PAGE_SIZE, num_pages=7))
    assert_tables(normalise(block_tables=table.reshape(-1), seq_lens=LENGTHS, page_size=PAGE_SIZE, num_pages=7))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", ">u8"])
def test_unsigned_padding_is_ignored(dtype: str) -> None:
    table = np.full((4, 2), np.iinfo(dtype).max, dtype=dtype)
    for row, pages in enumerate(PAGES):
        table[row, : len(pages)] = pages
    assert_tables(normalise(block_tables=table, seq_lens=np.array(LENGTHS, dtype), page_size=PAGE_SIZE, num_pages=7))


@pytest.mark.parametrize(
    "rows",
    [
        PAGES,
        [[3, 5, -1], [-1], [3, 0, 2**64], [6, None]],
        [np.array([3, 5], np.uint64), np.array([]), np.array([3, 0, -1], np.int32), [6]],
        [np.array([3, 5], ">u8"), np.array([1], ">u8"), np.array([3, 0, 2**64 - 1], ">u8"), np.array([6], ">u8")],
        ((3, 5), (), (3, 0), (6,)),
    ],
)
def test_lists_are_cut_at_the_length(rows: Any) -> None:
    assert_tables(normalise(block_tables=rows, seq_lens=LENGTHS, page_size=PAGE_SIZE, num_pages=7))


def test_large_ids_of_mixed_types_stay_exact() -> None:
    rows = [np.array([2**60 + 1], np.uint64), np.array([2**60 + 3], np.int64)]
    assert_tables(
        normalise(block_tables=rows, seq_lens=[1, 1], page_size=4), ([2**60 + 1, 2**60 + 3], [0, 1, 2], [1, 1])
    )


def test_a_list_of_whole_numbers_is_a_flattened_table() -> None:
    flat = [3, 5, -1, -1, 3, 0, 6, -1]
    assert_tables(normalise(block_tables=flat, seq_lens=LENGTHS, page_size=PAGE_SIZE))


def test_csr_leaves_out_pages_beyond_a_length() -> None:
    table, ptr = [3, 5, 9, 9, 9, 3, 0, 6], [0, 4, 5, 7, 8]
    assert_tables(normalise(block_table=table, seq_ptr=ptr, seq_lens=LENGTHS, page_size=PAGE_SIZE, num_pages=7))
    assert_tables(normalise(block_table=EXPECTED[0], seq_ptr=EXPECTED[1], seq_lens=LENGTHS, page_size=PAGE_SIZE))


def test_indptr_and_last_page_len_give_the_lengths() -> None:
    found = normalise(
        block_table=np.array([3, 5, 3, 0, 6, 77, 77], np.int32),
        seq_ptr=np.array(EXPECTED[1], np.int32),
        last_page_len=np.array([3, 0, 4, 1], np.int32),
        page_size=PAGE_SIZE,
        num_pages=7,
    )
    assert_tables(found)
    assert found.num_seqs == 4
    assert found.total_tokens == 16


def test_token_slots_become_pages() -> None:
    slots = np.zeros((4, 9), np.int32)
    slots[0, :7] = [12, 13, 14, 15, 20, 21, 22]
    slots[2, :8] = [12, 13, 14, 15, 0, 1, 2, 3]
    slots[3, :1] = [24]
    assert_tables(normalise(token_slots=slots, seq_lens=LENGTHS, page_size=PAGE_SIZE, num_pages=7))
    lists = [row[:length] for row, length in zip(slots.tolist(), LENGTHS, strict=True)]
    assert_tables(normalise(token_slots=lists, seq_lens=LENGTHS, page_size=PAGE_SIZE, num_pages=7))


@pytest.mark.parametrize(
    ("row", "token", "slot", "belongs"),
    [
        ([13, 14, 15], 0, 13, 12),  # does not begin at the first slot of a page
        ([12, 14, 15], 1, 14, 13),  # leaves a slot out
        ([12, 13, 14, 15, 18], 4, 18, 16),  # the second page begins in its middle
        ([12, 13, 14, 11], 3, 11, 15),
    ],
)
def test_tokens_that_are_not_in_order_in_their_page_are_refused(
    row: list[int], token: int, slot: int, belongs: int
) -> None:
    with pytest.raises(IncompatibleError, match=f"token {token} of sequence 1 is in slot {slot}") as refusal:
        normalise(token_slots=[[0], row], seq_lens=[1, len(row)], page_size=4)
    assert (refusal.value.rule, refusal.value.declared, refusal.value.found) == ("adapter.token-slots", belongs, slot)
    # as pages of one token they are what they are
    assert_tables(
        normalise(token_slots=[[0], row], seq_lens=[1, len(row)], page_size=1),
        ([0, *row], [0, 1, 1 + len(row)], [1, len(row)]),
    )


@pytest.mark.parametrize("bad", [-1, 7, 2**40])
def test_a_bad_page_within_a_length_is_refused_with_its_place(bad: int) -> None:
    rows = [[3, 5], [], [3, bad], [6]]
    ids = [3, 5, 3, bad, 6]
    padded = np.array([[3, 5], [0, 0], [3, bad], [6, 0]])
    for form in (
        {"block_tables": rows, "seq_lens": LENGTHS},
        {"block_tables": padded, "seq_lens": LENGTHS},
        {"block_tables": padded.reshape(-1), "seq_lens": LENGTHS},
        {"block_table": ids, "seq_ptr": EXPECTED[1], "seq_lens": LENGTHS},
        {"block_table": ids, "seq_ptr": EXPECTED[1], "last_page_len": [3, 0, 4, 1]},
    ):
        with pytest.raises(InvalidDescriptorError, match=f"sequence 2 names page {bad} .*at position 1") as refusal:
            normalise(**form, page_size=PAGE_SIZE, num_pages=7)  # type: ignore[arg-type]
        assert (refusal.value.rule, refusal.value.found) == ("block-paged.page-id", bad)


def test_a_negative_page_is_refused_without_knowing_the_pool() -> None:
    with pytest.raises(InvalidDescriptorError, match="sequence 0 names page -1 of the pool at position 1"):
        normalise(block_tables=[[0, -1]], seq_lens=[5], page_size=4)


@pytest.mark.parametrize("num_pages", [None, 2**63, 2**64])
def test_a_page_that_no_int64_holds_never_wraps(num_pages: int | None) -> None:
    table = np.array([[2**64 - 1]], np.uint64)
    with pytest.raises(InvalidDescriptorError, match=str(2**64 - 1)) as refusal:
        normalise(block_tables=table, seq_lens=[1], page_size=4, num_pages=num_pages)
    assert refusal.value.rule == "block-paged.page-id"


def test_a_bad_slot_is_called_a_slot() -> None:
    with pytest.raises(InvalidDescriptorError, match="sequence 0 names slot 28 of a pool of 28 at position 1"):
        normalise(token_slots=[[0, 28]], seq_lens=[2], page_size=4, num_pages=7)


@pytest.mark.parametrize(
    ("lengths", "rule", "words"),
    [
        ([7, 0, 9, 1], "snapshot.seq-lens-pages", "sequence 2 has length 9, which takes 3 pages of 4"),
        ([7, -1, 8, 1], "snapshot.seq-lens-pages", "sequence 1 has length -1"),
        ([7, 0, 8, 2**62], "snapshot.seq-lens-pages", f"sequence 3 has length {2**62}"),
        ([7, 0, 8], "snapshot.seq-lens-count", "3 entries for 4 sequences"),
        (np.array([7, 0, 8, 2**63], np.uint64), "adapter.table-type", str(2**63)),
        ([7.0, 0.0, 8.0, 1.0], "adapter.table-type", "float64"),
        ([True, False, True, True], "adapter.table-type", "bool"),
        ([[7, 0, 8, 1]], "adapter.table-rank", "2 axes"),
        ([[7], [0, 8, 1]], "adapter.table-type", "no array of integers"),
    ],
)
def test_lengths_that_the_table_cannot_hold_are_refused(lengths: Any, rule: str, words: str) -> None:
    padded = np.array([[3, 5], [0, 0], [3, 0], [6, 0]])
    with pytest.raises(IncompatibleError, match=words) as refusal:
        normalise(block_tables=padded, seq_lens=lengths, page_size=PAGE_SIZE)
    assert refusal.value.rule == rule


@pytest.mark.parametrize(
    ("seq_ptr", "rule"),
    [
        ([1, 2, 2, 4, 5], "block-paged.seq-ptr-start"),
        ([0, 2, 1, 4, 5], "block-paged.seq-ptr-order"),
        ([0, 2, 2, 4, 6], "block-paged.seq-ptr-end"),
        ([0, 2, 2, 4, 4], "block-paged.seq-ptr-end"),
        ([], "block-paged.seq-ptr-length"),
    ],
)
def test_pointers_that_do_not_divide_the_table_are_refused(seq_ptr: list[int], rule: str) -> None:
    with pytest.raises(InvalidDescriptorError) as refusal:
        normalise(block_table=EXPECTED[0], seq_ptr=seq_ptr, seq_lens=LENGTHS, page_size=PAGE_SIZE)
    assert refusal.value.rule == rule


def test_indptr_beyond_the_indices_is_refused() -> None:
    with pytest.raises(InvalidDescriptorError, match="ends at 3") as refusal:
        normalise(block_table=[1, 2], seq_ptr=[0, 3], last_page_len=[1], page_size=4)
    assert refusal.value.rule == "block-paged.seq-ptr-end"


@pytest.mark.parametrize("last", [0, -1, 5])
def test_a_last_page_holds_one_to_page_size_tokens(last: int) -> None:
    with pytest.raises(IncompatibleError, match=f"sequence 1 has {last} tokens in its last page of 4"):
        normalise(block_table=[1, 2], seq_ptr=[0, 1, 2], last_page_len=[4, last], page_size=4)


@pytest.mark.parametrize("page_size", [0, -1, 2**32])
def test_page_sizes_the_format_cannot_carry_are_refused(page_size: int) -> None:
    with pytest.raises(IncompatibleError) as refusal:
        normalise(block_tables=[[0]], seq_lens=[1], page_size=page_size)
    assert refusal.value.rule == "block-paged.page-size"


def test_a_flat_table_without_equal_rows_is_refused() -> None:
    for flat, lengths in (([1, 2, 3], [1, 1]), ([1], [])):
        with pytest.raises(IncompatibleError, match="equal rows"):
            normalise(block_tables=np.array(flat), seq_lens=lengths, page_size=4)


@pytest.mark.parametrize(
    "form",
    [
        {"block_tables": [], "seq_lens": []},
        {"block_tables": np.zeros((0, 5), np.int32), "seq_lens": np.zeros(0, np.int32)},
        {"block_tables": np.zeros(0, np.int32), "seq_lens": []},
        {"block_table": [], "seq_ptr": [0], "seq_lens": []},
        {"block_table": [], "seq_ptr": [0], "last_page_len": []},
        {"token_slots": [], "seq_lens": []},
        {"token_slots": np.zeros((0, 0), np.int64), "seq_lens": []},
    ],
)
def test_an_empty_batch_is_a_batch(form: dict[str, Any]) -> None:
    assert_tables(normalise(**form, page_size=4, num_pages=0), ([], [0], []))


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"seq_lens": [1]},
        {"block_tables": [[1]]},
        {"block_tables": [[1]], "block_table": [1], "seq_lens": [1]},
        {"block_table": [1], "seq_ptr": [0, 1]},
        {"block_table": [1], "seq_ptr": [0, 1], "seq_lens": [1], "last_page_len": [1]},
    ],
)
def test_arguments_that_make_no_form_are_a_type_error(form: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="no form of block table"):
        normalise(**form, page_size=4)


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 17), st.integers(0, 3)), max_size=6),
    st.randoms(use_true_random=False),
)
def test_all_forms_of_one_table_agree(page_size: int, sequences: list[tuple[int, int]], rng: random.Random) -> None:
    lengths = [length for length, _ in sequences]
    needed = [-(-length // page_size) for length in lengths]
    rows = [[rng.randrange(50) for _ in range(count)] for count in needed]
    expected = ([page for row in rows for page in row], [sum(needed[:n]) for n in range(len(needed) + 1)], lengths)
    spare = [
        row + [rng.choice([-1, 0, 49, 2**31 - 1])] * extra for row, (_, extra) in zip(rows, sequences, strict=True)
    ]
    width = max(map(len, spare), default=0)
    padded = np.array([row + [-1] * (width - len(row)) for row in spare], np.int32).reshape(len(rows), width)
    slots = [
        [row[token // page_size] * page_size + token % page_size for token in range(length)]
        for row, length in zip(rows, lengths, strict=True)
    ]
    last = [length - (count - 1) * page_size if count else 0 for length, count in zip(lengths, needed, strict=True)]
    size = {"page_size": page_size, "num_pages": 50}
    assert_tables(forms.from_lists(spare, lengths, **size), expected)
    assert_tables(forms.from_padded(padded, lengths, **size), expected)
    assert_tables(forms.from_flat(padded.reshape(-1), lengths, **size), expected)
    assert_tables(forms.from_token_slots(slots, lengths, **size), expected)
    assert_tables(forms.from_indptr(expected[1], expected[0], last, **size), expected)
    loose = [0, *np.cumsum([len(row) for row in spare]).tolist()]
    assert_tables(forms.from_csr([page for row in spare for page in row], loose, lengths, **size), expected)

"""Block tables in every form that engines keep them, normalised to one: page ids in turn, ``seq_ptr``, lengths.

A table says which pages hold the tokens of each sequence. Engines keep it padded (with -1, 0, INT32_MAX, or whatever
was there before), as lists, as CSR with lengths or with the fill of the last page, flattened, or token by token. What
belongs to a sequence is told by its length and never by a sentinel: entries beyond a length are ignored, whatever
they hold, and a bad page id within it is refused with its sequence and position.

All that comes out is int64. Ids beyond that are refused, so nothing wraps, whatever integer type comes in.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import IncompatibleError, InvalidDescriptorError
from .intake import as_array
from .integers import Ints, as_lengths, check_page_size, first_outside, integers, to_int64

__all__ = [
    "Tables",
    "from_csr",
    "from_flat",
    "from_indptr",
    "from_lists",
    "from_padded",
    "from_token_slots",
    "normalise",
]


class Tables(NamedTuple):
    """The tables of a batch, trimmed to its lengths.

    ``block_table`` holds the page ids of every sequence in turn, ``seq_ptr`` [num_seqs + 1] where each one's begin, and
    ``seq_lens`` [num_seqs] the tokens of each: sequence s has ceil(seq_lens[s] / page_size) pages. All int64.
    """

    block_table: Ints
    seq_ptr: Ints
    seq_lens: Ints

    @property
    def num_seqs(self) -> int:
        return len(self.seq_lens)

    @property
    def total_tokens(self) -> int:
        return int(self.seq_lens.sum())


def normalise(
    *,
    page_size: int,
    num_pages: int | None = None,
    seq_lens: Any = None,
    block_tables: Any = None,
    block_table: Any = None,
    seq_ptr: Any = None,
    last_page_len: Any = None,
    token_slots: Any = None,
) -> Tables:
    """The tables of a batch from whichever form the caller has, told apart by which arguments are given.

    ==================================================  ===============================================================
    ``block_tables``, ``seq_lens``                      padded [num_seqs, max_blocks], a list of lists, or 1-D flattened
    ``block_table``, ``seq_ptr``, ``seq_lens``          CSR
    ``block_table``, ``seq_ptr``, ``last_page_len``     FlashInfer: indices, indptr, tokens in the last page
    ``token_slots``, ``seq_lens``                       SGLang: padded [num_seqs, max_tokens] or lists of slots
    ==================================================  ===============================================================

    Arrays are copied. Raises TypeError for any other combination, and what the form's own function raises.
    """
    given = {
        name
        for name, value in (
            ("seq_lens", seq_lens),
            ("block_tables", block_tables),
            ("block_table", block_table),
            ("seq_ptr", seq_ptr),
            ("last_page_len", last_page_len),
            ("token_slots", token_slots),
        )
        if value is not None
    }
    if given == {"block_tables", "seq_lens"}:
        form = from_lists if isinstance(block_tables, list | tuple) else from_padded
        if _rank(block_tables) == 1:
            form = from_flat
        return form(block_tables, seq_lens, page_size=page_size, num_pages=num_pages)
    if given == {"block_table", "seq_ptr", "seq_lens"}:
        return from_csr(block_table, seq_ptr, seq_lens, page_size=page_size, num_pages=num_pages)
    if given == {"block_table", "seq_ptr", "last_page_len"}:
        return from_indptr(seq_ptr, block_table, last_page_len, page_size=page_size, num_pages=num_pages)
    if given == {"token_slots", "seq_lens"}:
        return from_token_slots(token_slots, seq_lens, page_size=page_size, num_pages=num_pages)
    raise TypeError(
        f"no form of block table is made of {', '.join(sorted(given)) or 'nothing'}; give block_tables and seq_lens, "
        "or block_table, seq_ptr and either seq_lens or last_page_len, or token_slots and seq_lens"
    )


def from_padded(block_tables: Any, seq_lens: Any, *, page_size: int, num_pages: int | None = None) -> Tables:
    """A padded table, ``[num_seqs, max_blocks]`` of any integer type and any padding, and ``seq_lens`` [num_seqs].

    Raises InvalidDescriptorError for a page id below 0 or (if it is given) not below ``num_pages``, IncompatibleError
    for lengths that are negative, too long for their row, or not as many as rows.
    """
    return _tables(*_trim_padded(block_tables, "block_tables", seq_lens, page_size), num_pages)


def from_lists(block_tables: Sequence[Any], seq_lens: Any, *, page_size: int, num_pages: int | None = None) -> Tables:
    """A list (or 1-D array) of page ids for each sequence, at least as long as its pages. Errors as for a padded
    one."""
    return _tables(*_trim_lists(block_tables, "block_tables", seq_lens, page_size), num_pages)


def from_flat(block_tables: Any, seq_lens: Any, *, page_size: int, num_pages: int | None = None) -> Tables:
    """A padded table flattened row by row, ``[num_seqs * max_blocks]`` (tpu-inference). Errors as for a padded one."""
    table = integers(block_tables, "block_tables", 1)
    lengths = as_lengths(seq_lens)
    if len(table) % max(len(lengths), 1) or (len(table) and not len(lengths)):
        raise IncompatibleError(
            f"a flat block table of {len(table)} entries has no equal rows for {len(lengths)} sequences",
            rule="snapshot.seq-lens-count",
            declared=len(table),
            found=len(lengths),
        )
    rows = table.reshape(len(lengths), len(table) // max(len(lengths), 1))
    return from_padded(rows, lengths, page_size=page_size, num_pages=num_pages)


def from_csr(block_table: Any, seq_ptr: Any, seq_lens: Any, *, page_size: int, num_pages: int | None = None) -> Tables:
    """CSR: page ids in turn, ``seq_ptr`` [num_seqs + 1], ``seq_lens`` [num_seqs]. Pages beyond a length are left out.

    Raises InvalidDescriptorError for a ``seq_ptr`` that does not start at 0, falls, or does not end at the table's end;
    else as for a padded table.
    """
    table = integers(block_table, "block_table", 1)
    ptr = _pointers(seq_ptr)
    if ptr[-1] != len(table):
        raise _bad_end(ptr, table)
    lengths = _lengths(seq_lens, len(ptr) - 1)
    have = np.diff(ptr)
    pages = _pages(lengths, have, page_size)
    if not np.array_equal(pages, have):
        starts = np.repeat(ptr[:-1] - _offsets(pages)[:-1], pages)
        table = table[starts + np.arange(len(starts), dtype=np.int64)]
    return _tables(table, pages, lengths, num_pages)


def from_indptr(
    indptr: Any, indices: Any, last_page_len: Any, *, page_size: int, num_pages: int | None = None
) -> Tables:
    """FlashInfer: ``indices`` in turn, ``indptr`` [num_seqs + 1], tokens in the last page ``last_page_len`` [num_seqs].

    ``indices`` may be longer than ``indptr`` tells (a buffer of fixed size). A sequence with no page has length 0,
    and 0..page_size passes as its ``last_page_len``; any other has 1..page_size, or IncompatibleError is raised. Else
    as CSR.
    """
    size = check_page_size(page_size)
    table = integers(indices, "indices", 1)
    ptr = _pointers(indptr)
    if ptr[-1] > len(table):
        raise _bad_end(ptr, table)
    pages = np.diff(ptr)
    last = to_int64(integers(last_page_len, "last_page_len", 1), "last_page_len")
    _check_count(last, "last_page_len", len(pages))
    bad = (last < (pages > 0)) | (last > size)
    if bad.any():
        seq = int(np.argmax(bad))
        raise IncompatibleError(
            f"sequence {seq} has {int(last[seq])} tokens in its last page of {size}",
            rule="snapshot.seq-lens-pages",
            declared=size,
            found=int(last[seq]),
        )
    lengths = np.where(pages > 0, (pages - 1) * size + last, 0)
    return _tables(table[: int(ptr[-1])], pages, lengths, num_pages)


def from_token_slots(token_slots: Any, seq_lens: Any, *, page_size: int, num_pages: int | None = None) -> Tables:
    """A slot for every token (SGLang), padded ``[num_seqs, max_tokens]`` or lists; slot s is in page s // page_size.

    The tokens of a page must lie in it in order, from its first slot on; IncompatibleError names the sequence and token
    where they do not. With ``page_size=1`` every slot is a page of its own, so any slots will do.
    """
    size = check_page_size(page_size)
    limit = None if num_pages is None else operator.index(num_pages) * size
    trim = _trim_lists if isinstance(token_slots, list | tuple) else _trim_padded
    slots, ptr, lengths = _tables(*trim(token_slots, "token_slots", seq_lens, 1), limit, unit="slot")
    token = np.arange(len(slots), dtype=np.int64) - np.repeat(ptr[:-1], lengths)
    within = token % size
    first = slots[np.arange(len(slots), dtype=np.int64) - within]
    bad = (first % size != 0) | (slots - first != within)
    if bad.any():
        at = int(np.argmax(bad))
        seq = int(np.searchsorted(ptr, at, side="right")) - 1
        raise IncompatibleError(
            f"token {int(token[at])} of sequence {seq} is in slot {int(slots[at])}, where pages of {size} "
            f"put it in slot {int(first[at] // size * size + within[at])}; take the slots as pages of 1 token",
            rule="adapter.token-slots",
            declared=int(first[at] // size * size + within[at]),
            found=int(slots[at]),
        )
    pages = lengths // size + (lengths % size > 0)
    return Tables(slots[within == 0] // size, _offsets(pages), lengths)


def _trim_padded(table: Any, what: str, seq_lens: Any, page_size: int) -> tuple[NDArray[Any], Ints, Ints]:
    """The ids within the lengths, how many each sequence has, and the lengths."""
    array = integers(table, what, 2)
    lengths = _lengths(seq_lens, len(array))
    pages = _pages(lengths, np.full(len(lengths), array.shape[1], dtype=np.int64), page_size)
    return array[np.arange(array.shape[1], dtype=np.int64) < pages[:, np.newaxis]], pages, lengths


def _trim_lists(table: Sequence[Any], what: str, seq_lens: Any, page_size: int) -> tuple[NDArray[Any], Ints, Ints]:
    """As ``_trim_padded``, of lists. They are cut before they become arrays: padding has no say in their type."""
    rows = [row if isinstance(row, list | tuple) else integers(row, what, 1) for row in table]
    lengths = _lengths(seq_lens, len(rows))
    pages = _pages(lengths, np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)), page_size)
    cut = [row[:count] for row, count in zip(rows, pages.tolist(), strict=True)]
    if all(isinstance(row, list | tuple) for row in cut):
        return integers(list(chain.from_iterable(cut)), what, 1), pages, lengths
    arrays = [integers(row, what, 1) for row in cut]
    if len({array.dtype for array in arrays}) > 1:  # NumPy would join signed and unsigned as floats
        arrays = [to_int64(array, what) for array in arrays]
    return np.concatenate(arrays), pages, lengths


def _tables(ids: NDArray[Any], pages: Ints, lengths: Ints, num_pages: int | None, unit: str = "page") -> Tables:
    ptr = _offsets(pages)
    at, pool = first_outside(ids, num_pages)
    if at is not None:
        seq = int(np.searchsorted(ptr, at, side="right")) - 1
        raise InvalidDescriptorError(
            f"sequence {seq} names {unit} {int(ids[at])} of {pool} at position {at - int(ptr[seq])}",
            rule="block-paged.page-id",
            declared=num_pages,
            found=int(ids[at]),
        )
    return Tables(ids.astype(np.int64), ptr, lengths)


def _lengths(seq_lens: Any, num_seqs: int) -> Ints:
    lengths = as_lengths(seq_lens)
    _check_count(lengths, "seq_lens", num_seqs)
    return lengths


def _pages(lengths: Ints, have: Ints, page_size: int) -> Ints:
    """Pages that each length takes; refuses a sequence that takes more than it has."""
    size = check_page_size(page_size)
    pages = lengths // size + (lengths % size > 0)
    if (pages > have).any():
        seq = int(np.argmax(pages > have))
        raise IncompatibleError(
            f"sequence {seq} has length {int(lengths[seq])}, which takes {int(pages[seq])} pages of {size}, but "
            f"its table has {int(have[seq])}",
            rule="snapshot.seq-lens-pages",
            declared=int(have[seq]),
            found=int(pages[seq]),
        )
    return pages


def _pointers(seq_ptr: Any) -> Ints:
    ptr = to_int64(integers(seq_ptr, "seq_ptr", 1), "seq_ptr")
    if len(ptr) == 0:
        raise InvalidDescriptorError(
            "seq_ptr has no entry; it has num_seqs + 1", rule="block-paged.seq-ptr-length", declared=1, found=0
        )
    if ptr[0] != 0:
        raise InvalidDescriptorError(
            f"seq_ptr starts at {int(ptr[0])}, not 0", rule="block-paged.seq-ptr-start", declared=0, found=int(ptr[0])
        )
    falls = ptr[1:] < ptr[:-1]
    if falls.any():
        seq = int(np.argmax(falls))
        raise InvalidDescriptorError(
            f"seq_ptr falls from {int(ptr[seq])} to {int(ptr[seq + 1])} at sequence {seq}",
            rule="block-paged.seq-ptr-order",
            declared=int(ptr[seq]),
            found=int(ptr[seq + 1]),
        )
    return ptr


def _bad_end(ptr: Ints, table: NDArray[Any]) -> InvalidDescriptorError:
    return InvalidDescriptorError(
        f"seq_ptr ends at {int(ptr[-1])}, but the block table has {len(table)} entries",
        rule="block-paged.seq-ptr-end",
        declared=len(table),
        found=int(ptr[-1]),
    )


def _check_count(values: Ints, what: str, num_seqs: int) -> None:
    if len(values) != num_seqs:
        raise IncompatibleError(
            f"{what} has {len(values)} entries for {num_seqs} sequences",
            rule="snapshot.seq-lens-count",
            declared=num_seqs,
            found=len(values),
        )


def _offsets(counts: Ints) -> Ints:
    ptr = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=ptr[1:])
    return ptr


def _rank(table: Any) -> int:
    """1 for whole numbers in a row, 2 for rows of them."""
    if isinstance(table, list | tuple):
        return 2 if not table or isinstance(table[0], list | tuple) else 1 + int(getattr(table[0], "ndim", 0))
    return as_array(table, what="block_tables").ndim

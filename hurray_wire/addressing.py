"""Where a single element of a block-paged tensor lies (spec/block-paged.md, addressing).

The formula by itself, in Python integers, for those who check a kernel or a reader of their own against it. Whole
sequences are the work of ``gather.py``.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

from numpy.typing import NDArray

from .errors import InvalidDescriptorError

__all__ = ["element_offset"]


def element_offset(
    seq: SupportsIndex,
    token: SupportsIndex,
    head: SupportsIndex,
    dim: SupportsIndex,
    *,
    page_size: SupportsIndex,
    num_pages: SupportsIndex,
    num_heads: SupportsIndex,
    head_dim: SupportsIndex,
    block_table: Sequence[SupportsIndex] | NDArray[Any],
    seq_ptr: Sequence[SupportsIndex] | NDArray[Any],
) -> int:
    """Where element (seq, token, head, dim) lies in the page pool, counted in elements from its start.

    ``block_table`` and ``seq_ptr`` are the two index buffers as any sequences of integers; only the entries that the
    answer depends on are read. The descriptor knows no lengths, so a token past the end of its sequence but within its
    last page has an offset, too. Raises InvalidDescriptorError for a coordinate or an entry out of its range.
    """
    size = _within(page_size, 1, None, "page_size", "block-paged.page-size")
    pages = _within(num_pages, 0, None, "num_pages", "block-paged.num-pages")
    heads = _within(num_heads, 0, None, "num_heads", "block-paged.shape")
    dims = _within(head_dim, 0, None, "head_dim", "block-paged.shape")
    if len(seq_ptr) == 0:
        raise InvalidDescriptorError(
            "seq_ptr is empty, it needs num_seqs + 1 entries", rule="block-paged.seq-ptr-length"
        )
    _within(seq_ptr[0], 0, 1, "seq_ptr[0]", "block-paged.seq-ptr-start")
    s = _within(seq, 0, len(seq_ptr) - 1, "seq", "block-paged.element")
    stop = _within(seq_ptr[s + 1], 0, len(block_table) + 1, f"seq_ptr[{s + 1}]", "block-paged.seq-ptr-end")
    start = _within(seq_ptr[s], 0, stop + 1, f"seq_ptr[{s}]", "block-paged.seq-ptr-order")
    t = _within(token, 0, (stop - start) * size, "token", "block-paged.element")
    h = _within(head, 0, heads, "head", "block-paged.element")
    d = _within(dim, 0, dims, "dim", "block-paged.element")
    block, slot = divmod(t, size)
    page = _within(block_table[start + block], 0, pages, f"block_table[{start + block}]", "block-paged.page-id")
    return ((page * size + slot) * heads + h) * dims + d


def _within(value: Any, low: int, end: int | None, what: str, rule: str) -> int:
    """``value`` as a Python integer, where unsigned 64-bit arithmetic cannot wrap, if low <= value < end."""
    try:
        number = operator.index(value)
    except TypeError as error:
        raise InvalidDescriptorError(f"{what} is {value!r}, not an integer", rule=rule, found=repr(value)) from error
    if number < low or (end is not None and number >= end):
        allowed = f"at least {low}" if end is None else f"in [{low}, {end})"
        raise InvalidDescriptorError(f"{what} is {number}, not {allowed}", rule=rule, declared=(low, end), found=number)
    return number

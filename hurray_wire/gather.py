"""From pages to sequences, with NumPy alone (spec/block-paged.md, addressing).

A pool holds pages of ``page_size`` tokens in no particular order; a block table says which pages make up a sequence,
and a length says where it ends. The functions here put the tokens of sequences one after another: ``gather_padded`` as
a batch of equal length with a mask, ``gather_ragged`` as one run of tokens, ``gather_kv`` from the padded tables that
engines hold.

Whole pages are copied (``page_copy``), not tokens, as bytes and never as numbers: every bit pattern survives, and any
dtype will do. Slots past a length are not read at all.

``gather_padded`` and ``gather_ragged`` take tables that were checked at the gate (``model/block_paged.py``) and do not
check them again; were they wrong, the result would be wrong, but no memory outside the pool would be touched. What else
is asked for is checked in ``gather_room``. ``gather_kv`` is a gate itself. Files, scales and dequantization are left to
the tensors.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from .errors import BufferSizeError, IncompatibleError, InvalidDescriptorError, LimitError
from .gather_room import check_apart, check_limit, checked_bytes, checked_out, checked_room
from .page_copy import PageCopy, Piece
from .page_fetch import PageFetch, StoredPages

__all__ = ["Gathered", "choose", "fill_padded", "fill_ragged", "gather_kv", "gather_padded", "gather_ragged"]

_FRESH_BYTES = 32 << 20  # larger allocations come from the system, which zeroes a page of memory when it is touched


class Gathered(NamedTuple):
    """Sequences padded to one length.

    ``values`` is [B, L, *rest] in the dtype of the pool; ``mask`` is bool [B, L], True where ``values`` holds a token.
    Both are the caller's own memory (``values`` is ``out`` where that was given).
    """

    values: NDArray[Any]
    mask: NDArray[np.bool_]


def gather_padded(
    pool: NDArray[Any] | StoredPages,
    block_table: NDArray[Any],
    seq_ptr: NDArray[Any],
    seq_lens: NDArray[Any],
    *,
    seqs: Iterable[SupportsIndex] | None = None,
    max_len: SupportsIndex | None = None,
    out: NDArray[Any] | None = None,
    fill: Any = 0,
    max_bytes: int | None = None,
) -> Gathered:
    """Copy sequences out of ``pool`` into a batch [B, L, *rest] and its mask [B, L].

    ``pool`` is [num_pages, page_size, *rest] of any dtype and any strides, or pages that are not in memory, and then
    there is no ``out``. ``block_table``, ``seq_ptr`` and ``seq_lens`` are 1-D integer arrays that have passed their
    checks. ``seqs`` are the sequences wanted, in this order, repeats allowed; None is all of them. L is ``max_len``,
    or else that of ``out``, or else the longest length chosen (0 if there is none); of a longer sequence the first L
    tokens are taken. Positions past a length hold ``fill``, rounded to the dtype as an assignment would; the integer
    0 stands for zero bits, whatever the dtype.

    ``out`` must have exactly the shape [B, L, *rest] and the dtype of the pool, be writable, and not overlap the pool
    (judged by first and last byte). It need not be contiguous.

    Raises IncompatibleError (no such sequence, a fill that the dtype cannot hold), BufferSizeError (``out``) and
    LimitError (a batch that does not fit into memory, or into ``max_bytes``), each before anything is written.
    """
    starts, lengths = choose(seq_ptr, seq_lens, seqs)
    shape, padding = checked_room(
        lengths, pool.shape[2:], pool.dtype, max_len=max_len, out=out, fill=fill, max_bytes=max_bytes
    )
    return fill_padded(pool, block_table, starts, lengths, shape, padding=padding, out=out)


def fill_padded(
    pool: NDArray[Any] | StoredPages,
    block_table: NDArray[Any],
    starts: Sequence[int],
    lengths: Sequence[int],
    shape: tuple[int, ...],
    *,
    padding: NDArray[Any] | None,
    out: NDArray[Any] | None,
) -> Gathered:
    """What ``gather_padded`` copies once ``choose`` and ``checked_room`` have answered; only overlap is checked."""
    width = shape[1]
    if out is None:
        zeroed = padding is None and math.prod(shape) * pool.dtype.itemsize >= _FRESH_BYTES
        values = _allocate(shape, pool.dtype, zeroed=zeroed)
    else:
        check_apart(out, pool)
        zeroed = False
        values = out
    mask = _allocate(shape[:2], np.dtype(np.bool_), zeroed=True)

    copy = _copier(pool, block_table, values)
    pieces: list[Piece] = []
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        count = min(length, width)
        if count:
            mask[row, :count] = True
            pieces.append((start, copy.target[row, :count]))
        if count < width and not zeroed:
            pieces.append((None, copy.target[row, count:]))
    copy.write(pieces, padding)
    return Gathered(values, mask)


def gather_ragged(
    pool: NDArray[Any] | StoredPages,
    block_table: NDArray[Any],
    seq_ptr: NDArray[Any],
    seq_lens: NDArray[Any],
    *,
    seqs: Iterable[SupportsIndex] | None = None,
    out: NDArray[Any] | None = None,
    max_bytes: int | None = None,
) -> NDArray[Any]:
    """Copy sequences out of ``pool`` one after another, without padding: [sum of lengths, *rest], the caller's own.

    Arguments are those of ``gather_padded``; ``out`` is [sum of lengths, *rest]. Raises IncompatibleError (no such
    sequence), BufferSizeError (``out``) and LimitError (too large).
    """
    starts, lengths = choose(seq_ptr, seq_lens, seqs)
    shape = (sum(lengths), *pool.shape[2:])
    nbytes = checked_bytes(shape, pool.dtype)
    if out is None:
        check_limit(nbytes, max_bytes)
    else:
        checked_out(out, shape, pool.dtype)
    return fill_ragged(pool, block_table, starts, lengths, out=out)


def fill_ragged(
    pool: NDArray[Any] | StoredPages,
    block_table: NDArray[Any],
    starts: Sequence[int],
    lengths: Sequence[int],
    *,
    out: NDArray[Any] | None,
) -> NDArray[Any]:
    """What ``gather_ragged`` copies when all is checked but overlap."""
    if out is None:
        values = _allocate((sum(lengths), *pool.shape[2:]), pool.dtype, zeroed=False)
    else:
        check_apart(out, pool)
        values = out
    copy = _copier(pool, block_table, values)
    pieces: list[Piece] = []
    position = 0
    for start, length in zip(starts, lengths, strict=True):
        if length:
            pieces.append((start, copy.target[position : position + length]))
        position += length
    copy.write(pieces)
    return values


def gather_kv(k_pages: Any, v_pages: Any, block_tables: Any, seq_lens: Any) -> dict[str, NDArray[Any]]:
    """Keys and values of a batch from paged pools and a padded block table, as a dict of "keys", "values", "mask".

    ``k_pages`` and ``v_pages`` are [num_pages, page_size, *rest]; the rest and the dtype may differ between the two.
    ``block_tables`` is [B, max_blocks] of integers, ``seq_lens`` [B] of integers. Each is a NumPy array or anything
    that becomes one (``__array__``, ``__dlpack__``, nested lists), of any order, strides and byte order.

    "keys" and "values" are [B, L, *rest] in the dtype of their pool and native byte order, L = max_blocks * page_size,
    zero from each length on; "mask" is bool [B, L], True before it. Entries of ``block_tables`` behind the last page
    that a length needs are never looked at, so any padding value will do.

    Raises BufferSizeError (an array is not of this shape or type), InvalidDescriptorError (a page id within a length
    that the pool does not have), IncompatibleError (a length that its pages cannot hold) and LimitError (too large).
    """
    keys = _as_array(k_pages, "k_pages")
    values = _as_array(v_pages, "v_pages")
    for pool, name in ((keys, "k_pages"), (values, "v_pages")):
        if pool.ndim < 2:
            raise BufferSizeError(
                f"{name} has {pool.ndim} dimensions, not [num_pages, page_size, ...]",
                rule="gather.pool",
                found=pool.shape,
            )
    if keys.shape[:2] != values.shape[:2]:
        raise BufferSizeError(
            f"k_pages is {keys.shape[0]} pages of {keys.shape[1]} tokens, "
            f"but v_pages is {values.shape[0]} of {values.shape[1]}",
            rule="gather.pool",
            declared=keys.shape[:2],
            found=values.shape[:2],
        )
    num_pages, page_size = keys.shape[:2]
    tables = _as_integers(block_tables, "block_tables", 2)
    lengths = _as_integers(seq_lens, "seq_lens", 1)
    _check_padded(tables, lengths, num_pages=num_pages, page_size=page_size)

    batch, max_blocks = tables.shape
    table = tables.astype(np.int64).reshape(-1)  # ids that were not looked at may wrap
    seq_ptr = np.arange(batch + 1) * max_blocks
    width = max_blocks * page_size
    k = gather_padded(keys, table, seq_ptr, lengths, max_len=width)
    v = gather_padded(values, table, seq_ptr, lengths, max_len=width)
    return {"keys": _native(k.values), "values": _native(v.values), "mask": k.mask}


def choose(
    seq_ptr: NDArray[Any], seq_lens: NDArray[Any], seqs: Iterable[SupportsIndex] | None
) -> tuple[list[int], list[int]]:
    """First table entry and length of each sequence wanted, as Python integers."""
    if seqs is None:
        return seq_ptr[:-1].tolist(), seq_lens.tolist()
    count = len(seq_lens)
    chosen = []
    try:
        for item in seqs:
            if isinstance(item, bool | np.bool_):
                raise TypeError("a truth value is not a sequence number")
            chosen.append(operator.index(item))
    except TypeError as error:
        raise IncompatibleError(
            "seqs is not a list of sequence numbers", rule="gather.seqs", found=type(seqs).__name__
        ) from error
    for number in chosen:
        if not 0 <= number < count:
            raise IncompatibleError(
                f"there is no sequence {number} in a batch of {count}", rule="gather.seqs", declared=count, found=number
            )
    index = np.array(chosen, np.intp)
    return seq_ptr[index].tolist(), seq_lens[index].tolist()


def _allocate(shape: tuple[int, ...], dtype: np.dtype[Any], *, zeroed: bool) -> NDArray[Any]:
    """A new array that begins at a multiple of 64 bytes, so that JAX and others can take it over without a copy."""
    nbytes = math.prod(shape) * dtype.itemsize
    if not nbytes:
        return np.zeros(shape, dtype)
    try:
        memory = np.zeros(nbytes + 63, np.uint8) if zeroed else np.empty(nbytes + 63, np.uint8)
    except MemoryError as error:
        raise LimitError(
            f"{nbytes} bytes for a gathered array of shape {shape} are not to be had", rule="gather.size", found=nbytes
        ) from error
    first = -memory.__array_interface__["data"][0] % 64
    return memory[first : first + nbytes].view(dtype).reshape(shape)


def _copier(pool: NDArray[Any] | StoredPages, block_table: NDArray[Any], values: NDArray[Any]) -> PageCopy | PageFetch:
    if isinstance(pool, StoredPages):
        return PageFetch(pool, block_table, values)
    return PageCopy(pool, block_table, values)


def _as_array(source: Any, what: str) -> NDArray[Any]:
    """``source`` as a NumPy array, by whatever way it offers."""
    try:
        if hasattr(source, "__dlpack__") and not hasattr(source, "__array__"):
            array = np.from_dlpack(source)
        else:
            array = np.asarray(source)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise BufferSizeError(f"{what} does not become a NumPy array: {error}", rule="gather.array") from error
    if array.dtype.hasobject:
        raise BufferSizeError(f"{what} is not an array of numbers", rule="gather.array", found=array.dtype)
    return array


def _as_integers(source: Any, what: str, ndim: int) -> NDArray[Any]:
    """``source`` as an array of this many dimensions and some integer type."""
    array = _as_array(source, what)
    if array.size == 0 and not hasattr(source, "dtype"):
        array = array.astype(np.int64)  # an empty list says nothing of its type
    if array.dtype.kind not in "iu":
        raise BufferSizeError(
            f"{what} is of {array.dtype}, not of an integer type", rule="gather.array", found=array.dtype
        )
    if array.ndim != ndim:
        raise BufferSizeError(
            f"{what} has {array.ndim} dimensions, not {ndim}", rule="gather.array", declared=ndim, found=array.ndim
        )
    return array


def _check_padded(tables: NDArray[Any], lengths: NDArray[Any], *, num_pages: int, page_size: int) -> None:
    """One length per row, none longer than its row, and a page that exists in every entry that a length needs."""
    batch, max_blocks = tables.shape
    if len(lengths) != batch:
        raise BufferSizeError(
            f"block_tables has {batch} rows, but there are {len(lengths)} lengths",
            rule="snapshot.seq-lens-count",
            declared=batch,
            found=len(lengths),
        )
    longest = max_blocks * page_size
    needed = np.zeros((batch, 1), np.int64)
    for seq, length in enumerate(lengths.tolist()):
        if not 0 <= length <= longest:
            raise IncompatibleError(
                f"sequence {seq} has length {length}, but its {max_blocks} pages of {page_size} hold {longest} tokens",
                rule="snapshot.seq-lens-pages",
                declared=longest,
                found=length,
            )
        needed[seq] = -(-length // page_size) if length else 0
    bad = (np.arange(max_blocks) < needed) & ((tables < 0) | (tables >= num_pages))
    if bad.any():
        seq, block = (int(place) for place in np.argwhere(bad)[0])
        raise InvalidDescriptorError(
            f"block {block} of sequence {seq} names page {tables[seq, block]} of a pool of {num_pages}",
            rule="block-paged.page-id",
            declared=num_pages,
            found=int(tables[seq, block]),
        )


def _native(array: NDArray[Any]) -> NDArray[Any]:
    """The same values in native byte order; ``array`` is ours and may be changed."""
    if array.dtype.isnative:
        return array
    return array.byteswap(inplace=True).view(array.dtype.newbyteorder("="))

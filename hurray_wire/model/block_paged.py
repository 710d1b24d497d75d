"""The block-paged layout, tag 0x0A: a paged KV cache as one tensor (spec/block-paged.md).

A block-paged tensor is one batch for one role and layer. Its logical shape is [total_tokens, num_heads, head_dim]; its
elements lie in a pool of fixed-size pages, found through a block table:

    buffer 0, page_pool    [num_pages, page_size, num_heads, head_dim] of the element type
    buffer 1, block_table  page ids, every sequence's list in turn
    buffer 2, seq_ptr      [num_seqs + 1] offsets into block_table

This module holds the layout's parameters and every rule on them, on the two index buffers, and on the lengths that a
snapshot carries beside the descriptor. Reading elements through the table is the work of ``gather.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import IncompatibleError, InvalidDescriptorError
from .checks import U32_MAX, check_int, check_uint, check_word
from .element_types import ElementType, buffer_bytes
from .layouts import Layout
from .quantization import PerBlockAffine, PerChannelAffine, Quantization
from .shape import Shape, element_count, is_dynamic

__all__ = ["BlockPagedLayout", "check_index_buffers", "check_seq_lens", "known_seq_lens", "page_counts"]


@dataclass(frozen=True, slots=True)
class BlockPagedLayout(Layout):
    """Parameters of a block-paged tensor.

    ``page_size`` is in tokens (at least 1), ``num_pages`` the size of the pool, ``num_seqs`` the number of sequences
    (0 is an empty batch). ``kv_role`` is "key", "value" or "fused"; ``layer_index`` is None for a tensor that belongs
    to no layer (0xFFFFFFFF on the wire); ``block_table_index_type`` is "uint32" or "uint64", the type of both index
    buffers. Raises InvalidDescriptorError on a value the format does not allow. Specification: spec/block-paged.md.
    """

    page_size: int
    num_pages: int
    paged_axis: int
    num_seqs: int
    kv_role: str = "key"
    layer_index: int | None = None
    block_table_index_type: str = "uint32"

    tag = 0x0A
    name = "block_paged"
    takes_shard = False

    KV_ROLES: ClassVar[dict[str, int]] = {"key": 0, "value": 1, "fused": 2}
    INDEX_TYPES: ClassVar[dict[str, int]] = {"uint32": 0, "uint64": 1}
    NO_LAYER: ClassVar[int] = U32_MAX

    def __post_init__(self) -> None:
        check_int(self.page_size, 1, U32_MAX, "page_size", "block-paged.page-size")
        check_uint(self.num_pages, 64, "num_pages", "block-paged.num-pages")
        check_int(self.paged_axis, 0, 0, "paged_axis", "block-paged.paged-axis")
        check_uint(self.num_seqs, 32, "num_seqs", "block-paged.num-seqs")
        check_word(self.kv_role, self.KV_ROLES, "kv_role", "block-paged.kv-role")
        if self.layer_index is not None:
            check_int(self.layer_index, 0, self.NO_LAYER - 1, "layer_index", "block-paged.layer-index")
        check_word(self.block_table_index_type, self.INDEX_TYPES, "block_table_index_type", "block-paged.index-type")

    @property
    def buffer_names(self) -> tuple[str, ...]:
        return ("page_pool", "block_table", "seq_ptr")

    @property
    def index_dtype(self) -> np.dtype[Any]:
        """NumPy type of block_table and seq_ptr, little-endian."""
        return np.dtype("<u4" if self.block_table_index_type == "uint32" else "<u8")

    def pool_shape(self, shape: Shape) -> tuple[int, int, int, int]:
        """[num_pages, page_size, num_heads, head_dim] for a tensor of this shape."""
        return self.num_pages, self.page_size, shape[1], shape[2]

    def validate_against_shape(self, shape: Iterable[SupportsIndex]) -> None:
        """The rank is 3: [total_tokens, num_heads, head_dim]."""
        rank = len(tuple(shape))
        if rank != 3:
            raise InvalidDescriptorError(
                f"a block-paged tensor has rank 3 (total_tokens, num_heads, head_dim), not {rank}",
                rule="block-paged.rank",
                declared=3,
                found=rank,
            )

    def minimum_buffer_bytes(self, element_type: ElementType, shape: Shape, byte_offset: int) -> tuple[int, ...]:
        # block_table has no minimum of its own: its size is its length, and seq_ptr tells what that must be
        pool = 0 if is_dynamic(shape[1:]) else buffer_bytes(element_type, element_count(self.pool_shape(shape)))
        return pool, 0, (self.num_seqs + 1) * self.index_dtype.itemsize

    def validate_index_buffers(self, seq_ptr: ArrayLike, block_table: ArrayLike) -> None:
        """Check the storage invariants of the two index buffers.

        ``seq_ptr`` is [num_seqs + 1], starts at 0, never falls, and ends at len(block_table); every id in
        ``block_table`` is below num_pages. Two entries that name one page are a shared prefix, not an error. Raises
        InvalidDescriptorError that names the first entry at fault.
        """
        check_index_buffers(
            _index_array(seq_ptr, "seq_ptr"),
            _index_array(block_table, "block_table"),
            num_pages=self.num_pages,
            num_seqs=self.num_seqs,
        )

    def validate_quantization_compatibility(self, quantization: Quantization) -> None:
        """Raise InvalidDescriptorError unless this scheme may quantize a block-paged tensor.

        Per-tensor always may; per-channel on axis 1 or 2; per-block affine only on axis 0 with block_size =
        page_size, so that scales belong to page slots and a shared page carries its own; NF4 and MXFP never.
        """
        match quantization:
            case PerChannelAffine(axis=axis):
                if axis not in (1, 2):
                    raise InvalidDescriptorError(
                        f"per-channel quantization of a block-paged tensor is on axis 1 or 2, not {axis}",
                        rule="block-paged.quantization",
                        found=axis,
                    )
            case PerBlockAffine(axis=axis, block_size=block_size):
                if axis != 0 or block_size != self.page_size:
                    raise InvalidDescriptorError(
                        f"per-block quantization of a block-paged tensor has axis 0 and block_size {self.page_size} "
                        f"(the page size), not axis {axis} and block_size {block_size}",
                        rule="block-paged.quantization",
                        declared=(0, self.page_size),
                        found=(axis, block_size),
                    )
            case _ if quantization.axis is not None:
                raise InvalidDescriptorError(
                    f"{quantization.name} does not quantize a block-paged tensor", rule="block-paged.quantization"
                )


def check_index_buffers(seq_ptr: NDArray[Any], block_table: NDArray[Any], *, num_pages: int, num_seqs: int) -> None:
    """The storage invariants on two 1-D integer arrays (see ``BlockPagedLayout.validate_index_buffers``)."""
    if len(seq_ptr) != num_seqs + 1:
        raise InvalidDescriptorError(
            f"seq_ptr has {len(seq_ptr)} entries, not num_seqs + 1 = {num_seqs + 1}",
            rule="block-paged.seq-ptr-length",
            declared=num_seqs + 1,
            found=len(seq_ptr),
        )
    if seq_ptr[0] != 0:
        raise InvalidDescriptorError(
            f"seq_ptr starts at {seq_ptr[0]}, not 0",
            rule="block-paged.seq-ptr-start",
            declared=0,
            found=int(seq_ptr[0]),
        )
    falls = np.flatnonzero(seq_ptr[1:] < seq_ptr[:-1])
    if len(falls):
        seq = int(falls[0])
        raise InvalidDescriptorError(
            f"seq_ptr falls from {seq_ptr[seq]} to {seq_ptr[seq + 1]} at sequence {seq}",
            rule="block-paged.seq-ptr-order",
            declared=int(seq_ptr[seq]),
            found=int(seq_ptr[seq + 1]),
        )
    if int(seq_ptr[-1]) != len(block_table):
        raise InvalidDescriptorError(
            f"seq_ptr ends at {seq_ptr[-1]}, but block_table has {len(block_table)} entries",
            rule="block-paged.seq-ptr-end",
            declared=len(block_table),
            found=int(seq_ptr[-1]),
        )
    bad = (block_table < 0) | (block_table >= num_pages)
    if bad.any():
        position = int(np.argmax(bad))
        seq = int(np.searchsorted(seq_ptr, position, side="right")) - 1
        raise InvalidDescriptorError(
            f"block_table[{position}] (sequence {seq}, page {position - int(seq_ptr[seq])} of it) names page "
            f"{block_table[position]} of a pool of {num_pages}",
            rule="block-paged.page-id",
            declared=num_pages,
            found=int(block_table[position]),
        )


def page_counts(seq_ptr: NDArray[Any]) -> NDArray[np.uint64]:
    """Pages of each sequence, from a checked ``seq_ptr``."""
    wide = seq_ptr.astype(np.uint64)
    return wide[1:] - wide[:-1]


def check_seq_lens(seq_lens: NDArray[Any], seq_ptr: NDArray[Any], *, page_size: int, total_tokens: int | None) -> None:
    """Lengths agree with the pages: as many as sequences, none past its pages, summing to ``total_tokens``.

    ``seq_lens`` and ``seq_ptr`` are 1-D integer arrays; ``seq_ptr`` is already checked. Raises IncompatibleError.
    """
    num_seqs = len(seq_ptr) - 1
    if len(seq_lens) != num_seqs:
        raise IncompatibleError(
            f"{len(seq_lens)} lengths for {num_seqs} sequences",
            rule="snapshot.seq-lens-count",
            declared=num_seqs,
            found=len(seq_lens),
        )
    lengths = [int(length) for length in seq_lens]
    pages = page_counts(seq_ptr).tolist()
    for seq, (length, have) in enumerate(zip(lengths, pages, strict=True)):
        if length < 0 or -(-length // page_size) > have:
            raise IncompatibleError(
                f"sequence {seq} has length {length}, but its {have} pages hold {have * page_size} tokens",
                rule="snapshot.seq-lens-pages",
                declared=have * page_size,
                found=length,
            )
    if total_tokens is not None and sum(lengths) != total_tokens:
        raise IncompatibleError(
            f"the lengths sum to {sum(lengths)}, but the tensor has {total_tokens} tokens",
            rule="snapshot.seq-lens-sum",
            declared=total_tokens,
            found=sum(lengths),
        )


def known_seq_lens(seq_ptr: NDArray[Any], *, page_size: int, total_tokens: int) -> NDArray[np.uint64]:
    """The lengths where the descriptor alone tells them: no sequence, one sequence, or every page full.

    Raises IncompatibleError where the split of total_tokens is ambiguous, since a guess would read stale slots.
    """
    pages = page_counts(seq_ptr)
    table_tokens = int(seq_ptr[-1]) * page_size
    if total_tokens > table_tokens:
        raise IncompatibleError(
            f"the tensor has {total_tokens} tokens, but its pages hold {table_tokens}",
            rule="snapshot.seq-lens-sum",
            declared=table_tokens,
            found=total_tokens,
        )
    if total_tokens == table_tokens:
        return pages * np.uint64(page_size)
    if len(pages) == 1:
        return np.array([total_tokens], dtype=np.uint64)
    raise IncompatibleError(
        f"how {total_tokens} tokens are split among {len(pages)} sequences is not recorded; pass seq_lens=",
        rule="snapshot.seq-lens-unknown",
        declared=table_tokens,
        found=total_tokens,
    )


def _index_array(values: ArrayLike, what: str) -> NDArray[Any]:
    array = np.asarray(values)
    if array.size == 0:
        array = array.astype(np.int64)
    elif array.dtype.kind == "f" and not hasattr(values, "dtype") and array.max() >= 2.0**63:
        # NumPy reads a list of integers on both sides of 2**63 as floating
        with contextlib.suppress(OverflowError, TypeError):
            array = np.asarray(values, dtype=object).astype(np.uint64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidDescriptorError(
            f"{what} is not a one-dimensional integer array: {array.ndim} dimensions of {array.dtype}",
            rule="block-paged.index-type",
        )
    return array

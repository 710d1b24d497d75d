"""A block-paged tensor: pages, the table that orders them, and sequences (spec/block-paged.md).

Joins a descriptor and its buffers to ``gather.py`` and to the dequantization of ``arrays/``. Reading files is left to
``store/``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arrays import packing
from .arrays.dequantize import dequantize_paged, parameters, scale_companion
from .arrays.memory import allowed_bytes, check_addressable, stored_bytes, within_memory
from .buffers import Buffers, Bytes
from .errors import BufferSizeError, IncompatibleError, InvalidDescriptorError, UnsupportedError
from .gather import Gathered, choose, fill_padded, fill_ragged, gather_padded, gather_ragged
from .gather_room import check_apart, check_limit, checked_bytes, checked_out, checked_room
from .lazy import lazy
from .limits import Limits
from .model.block_paged import BlockPagedLayout, check_index_buffers, check_seq_lens, known_seq_lens
from .model.descriptor import TensorDescriptor
from .model.quantization import PerBlockAffine
from .model.shape import is_dynamic
from .page_copy import as_bits
from .page_fetch import StoredPages
from .tensors import Tensor

__all__ = ["PagedTensor", "make_tensor"]


class PagedTensor(Tensor):
    """A block-paged tensor: pages, the table that orders them, and sequences (spec/block-paged.md).

    The index buffers are checked once, when first needed; the lengths are those given to ``hw.open``, those the file
    records, or those that follow from the descriptor, and otherwise asking for them raises IncompatibleError.
    """

    def __init__(
        self,
        name: str | None,
        descriptor: TensorDescriptor,
        buffers: Buffers | Sequence[Any],
        *,
        limits: Limits | None = None,
        recorded_seq_lens: Callable[[], NDArray[Any] | None] = lambda: None,
        companion_scale: Callable[[str], NDArray[Any] | None] = lambda name: None,
    ) -> None:
        super().__init__(name, descriptor, buffers, limits=limits)
        self._recorded_seq_lens = recorded_seq_lens
        self._companion_scale = companion_scale

    @property
    def layout(self) -> BlockPagedLayout:
        layout = self.descriptor.layout
        assert isinstance(layout, BlockPagedLayout)
        return layout

    @property
    @within_memory
    def page_pool(self) -> NDArray[Any]:
        """All pages, [num_pages, page_size, num_heads, head_dim], read-only, in the element type's dtype.

        A view where the buffer is memory (a mapped file, bytes). Otherwise, on plain and compressed files, every access
        reads or inflates the whole pool; packed sub-byte types are unpacked, a copy too. Use :meth:`gather` instead.
        """
        return self._as_pages(self.buffers[0], self.layout.num_pages)

    @property
    def lends_pages(self) -> bool:
        """True if ``page_pool`` is a view of memory, False if asking for it reads, inflates or unpacks it all."""
        return self.buffers.lends and not self.descriptor.element_type.is_packed

    @within_memory
    def read_pages(self, ids: ArrayLike, *, dequantize: bool = False) -> NDArray[Any]:
        """These pages of the pool, [n, page_size, num_heads, head_dim], a copy; no other page is read.

        ``ids`` [n] are page numbers in any order, repeats allowed. Values have the element type's dtype, bit for bit;
        with ``dequantize`` they are real numbers in float32. Slots that no sequence uses come as they are. Several
        threads may call this at once. Raises InvalidDescriptorError for a page that the pool does not have.
        """
        pages = np.asarray(ids)
        if pages.size == 0:
            pages = pages.astype(np.int64)
        if pages.ndim != 1 or pages.dtype.kind not in "iu":
            raise BufferSizeError(
                f"page ids are a vector of integers, not {list(pages.shape)} {pages.dtype}",
                rule="gather.array",
                found=str(pages.dtype),
            )
        bad = (pages < 0) | (pages >= self.layout.num_pages)
        if bad.any():
            raise InvalidDescriptorError(
                f"{self.name!r} has no page {pages[int(np.argmax(bad))]}; it has {self.layout.num_pages}",
                rule="block-paged.page-id",
                declared=self.layout.num_pages,
                found=int(pages[int(np.argmax(bad))]),
            )
        pages = pages.astype(np.int64)
        stored = self._read_pages(pages)
        if not dequantize:
            return stored
        slots = [None if pool is None else pool[pages] for pool in self._slot_parameters]
        return self._dequantized(stored, slots)

    @lazy
    def _index(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """block_table and seq_ptr, checked."""
        layout = self.layout
        tables = [buffer.view(layout.index_dtype) for buffer in self.buffers[1:2]]
        # a producer may leave slack behind seq_ptr; block_table's size is its length
        count = layout.num_seqs + 1
        seq_ptr = self.buffers[2][: count * layout.index_dtype.itemsize].view(layout.index_dtype)
        check_index_buffers(seq_ptr, tables[0], num_pages=layout.num_pages, num_seqs=layout.num_seqs)
        return tables[0], seq_ptr

    @property
    def block_table(self) -> NDArray[Any]:
        """Page ids of all sequences in turn, 1-D, read-only, uint32 or uint64."""
        return self._index[0]

    @property
    def seq_ptr(self) -> NDArray[Any]:
        """Where each sequence's pages start in ``block_table``, [num_seqs + 1], read-only."""
        return self._index[1]

    @lazy
    def seq_lens(self) -> NDArray[Any]:
        """Tokens of each sequence, [num_seqs], read-only. Raises IncompatibleError where they are not known."""
        layout, total = self.layout, self.descriptor.shape[0]
        recorded = self._recorded_seq_lens()
        if recorded is not None:
            known_total = None if is_dynamic((total,)) else total
            check_seq_lens(recorded, self.seq_ptr, page_size=layout.page_size, total_tokens=known_total)
            return recorded
        if is_dynamic((total,)):
            raise IncompatibleError(
                f"{self.name!r} does not tell how many tokens it holds; pass seq_lens=",
                rule="snapshot.seq-lens-unknown",
            )
        known = known_seq_lens(self.seq_ptr, page_size=layout.page_size, total_tokens=total)
        known.flags.writeable = False
        return known

    @property
    def _lengths(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return self.seq_ptr, self.seq_lens

    @property
    def companion_scale(self) -> NDArray[Any] | None:
        """The float32 scale of a float8 cache, [] or [num_heads], that is kept beside this tensor; None without one."""
        return None if self.name is None else self._companion_scale(self.name)

    @within_memory
    def gather(
        self,
        seqs: Iterable[SupportsIndex] | None = None,
        max_len: SupportsIndex | None = None,
        out: NDArray[Any] | None = None,
        fill: Any = 0,
        dequantize: bool = False,
    ) -> Gathered:
        """Sequences side by side, padded to one length: ``values`` [B, L, num_heads, head_dim] and ``mask`` [B, L].

        ``seqs`` chooses sequences (all by default; order kept, repeats allowed). L is ``max_len``, else that of
        ``out``, else the longest chosen length; a longer sequence is cut to its first L tokens. Positions past a
        length hold ``fill`` and False. Values have the element type's dtype, bit for bit; with ``dequantize`` they
        are real numbers in float32. ``out`` receives the values, and must have just their shape and dtype. The result
        is the caller's own.

        Only the pages of the chosen sequences are read. Raises InvalidDescriptorError for a broken table,
        IncompatibleError for unknown lengths, a wrong sequence number or a fill value that the type cannot hold,
        BufferSizeError for a wrong ``out``, LimitError for more than ``Limits`` allow.
        """
        seqs = None if seqs is None else list(seqs)
        if max_len is None and isinstance(out, np.ndarray) and out.ndim >= 2:
            max_len = out.shape[1]
        dtype = np.dtype(np.float32) if dequantize else self._dtype
        starts, lengths = choose(*self._lengths, seqs)
        # the length of a batch that the caller chose is not the file's doing, whatever a position of it takes is
        most = self._most(1 if max_len is None else operator.index(max_len))
        shape, padding = checked_room(
            lengths, self._token_shape, dtype, max_len=max_len, out=out, fill=fill, max_bytes=most
        )
        # memory that the caller gave is not written to before all that can fail has been read
        pool, table = self._pages_of(starts, lengths, shape[1], direct=out is None or dequantize)
        if not dequantize:
            return fill_padded(pool, table, starts, lengths, shape, padding=padding, out=out)
        if out is not None and isinstance(pool, np.ndarray):
            check_apart(out, pool)

        def gathered(pool: NDArray[Any] | StoredPages, table: NDArray[Any]) -> Gathered:
            return gather_padded(pool, table, *self._lengths, seqs=seqs, max_len=shape[1], max_bytes=most)

        stored = gathered(pool, table)
        slots = [
            None if slot_pool is None else gathered(slot_pool, self.block_table).values
            for slot_pool in self._slot_parameters
        ]
        real = self._dequantized(stored.values, slots)
        as_bits(real)[~stored.mask] = 0 if padding is None else padding
        if out is None:
            return Gathered(real, stored.mask)
        out[...] = real
        return Gathered(out, stored.mask)

    @within_memory
    def ragged(
        self,
        seqs: Iterable[SupportsIndex] | None = None,
        *,
        out: NDArray[Any] | None = None,
        dequantize: bool = False,
    ) -> NDArray[Any]:
        """The tokens of the sequences one after another, [sum of lengths, num_heads, head_dim], the caller's own.

        Over all sequences this is the logical tensor of the descriptor. ``out`` receives them, if it is given, and is
        returned; it must have just their shape and dtype. Errors as for :meth:`gather`.
        """
        seqs = None if seqs is None else list(seqs)
        dtype = np.dtype(np.float32) if dequantize else self._dtype
        starts, lengths = choose(*self._lengths, seqs)
        shape, most = (sum(lengths), *self._token_shape), self._most()
        if out is None:
            check_limit(checked_bytes(shape, dtype), most)
        else:
            checked_out(out, shape, dtype)
        pool, table = self._pages_of(starts, lengths, max(lengths, default=0), direct=out is None or dequantize)
        if not dequantize:
            return fill_ragged(pool, table, starts, lengths, out=out)
        if out is not None and isinstance(pool, np.ndarray):
            check_apart(out, pool)
        stored = gather_ragged(pool, table, *self._lengths, seqs=seqs, max_bytes=most)
        slots = [
            None
            if slot_pool is None
            else gather_ragged(slot_pool, self.block_table, *self._lengths, seqs=seqs, max_bytes=most)
            for slot_pool in self._slot_parameters
        ]
        real = self._dequantized(stored, slots)
        if out is None:
            return real
        out[...] = real
        return out

    @within_memory
    def check_payload(self) -> None:
        """Check the index buffers, and the lengths where they are recorded. Raises on the first fault."""
        self._index  # noqa: B018 -- checked while it is made
        if is_dynamic(self.descriptor.shape[1:]):
            return
        if self._recorded_seq_lens() is not None or self.layout.num_seqs == 0:
            self.seq_lens  # noqa: B018
        if self.descriptor.element_type.is_packed:
            count = int(np.prod(np.array(self.layout.pool_shape(self.shape), dtype=object)))
            self._check_unused_bits(0, count)

    def _as_pages(self, raw: Bytes, pages: int) -> NDArray[Any]:
        """The bytes of this many whole pages as [pages, page_size, num_heads, head_dim], read-only."""
        element_type = self.descriptor.element_type
        (heads, dim), page_size = self._token_shape, self.layout.page_size
        check_addressable((pages, page_size, heads, dim), self._dtype)
        count = pages * page_size * heads * dim
        if element_type.is_packed:
            values = packing.unpack(raw, element_type, count)
            values.flags.writeable = False
        else:
            values = raw[: count * self._dtype.itemsize].view(self._dtype)
        return values.reshape(pages, page_size, heads, dim)

    def _pages_of(
        self, starts: Sequence[int], lengths: Sequence[int], width: int, *, direct: bool
    ) -> tuple[NDArray[Any] | StoredPages, NDArray[Any]]:
        """A pool that holds the pages of these sequences at least, up to ``width`` tokens of each, and the block table
        that names them in it.

        With ``direct`` it may be one that is not in memory.
        """
        if self.lends_pages or self._page_bytes() is None:
            return self.page_pool, self.block_table
        if direct and self.buffers.scatters and not self.descriptor.element_type.is_packed:
            return StoredPages(
                self.buffers, self.layout.pool_shape(self.descriptor.shape), self._dtype
            ), self.block_table
        page_size = self.layout.page_size
        needed = [
            np.arange(start, start + -(-min(length, width) // page_size))
            for start, length in zip(starts, lengths, strict=True)
        ]
        positions = np.concatenate([np.empty(0, dtype=np.int64), *needed]).astype(np.int64)
        pages, places = np.unique(self.block_table[positions].astype(np.int64), return_inverse=True)
        table = np.zeros(len(self.block_table), dtype=np.int64)
        table[positions] = places
        return self._read_pages(pages), table

    def _read_pages(self, pages: NDArray[np.int64]) -> NDArray[Any]:
        page_bytes = self._page_bytes()
        if page_bytes is None or self.lends_pages:
            return self.page_pool[pages]
        raw = self.buffers.fetch_rows(0, page_bytes, pages)
        return self._as_pages(raw.reshape(-1), len(pages))

    @property
    def _dtype(self) -> np.dtype[Any]:
        """The NumPy type of an element in memory."""
        return packing.memory_dtype(self.descriptor.element_type)

    @property
    def _token_shape(self) -> tuple[int, int]:
        """[num_heads, head_dim]. Raises UnsupportedError where they are dynamic."""
        _, heads, dim = self.descriptor.shape
        if is_dynamic((heads, dim)):
            raise UnsupportedError(
                f"{self.name!r} has a dynamic shape, so its pages have no size", rule="descriptor.dynamic"
            )
        return heads, dim

    def _most(self, positions: int = 1) -> int:
        """Bytes that sequences may take together, for each of ``positions``."""
        return allowed_bytes(self._limits, stored_bytes(self.descriptor) * max(positions, 1))

    def _page_bytes(self) -> int | None:
        """Bytes of one page; None if a page of packed elements does not fill whole bytes, or is empty."""
        if is_dynamic(self.descriptor.shape[1:]):
            return None
        element_type = self.descriptor.element_type
        _, page_size, heads, dim = self.layout.pool_shape(self.descriptor.shape)
        per_group, group_bytes = element_type.group
        groups, rest = divmod(page_size * heads * dim, per_group)
        return None if rest or not groups else groups * group_bytes

    @lazy
    def _slot_parameters(self) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
        """Scales and zero points that belong to page slots, each [num_pages, page_size], where the scheme has them."""
        if not isinstance(self.descriptor.quantization, PerBlockAffine):
            return None, None
        shape = self.layout.num_pages, self.layout.page_size
        scales, zero_points = parameters(self.descriptor, self.buffers)
        return scales.reshape(shape), None if zero_points is None else zero_points.reshape(shape)

    def _dequantized(self, stored: NDArray[Any], slots: Sequence[NDArray[Any] | None]) -> NDArray[np.float32]:
        quantized = self.descriptor.quantization is not None
        if not quantized and (scale := self.companion_scale) is not None:
            return scale_companion(stored, scale, limits=self._limits)
        if not quantized and stored.dtype.kind in "Vc" and stored.dtype == np.dtype(stored.dtype.str):
            # raw bytes (private types, float128) and complex numbers have no value in float32
            raise IncompatibleError(
                f"{self.name!r} of {self.descriptor.element_type.name} has no real values in float32",
                rule="quantization.storage",
            )
        return dequantize_paged(self.descriptor, stored, self.buffers, *slots, limits=self._limits)


def make_tensor(
    name: str | None,
    descriptor: TensorDescriptor,
    buffers: Buffers | Sequence[Any],
    *,
    limits: Limits | None = None,
    recorded_seq_lens: Callable[[], NDArray[Any] | None] = lambda: None,
    companion_scale: Callable[[str], NDArray[Any] | None] = lambda name: None,
) -> Tensor:
    """A PagedTensor for the block-paged layout, a Tensor for every other."""
    if isinstance(descriptor.layout, BlockPagedLayout):
        return PagedTensor(
            name,
            descriptor,
            buffers,
            limits=limits,
            recorded_seq_lens=recorded_seq_lens,
            companion_scale=companion_scale,
        )
    return Tensor(name, descriptor, buffers, limits=limits)

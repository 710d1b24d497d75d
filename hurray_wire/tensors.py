"""A tensor: a descriptor and its buffers, which become arrays here (spec/descriptor.md, spec/layouts.md).

A tensor is lazy: a buffer is fetched when it is asked for (``buffers.py``), and only then. Reading files is left to
``store/``, what the bytes mean to ``arrays/``; block-paged tensors have a class of their own, in ``paged_tensor.py``,
and composites in ``composites.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import dense, packing
from .arrays.dequantize import dequantize_dense
from .arrays.memory import within_memory
from .arrays.sparse import Sparse, read_sparse
from .buffers import Buffers, MemoryBuffers, check_sizes
from .errors import UnsupportedError
from .limits import Limits
from .model.block_paged import BlockPagedLayout
from .model.descriptor import TensorDescriptor
from .model.shape import is_dynamic

__all__ = ["Tensor"]


class Tensor:
    """A named tensor. ``buffers`` is a sequence of read-only uint8 arrays, fetched when they are indexed."""

    def __init__(
        self,
        name: str | None,
        descriptor: TensorDescriptor,
        buffers: Buffers | Sequence[Any],
        *,
        limits: Limits | None = None,
    ) -> None:
        self.name = name
        self.descriptor = descriptor
        self.buffers = buffers if isinstance(buffers, Buffers) else MemoryBuffers(buffers)
        self._limits = limits or Limits()
        if isinstance(self.buffers, MemoryBuffers):
            check_sizes(descriptor, self.buffers)

    @property
    def limits(self) -> Limits:
        """What making arrays of the tensor may cost."""
        return self._limits

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape, in elements."""
        return self.descriptor.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions of the logical shape."""
        return self.descriptor.rank

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type that an element has in memory. A private type is raw bytes, or uint8 if it is packed."""
        return packing.memory_dtype(self.descriptor.element_type)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers together, as they are stored (inflated, if the file is compressed)."""
        return sum(handle.byte_size for handle in self.descriptor.buffers)

    @within_memory
    def numpy(self, *, dequantize: bool = False) -> NDArray[Any]:
        """The elements of a dense tensor as an array of its logical shape, in the element type's dtype.

        Row-major, column-major and strided tensors are read-only views of the buffer, where that is memory; packed
        sub-byte types and the tiled, Morton and Hilbert layouts are copies. ``dequantize`` gives float32 instead, a
        copy. Raises UnsupportedError for layouts that are not dense (see :meth:`sparse` and ``PagedTensor``) and for
        dynamic shapes, LimitError where a copy would exceed what ``Limits`` allow. Specification: spec/layouts.md.
        """
        if not self.descriptor.layout.is_dense:
            raise UnsupportedError(
                f"{self.name!r} has the {self.descriptor.layout.name} layout, which is not dense",
                rule="layout.dense",
                found=self.descriptor.layout.name,
            )
        stored = dense.to_array(self.descriptor, self.buffers[0], limits=self._limits)
        if not dequantize:
            return stored
        return dequantize_dense(self.descriptor, stored, self.buffers, limits=self._limits)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """What ``numpy()`` gives, for ``np.asarray(tensor)``; TypeError for a tensor that is not one array."""
        if isinstance(self.descriptor.layout, BlockPagedLayout):
            raise TypeError(
                f"{self.name!r} is block-paged and no one array: .page_pool has its pages, and .gather() and .ragged() "
                "give its sequences"
            )
        values = self.numpy()
        wanted = values.dtype if dtype is None else np.dtype(dtype)
        copied = values.flags.writeable or not self.buffers.lends  # what is lent is read-only
        if copy is False and values.size and (copied or wanted != values.dtype):
            raise ValueError(f"{self.name!r} is no array of {wanted} without a copy")
        return np.array(values, wanted, copy=copy)

    @within_memory
    def sparse(self) -> Sparse:
        """The named arrays of a sparse tensor, checked; ``.to_dense()`` makes an array of it. Raises
        UnsupportedError.
        """
        return read_sparse(self.descriptor, self.buffers, limits=self._limits)

    def check_payload(self) -> None:
        """Read what the buffers hold and check it: unused bits, sparse indices. Raises on the first fault."""
        descriptor = self.descriptor
        if is_dynamic(descriptor.shape) or descriptor.layout.buffer_count in (None, 0):
            return
        if descriptor.layout.is_dense:
            if descriptor.element_type.is_packed and descriptor.layout.name in ("row_major", "col_major"):
                self._check_unused_bits(descriptor.byte_offset, descriptor.element_count)
        elif not isinstance(descriptor.layout, BlockPagedLayout):
            self.sparse()

    def _check_unused_bits(self, offset: int, count: int) -> None:
        """Check the bits behind ``count`` packed elements from ``offset`` of buffer 0 on; reads only their group."""
        element_type = self.descriptor.element_type
        per_group, group_bytes = element_type.group
        groups, left = divmod(count, per_group)
        if left:
            places = np.arange(group_bytes) + (offset + groups * group_bytes)
            packing.check_tail(self.buffers.fetch_rows(0, 1, places).reshape(-1), element_type, left)

    def __repr__(self) -> str:
        d = self.descriptor
        return f"<{type(self).__name__} {self.name!r} {d.element_type.name} {list(d.shape)} {d.layout.name}>"

"""The buffers of a tensor: bytes that are fetched when they are asked for, from wherever they are kept.

What a buffer costs is for its holder to say: memory and mapped files lend theirs, other sources copy. What the bytes
mean is told by the descriptor, and made of them in ``tensors.py``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from .arrays.memory import check_addressable
from .errors import BufferSizeError
from .model.descriptor import TensorDescriptor

__all__ = ["Buffers", "Bytes", "MemoryBuffers", "check_sizes"]

Bytes: TypeAlias = NDArray[np.uint8]


class Buffers(Sequence[Bytes]):
    """The buffers of one tensor, fetched one by one: read-only 1-D uint8 arrays of the sizes in the descriptor."""

    lends = True  # True if a buffer is borrowed memory, False if asking for it copies it
    scatters = False  # True if parts of a buffer are best fetched straight to where they are wanted

    @overload
    def __getitem__(self, index: int) -> Bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Bytes]: ...
    def __getitem__(self, index: int | slice) -> Bytes | Sequence[Bytes]:
        if isinstance(index, slice):
            return [self.fetch(k) for k in range(*index.indices(len(self)))]
        return self.fetch(range(len(self))[index])

    @abstractmethod
    def fetch(self, index: int) -> Bytes:
        """Buffer ``index``, 0 <= index < len(self)."""

    @abstractmethod
    def fetch_rows(self, index: int, row_bytes: int, rows: NDArray[np.int64]) -> Bytes:
        """Only these rows of buffer ``index``, seen as a table of equal rows: uint8 [len(rows), row_bytes], a copy."""

    def fetch_parts(self, index: int, parts: Sequence[tuple[int, memoryview]]) -> None:
        """Fill each of the memories with the bytes of buffer ``index`` that start at the offset given with it."""
        whole = self.fetch(index)
        for offset, memory in parts:
            memory[:] = whole[offset : offset + len(memory)].data


class MemoryBuffers(Buffers):
    """Buffers that lie in memory, borrowed from the objects given (bytes-like or NumPy arrays of bytes)."""

    def __init__(self, buffers: Iterable[Any]) -> None:
        self._buffers = []
        for buffer in buffers:
            view = memoryview(buffer).cast("B").toreadonly()
            self._buffers.append(np.frombuffer(view, dtype=np.uint8))

    def __len__(self) -> int:
        return len(self._buffers)

    def fetch(self, index: int) -> Bytes:
        return self._buffers[index]

    def fetch_rows(self, index: int, row_bytes: int, rows: NDArray[np.int64]) -> Bytes:
        buffer = self._buffers[index]
        count = len(buffer) // row_bytes
        check_addressable((count, row_bytes), buffer.dtype)
        return buffer[: count * row_bytes].reshape(count, row_bytes)[rows]


def check_sizes(descriptor: TensorDescriptor, buffers: Buffers) -> None:
    """As many buffers as handles, each of the size its handle tells."""
    if len(buffers) != len(descriptor.buffers):
        raise BufferSizeError(
            f"{len(buffers)} buffers for a descriptor of {len(descriptor.buffers)}",
            rule="buffer.count",
            declared=len(descriptor.buffers),
            found=len(buffers),
        )
    for index, handle in enumerate(descriptor.buffers):
        if len(buffers[index]) != handle.byte_size:
            raise BufferSizeError(
                f"buffer {index} has {len(buffers[index])} bytes, but its handle tells {handle.byte_size}",
                rule="buffer.size",
                declared=handle.byte_size,
                found=len(buffers[index]),
            )

"""Buffers as a caller hands them to a writer: checked here, and made into bytes that are written as they are.

This is the gate of ``writer.py`` and ``stream.py`` (spec/calls.md, "Buffers handed to a writer"): past it only a
:class:`Chunked` that lies about itself can fail, since its bytes do not exist yet. What a reader would refuse of what
lies in memory is refused, by the reader's own checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..arrays import dense
from ..arrays.packing import memory_dtype, pack
from ..errors import BufferSizeError, HurrayError, LimitError
from ..limits import Limits
from ..model import element_types as et
from ..model.block_paged import BlockPagedLayout, check_index_buffers
from ..model.descriptor import TensorDescriptor
from ..model.element_types import ElementType
from ..model.layouts import CooLayout, CscLayout, CsfLayout, CsrLayout, UnknownLayout
from ..model.quantization import Mxfp, Nf4, PerBlockAffine, PerChannelAffine
from ..model.shape import is_dynamic
from ..paged_tensor import make_tensor
from .sink import flat

__all__ = ["Chunked", "Parted", "Piece", "chunks_of", "encoded_descriptor", "parts_of", "pieces_of"]

Bytes: TypeAlias = NDArray[np.uint8]

WRITTEN = Limits()
"""What is written is within the limits that a reader has who sets none."""


@runtime_checkable
class Chunked(Protocol):
    """A buffer that is made piece by piece while it is written, so that it never lies in memory whole."""

    nbytes: int

    def chunks(self) -> Iterator[Any]:
        """Contiguous bytes-like pieces, ``nbytes`` bytes in all. A piece is used before the next one is asked for."""


@runtime_checkable
class Parted(Chunked, Protocol):
    """A chunked buffer of which any part can be made at any time, by several threads at once.

    What it is made of must stay as it is until the file is closed, not only until ``add`` returns.
    """

    def parts(self, part_bytes: int) -> Iterator[tuple[int, Callable[[Bytes], Bytes]]] | None:
        """Parts of ``part_bytes`` bytes, a whole number of pages, and a smaller one at the end: the size of each, and a
        function that makes it, in the memory of that size that it is given or elsewhere. None where it has none."""


Piece: TypeAlias = Chunked | memoryview

_BYTE_FORMATS = ("B", "c")


def encoded_descriptor(descriptor: TensorDescriptor) -> bytes:
    """The descriptor's bytes; LimitError for more than a reader takes."""
    encoded = descriptor.encode()
    if len(encoded) > WRITTEN.max_descriptor_bytes:
        raise LimitError(
            f"the descriptor has {len(encoded)} bytes, above the limit of {WRITTEN.max_descriptor_bytes}",
            rule="limit.descriptor-bytes",
            declared=WRITTEN.max_descriptor_bytes,
            found=len(encoded),
        )
    return encoded


def pieces_of(name: str | None, descriptor: TensorDescriptor, buffers: Iterable[Any]) -> list[Piece]:
    """The buffers of a tensor as bytes to be written, borrowed where they already are those bytes.

    Raises BufferSizeError for buffers that are not the descriptor's, and what a reader raises for index buffers and
    unused bits. Of an unknown layout nothing is known, so its buffers are taken as they are.
    """
    if isinstance(descriptor.layout, UnknownLayout):
        return [_bytes_of(buffer) for buffer in buffers]
    listed = list(buffers)
    if len(listed) != len(descriptor.buffers):
        raise BufferSizeError(
            f"{len(listed)} buffers for a descriptor of {len(descriptor.buffers)}",
            rule="buffer.count",
            declared=len(descriptor.buffers),
            found=len(listed),
        )
    pieces = [_piece(descriptor, index, buffer) for index, buffer in enumerate(listed)]
    _check_payload(name, descriptor, pieces)
    return pieces


def chunks_of(piece: Piece) -> Iterator[memoryview]:
    """The bytes of a piece in turn; BufferSizeError, before the chunk at fault, if they are not as many as it says."""
    if isinstance(piece, memoryview):
        yield piece
        return
    given = 0
    for chunk in piece.chunks():
        view = memoryview(chunk)
        given += view.nbytes
        if given > piece.nbytes:
            break
        if view.nbytes:  # an empty array has no flat view of its bytes
            yield view.cast("B")
    if given != piece.nbytes:
        more = "or more " if given > piece.nbytes else ""
        raise BufferSizeError(
            f"a chunked buffer gave {given} bytes {more}of {piece.nbytes}",
            rule="buffer.size",
            declared=piece.nbytes,
            found=given,
        )


def parts_of(piece: Parted, part_bytes: int) -> Iterator[tuple[int, Callable[[Bytes], Bytes]]] | None:
    """The parts of a piece in turn, None where it has none; BufferSizeError, before the part at fault, if they are not
    of the sizes that were asked for, or not as many bytes as it says.
    """
    parts = piece.parts(part_bytes)
    return None if parts is None else _checked_parts(parts, piece.nbytes, part_bytes)


def _checked_parts(
    parts: Iterator[tuple[int, Callable[[Bytes], Bytes]]], nbytes: int, part_bytes: int
) -> Iterator[tuple[int, Callable[[Bytes], Bytes]]]:
    given = 0
    for size, make in parts:
        expected = min(part_bytes, nbytes - given)
        if not size == expected > 0:
            raise BufferSizeError(
                f"a part of {size} bytes came at byte {given} of a chunked buffer of {nbytes}, not one of {expected}",
                rule="buffer.size",
                declared=expected,
                found=size,
            )
        given += size
        yield size, make
    if given != nbytes:
        raise BufferSizeError(
            f"the parts of a chunked buffer gave {given} bytes of {nbytes}",
            rule="buffer.size",
            declared=nbytes,
            found=given,
        )


def _piece(descriptor: TensorDescriptor, index: int, buffer: Any) -> Piece:
    """The buffer as something that can be written as it is, checked against its handle."""
    piece: Piece
    if isinstance(buffer, np.ma.MaskedArray):
        raise BufferSizeError(
            f"buffer {index} is a masked array: the format has no mask; pass its data, or fill it", rule="buffer.type"
        )
    if isinstance(buffer, Chunked) and callable(buffer.chunks):  # datasets of zarr and HDF5 tell their chunks' shape
        piece = buffer
    else:
        if not isinstance(buffer, np.ndarray):
            if hasattr(buffer, "__array__"):
                buffer = _as_array(index, buffer)
            elif not _is_plain(view := _view_of(buffer)):
                buffer = _as_array(index, view)
        piece = _array_bytes(descriptor, index, buffer).data if isinstance(buffer, np.ndarray) else _bytes_of(buffer)
    size = piece.nbytes
    declared = descriptor.buffers[index].byte_size
    if size != declared:
        raise BufferSizeError(
            f"buffer {index} has {size} bytes, but its handle tells {declared}",
            rule="buffer.size",
            declared=declared,
            found=size,
        )
    return piece


def _as_array(index: int, buffer: Any) -> NDArray[Any]:
    try:
        return np.asarray(buffer)
    except HurrayError:  # of a tensor of ours
        raise
    except (TypeError, ValueError, RuntimeError) as cause:
        raise BufferSizeError(
            f"buffer {index}, a {type(buffer).__name__}, does not give its memory to NumPy: {cause}", rule="buffer.type"
        ) from cause


def _view_of(buffer: Any) -> memoryview:
    try:
        return memoryview(buffer)
    except (TypeError, ValueError, BufferError) as cause:
        raise _no_bytes(buffer) from cause


def _is_plain(view: memoryview) -> bool:
    """True for bytes in a row, False for elements that have a type, or a shape, of their own."""
    return view.ndim == 1 and view.format.lstrip("@=<>!") in _BYTE_FORMATS


def _bytes_of(buffer: Any) -> memoryview:
    view = _view_of(buffer)
    try:
        return flat(view)
    except TypeError as cause:
        raise _no_bytes(buffer) from cause


def _no_bytes(buffer: Any) -> BufferSizeError:
    return BufferSizeError(
        f"a buffer is a {type(buffer).__name__}, neither contiguous bytes nor an array", rule="buffer.type"
    )


def _array_bytes(descriptor: TensorDescriptor, index: int, array: NDArray[Any]) -> NDArray[np.uint8]:
    """The elements of an array as little-endian bytes in the order in which the buffer holds them.

    A dense array of the tensor's shape is laid out as the layout says. An array of one dimension holds the buffer as
    it is; one of several has to have the shape in which the buffer holds its elements, if it has one.
    """
    expected = _buffer_type(descriptor, index)
    if expected is not None and not _may_hold(array.dtype, expected):
        raise BufferSizeError(
            f"buffer {index} holds {expected.name}, but the array is of {array.dtype}",
            rule="buffer.type",
            declared=expected.name,
            found=str(array.dtype),
        )
    little = array.dtype.newbyteorder("<")
    array = array if array.dtype == little else array.astype(little)
    if expected == et.bfloat16 and array.dtype == np.uint16:
        array = array.view(ml_dtypes.bfloat16)
    held = _held_dtype(descriptor, index, expected)
    if array.dtype != held:
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    shape = _stored_shape(descriptor, index)
    if index == 0 and descriptor.layout.is_dense and array.shape == shape:
        return dense.from_array(array, descriptor)
    if array.ndim > 1 and shape is not None and array.shape != shape:
        raise BufferSizeError(
            f"buffer {index} holds elements of shape {list(shape)}, but the array has shape {list(array.shape)}",
            rule="array.shape",
            declared=shape,
            found=array.shape,
        )
    if expected is not None and expected.is_packed:
        return pack(array.reshape(-1), expected)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _stored_shape(descriptor: TensorDescriptor, index: int) -> tuple[int, ...] | None:
    """The shape in which a buffer holds its elements; None where it has none of its own, or it is not known."""
    layout, shape = descriptor.layout, descriptor.shape
    if is_dynamic(shape):
        return None
    if index == 0:
        if isinstance(layout, BlockPagedLayout):
            return layout.pool_shape(shape)
        if isinstance(layout, CooLayout | CsrLayout | CscLayout | CsfLayout):
            return (layout.nnz,)
        return shape if layout.is_dense else None
    if isinstance(layout, CooLayout) and index == 1:
        return layout.nnz, len(shape)
    if isinstance(layout, BlockPagedLayout) and index >= 3 and isinstance(descriptor.quantization, PerBlockAffine):
        return layout.num_pages, layout.page_size
    return None


def _held_dtype(descriptor: TensorDescriptor, index: int, expected: ElementType | None) -> np.dtype[Any] | None:
    """The dtype of arrays that hold the buffer's elements, rather than its bytes; None if there is none."""
    if expected is not None:
        return expected.dtype
    element_type = descriptor.element_type
    return memory_dtype(element_type) if index == 0 and not element_type.is_packed else None


def _buffer_type(descriptor: TensorDescriptor, index: int) -> ElementType | None:
    """What a buffer holds; None where only the producer knows, or where it holds two things."""
    own = descriptor.layout.buffer_count
    if index == 0:
        return None if descriptor.element_type.is_private else descriptor.element_type
    if own is not None and index < own:
        if isinstance(descriptor.layout, BlockPagedLayout):
            return et.BY_NAME[descriptor.layout.block_table_index_type]
        return et.uint64
    scheme = descriptor.quantization
    if not isinstance(scheme, PerChannelAffine | PerBlockAffine | Nf4 | Mxfp) or index not in scheme.parameter_buffers:
        return None
    if isinstance(scheme, Nf4 | Mxfp) or scheme.zero_point_buffer_index is None:
        return scheme.scale_type
    if len(scheme.parameter_buffers) == 1:
        return None  # scales, and zero points behind them
    return scheme.scale_type if index == scheme.scale_buffer_index else et.int32


def _may_hold(dtype: np.dtype[Any], expected: ElementType) -> bool:
    """True if an array of this dtype holds such elements, or their bits."""
    if dtype == np.uint8 or dtype.newbyteorder("<") == expected.dtype:
        return True
    # NumPy has no name of its own for bfloat16, so its bits travel as uint16
    return expected == et.bfloat16 and dtype.kind == "u" and dtype.itemsize == 2


def _check_payload(name: str | None, descriptor: TensorDescriptor, pieces: Sequence[Piece]) -> None:
    """Raise what a reader raises for index buffers and unused bits, as far as they are in memory already."""
    if not any(isinstance(piece, Chunked) for piece in pieces):
        make_tensor(name, descriptor, pieces, limits=WRITTEN).check_payload()
        return
    layout = descriptor.layout
    if isinstance(layout, BlockPagedLayout):
        block_table, seq_ptr = pieces[1:3]
        if isinstance(block_table, memoryview) and isinstance(seq_ptr, memoryview):
            pointers = np.frombuffer(seq_ptr, layout.index_dtype, layout.num_seqs + 1)
            table = np.frombuffer(block_table, layout.index_dtype) if block_table.nbytes else pointers[:0]
            check_index_buffers(pointers, table, num_pages=layout.num_pages, num_seqs=layout.num_seqs)

"""Writing a file in one forward pass (spec/container.md).

Tensor by tensor: the descriptor at a multiple of 8, its buffers at multiples of the data alignment, padding of zeros
between; then metadata, index and trailer. What can be refused is refused before the first byte of a tensor is written,
and a file that is not finished does not appear. Compressing is the sink's work; it is told where buffers start and end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..arrays import dense
from ..arrays.packing import pack
from ..errors import BufferSizeError, InvalidFileError
from ..model import element_types as et
from ..model.block_paged import BlockPagedLayout
from ..model.descriptor import TensorDescriptor
from ..model.element_types import ElementType
from ..model.layouts import CompositeLayout, UnknownLayout
from ..model.quantization import PerBlockAffine, PerChannelAffine
from ..parallel import submit
from ..wire import container
from ..wire import planes as byte_planes
from ..wire.checksum import crc32c
from ..wire.container import FileHeader, Trailer, align_up
from ..wire.index import IndexEntry, check_name, encode_index
from ..wire.metadata import SEAL_KEY, encode_metadata
from .compressed_sink import CompressedSink, level_of, whole_pages
from .sink import Sink, open_sink

__all__ = ["CRC_KEY", "Chunked", "Writer", "create"]

CRC_KEY = "hurray_wire.crc32c"

_ZEROS = bytes(1 << 16)
_OVERLAPPED_FROM = 1 << 20  # below this, waking a thread costs as much as the checksum


@runtime_checkable
class Chunked(Protocol):
    """A buffer that is made piece by piece while it is written, so that it never lies in memory whole."""

    nbytes: int

    def chunks(self) -> Iterator[Any]:
        """Contiguous bytes-like pieces, ``nbytes`` bytes in all. A piece is used before the next one is asked for."""


class Writer:
    """Writes one file; see :func:`create`. Finished by leaving its ``with`` block, or by :meth:`close`."""

    def __init__(
        self,
        sink: Sink,
        *,
        alignment: int,
        sorted_index: bool,
        checksums: bool,
        durable: bool,
        metadata: Mapping[str, Any] | None,
    ) -> None:
        self._sink = sink
        self._durable = durable
        self._metadata = dict(metadata or {})
        for key in (CRC_KEY, SEAL_KEY):
            if checksums and key in self._metadata:
                raise InvalidFileError(
                    f"metadata key {key!r} is written by checksums=True", rule="metadata.key-duplicate", found=key
                )
        encode_metadata(self._metadata)  # refused now rather than after the tensors
        self._header = FileHeader(
            data_buffer_alignment=alignment,
            has_kv_metadata=bool(checksums or self._metadata),
            sorted_index=sorted_index,
        )
        self._crcs: list[int] | None = [] if checksums else None
        self._entries: dict[str, IndexEntry] = {}
        self._open = True
        self._broken = False
        sink.write(container.encode_header(self._header))

    def add(self, name: str, descriptor: TensorDescriptor, buffers: Sequence[Any] = ()) -> None:
        """Write one tensor.

        ``buffers`` has one entry per handle of the descriptor, each of exactly its ``byte_size``: a bytes-like
        object, an array, or a :class:`Chunked`. Arrays are written by value, whatever their strides and byte order,
        and must have the type that belongs there (uint8 arrays are taken as the bytes themselves); an array of the
        tensor's own shape is laid out as a row-major or column-major descriptor says. Raises BufferSizeError, and
        InvalidFileError for a name that no reader would take; nothing is written then, and the writer stays usable.
        """
        self._check_open()
        if check_name(name) in self._entries:
            raise InvalidFileError(f"duplicate tensor name {name!r}", rule="index.name-duplicate", found=name)
        if isinstance(descriptor.layout, UnknownLayout):
            pieces = [_bytes_of(buffer) for buffer in buffers]
        else:
            pieces = [_plan(descriptor, index, buffer) for index, buffer in enumerate(_counted(descriptor, buffers))]
        encoded = descriptor.encode()
        self._sink.check_unit(whole_pages(descriptor))
        try:
            self._write_tensor(name, descriptor, encoded, pieces)
        except BaseException:
            self._broken = True  # half a tensor is in the file
            self.abort()
            raise

    def close(self) -> None:
        """Write metadata, index and trailer, and let the file appear. Closing twice is fine.

        Raises InvalidFileError if an ``add`` failed half-way: there is no file then, and nobody shall think there is.
        """
        if self._broken:
            raise InvalidFileError("a tensor was written only in part, so there is no file", rule="file.unfinished")
        if not self._open:
            return
        try:
            trailer = self._write_metadata()
            index = encode_index(self._entries.values(), sorted_index=self._header.sorted_index)
            self._pad(container.STRUCTURE_ALIGNMENT)
            self._sink.cut()
            trailer = replace(
                trailer,
                index_offset=self._sink.position,
                index_length=len(index),
                index_crc32c=crc32c(index),
            )
            self._sink.write(index)
            self._sink.write(container.encode_trailer(trailer))
            self._open = False
            self._sink.commit(durable=self._durable)
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Give up: no file appears, and the one that was there stays."""
        self._open = False
        self._sink.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def _write_tensor(self, name: str, descriptor: TensorDescriptor, encoded: bytes, pieces: list[Any]) -> None:
        sink = self._sink
        self._pad(container.STRUCTURE_ALIGNMENT)
        descriptor_offset = sink.position
        sink.write(encoded)
        self._note(crc32c(encoded))
        data_offset = end = sink.position
        if not isinstance(descriptor.layout, CompositeLayout):
            for index, piece in enumerate(pieces):
                self._pad(self._header.data_buffer_alignment)
                if index == 0:
                    data_offset = sink.position
                    sink.cut(whole_pages(descriptor), byte_planes.element_bytes(descriptor))
                else:
                    sink.cut()
                self._note(self._write_buffer(piece))
                sink.cut()
            end = sink.position
        self._entries[name] = IndexEntry(name, descriptor_offset, len(encoded), data_offset, end - data_offset)

    def _write_buffer(self, piece: Any) -> int:
        """Write one buffer and return its CRC-32C."""
        if not isinstance(piece, Chunked):
            return self._write_checked(piece, 0)
        start, value = self._sink.position, 0
        for chunk in piece.chunks():
            value = self._write_checked(chunk, value)
        if self._sink.position - start != piece.nbytes:
            raise BufferSizeError(
                f"a chunked buffer gave {self._sink.position - start} bytes of {piece.nbytes}",
                rule="buffer.size",
                declared=piece.nbytes,
                found=self._sink.position - start,
            )
        return value

    def _write_checked(self, piece: Any, value: int) -> int:
        """Write bytes and return the CRC-32C of what came before (``value``) and of them; 0 without checksums."""
        if self._crcs is None:
            self._sink.write(piece)
            return 0
        if memoryview(piece).nbytes < _OVERLAPPED_FROM:
            self._sink.write(piece)
            return crc32c(piece, value)
        # the system's copy and the checksum read the same bytes side by side
        pending = submit(lambda data: crc32c(data, value), piece)
        try:
            self._sink.write(piece)
        finally:
            value = pending.result()
        return value

    def _write_metadata(self) -> Trailer:
        if not self._header.has_kv_metadata:
            return Trailer(index_offset=0, index_length=0)
        metadata = dict(self._metadata)
        if self._crcs is not None:
            metadata[CRC_KEY] = np.array(self._crcs, dtype=np.uint64)
        section = encode_metadata(metadata, seal=self._crcs is not None)
        self._pad(container.STRUCTURE_ALIGNMENT)
        self._sink.cut()
        offset = self._sink.position
        self._sink.write(section)
        return Trailer(index_offset=0, index_length=0, kv_offset=offset, kv_length=len(section))

    def _note(self, crc: int) -> None:
        if self._crcs is not None:
            self._crcs.append(crc)

    def _pad(self, alignment: int) -> None:
        missing = align_up(self._sink.position, alignment) - self._sink.position
        while missing:
            piece = _ZEROS[:missing]
            self._sink.write(piece)
            missing -= len(piece)

    def _check_open(self) -> None:
        if not self._open:
            raise ValueError("the writer is closed")


def create(
    target: Any,
    *,
    zstd: bool | int | None = None,
    planes: bool = False,
    alignment: int = container.MIN_ALIGNMENT,
    sorted_index: bool = False,
    checksums: bool = True,
    durable: bool = True,
    metadata: Mapping[str, Any] | None = None,
) -> Writer:
    """Begin a file at a path, or in a writable binary object (which is never seeked, and not closed).

    ``zstd`` compresses: a level (-7 to 22, not 0), True for the default one, which is 1, or None. The file is then a
    seekable zstd file, from which any part can be read without inflating the rest; ``planes`` stores page pools of 2-,
    4- and 8-byte elements in it as byte planes, which compress better, but what other zstd tools inflate is then no
    Hurray file.

    ``alignment`` of the buffers is a power of two, 4096..2097152; ``sorted_index`` orders the index by name;
    ``checksums`` records a CRC-32C of every descriptor and buffer; ``durable`` has file and folder on the disk before a
    path is renamed into place; ``metadata`` maps str to str, int, float, bool, bytes or a list of one of these.

    Use it as ``with create(...) as writer: writer.add(...)``: leaving the block finishes the file, an error in it
    leaves no file. Raises InvalidFileError for arguments that no reader would take, IncompatibleError for a level that
    does not exist or planes without zstd, OSError from the system. Specification: spec/container.md and
    spec/compressed.md.
    """
    level = level_of(zstd, planes=planes)
    sink = open_sink(target)
    if level is not None:
        sink = CompressedSink(sink, level=level, planes=planes)
    try:
        return Writer(
            sink,
            alignment=alignment,
            sorted_index=sorted_index,
            checksums=checksums,
            durable=durable,
            metadata=metadata,
        )
    except BaseException:
        sink.abort()
        raise


def _counted(descriptor: TensorDescriptor, buffers: Iterable[Any]) -> list[Any]:
    listed = list(buffers)
    if len(listed) != len(descriptor.buffers):
        raise BufferSizeError(
            f"{len(listed)} buffers for a descriptor of {len(descriptor.buffers)}",
            rule="buffer.count",
            declared=len(descriptor.buffers),
            found=len(listed),
        )
    return listed


def _plan(descriptor: TensorDescriptor, index: int, buffer: Any) -> Any:
    """The buffer as something that can be written as it is, checked against its handle."""
    piece: Chunked | memoryview
    if isinstance(buffer, Chunked):
        piece = buffer
    else:
        if not isinstance(buffer, np.ndarray) and hasattr(buffer, "__array__"):
            buffer = np.asarray(buffer)
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


def _bytes_of(buffer: Any) -> memoryview:
    try:
        view = memoryview(buffer)
        return view.cast("B") if view.nbytes else memoryview(b"")
    except TypeError as cause:
        raise BufferSizeError(
            f"a buffer is a {type(buffer).__name__}, neither contiguous bytes nor an array", rule="buffer.type"
        ) from cause


def _array_bytes(descriptor: TensorDescriptor, index: int, array: NDArray[Any]) -> NDArray[np.uint8]:
    """The elements of an array as little-endian bytes in the order in which the buffer holds them.

    An array of the tensor's shape holds its elements, and is laid out as the layout says; any other holds the buffer.
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
    typed = expected is not None and array.dtype == expected.dtype
    if typed and index == 0 and descriptor.layout.is_dense and array.shape == descriptor.shape:
        return dense.from_array(array, descriptor)
    if typed and expected is not None and expected.is_packed:
        return pack(array.reshape(-1), expected)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


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
    if isinstance(scheme, PerChannelAffine | PerBlockAffine) and len(scheme.parameter_buffers) == 2:
        return scheme.scale_type if index == scheme.scale_buffer_index else et.int32
    return None


def _may_hold(dtype: np.dtype[Any], expected: ElementType) -> bool:
    """True if an array of this dtype holds such elements, or their bits."""
    if dtype == np.uint8 or dtype.newbyteorder("<") == expected.dtype:
        return True
    # NumPy has no name of its own for bfloat16, so its bits travel as uint16
    return expected == et.bfloat16 and dtype.kind == "u" and dtype.itemsize == 2

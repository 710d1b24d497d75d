"""Writing a file in one forward pass (spec/container.md).

Tensor by tensor: the descriptor at a multiple of 8, its buffers at multiples of the data alignment, padding of zeros
between; then metadata, index and trailer. What can be refused is refused before the first byte of a tensor is written,
so that a reader with the default limits takes what was written, and a file that is not finished does not appear. What
buffers may be is told in ``handed.py``. Compressing is the sink's work; it is told where buffers start and end.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np

from ..arrays.composite import check_tree, group_members
from ..errors import InvalidFileError, LimitError
from ..model.descriptor import TensorDescriptor
from ..model.layouts import CompositeLayout
from ..parallel import submit
from ..wire import container
from ..wire import planes as byte_planes
from ..wire.checksum import crc32c
from ..wire.container import FileHeader, Trailer, align_up
from ..wire.index import ENTRY_BYTES, IndexEntry, check_name, encode_index
from ..wire.metadata import SEAL_KEY, decode_metadata, encode_metadata
from .compressed_sink import CompressedSink, Tally, level_of, whole_pages
from .handed import WRITTEN, Chunked, Parted, Piece, chunks_of, encoded_descriptor, parts_of, pieces_of
from .members import Members
from .sink import Sink, open_sink

__all__ = ["CRC_KEY", "Chunked", "Writer", "create"]

CRC_KEY = "hurray_wire.crc32c"

_COMPRESSED_SUFFIX = ".zst"

_ZEROS = bytes(1 << 16)
_COUNT_BYTES = 8  # of the number of entries, with which an index begins
_CRC_BYTES = 8  # of one checksum in the metadata
_OVERLAPPED_FROM = 1 << 20  # below this, waking a thread costs as much as the checksum


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
        self._crcs: list[int | Tally] | None = [] if checksums else None
        self._metadata_bytes = self._check_metadata()
        self._index_bytes = _COUNT_BYTES
        self._header = FileHeader(
            data_buffer_alignment=alignment,
            has_kv_metadata=bool(checksums or self._metadata),
            sorted_index=sorted_index,
        )
        self._entries: dict[str, IndexEntry] = {}
        self._members = Members(InvalidFileError, WRITTEN)
        self._group: list[TensorDescriptor] = []  # the open composite with its members so far
        self._open = True
        self._fault: str | None = None  # why there will be no file
        sink.write(container.encode_header(self._header))

    def add(self, name: str, descriptor: TensorDescriptor, buffers: Sequence[Any] = ()) -> None:
        """Write one tensor.

        ``buffers`` has one entry per handle of the descriptor, each of exactly its ``byte_size``: a bytes-like
        object, an array, or a :class:`Chunked`. Arrays, and buffers of Python that tell of other elements than bytes or
        of several dimensions, are written by value, whatever their strides and byte order, and must have the type that
        belongs there (uint8 arrays are taken as the bytes themselves). One of several dimensions has the shape in which
        the buffer holds its elements: that of a dense tensor, which is laid out as the layout says, or [num_pages,
        page_size, num_heads, head_dim]. One of one dimension is the buffer as it is.

        Raises BufferSizeError, and for what no reader would take InvalidFileError, InvalidDescriptorError or
        LimitError: a name, index buffers or unused bits that are in memory, members that do not fit their composite.
        Nothing is written then, and the writer stays usable. A tensor of an unknown layout is written as it is, for
        readers that are ``permissive``.
        """
        self._check_open()
        if check_name(name) in self._entries:
            raise InvalidFileError(f"duplicate tensor name {name!r}", rule="index.name-duplicate", found=name)
        pieces = pieces_of(name, descriptor, buffers)
        encoded = encoded_descriptor(descriptor)
        self._check_room(name, len(pieces))
        members = self._members.after(descriptor)
        group = self._group
        if not members.open:
            check_tree(group_members([*group, descriptor]))
        self._sink.check_unit(whole_pages(descriptor))
        try:
            self._write_tensor(name, descriptor, encoded, pieces)
        except BaseException:
            self._fault = "a tensor was written only in part, so there is no file"
            self.abort()
            raise
        self._members = members
        if members.open:
            group.append(descriptor)
        else:
            group.clear()

    def close(self) -> None:
        """Write metadata, index and trailer, and let the file appear. Closing twice is fine.

        Raises InvalidFileError if an ``add`` or an earlier ``close`` failed half-way, or a composite still lacks
        members: there is no file then, and nobody shall think there is.
        """
        if self._fault is not None:
            raise InvalidFileError(self._fault, rule="file.unfinished")
        if not self._open:
            return
        try:
            self._members.check_whole("the file")
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
            self._fault = "the file could not be finished, so there is none"
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

    def _write_tensor(self, name: str, descriptor: TensorDescriptor, encoded: bytes, pieces: list[Piece]) -> None:
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
        self._index_bytes += 2 + len(name.encode()) + ENTRY_BYTES
        self._entries[name] = IndexEntry(name, descriptor_offset, len(encoded), data_offset, end - data_offset)

    def _write_buffer(self, piece: Piece) -> int | Tally:
        """Write one buffer and return its CRC-32C, which may not be known before the sink is drained."""
        sink, value = self._sink, 0
        if isinstance(sink, CompressedSink) and isinstance(piece, Parted):
            parts = parts_of(piece, sink.frame_bytes)
            if parts is not None:
                tally = Tally()
                sink.write_parts(parts, None if self._crcs is None else tally)
                return tally
        for chunk in chunks_of(piece):
            value = self._write_checked(chunk, value)
        return value

    def _write_checked(self, piece: memoryview, value: int) -> int:
        """Write bytes and return the CRC-32C of what came before (``value``) and of them; 0 without checksums."""
        if self._crcs is None:
            self._sink.write(piece)
            return 0
        if piece.nbytes < _OVERLAPPED_FROM or isinstance(self._sink, CompressedSink):  # which busies all threads
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
        self._sink.drain()
        section = self._encoded_metadata()
        self._pad(container.STRUCTURE_ALIGNMENT)
        self._sink.cut()
        offset = self._sink.position
        self._sink.write(section)
        return Trailer(index_offset=0, index_length=0, kv_offset=offset, kv_length=len(section))

    def _encoded_metadata(self) -> bytes:
        if self._crcs is None:
            return encode_metadata(self._metadata)
        crcs = [crc.value if isinstance(crc, Tally) else crc for crc in self._crcs]
        return encode_metadata({**self._metadata, CRC_KEY: np.array(crcs, dtype=np.uint64)}, seal=True)

    def _check_metadata(self) -> int:
        """Refuse now, rather than after the tensors, what no reader would take; returns the size so far."""
        section = self._encoded_metadata()
        decode_metadata(memoryview(section), limits=WRITTEN)
        _check_limit("the metadata", len(section), WRITTEN.max_metadata_bytes, "limit.metadata-bytes")
        return len(section)

    def _check_room(self, name: str, buffers: int) -> None:
        """Index and checksums have room for one more tensor."""
        _check_limit("the file", len(self._entries) + 1, WRITTEN.max_tensors, "limit.tensors", "tensors")
        index = self._index_bytes + 2 + len(name.encode()) + ENTRY_BYTES
        _check_limit("the index", index, WRITTEN.max_index_bytes, "limit.index-bytes")
        metadata = self._metadata_bytes + _CRC_BYTES * (1 + buffers) * (self._crcs is not None)
        _check_limit("the metadata", metadata, WRITTEN.max_metadata_bytes, "limit.metadata-bytes")

    def _note(self, crc: int | Tally) -> None:
        if self._crcs is not None:
            self._crcs.append(crc)
            self._metadata_bytes += _CRC_BYTES

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

    ``zstd`` compresses: a level (-7 to 22, not 0), or True for the default one, which is 1. None goes by the name: a
    path that ends in ``.zst`` is compressed at the default level, and nothing else is; False writes any name as it is.
    What is compressed is a seekable zstd file, from which any part can be read without inflating the rest; ``planes``
    stores page pools of 2-, 4- and 8-byte elements in it as byte planes, which compress better, but what other zstd
    tools inflate is then no Hurray file.

    ``alignment`` of the buffers is a power of two, 4096..2097152; ``sorted_index`` orders the index by name;
    ``checksums`` records a CRC-32C of every descriptor and buffer; ``durable`` has file and folder on the disk before a
    path is renamed into place; ``metadata`` maps str to str, int, float, bool, bytes or a list of one of these.

    Use it as ``with create(...) as writer: writer.add(...)``: leaving the block finishes the file, an error in it
    leaves no file. Raises InvalidFileError for arguments that no reader would take, IncompatibleError for a level that
    does not exist or planes without zstd, OSError from the system. Specification: spec/container.md and
    spec/compressed.md.
    """
    if isinstance(target, str | bytes | os.PathLike):
        path = os.fsdecode(target)
        _check_path(path)
        if zstd is None:
            zstd = path.endswith(_COMPRESSED_SUFFIX)
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


def _check_path(path: str) -> None:
    """Refuse what names no file as the system itself does when it is opened to be written."""
    if not path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if os.path.basename(path) in ("", ".", ".."):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)


def _check_limit(what: str, size: int, limit: int, rule: str, unit: str = "bytes") -> None:
    if size > limit:
        raise LimitError(f"{what} has {size} {unit}, above the limit of {limit}", rule=rule, declared=limit, found=size)

"""Streams: tensors one after another over a pipe, a socket or any other one-way channel (spec/stream.md).

``StreamDecoder`` is the core without input or output: it says where the next bytes belong, takes them, and hands out
each tensor as soon as its last byte is there. ``StreamReader`` fills it from a readable object, large buffers
straight into their final memory; ``StreamWriter`` is the other direction, large buffers straight out of theirs.

A stream has no names and no end mark. It may end where a descriptor would start, provided that no composite still waits
for members; any other end is a truncation.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from ..buffers import MemoryBuffers
from ..errors import HurrayError, InvalidDescriptorError, LimitError, StreamError
from ..limits import Limits
from ..model.descriptor import TensorDescriptor
from ..model.layouts import UnknownLayout
from ..paged_tensor import make_tensor
from ..tensors import Tensor
from ..wire.descriptors import HEADER_BYTES, decode_descriptor, descriptor_length
from ..wire.planes import PLANES_MAGIC
from ..wire.structs import DESCRIPTOR_MAGIC, FILE_MAGIC
from .channels import check_readable, check_writable, reading_into, writing_to
from .frames import is_skippable, is_zstd
from .handed import WRITTEN, chunks_of, encoded_descriptor, pieces_of
from .members import Members
from .sink import flat, write_all

__all__ = ["StreamDecoder", "StreamReader", "StreamWriter", "check_streamable"]

_MAPPED_FROM = 1 << 20  # larger buffers are mapped: a size that a stream only claims then costs no memory


class StreamDecoder:
    """Turns the bytes of a stream into tensors, without reading anything itself.

    Either :meth:`feed` it bytes, or fill the memory that :meth:`wanted` lends and say so by :meth:`filled`. Both
    return the tensors that became whole, in order. A composite head comes out as a tensor without buffers, ahead of
    its members. A tensor owns its memory. After an error the decoder takes no more bytes. What is no descriptor is
    refused by its first 4 bytes, a bad header by its 20, however much is to follow.

    ``cross_machine`` refuses buffers that are not producer-synced, as between machines nothing else can be waited for.
    Nothing on the wire says whether there are two machines, and within one the format allows every mode, so it is False
    unless you say so; what sends and receives snapshots, which mostly go to another machine, has it True.
    Raises StreamError, InvalidDescriptorError and the other errors of ours. Specification: spec/stream.md.
    """

    def __init__(self, *, limits: Limits | None = None, cross_machine: bool = False) -> None:
        self._limits = limits or Limits()
        self._cross_machine = cross_machine
        self._members = Members(StreamError, self._limits)
        self._position = 0
        self._failed = False
        self._fault: HurrayError | None = None
        self._begin()

    @property
    def position(self) -> int:
        """Bytes taken so far."""
        return self._position

    def wanted(self) -> memoryview:
        """Writable memory for the bytes that come next: never empty, and never past the end of what is being read."""
        self._check_usable()
        return self._target[self._have :]

    def filled(self, count: int) -> list[Tensor]:
        """The first ``count`` bytes of :meth:`wanted` are there now."""
        self._check_usable()
        if not 0 <= count <= len(self._target) - self._have:
            raise ValueError(f"{count} bytes do not fit the {len(self._target) - self._have} wanted")
        self._have += count
        self._position += count
        done: list[Tensor] = []
        try:
            while self._have == len(self._target):
                self._advance(done)
        except HurrayError:
            self._failed = True
            raise
        return done

    def feed(self, data: Any) -> list[Tensor]:
        """Take all of a bytes-like object, by copy; the tensors that became whole.

        What is wrong behind them is raised by the next call, so that it does not matter where the bytes were cut.
        """
        self._check_usable()
        view = flat(data)
        done: list[Tensor] = []
        try:
            while len(view):
                target = self.wanted()
                count = min(len(target), len(view))
                target[:count] = view[:count]
                view = view[count:]
                done += self.filled(count)
        except HurrayError as fault:
            if not done:
                raise
            self._fault = fault
        return done

    def close(self) -> bool:
        """The stream has ended. True if that was a clean end; otherwise StreamError says what is missing."""
        self._check_usable()
        if self._have or self._descriptor is not None or self._head:
            what = "a descriptor" if self._descriptor is None else f"buffer {len(self._buffers)} of a tensor"
            expected, there = len(self._target), self._have
            if not self._head:
                _check_magic(self._target[:there], base=self._start)
            if len(self._head) < HEADER_BYTES and self._descriptor is None:
                expected, there = HEADER_BYTES, len(self._head) + there
            raise StreamError(
                f"the stream ends within {what}: {expected - there} bytes are missing",
                rule="stream.truncated",
                offset=self._position,
                declared=expected,
                found=there,
            )
        self._members.check_whole("the stream", self._position)
        return True

    def _begin(self) -> None:
        """Ready for the next tensor."""
        self._start = self._position
        self._head = b""
        self._descriptor: TensorDescriptor | None = None
        self._buffers: list[memoryview] = []
        self._aim(memoryview(bytearray(len(DESCRIPTOR_MAGIC))))

    def _aim(self, target: memoryview) -> None:
        self._target = target
        self._have = 0

    def _advance(self, done: list[Tensor]) -> None:
        """What was being read is whole: go on to the next part."""
        if self._descriptor is not None:
            self._buffers.append(self._target)
            self._next_buffer(self._descriptor, done)
            return
        read = len(self._head)
        self._head += self._target
        if not read:
            _check_magic(self._head, base=self._start)
            self._aim(memoryview(bytearray(HEADER_BYTES - len(self._head))))
            return
        if read < HEADER_BYTES:
            length = _length_of(self._head, base=self._start, limits=self._limits)
            self._aim(memoryview(bytearray(length - HEADER_BYTES)))
            if length > HEADER_BYTES:
                return
        descriptor = decode_descriptor(self._head, base=self._start, limits=self._limits)
        check_streamable(descriptor, self._limits, cross_machine=self._cross_machine, offset=self._start)
        self._members = self._members.after(descriptor)
        self._descriptor = descriptor
        self._next_buffer(descriptor, done)

    def _next_buffer(self, descriptor: TensorDescriptor, done: list[Tensor]) -> None:
        while len(self._buffers) < len(descriptor.buffers):
            size = descriptor.buffers[len(self._buffers)].byte_size
            target = _allocate(size)
            if size:
                self._aim(target)
                return
            self._buffers.append(target)
        done.append(make_tensor(None, descriptor, MemoryBuffers(self._buffers), limits=self._limits))
        self._begin()

    def _check_usable(self) -> None:
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault
        if self._failed:
            raise StreamError("the stream was given up after an error", rule="stream.failed", offset=self._position)


class StreamReader(Iterator[Tensor]):
    """Iterates over the tensors of a stream, each handed out as soon as its bytes are there.

    ``readable`` is a binary file, pipe or socket, borrowed; never more of it is read than the tensor at hand needs.
    Only that tensor is in memory: a consumer that drops one before asking for the next (``del tensor``) never holds
    two. Stops at a clean end of the stream, raises StreamError at any other, and OSError from the system; TypeError
    for what gives no bytes. ``limits`` and ``cross_machine`` are those of :class:`StreamDecoder`.
    """

    def __init__(self, readable: Any, *, limits: Limits | None = None, cross_machine: bool = False) -> None:
        check_readable(readable, "StreamReader", "hw.open reads a file")
        self._read_into = reading_into(readable)
        self._decoder = StreamDecoder(limits=limits, cross_machine=cross_machine)
        self._ended = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Tensor:
        if self._ended:
            raise StopIteration
        while True:
            count = self._read_into(self._decoder.wanted())
            if not count:
                self._ended = True
                self._decoder.close()
                raise StopIteration
            done = self._decoder.filled(count)
            if done:
                return done[0]  # what is wanted never reaches past one tensor

    @property
    def position(self) -> int:
        """Bytes read so far."""
        return self._decoder.position


class StreamWriter:
    """Writes tensors to a stream. A context manager; the writable object is borrowed, flushed and not closed.

    ``cross_machine`` refuses buffers that are not producer-synced, see :class:`StreamDecoder`. TypeError for what takes
    no bytes.
    """

    def __init__(self, writable: Any, *, cross_machine: bool = False) -> None:
        check_writable(writable, "StreamWriter", "hw.create writes a file")
        self._writable = writable
        self._write = writing_to(writable)
        self._cross_machine = cross_machine
        self._members = Members(StreamError, WRITTEN)
        self._open = True
        self._fault: str | None = None  # why the stream ends, and not as it should

    def add(self, descriptor: TensorDescriptor, buffers: Sequence[Any] = ()) -> None:
        """Write one tensor: its descriptor, then each buffer (as for ``Writer.add``).

        A composite head is followed by its members, each added in turn. What can be refused is refused before the first
        byte, and the stream stays usable: StreamError for what a stream cannot carry, otherwise as ``Writer.add``. An
        error in the midst of a tensor is the end of the stream: nothing more can be added, and closing it raises.
        """
        self._check_whole()
        if not self._open:
            raise ValueError("the writer is closed")
        check_streamable(descriptor, WRITTEN, cross_machine=self._cross_machine)
        pieces = pieces_of(None, descriptor, buffers)
        encoded = encoded_descriptor(descriptor)
        members = self._members.after(descriptor)
        try:
            write_all(self._write, memoryview(encoded))
            for piece in pieces:
                for chunk in chunks_of(piece):
                    write_all(self._write, chunk)
        except BaseException:
            self._fault = "a tensor was written only in part, so the stream ends there"
            raise
        self._members = members

    def close(self) -> None:
        """Flush. Closing twice is fine.

        Raises StreamError if a composite still lacks members, or an ``add`` or an earlier ``close`` failed half-way.
        """
        self._check_whole()
        if not self._open:
            return
        self._open = False
        try:
            if hasattr(self._writable, "flush"):
                self._writable.flush()
            self._members.check_whole("the stream")
        except BaseException:
            self._fault = "the stream could not be finished"
            raise

    def _check_whole(self) -> None:
        if self._fault is not None:
            raise StreamError(self._fault, rule="stream.failed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        self._open = False


def check_streamable(
    descriptor: TensorDescriptor, limits: Limits, *, cross_machine: bool, offset: int | None = None
) -> None:
    """Raise unless a stream can carry this tensor within the limits."""
    if isinstance(descriptor.layout, UnknownLayout):
        raise StreamError(
            f"a tensor of the unknown layout 0x{descriptor.layout.tag:02X} has no known end in a stream",
            rule="stream.unknown-layout",
            offset=offset,
            found=descriptor.layout.tag,
        )
    for index, handle in enumerate(descriptor.buffers):
        if handle.byte_size > limits.max_buffer_bytes:
            raise LimitError(
                f"buffer {index} has {handle.byte_size} bytes, above the limit of {limits.max_buffer_bytes}",
                rule="limit.buffer-bytes",
                offset=offset,
                declared=limits.max_buffer_bytes,
                found=handle.byte_size,
            )
        if cross_machine and handle.sync_mode != "producer_synced":
            raise StreamError(
                f"buffer {index} is synced by {handle.sync_mode}, which does not reach another machine",
                rule="stream.sync-mode",
                offset=offset,
                declared="producer_synced",
                found=handle.sync_mode,
            )


def _check_magic(start: memoryview | bytes, *, base: int) -> None:
    """Raise unless a descriptor may begin so. What begins as something else that we know is called by its name."""
    found = bytes(start)
    if DESCRIPTOR_MAGIC.startswith(found):
        return
    if is_zstd(memoryview(found)) or is_skippable(memoryview(found)):
        words = "these are the bytes of a Zstandard-compressed file, not of a stream; hw.open reads them"
    elif base:
        words = f"after {base} bytes of the stream comes {found!r}, where a descriptor would start with its magic"
    else:
        words = f"this is no stream of tensors: it starts with {found!r}, not with {DESCRIPTOR_MAGIC!r}"
    raise InvalidDescriptorError(words, rule="descriptor.magic", offset=base, declared=DESCRIPTOR_MAGIC, found=found)


def _length_of(head: bytes, *, base: int, limits: Limits) -> int:
    """The length of the descriptor that begins so. What begins as something else that we know is called by its name."""
    try:
        return descriptor_length(head, base=base, limits=limits)
    except HurrayError as error:
        if head.startswith(FILE_MAGIC):
            error.message = "these are the bytes of a file, not of a stream; hw.open reads them"
        elif head.startswith(PLANES_MAGIC):
            error.message = "these are the bytes of a file in byte planes that was inflated; hw.open reads it as it was"
        raise


def _allocate(size: int) -> memoryview:
    """Writable memory that is only taken from the system as it is filled."""
    if size < _MAPPED_FROM:
        return np.empty(size, dtype=np.uint8).data
    try:
        mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as cause:
        raise LimitError(f"there is no memory for a buffer of {size} bytes", rule="limit.memory", found=size) from cause
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(mapped)

"""Where bytes come from: one small interface, "give me these bytes" (spec/container.md leaves this to us).

A mapped file and bytes in memory lend their memory; a plain file and a seekable object are read into fresh memory.
Ranges are checked against the size before anything is asked for, short reads are continued, and an end that comes
early is TruncatedError. Every source may be used by several threads at once.

Who owns the mapping: the views that were lent. Closing a source drops its own hold and refuses new requests; the
memory is unmapped when the last view is gone, so arrays taken from a file outlive it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import mmap
import operator
import os
import stat
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .. import forks
from ..errors import InvalidFileError, LimitError, TruncatedError

__all__ = [
    "BytesSource",
    "Compression",
    "CopyingSource",
    "FileSource",
    "MappedSource",
    "ObjectSource",
    "Source",
    "open_source",
    "runs",
]

_PLAIN_FILES = (io.BufferedReader, io.BufferedRandom, io.FileIO)  # what they read are the bytes of the file
_OBJECT_MAX = (1 << 63) - 1  # what positions in a file are

# Named by the mmap module from Python 3.13 on; this is its value on every Linux but a few old architectures
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


@dataclass(frozen=True, slots=True)
class Compression:
    """How a compressed file is stored. ``inflated`` is how many frames have been inflated so far, repeats counted.

    ``seekable`` files have a table of their frames and are inflated frame by frame as they are read, others at once.
    ``planes`` says that page pools are stored as byte planes.
    """

    seekable: bool
    planes: bool
    frames: int
    inflated: int
    compressed_bytes: int
    inflated_bytes: int


class Source(ABC):
    """Random access to a run of ``size`` bytes."""

    size: int
    lends = False  # True if views are borrowed memory, and reading costs nothing until it is touched
    scatters = False  # True if parts that have much in common are read together at no loss

    @property
    def compression(self) -> Compression | None:
        """How the bytes are compressed where they come from; None if they are not."""
        return None

    def mark_pool(self, offset: int, length: int, element_bytes: int) -> None:  # noqa: B027 -- nothing to most sources
        """Be told, before any of it is read, that a page pool with elements of this size lies here.

        ``element_bytes`` is 1 for a pool that is never stored in byte planes.
        """

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> int:
        """Be told what will be read next, so that a source far away fetches it together.

        ``ranges`` are (offset, length) pairs. Returns how many of them, one at least, are to be read before the next
        are told: what is fetched ahead is bounded.
        """
        return len(ranges)

    def reads_from(self, target: object) -> bool:
        """Whether this very object is where the bytes come from, so that writing to it would destroy them."""
        return False

    def check_empty_frames(self) -> None:  # noqa: B027 -- most sources have no frames
        """Look at compressed frames that hold nothing, which no reading touches."""

    def __init__(self) -> None:
        self.closed = False

    def view(self, offset: int, length: int) -> memoryview:
        """These bytes, read-only: borrowed where the source lends, otherwise fresh memory."""
        self._check(offset, length)
        return self._view(offset, length) if length else memoryview(b"")

    def read_rows(self, offset: int, row_bytes: int, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Fill ``out`` [n, row_bytes] with rows of a table of equal rows that starts at ``offset``.

        ``rows`` are row numbers, each row inside the source. Neighbouring rows are read together.
        """
        flat = out.reshape(-1).data if out.size else memoryview(b"")
        for start, stop in runs(rows):
            first = int(rows[start])
            self.read_into(offset + first * row_bytes, flat[start * row_bytes : stop * row_bytes])

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill ``out``, a writable contiguous view of bytes, with the bytes from ``offset`` on."""
        self._check(offset, len(out))
        self._read_into(offset, out)

    def read_parts(self, parts: Sequence[tuple[int, memoryview]]) -> None:
        """Fill each of these memories, writable and contiguous, with the bytes from the offset given with it on."""
        for offset, out in parts:
            self.read_into(offset, out)

    def close(self) -> None:
        """Refuse further requests. Views lent before stay valid. Closing twice is fine."""
        self.closed = True

    @abstractmethod
    def _view(self, offset: int, length: int) -> memoryview: ...

    @abstractmethod
    def _read_into(self, offset: int, out: memoryview) -> None: ...

    def _check(self, offset: int, length: int) -> None:
        if self.closed:
            raise ValueError("the file is closed")
        if offset < 0 or length < 0 or offset + length > self.size:
            raise TruncatedError(
                f"{length} bytes are needed at {offset}, but there are {self.size} in all",
                rule="file.truncated",
                offset=offset,
                declared=offset + length,
                found=self.size,
            )


class BytesSource(Source):
    """Bytes in memory, borrowed from the object that holds them."""

    lends = True

    def __init__(self, data: Any) -> None:
        super().__init__()
        self._data = memoryview(data).cast("B").toreadonly()
        self.size = len(self._data)

    def _view(self, offset: int, length: int) -> memoryview:
        return self._data[offset : offset + length]

    def _read_into(self, offset: int, out: memoryview) -> None:
        out[:] = self._data[offset : offset + len(out)]


class MappedSource(BytesSource):
    """A file mapped into memory. Whoever truncates the file under a mapping kills the process that reads it.

    The views are read-only. The mapping itself is private where the system grants that: a library without read-only
    arrays that writes through a pointer then changes its own copy of that page, and neither the file nor its luck.
    """

    def __init__(self, fd: int, size: int) -> None:
        super().__init__(_mapped(fd, size) if size else b"")


class CopyingSource(Source):
    """A source that copies what it is asked for into fresh memory."""

    def _view(self, offset: int, length: int) -> memoryview:
        try:
            out = np.empty(length, dtype=np.uint8)
        except MemoryError as cause:
            raise LimitError(f"there is no memory for {length} bytes", rule="limit.memory", found=length) from cause
        self._read_into(offset, out.data)
        return out.data.toreadonly()


class FileSource(CopyingSource):
    """A file read with pread: for files that others may truncate. Owns the descriptor it is given."""

    def __init__(self, fd: int, size: int) -> None:
        super().__init__()
        self._fd = fd
        self.size = size
        self._lock = threading.Lock()
        forks.register(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            if not self.closed:
                super().close()
                os.close(self._fd)

    def __del__(self) -> None:
        self.close()

    def _read_into(self, offset: int, out: memoryview) -> None:
        _pread(self._fd, offset, out)


class ObjectSource(CopyingSource):
    """A seekable binary object. The object is borrowed, its position is ours while we live, and it is never closed.

    A forked child has a copy of the object, but one position in the file with its parent: there, files of Python's own
    are read without a position, and others that stand on a file of the system are refused.
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._fd: int | None = None  # to be read from without a position
        self._lock = threading.Lock()
        self.size = self._seek(0, os.SEEK_END)
        if not 0 <= self.size <= _OBJECT_MAX:
            raise InvalidFileError(
                f"the object says that it has {self.size} bytes", rule="file.object", found=self.size
            )
        forks.register(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self._fd = _descriptor(self._file)

    def reads_from(self, target: object) -> bool:
        return target is self._file

    def _read_into(self, offset: int, out: memoryview) -> None:
        if self._fd is not None:
            if type(self._file) not in _PLAIN_FILES:
                raise InvalidFileError(
                    f"a {type(self._file).__name__} has one position for a process and its forked child; open the file "
                    "in the child, or by its path",
                    rule="file.object",
                )
            _pread(self._fd, offset, out)
            return
        with self._lock:
            self._seek(offset, os.SEEK_SET)
            done = 0
            while done < len(out):
                piece = self._file.read(min(len(out) - done, 1 << 24))
                if piece is None:
                    raise BlockingIOError(errno.EAGAIN, "the object has no bytes to give yet; open it in blocking mode")
                if isinstance(piece, str):
                    raise TypeError("the object gives text: open it in binary mode")
                if not piece:
                    raise _shrunk(offset + done, len(out) - done)
                if len(piece) > len(out) - done:
                    raise InvalidFileError(
                        f"the object gave {len(piece)} bytes where {len(out) - done} were asked for", rule="file.object"
                    )
                out[done : done + len(piece)] = piece
                done += len(piece)

    def _seek(self, offset: int, whence: int) -> int:
        place = self._file.seek(offset, whence)
        if place is None:  # as of objects written before seek gave an answer
            place = self._file.tell()
        return operator.index(place)


def open_source(target: Any, *, use_mmap: bool = True) -> Source:
    """The source for a path, a bytes-like object, or a readable and seekable binary object."""
    if isinstance(target, str | os.PathLike):
        return _open_path(os.fspath(target), use_mmap)
    if hasattr(target, "read"):
        if not (hasattr(target, "seek") and target.seekable()):
            raise InvalidFileError(
                "the object cannot seek, so it is not a file; read a stream with StreamReader", rule="file.seekable"
            )
        return ObjectSource(target)
    try:
        return BytesSource(target)
    except TypeError as cause:
        raise TypeError(f"cannot open a {type(target).__name__}: not a path, bytes or a seekable object") from cause


def _pread(fd: int, offset: int, out: memoryview) -> None:
    done = 0
    while done < len(out):
        count = os.preadv(fd, [out[done : done + (1 << 30)]], offset + done)
        if count == 0:
            raise _shrunk(offset + done, len(out) - done)
        done += count


def _descriptor(file: Any) -> int | None:
    """The number of the system's file that an object reads from; None if it reads from memory, or nobody knows."""
    try:
        return int(file.fileno())
    except (AttributeError, OSError, ValueError):  # io.UnsupportedOperation is both of the latter
        return None


def runs(rows: NDArray[np.int64]) -> list[tuple[int, int]]:
    """``(start, stop)`` of each longest stretch of ``rows`` in which every row follows the one before."""
    if not len(rows):
        return []
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    edges = [0, *breaks.tolist(), len(rows)]
    return list(pairwise(edges))


def _mapped(fd: int, size: int) -> mmap.mmap:
    if _MAP_NORESERVE:
        # without the flag the system would set memory aside for copies that nobody makes
        flags = mmap.MAP_PRIVATE | _MAP_NORESERVE
        with contextlib.suppress(OSError):
            return mmap.mmap(fd, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return mmap.mmap(fd, size, access=mmap.ACCESS_READ)


def _open_path(path: str | bytes, use_mmap: bool) -> Source:
    # asked before it is opened, since opening a pipe waits for its writer
    if not stat.S_ISREG(mode := os.stat(path).st_mode) and not stat.S_ISDIR(mode):
        raise InvalidFileError(
            f"{os.fsdecode(path)} is not a regular file; read a stream with StreamReader", rule="file.regular"
        )
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fsdecode(path))
        size = os.fstat(fd).st_size
        if not use_mmap:
            source: Source = FileSource(fd, size)
            fd = -1  # the source owns it now
            return source
        return MappedSource(fd, size)
    finally:
        if fd >= 0:
            os.close(fd)


def _shrunk(offset: int, missing: int) -> TruncatedError:
    return TruncatedError(
        f"{missing} bytes are missing at {offset}: the file became shorter while it was read",
        rule="file.truncated",
        offset=offset,
        found=missing,
    )

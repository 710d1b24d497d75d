"""Where bytes go: a path that appears whole or not at all, or an object that is only ever written forward.

A path is written beside its place, without a name where the system can do that, then synced and renamed over the
place, so that at any moment of a failure or a kill there is the old file or the new one. A symbolic link is followed
and kept; the new file has the mode that the umask (or the file it replaces) gives; something that is not a regular
file, a pipe or a device, is written to directly and never removed.
"""

from __future__ import annotations

import os
import secrets
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from ..errors import InvalidFileError

__all__ = ["Sink", "flat", "open_sink", "write_all"]

_WRITE_MAX = 1 << 30  # Linux writes at most 2 GiB - 4 KiB at once


class Sink(ABC):
    """Takes bytes in order. Ends with :meth:`commit` or :meth:`abort`, whichever comes first."""

    def __init__(self) -> None:
        self.position = 0

    def write(self, data: Any) -> None:
        """Write all of a contiguous bytes-like object; large ones go out as they are, without a copy."""
        view = flat(data)
        if len(view):
            self._write(view)
            self.position += len(view)

    def check_unit(self, unit_bytes: int) -> None:  # noqa: B027 -- most sinks take anything
        """Raise UnsupportedError if bytes that must stay together, as those of a page, are too many for this sink."""

    def cut(self, unit_bytes: int = 1, element_bytes: int = 1) -> None:  # noqa: B027 -- nothing to most sinks
        """Be told that a buffer starts or ends here: a sink that compresses begins a new frame.

        What follows, up to the next cut, consists of units that frames do not divide; ``element_bytes`` above 1 says
        that it is a page pool with elements of this size.
        """

    def drain(self) -> None:  # noqa: B027 -- most sinks leave nothing to other threads
        """Wait until everything that was written has been handed on."""

    @abstractmethod
    def _write(self, view: memoryview) -> None: ...

    @abstractmethod
    def commit(self, *, durable: bool) -> None:
        """Make what was written appear. ``durable``: on the disk before it appears."""

    @abstractmethod
    def abort(self) -> None:
        """Leave everything as it was before, as far as that is possible."""


class _ObjectSink(Sink):
    """A writable binary object, borrowed: flushed at the end, never seeked, never closed."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file

    def _write(self, view: memoryview) -> None:
        write_all(self._file.write, view)

    def commit(self, *, durable: bool) -> None:
        if hasattr(self._file, "flush"):
            self._file.flush()

    def abort(self) -> None:
        """What a pipe has taken cannot be called back; the reader sees a file without its end and refuses it."""


class _FdSink(Sink):
    """A file descriptor that we own."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd

    def _write(self, view: memoryview) -> None:
        write_all(lambda piece: os.write(self._fd, piece), view)

    def commit(self, *, durable: bool) -> None:
        self._close()

    def abort(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class _PathSink(_FdSink):
    """A regular file that appears when it is whole."""

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)
        self._folder, self._base = os.path.split(self._path)
        self._temporary: str | None = None
        self._process = os.getpid()
        super().__init__(self._open())

    def _write(self, view: memoryview) -> None:
        self._check_process()
        super()._write(view)

    def commit(self, *, durable: bool) -> None:
        self._check_process()
        try:
            if durable:
                os.fsync(self._fd)
            if self._temporary is None:
                self._temporary = self._name()
                os.link(f"/proc/self/fd/{self._fd}", self._temporary, src_dir_fd=0, follow_symlinks=True)
            os.replace(self._temporary, self._path)
            self._temporary = None
            if durable:
                _sync_folder(self._folder)
        except BaseException:
            self.abort()
            raise
        self._close()

    def abort(self) -> None:
        self._close()
        if self._temporary is not None:
            temporary, self._temporary = self._temporary, None
            # a forked child that unwinds is not the one that writes
            if self._process == os.getpid() and os.path.lexists(temporary):
                os.unlink(temporary)

    def _check_process(self) -> None:
        """A forked child has the same file, and a position in it, in common with its parent, who goes on writing."""
        if self._process != os.getpid():
            raise InvalidFileError("the file was begun by another process", rule="file.unfinished")

    def _open(self) -> int:
        """A new file in the folder of the path; without a name, so that a killed writer leaves nothing, where
        possible.
        """
        flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
        fd = -1
        if hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd"):
            try:
                fd = os.open(self._folder, flags | os.O_TMPFILE, 0o666)
            except (IsADirectoryError, NotADirectoryError, FileNotFoundError, PermissionError):
                if not os.path.isdir(self._folder) or not os.access(self._folder, os.W_OK):
                    raise
            except OSError:
                fd = -1  # a file system without unnamed files
        if fd < 0:
            self._temporary = self._name()
            fd = os.open(self._temporary, flags | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            mode = stat.S_IMODE(os.stat(self._path).st_mode)
        except FileNotFoundError:
            return fd
        os.fchmod(fd, mode)  # as writing into the old file would have kept it
        return fd

    def _name(self) -> str:
        base = os.fsencode(self._base)[:200]  # leaves room for the affixes within a name's 255 bytes
        return os.path.join(self._folder, f".{os.fsdecode(base)}.{secrets.token_hex(6)}.tmp")


def open_sink(target: Any) -> Sink:
    """The sink for a path or a writable binary object. A folder, or a missing one, raises the system's own error."""
    if isinstance(target, str | bytes | os.PathLike):
        path = os.fsdecode(target)
        try:
            mode = os.stat(path).st_mode
        except FileNotFoundError:
            return _PathSink(path)
        if stat.S_ISREG(mode):
            return _PathSink(path)
        return _FdSink(os.open(path, os.O_WRONLY))
    if hasattr(target, "write"):
        return _ObjectSink(target)
    raise TypeError(f"cannot write to a {type(target).__name__}: not a path or a writable binary object")


def flat(data: Any) -> memoryview:
    """The bytes of a contiguous bytes-like object in a row, borrowed. An empty array has no such view of its own."""
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")


def write_all(write: Callable[[memoryview], int | None], view: memoryview) -> None:
    """Write every byte, however few a call takes. An object whose ``write`` says nothing has taken all of them."""
    done = 0
    while done < len(view):
        piece = view[done : done + _WRITE_MAX]
        count = write(piece)
        if count is None:
            count = len(piece)
        if not 0 <= count <= len(piece):
            raise InvalidFileError(
                f"the object took {count} of {len(piece)} bytes", rule="file.object", declared=len(piece), found=count
            )
        if count == 0:
            raise BlockingIOError("the object takes no more bytes")
        done += count


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

"""Opening what ``hurray-unpack`` is given: a file, or a stream from standard input, a pipe or a file.

Which of these it is, the first bytes tell. A whole file that comes through a pipe is kept in memory.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import hurray_wire as hw

from ..store.frames import is_skippable, is_zstd
from .console import CliError

__all__ = ["about", "named", "opened"]

_FILE_MAGIC = b"HRRYFILE"


@contextmanager
def opened(file: str, seq_lens: list[int] | None) -> Iterator[tuple[hw.Snapshot, int | None]]:
    """The snapshot in a file or on a stream, and the size of the file; errors within name it."""
    with ExitStack() as stack:
        stack.enter_context(about(file))
        path = Path(file)
        if file != "-" and path.is_file() and not _starts_as_stream(path):
            snapshot = stack.enter_context(hw.open(file, permissive=True, seq_lens=seq_lens)).snapshot()
            yield snapshot, path.stat().st_size
            return
        readable = sys.stdin.buffer if file == "-" else stack.enter_context(path.open("rb", buffering=0))
        yield _received(readable, seq_lens), None


def _received(readable: Any, seq_lens: list[int] | None) -> hw.Snapshot:
    """The snapshot that comes along: a stream, or the bytes of a whole file."""
    head = b""
    while len(head) < len(_FILE_MAGIC) and (piece := readable.read(len(_FILE_MAGIC) - len(head))):
        head += piece
    resumed = _Resumed(head, readable)
    if head == _FILE_MAGIC or is_zstd(memoryview(head)) or is_skippable(memoryview(head)):
        return hw.open(resumed.readall(), permissive=True, seq_lens=seq_lens).snapshot()
    return hw.receive_snapshot(resumed, seq_lens=seq_lens)


def _starts_as_stream(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(len(_FILE_MAGIC))
    return head.startswith(_FILE_MAGIC[:4]) and head != _FILE_MAGIC


class _Resumed(io.RawIOBase):
    """A readable object whose first bytes were read already."""

    def __init__(self, head: bytes, rest: Any) -> None:
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        if not self._head:
            count: int = self._rest.readinto(target)
            return count
        count = min(len(target), len(self._head))
        target[:count], self._head = self._head[:count], self._head[count:]
        return count


@contextmanager
def about(file: str) -> Iterator[None]:
    """Errors of the library say which file they are about."""
    try:
        yield
    except hw.HurrayError as error:
        advice = "; --seq-lens gives them" if error.rule == "snapshot.seq-lens-unknown" else ""
        raise CliError(f"{named(file)}: {error}{advice}") from error


def named(file: str) -> str:
    return "standard input" if file == "-" else file

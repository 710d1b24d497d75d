"""Opening what is a Hurray file: one of this machine, a URL of one, or a stream from standard input, a pipe or a file.

Which of these it is, the first bytes tell, and what is none of them is refused by them: a pipe may never end. A whole
file that comes through one is kept as ``spooling.py`` tells. Nothing may follow the snapshot: whoever looks at a stream
here looks at all of it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import hurray_wire as hw

from ..store.frames import is_skippable, is_zstd
from ..wire.container import HEADER_BYTES, decode_header
from ..wire.planes import PLANES_MAGIC
from .console import CliError
from .inputs import STREAM_MAGIC, ZIP_MAGICS, Input, given, named
from .spooling import read_head, spooled

__all__ = ["about", "opened", "snapshot_in", "whole_file"]

_FILE_MAGIC = b"HRRYFILE"


@contextmanager
def opened(file: str, seq_lens: list[int] | None) -> Iterator[tuple[hw.Snapshot, int | None]]:
    """The snapshot in a file or on a stream, and the size of the file where it is one of this machine.

    Errors within name it. Tensors of a layout that the format does not tell are read as far as that goes.
    """
    with given(file) as source, snapshot_in(source, seq_lens, permissive=True) as snapshot:
        there = source.pipe is None and not source.is_url and not _is_stream(source.head)
        yield snapshot, Path(file).stat().st_size if there else None


@contextmanager
def snapshot_in(source: Input, seq_lens: list[int] | None, *, permissive: bool = False) -> Iterator[hw.Snapshot]:
    """The snapshot in a file or on a stream; errors within name it."""
    with ExitStack() as stack:
        stack.enter_context(about(source.file))
        if _is_stream(source.head):
            yield _received(stack.enter_context(_from_start(source)), source.said, seq_lens)
            return
        _check_kind(source)
        target = stack.enter_context(_whole(source))
        yield stack.enter_context(hw.open(target, permissive=permissive, seq_lens=seq_lens)).snapshot()


@contextmanager
def whole_file(file: str) -> Iterator[Any]:
    """A file or stream as what ``hw.open`` takes: its path or URL, or all that a pipe gives."""
    with given(file) as source, _whole(source) as target:
        yield target


@contextmanager
def _whole(source: Input) -> Iterator[Any]:
    if source.pipe is None:
        yield source.file
        return
    _check_kind(source)
    head = source.head
    if head.startswith(_FILE_MAGIC):
        head += read_head(source.pipe, HEADER_BYTES - len(head))
        if len(head) == HEADER_BYTES:
            decode_header(memoryview(head))
    with spooled(head, source.pipe, source.said) as whole:
        yield whole


def _received(readable: Any, said: str, seq_lens: list[int] | None) -> hw.Snapshot:
    """The snapshot on a stream, to whose end it is read."""
    snapshot = hw.receive_snapshot(readable, seq_lens=seq_lens)
    if readable.read(1):
        raise CliError(f"bytes follow the snapshot on {said}")
    return snapshot


@contextmanager
def _from_start(source: Input) -> Iterator[Any]:
    """A readable object that gives all bytes of the source."""
    if source.pipe is not None:
        yield _Resumed(source.head, source.pipe)
        return
    with Path(source.file).open("rb", buffering=0) as file:
        yield file


def _is_stream(head: bytes) -> bool:
    return head.startswith(STREAM_MAGIC) and not head.startswith((_FILE_MAGIC, PLANES_MAGIC))


def _check_kind(source: Input) -> None:
    """Refuse what is neither a file nor a stream of the format; what is cut too short to tell, reading refuses."""
    head = source.head
    start = memoryview(head)
    if head.startswith(STREAM_MAGIC) or STREAM_MAGIC.startswith(head) or is_zstd(start) or is_skippable(start):
        return
    if head.startswith(ZIP_MAGICS) or head[8:] == b"{":
        kind = "an .npz" if head.startswith(ZIP_MAGICS) else "a .safetensors"
        raise CliError(f"{source.said}: not a Hurray file but, as it seems, {kind} file; hurray-pack packs it")
    raise CliError(f"{source.said}: not a Hurray file: it starts with {head[:8].hex(' ')}")


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

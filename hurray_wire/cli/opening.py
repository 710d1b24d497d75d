"""Opening what ``hurray-unpack`` is given: a file, a URL of one, or a stream from standard input, a pipe or a file.

Which of these it is, the first bytes tell, and what is none of them is refused by them: a pipe may never end. A whole
file that comes through one is kept as ``spooling.py`` tells. Nothing may follow the snapshot: whoever looks at a stream
here looks at all of it.
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
from ..store.target import is_url
from ..wire.container import HEADER_BYTES, decode_header
from ..wire.planes import PLANES_MAGIC
from .console import CliError
from .spooling import read_head, spooled

__all__ = ["about", "named", "opened", "standard_input"]

_FILE_MAGIC = b"HRRYFILE"
_STREAM_MAGIC = _FILE_MAGIC[:4]
_ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
_HEAD_BYTES = 9  # as many as a .safetensors file needs to be told by: the length of its header, and a brace


@contextmanager
def opened(file: str, seq_lens: list[int] | None) -> Iterator[tuple[hw.Snapshot, int | None]]:
    """The snapshot in a file or on a stream, and the size of the file where it is one of this machine.

    Errors within name it.
    """
    with ExitStack() as stack:
        stack.enter_context(about(file))
        if is_url(file):
            yield stack.enter_context(hw.open(file, permissive=True, seq_lens=seq_lens)).snapshot(), None
            return
        path = Path(file)
        if file != "-" and path.is_file() and not _starts_as_stream(path):
            snapshot = stack.enter_context(hw.open(file, permissive=True, seq_lens=seq_lens)).snapshot()
            yield snapshot, path.stat().st_size
            return
        readable = sys.stdin.buffer if file == "-" else stack.enter_context(path.open("rb", buffering=0))
        head = _judged_head(readable, file)
        if _is_stream(head):
            yield _received(head, readable, file, seq_lens), None
            return
        whole = stack.enter_context(spooled(head, readable, named(file)))
        yield stack.enter_context(hw.open(whole, permissive=True, seq_lens=seq_lens)).snapshot(), None


@contextmanager
def standard_input() -> Iterator[Any]:
    """All of standard input, a stream or a file, as one bytes-like object."""
    readable = sys.stdin.buffer
    with spooled(_judged_head(readable, "-"), readable, named("-")) as whole:
        yield whole


def _judged_head(readable: Any, file: str) -> bytes:
    """The first bytes of what comes along, as many as tell that it may be a file or a stream."""
    head = read_head(readable, _HEAD_BYTES)
    _check_kind(head, file)
    if head.startswith(_FILE_MAGIC):
        head += read_head(readable, HEADER_BYTES - len(head))
        if len(head) == HEADER_BYTES:
            decode_header(memoryview(head))
    return head


def _received(head: bytes, readable: Any, file: str, seq_lens: list[int] | None) -> hw.Snapshot:
    """The snapshot on a stream."""
    resumed = _Resumed(head, readable)
    snapshot = hw.receive_snapshot(resumed, seq_lens=seq_lens)
    if resumed.read(1):
        raise CliError(f"bytes follow the snapshot on {named(file)}")
    return snapshot


def _starts_as_stream(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    _check_kind(head, str(path))
    return _is_stream(head)


def _is_stream(head: bytes) -> bool:
    return head.startswith(_STREAM_MAGIC) and not head.startswith((_FILE_MAGIC, PLANES_MAGIC))


def _check_kind(head: bytes, file: str) -> None:
    """Refuse what is neither a file nor a stream of the format; what is cut too short to tell, reading refuses."""
    start = memoryview(head)
    if head.startswith(_STREAM_MAGIC) or _STREAM_MAGIC.startswith(head) or is_zstd(start) or is_skippable(start):
        return
    if head.startswith(_ZIP_MAGICS) or head[8:] == b"{":
        kind = "an .npz" if head.startswith(_ZIP_MAGICS) else "a .safetensors"
        raise CliError(f"{named(file)}: not a Hurray file but, as it seems, {kind} file; hurray-pack packs it")
    raise CliError(f"{named(file)}: not a Hurray file: it starts with {head[:8].hex(' ')}")


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

"""What a command is given to read, and how it begins: a path, a URL, or ``-`` for standard input.

The first bytes tell what kind of thing it is. Those of a pipe can be read once, so they are kept, with what is still to
come behind them. What to make of it is left to ``opening.py`` (Hurray files and streams) and ``dump.py`` (arrays).
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..store.frames import is_skippable, is_zstd
from ..store.target import is_url
from .console import CliError
from .spooling import read_head

__all__ = ["STREAM_MAGIC", "ZIP_MAGICS", "Input", "given", "is_same_file", "named"]

STREAM_MAGIC = b"HRRY"  # with which a file begins as well
ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")  # the second begins an archive with nothing in it
_HEAD_BYTES = 9  # as many as a .safetensors file needs to be told by: the length of its header, and a brace


@dataclass(frozen=True, slots=True)
class Input:
    """Something to read: a path or URL, or a ``pipe`` (or a device) whose first bytes, ``head``, are read already.

    A folder and a URL have no head.
    """

    file: str
    head: bytes
    pipe: Any = None

    @property
    def said(self) -> str:
        """What it is called where people read it."""
        return named(self.file)

    @property
    def is_url(self) -> bool:
        return is_url(self.file)

    @property
    def is_hurray(self) -> bool:
        """Whether it can only be a Hurray file or stream; of a URL nothing else is read."""
        start = memoryview(self.head)
        return self.is_url or self.head.startswith(STREAM_MAGIC) or is_zstd(start) or is_skippable(start)


@contextmanager
def given(file: str) -> Iterator[Input]:
    """What this is. CliError where it is empty."""
    path = Path(file)
    if is_url(file) or (file != "-" and path.is_dir()):
        yield Input(file, b"")
    elif file == "-":
        yield _begun(file, sys.stdin.buffer, sys.stdin.buffer)
    elif path.is_file():
        with path.open("rb") as whole:
            found = _begun(file, whole, None)
        yield found
    else:
        with path.open("rb", buffering=0) as pipe:
            yield _begun(file, pipe, pipe)


def named(file: str) -> str:
    return "standard input" if file == "-" else file


def is_same_file(file: str, target: str) -> bool:
    """Whether what is read is the regular file that is written, by whatever names; ``-`` is a standard stream."""
    try:
        here = os.fstat(sys.stdin.fileno()) if file == "-" else Path(file).stat()
        there = os.fstat(sys.stdout.fileno()) if target == "-" else Path(target).stat()
    except (OSError, ValueError):  # one of them is not there (yet), or a standard stream that is no file
        return False
    return stat.S_ISREG(here.st_mode) and os.path.samestat(here, there)


def _begun(file: str, readable: Any, pipe: Any) -> Input:
    head = read_head(readable, _HEAD_BYTES)
    if not head:
        raise CliError(f"{named(file)} is empty")
    return Input(file, head, pipe)

"""What comes through a pipe and is needed whole: kept in memory while it is small, and in a temporary file beyond that.

A file is read from its end, and the arrays of a dump in any order, but a pipe may never end. So callers judge the first
bytes before they ask for more, and there is a bound on the rest.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .console import CliError, blamed, readable_size

__all__ = ["copy_bounded", "read_head", "spooled"]

_PIECE_BYTES = 1 << 20
_IN_MEMORY_BYTES = 64 << 20
_MOST_BYTES = 64 << 30  # as a plain zstd file may inflate to, and as much as most disks for temporary files have


def read_head(readable: Any, size: int) -> bytes:
    """The first ``size`` bytes, or as many as there are."""
    head = b""
    while len(head) < size and (piece := readable.read(size - len(head))):
        head += piece
    return head


def copy_bounded(head: bytes, readable: Any, file: Any, said: str) -> int:
    """Write ``head`` and all that follows it to ``file``; returns how many bytes these are, but ends at too many."""
    done, piece = 0, head
    while piece:
        with blamed(tempfile.gettempdir()):
            file.write(piece)
        done += len(piece)
        piece = readable.read(_PIECE_BYTES)
        if done + len(piece) > _MOST_BYTES:
            raise CliError(f"{said} gives more than {readable_size(_MOST_BYTES)}; write that to a file first")
    return done


@contextmanager
def spooled(head: bytes, readable: Any, said: str) -> Iterator[Any]:
    """``head`` and all that follows it as one bytes-like object."""
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES, prefix="hurray-unpack-") as file:
        size = copy_bounded(head, readable, file, said)
        file.seek(0)
        yield file.read() if size <= _IN_MEMORY_BYTES else np.memmap(file, dtype=np.uint8, mode="r")

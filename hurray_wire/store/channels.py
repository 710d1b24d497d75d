"""What a stream is read from and written to: binary files, pipes and sockets, which stay the caller's.

A readable object has ``readinto``, ``recv_into`` or ``read``, a writable one ``write`` or ``sendall``. What goes over
them is left to ``stream.py``.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from inspect import iscoroutinefunction
from typing import Any

from ..errors import StreamError

__all__ = ["check_readable", "check_writable", "reading_into", "writing_to"]


def check_readable(given: Any, taker: str, instead: str) -> None:
    """TypeError unless this may be a binary file, pipe or socket to read; ``instead`` says what reads from a path."""
    _check_binary(given, taker, instead, ("readinto", "recv_into", "read"), "reads")


def check_writable(given: Any, taker: str, instead: str) -> None:
    """TypeError unless this may be a binary file, pipe or socket to write; ``instead`` says what writes to a path."""
    _check_binary(given, taker, instead, ("write", "sendall"), "writes")


def reading_into(readable: Any) -> Callable[[memoryview], int]:
    """A function that fills a buffer from the object as far as it gives bytes at once, and returns how many."""
    if hasattr(readable, "readinto"):

        def read_into(target: memoryview) -> int:
            count = readable.readinto(target)
            if count is None:
                raise BlockingIOError("the stream has no bytes yet; a StreamReader needs a blocking one")
            return int(count)

        return read_into
    if hasattr(readable, "recv_into"):
        receive: Callable[[memoryview], int] = readable.recv_into
        return receive

    def read(target: memoryview) -> int:
        piece = readable.read(min(len(target), 1 << 24))
        if piece is None:
            raise BlockingIOError("the stream has no bytes yet; a StreamReader needs a blocking one")
        if isinstance(piece, str):  # text that is no TextIOBase: a wrapper of tempfile or codecs
            raise TypeError("the stream gives a str: open it in binary mode")
        if len(piece) > len(target):
            raise StreamError(
                f"the object gave {len(piece)} bytes where {len(target)} were asked for", rule="file.object"
            )
        target[: len(piece)] = piece
        return len(piece)

    return read


def writing_to(writable: Any) -> Callable[[memoryview], int | None]:
    """A function that hands the object bytes and returns how many it took, or None for all."""
    if hasattr(writable, "write"):
        write: Callable[[memoryview], int | None] = writable.write
        return write

    def send(piece: memoryview) -> None:
        writable.sendall(piece)

    return send


def _check_binary(given: Any, taker: str, instead: str, methods: Sequence[str], does: str) -> None:
    refused = f"{taker} takes a binary file, pipe or socket, not a {type(given).__name__}"
    if isinstance(given, str | bytes | bytearray | memoryview | os.PathLike):
        raise TypeError(f"{refused}; {instead}")
    if isinstance(given, io.TextIOBase):
        raise TypeError(f"{refused}: open it in binary mode")
    found = [method for name in methods if callable(method := getattr(given, name, None))]
    if not found:
        raise TypeError(f"{refused}, which has none of {', '.join(methods)}")
    # asyncio's writer keeps what it was handed beyond write(), while we fill that memory with what comes next
    if any(map(iscoroutinefunction, (*found, getattr(given, "drain", None)))):
        raise TypeError(f"{refused}, which {does} asynchronously")

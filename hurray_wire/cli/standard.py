"""The standard streams of a command, which its caller may have closed (``>&-``).

Python has None in the place of a closed one, and the system gives its number to the next file that is opened: what is
then written to standard error would end in the output. So the numbers are taken first, by streams on which reading or
writing fails as it does on a closed one. Nobody can be told of a closed standard error: what goes there is dropped, and
the exit code says the rest.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["standard_streams"]


@contextmanager
def standard_streams() -> Iterator[None]:
    """``sys.stdin``, ``sys.stdout`` and ``sys.stderr`` are there, open or not."""
    before = sys.stdin, sys.stdout, sys.stderr
    # in this order, as the system gives the lowest number that is free
    sys.stdin = before[0] or _stream(os.O_WRONLY, "rb")
    sys.stdout = before[1] or _stream(os.O_RDONLY, "wb")
    sys.stderr = before[2] or _stream(os.O_WRONLY, "wb")
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


def _stream(access: int, mode: str) -> io.TextIOWrapper:
    """A stream of no bytes that is used as ``mode`` says, though ``access`` is what the system grants.

    Nothing is held back in it: a write fails at once, and not when the interpreter ends. The number stays taken.
    """
    file = os.fdopen(os.open(os.devnull, access), mode, buffering=0, closefd=False)
    return io.TextIOWrapper(file, encoding="utf-8", write_through=True)

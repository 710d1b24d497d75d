"""What can go wrong far away, as errors of ours and of the operating system.

fsspec and the libraries below it raise classes of their own, some of which do not even pickle. Here they become OSError
or a builtin class below it, with their cause. No message shows the secrets of a URL.
"""

from __future__ import annotations

import errno
import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import HurrayError, InvalidFileError, LimitError, TruncatedError

__all__ = ["changed", "shown", "status_error", "translated", "wrong_length"]


@contextmanager
def translated(url: str) -> Iterator[None]:
    """What comes from other libraries leaves as an error of the operating system's kind."""
    try:
        yield
    except MemoryError as cause:
        raise LimitError(f"there is no memory to read {shown(url)}", rule="limit.memory") from cause
    except HurrayError:
        raise
    except Exception as cause:
        kind = next(base for base in type(cause).__mro__ if base.__module__ == "builtins")
        if isinstance(cause, OSError) and kind is type(cause) and str(cause):
            raise
        number = (cause.errno if isinstance(cause, OSError) else None) or errno.EIO
        if isinstance(cause, ssl.SSLError):  # whose numbers are its own: 1 is no missing permission
            number = errno.EIO
        told = f"{shown(url)}: {type(cause).__name__}: {str(cause).replace(url, shown(url))}"
        raise (kind if issubclass(kind, OSError) else OSError)(number, told) from cause


def status_error(status: int, reason: str | None, url: str) -> OSError:
    if status in (404, 410):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), shown(url))
    if status in (401, 403, 407):
        return PermissionError(errno.EACCES, f"the server answers {status} {reason}", shown(url))
    return OSError(errno.EIO, f"the server answers {status} {reason}", shown(url))


def changed(url: str, offset: int, declared: object, found: object) -> InvalidFileError:
    return InvalidFileError(
        f"{shown(url)} is not the file any more that it was when it was opened",
        rule="file.changed",
        offset=offset,
        declared=declared,
        found=found,
    )


def wrong_length(offset: int, declared: int, found: int) -> InvalidFileError:
    kind = TruncatedError if found < declared else InvalidFileError
    return kind(
        f"{declared} bytes were asked for, and {found} came",
        rule="file.range",
        offset=offset,
        declared=declared,
        found=found,
    )


def shown(url: str) -> str:
    """The URL without what may be secret: user, password, and the query in which signed URLs carry their right."""
    return "::".join(re.sub(r"(?<=://)[^/]*@", "", re.split("[?#]", part)[0]) for part in url.split("::"))

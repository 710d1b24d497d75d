"""What ``hw.open`` is given, told apart: a URL, or whatever ``source.py`` knows.

A text is a URL if it begins with a scheme and ``://``. The files of ``file://`` are the machine's own and are mapped;
all others are read through fsspec, an optional part of the library.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from ..errors import UnsupportedError
from .remote_errors import shown
from .source import Source, open_source

__all__ = ["is_url", "name_of", "open_target"]

_URL = re.compile(r"[a-z][a-z0-9+.-]*(::[^/]+)?://", re.IGNORECASE | re.ASCII)  # "zip::s3://" names two file systems


def is_url(target: object) -> bool:
    """Whether this is the text of a URL rather than a path, bytes or an object."""
    return isinstance(target, str) and _URL.match(target) is not None


def open_target(target: Any, *, use_mmap: bool = True, storage_options: Mapping[str, Any] | None = None) -> Source:
    """The source for a URL, a path, a bytes-like object, or a readable and seekable binary object.

    ``storage_options`` are those of the fsspec file system of a URL; ValueError where there is none.
    """
    if is_url(target) and not target.lower().startswith("file://"):
        # importing fsspec takes a quarter of the time of all the rest, so only a URL pays for it
        from .remote import RemoteSource

        return RemoteSource(target, storage_options or {})
    if storage_options:
        raise ValueError("storage_options are for URLs of other machines")
    return open_source(_local_path(target) if is_url(target) else target, use_mmap=use_mmap)


def name_of(target: Any) -> str | None:
    """What a path or a URL is called where people read it, without secrets; None for bytes and objects."""
    if is_url(target):
        return shown(target)
    return os.fsdecode(target) if isinstance(target, str | os.PathLike) else None


def _local_path(url: str) -> str:
    host, slash, path = url[len("file://") :].partition("/")
    if not slash or host.lower() not in ("", "localhost"):
        raise UnsupportedError(
            f"{url} names a file of the machine {host!r}; a path of this one starts with file:///",
            rule="file.url",
            found=host,
        )
    return unquote(slash + path)

"""A folder that appears when it is whole: files are written into one beside it, which is then renamed.

Unlike a file, a folder cannot be without a name while it is filled, so a run that is killed leaves it behind. Whoever
fills one holds a lock on it, which the system takes back when the process ends, however it ends. So the next run that
writes the same folder can tell what belongs to nobody any more, and removes that.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["clear_abandoned", "working_folder"]

_NAME_LENGTH = 200  # leaves room for the affixes within a name's 255 bytes


@contextmanager
def working_folder(path: Path) -> Iterator[Path]:
    """A fresh folder beside ``path``, removed with all in it if the block ends in an error. The block renames it."""
    beside, lock = _locked(path)
    try:
        yield beside
    except BaseException:
        shutil.rmtree(beside)
        raise
    finally:
        os.close(lock)


def clear_abandoned(path: Path) -> None:
    """Remove what runs that are gone have left of ``path``: folders of ours beside it that nobody has locked.

    One that cannot be locked or removed is left where it is.
    """
    name = re.compile(re.escape(f".{path.name[:_NAME_LENGTH]}.") + r"[0-9a-f]{12}\.tmp")
    with suppress(OSError):
        for beside in [found for found in path.parent.iterdir() if name.fullmatch(found.name)]:
            with suppress(OSError):
                lock = _open(beside)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(beside, ignore_errors=True)
                finally:
                    os.close(lock)


def _locked(path: Path) -> tuple[Path, int]:
    """A fresh folder, and a descriptor that holds its lock."""
    while True:
        beside = path.with_name(f".{path.name[:_NAME_LENGTH]}.{secrets.token_hex(6)}.tmp")
        beside.mkdir()
        # until it is locked, another run may take it for abandoned, and remove it
        with suppress(FileNotFoundError):
            lock = _open(beside)
            if _lock(lock, beside):
                return beside, lock
            os.close(lock)


def _lock(descriptor: int, folder: Path) -> bool:
    """True if the folder is locked now, or its file system has no locks, so that nobody can take it for abandoned."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return folder.exists() and os.path.samestat(os.fstat(descriptor), folder.stat())


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

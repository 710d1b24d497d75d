"""The one error tree.

Every refusal this library makes is one of these classes, so that a caller needs a single ``except HurrayError``. An
error carries the id of the rule it enforces (``spec/`` explains each id), the byte offset where the fault stands, and
what was declared against what was found, where these apply. It reads as one sentence, it pickles (a worker process can
raise it), and the exception that caused it stays reachable as ``__cause__``.
"""

from __future__ import annotations

import pickle
from typing import Any

__all__ = [
    "BufferSizeError",
    "ChecksumError",
    "HurrayError",
    "IncompatibleError",
    "InvalidDescriptorError",
    "InvalidFileError",
    "LimitError",
    "StreamError",
    "TruncatedError",
    "UnsupportedError",
]


class HurrayError(Exception):
    """Base of every error of this library.

    ``rule`` is the id of the broken rule in ``spec/``; ``offset`` is a byte offset in the file, stream or descriptor
    that was being read; ``declared`` and ``found`` are the two values that disagree. Each is None where it says
    nothing. Where a file was being read, the error has a note that names it, as tracebacks show.
    """

    def __init__(
        self,
        message: str,
        *,
        rule: str | None = None,
        offset: int | None = None,
        declared: Any = None,
        found: Any = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.rule = rule
        self.offset = offset
        self.declared = declared
        self.found = found

    def __str__(self) -> str:
        notes = []
        if self.offset is not None:
            notes.append(f"at byte {self.offset}")
        if self.rule is not None:
            notes.append(f"rule {self.rule}")
        return f"{self.message} ({', '.join(notes)})" if notes else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {
            "rule": self.rule,
            "offset": self.offset,
            "declared": self.declared,
            "found": self.found,
        }
        notes = list(getattr(self, "__notes__", ()))
        return _rebuild, (type(self), self.message, fields, _picklable(self.__cause__), notes)


class InvalidDescriptorError(HurrayError, ValueError):
    """A descriptor, or a part of one, breaks a rule of the format."""


class InvalidFileError(HurrayError, ValueError):
    """A file breaks a rule of the container, or disagrees with itself."""


class TruncatedError(InvalidFileError):
    """The bytes end before what they promise."""


class ChecksumError(InvalidFileError):
    """The bytes are not those whose checksum was recorded."""


class StreamError(HurrayError):
    """A stream breaks a rule, ends early, or carries what a stream cannot carry."""


class BufferSizeError(HurrayError, ValueError):
    """A buffer or array does not have the size, shape or type that its descriptor declares."""


class UnsupportedError(HurrayError, NotImplementedError):
    """The bytes may be valid, but this version cannot read or write them."""


class LimitError(HurrayError):
    """Reading would exceed a bound in ``Limits``."""


class IncompatibleError(HurrayError):
    """The data is valid, but not what was asked for, or too little is known to answer."""


def _picklable(cause: BaseException | None) -> BaseException | None:
    """The cause itself if it survives pickling, otherwise a plain stand-in with its words."""
    if cause is None:
        return None
    try:
        pickle.loads(pickle.dumps(cause))
    except Exception:  # any failure at all means the same: this cause cannot travel
        return RuntimeError(f"{type(cause).__name__}: {cause}")
    return cause


def _rebuild(
    kind: type[HurrayError], message: str, fields: dict[str, Any], cause: BaseException | None, notes: list[str]
) -> HurrayError:
    error = kind(message, **fields)
    error.__cause__ = cause
    for note in notes:
        error.add_note(note)
    return error

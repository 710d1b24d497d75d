"""What a case of the corpus is: a name, some words, and the bytes that it makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .emit import Content, Descriptor, File, Out, Place, emit_descriptor, emit_file, emit_stream
from .zstd import Compressed, emit_compressed

_OURS = ("tensors", "metadata", "alignment", "checksums", "sorted_index")  # what our own writer leaves to its caller
SUFFIXES = {"descriptor": ".desc", "file": ".hrry", "stream": ".stream", "compressed": ".hrry.zst"}


@dataclass(frozen=True)
class Case:
    """One file of the corpus.

    ``subject`` is what it is made of: a Descriptor, a File, a Compressed file, or a tuple of Contents for a stream.
    ``changes`` overrides fields by name, ``edit`` works on the finished bytes. ``options`` are keyword arguments that
    a reader needs for it (``permissive``, ``seq_lens``, ``limits``). ``verbatim`` False says that a reader that
    writes it again may choose other bytes.

    A refused case has a ``rule``, tells ``when`` that shows (see ``refused_files``; ``decode`` for a bare descriptor,
    ``stream`` for a stream), and ``keeps`` is the file of an accepted case that is its like in all but what breaks
    the rule. ``judged`` False spares it the plain decoder.
    """

    name: str
    description: str
    subject: Descriptor | File | Compressed | tuple[Content, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)
    edit: Callable[[bytes], bytes] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    rule: str | None = None
    when: str | None = None
    keeps: str | None = None
    verbatim: bool = True
    judged: bool = True

    @property
    def kind(self) -> str:
        if isinstance(self.subject, Descriptor):
            return "descriptor"
        if isinstance(self.subject, Compressed):
            return "compressed"
        return "file" if isinstance(self.subject, File) else "stream"

    @property
    def file(self) -> str:
        """Path within the fixtures folder."""
        return f"{'refused' if self.rule else 'accepted'}/{self.name}{SUFFIXES[self.kind]}"

    def rewrite(self) -> dict[str, Any] | None:
        """How our own writer is to be asked for these bytes; None where it would choose others."""
        if not self.verbatim or isinstance(self.subject, Compressed):
            return None
        if not isinstance(self.subject, File):
            return {}
        file = self.subject
        if file != replace(File(), **{name: getattr(file, name) for name in _OURS}):
            return None
        return {"alignment": file.alignment, "sorted_index": file.sorted_index, "checksums": file.checksums}

    def emit(self) -> tuple[bytes, list[Place]]:
        """The bytes, and where each field stands in them (before ``edit``)."""
        out = Out(self.changes)
        if isinstance(self.subject, Descriptor):
            emit_descriptor(out, self.subject)
        elif isinstance(self.subject, File):
            emit_file(out, self.subject)
        elif isinstance(self.subject, Compressed):
            emit_compressed(out, self.subject)
        else:
            emit_stream(out, self.subject)
        data = out.finish()
        return (self.edit(data) if self.edit else data), out.places


def by_name(cases: list[Case]) -> dict[str, Case]:
    """Cases by name, which is unique."""
    named = {case.name: case for case in cases}
    if len(named) != len(cases):
        raise ValueError("two cases have one name")
    return named

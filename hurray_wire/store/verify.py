"""Verifying a file: reading all of it, and holding every byte to what the file says of it (spec/container.md).

Opening a file has checked what can be checked without payload; here are the checksums of descriptors, buffers and
metadata, the padding, which must be zero, and what index buffers, lengths and composites hold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from itertools import pairwise
from types import TracebackType

import numpy as np

from ..arrays.composite import check_tree, group_members
from ..errors import (
    ChecksumError,
    HurrayError,
    InvalidFileError,
)
from ..limits import Limits
from ..tensors import Tensor
from ..wire.checksum import crc32c
from ..wire.container import FileHeader, Trailer
from ..wire.index import Index, IndexEntry
from ..wire.metadata import Metadata, check_seal
from ..wire.regions import Region, Regions
from .places import buffer_places
from .source import Source
from .writer import CRC_KEY

__all__ = ["Report", "Verification", "naming"]

_TOGETHER = 256  # tensors that are told to a source at once
_CHUNK = 16 << 20  # bytes that are held at once where reading copies


@dataclass(frozen=True, slots=True)
class Report:
    """What :meth:`File.verify` looked at. ``checksums`` is 0 for a file that records none but the index's own."""

    tensors: int
    buffers: int
    checksums: int
    padding_bytes: int
    payload_bytes: int


def _sum(one: Report, other: Report) -> Report:
    return Report(
        one.tensors + other.tensors,
        one.buffers + other.buffers,
        one.checksums + other.checksums,
        one.padding_bytes + other.padding_bytes,
        one.payload_bytes + other.payload_bytes,
    )


class naming:  # noqa: N801 -- reads as a word in a with statement
    """Errors raised within say which tensor they concern."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, HurrayError) and repr(self._name) not in error.message:
            error.message = f"tensor {self._name!r}: {error.message}"


class reading:  # noqa: N801 -- the same
    """Errors raised within have a note that names the file, if it has a name."""

    def __init__(self, said: str | None) -> None:
        self._said = said

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, HurrayError) and self._said is not None:
            note = f"while reading {self._said!r}"
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)


class Verification:
    """One pass over a file that is open: ``tensor`` gives its tensors by name, ``metadata`` is what it recorded."""

    def __init__(
        self,
        source: Source,
        header: FileHeader,
        trailer: Trailer,
        index: Index,
        regions: Regions,
        *,
        tensor: Callable[[str], Tensor],
        metadata: Metadata,
        limits: Limits,
    ) -> None:
        self._source = source
        self._header = header
        self._trailer = trailer
        self._index = index
        self._regions = regions
        self._tensor = tensor
        self._metadata = metadata
        self._limits = limits

    def run(self, progress: Callable[[int, int], None] | None, only: Collection[str] | None = None) -> Report:
        """Everything, in the order of the file, or ``only`` these tensors and the metadata; see ``File.verify``."""
        trailer = self._trailer
        check_seal(self._source.view(trailer.kv_offset, trailer.kv_length), base=trailer.kv_offset)
        recorded = self._recorded_crcs()
        if only is not None:
            return self._run_some(recorded, only)
        # Everything in the order of the file, so that a compressed one need not inflate a frame again; but what stands
        # behind the tensors was read when the file was opened, and is looked at while it is still at hand.
        gaps = deque(pairwise(self._regions))
        last = int(self._index.descriptor_offsets[-1]) if len(self._index) else -1
        padding = told = 0
        while gaps and gaps[-1][0].start > last:
            padding += self._verify_gap(*gaps.pop())
        total = Report(0, 0, 0, 0, 0)
        for number, entry in enumerate(self._index):
            if number == told:
                told += self._source.prefetch(self._extents(number, number + _TOGETHER))
            padding += self._verify_gaps(gaps, max(entry.descriptor_offset, entry.data_offset))
            total = _sum(total, self._verify_tensor(recorded, total.tensors + total.buffers, entry))
            if progress is not None:
                progress(entry.data_offset + entry.data_length, self._source.size)
        padding += self._verify_gaps(gaps, self._source.size)
        check_tree(group_members((self._tensor(name).descriptor for name in self._index.names), limits=self._limits))
        self._source.check_empty_frames()
        position = total.tensors + total.buffers
        if recorded is not None and position != len(recorded):
            raise InvalidFileError(
                f"{CRC_KEY} has {len(recorded)} checksums for {position} descriptors and buffers",
                rule="verify.crc-count",
                declared=position,
                found=len(recorded),
            )
        return replace(total, padding_bytes=total.padding_bytes + padding)

    def _run_some(self, recorded: list[int] | None, names: Collection[str]) -> Report:
        """These tensors, and no padding but theirs. Descriptors of others are read, to count their checksums."""
        for name in names:
            self._tensor(name)  # KeyError for one that is not there
        wanted = set(names)
        chosen = [number for number, name in enumerate(self._index.names) if name in wanted]
        position = done = told = 0
        total = Report(0, 0, 0, 0, 0)
        for at, number in enumerate(chosen):
            if at == told:
                told += self._source.prefetch([self._extents(n, n + 1)[0] for n in chosen[at : at + _TOGETHER]])
            for name in self._index.names[done:number]:
                position += 1 + len(self._tensor(name).descriptor.buffers)
            found = self._verify_tensor(recorded, position, self._index.entry(self._index.names[number]))
            position += 1 + found.buffers
            total = _sum(total, found)
            done = number + 1
        return total

    def _verify_tensor(self, recorded: list[int] | None, position: int, entry: IndexEntry) -> Report:
        """One tensor, whose checksums are recorded from ``position`` on."""
        tensor = self._tensor(entry.name)
        places = buffer_places(tensor.descriptor, entry, self._header.data_buffer_alignment)
        self._verify_part(recorded, position, entry.name, -1, entry.descriptor_offset, entry.descriptor_length)
        end, padding = entry.data_offset, 0
        for part, (offset, length) in enumerate(places):
            padding += self._verify_zero(end, offset, f"between buffers of {entry.name!r}")
            self._verify_part(recorded, position + 1 + part, entry.name, part, offset, length)
            end = offset + length
        with naming(entry.name):
            tensor.check_payload()
        checksums = 0 if recorded is None else 1 + len(places)
        return Report(1, len(places), checksums, padding, sum(length for _, length in places))

    def _recorded_crcs(self) -> list[int] | None:
        recorded = self._metadata.get(CRC_KEY)
        if recorded is None:
            return None
        if not isinstance(recorded, list) or not all(type(value) is int and 0 <= value < 1 << 32 for value in recorded):
            raise InvalidFileError(f"{CRC_KEY} is not a list of 32-bit checksums", rule="verify.crc-type")
        return recorded

    def _extents(self, first: int, behind: int) -> list[tuple[int, int]]:
        """Offset and length of each of these tensors, from its descriptor to the end of its data."""
        offsets = self._index.descriptor_offsets[first:behind]
        ends = (self._index.data_offsets + self._index.data_lengths)[first:behind]
        lengths = np.maximum(ends - offsets, self._index.descriptor_lengths[first:behind])
        return list(zip(offsets.tolist(), lengths.tolist(), strict=True))

    def _verify_part(
        self, recorded: list[int] | None, position: int, name: str, part: int, offset: int, length: int
    ) -> None:
        """Check a descriptor (part -1) or a buffer against its checksum; without one, at least that it inflates."""
        if recorded is None and self._source.compression is None:
            return
        if recorded is not None and position >= len(recorded):
            raise InvalidFileError(
                f"{CRC_KEY} ends before {name!r}", rule="verify.crc-count", declared=position, found=len(recorded)
            )
        value = 0
        for start in range(offset, offset + length, _CHUNK):
            value = crc32c(self._source.view(start, min(_CHUNK, offset + length - start)), value)
        if recorded is not None and value != recorded[position]:
            what = "the descriptor" if part < 0 else f"buffer {part}"
            raise ChecksumError(
                f"{what} of {name!r} has CRC-32C 0x{value:08X}, but 0x{recorded[position]:08X} was recorded",
                rule="verify.crc",
                offset=offset,
                declared=recorded[position],
                found=value,
            )

    def _verify_gaps(self, gaps: deque[tuple[Region, Region]], end: int) -> int:
        """Check the padding of the gaps up to a place in the file, taking them off the list; returns its size."""
        total = 0
        while gaps and gaps[0][1].start <= end:
            total += self._verify_gap(*gaps.popleft())
        return total

    def _verify_gap(self, before: Region, after: Region) -> int:
        return self._verify_zero(before.end, after.start, f"between {before.what} and {after.what}")

    def _verify_zero(self, start: int, end: int, where: str) -> int:
        for offset in range(start, end, _CHUNK):
            piece = np.frombuffer(self._source.view(offset, min(_CHUNK, end - offset)), dtype=np.uint8)
            if piece.any():
                raise InvalidFileError(
                    f"the padding {where} is not zero",
                    rule="verify.padding",
                    offset=offset + int(np.argmax(piece != 0)),
                    found=int(piece[np.argmax(piece != 0)]),
                )
        return max(0, end - start)

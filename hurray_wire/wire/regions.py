"""No hole, no overlap, no tail: what each byte of a file belongs to (spec/container.md).

Every byte belongs to exactly one thing: header, descriptor, buffer, zero padding, key-value section, index or trailer.
:func:`check_regions` holds a file to that from what header, trailer and index say, before anything else is read.
Whether the padding is zero needs reading it, and is left to ``verify``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidFileError
from .container import HEADER_BYTES, STRUCTURE_ALIGNMENT, TRAILER_BYTES, FileHeader, Trailer
from .index import Index

__all__ = ["Region", "Regions", "check_regions"]


@dataclass(frozen=True, slots=True)
class Region:
    """A run of bytes that is one thing. ``slack`` bounds the padding that may follow it (exclusive)."""

    start: int
    end: int
    what: str
    slack: int = STRUCTURE_ALIGNMENT


class Regions(Sequence[Region]):
    """Every region of a file, in order. Kept as columns, since a file may have some 100,000 of them."""

    def __init__(self, header: FileHeader, trailer: Trailer, index: Index, file_size: int) -> None:
        first = header.first_descriptor_offset
        self._index = index
        self._fixed = [
            Region(0, HEADER_BYTES, "the header", first - HEADER_BYTES + STRUCTURE_ALIGNMENT),
            Region(trailer.index_offset, trailer.index_offset + trailer.index_length, "the index"),
            Region(file_size - TRAILER_BYTES, file_size, "the trailer"),
        ]
        if trailer.kv_length:
            end = trailer.kv_offset + trailer.kv_length
            self._fixed.append(Region(trailer.kv_offset, end, "the key-value section"))
        self._with_data = np.flatnonzero(index.data_lengths)
        descriptors, data = index.descriptor_offsets, index.data_offsets[self._with_data]
        starts = np.concatenate([descriptors, data, [region.start for region in self._fixed]])
        ends = np.concatenate(
            [
                descriptors + index.descriptor_lengths,
                data + index.data_lengths[self._with_data],
                [region.end for region in self._fixed],
            ]
        )
        slacks = np.concatenate(
            [
                np.full(len(descriptors), header.data_buffer_alignment),
                np.full(len(data), STRUCTURE_ALIGNMENT),
                [region.slack for region in self._fixed],
            ]
        )
        self._order = np.argsort(starts, kind="stable")
        self.starts, self.ends, self.slacks = starts[self._order], ends[self._order], slacks[self._order]

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, place: int) -> Region: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Region]: ...
    def __getitem__(self, place: int | slice) -> Region | Sequence[Region]:
        if isinstance(place, slice):
            return [self[k] for k in range(*place.indices(len(self)))]
        return Region(int(self.starts[place]), int(self.ends[place]), self._what(place), int(self.slacks[place]))

    def gaps(self) -> NDArray[np.intp]:
        """Places of the regions that are followed by padding."""
        return np.flatnonzero(self.starts[1:] > self.ends[:-1])

    def _what(self, place: int) -> str:
        number = int(self._order[place])
        tensors, with_data = len(self._index), len(self._with_data)
        if number < tensors:
            return f"the descriptor of {self._index.names[number]!r}"
        number -= tensors
        if number < with_data:
            return f"the data of {self._index.names[self._with_data[number]]!r}"
        return self._fixed[number - with_data].what


def check_regions(header: FileHeader, trailer: Trailer, index: Index, file_size: int) -> Regions:
    """The regions of a file in order; refuses overlaps and holes. Needs no payload."""
    regions = Regions(header, trailer, index, file_size)
    first = header.first_descriptor_offset
    lowest = int(index.descriptor_offsets[0]) if len(index) else int(regions.starts[1])
    if (len(index) and first != lowest) or first > lowest:
        raise InvalidFileError(
            f"first_descriptor_offset is {first}, but the first descriptor stands at {lowest}",
            rule="container.first-descriptor",
            offset=20,
            declared=first,
            found=lowest,
        )
    between = regions.starts[1:] - regions.ends[:-1]
    faults = np.flatnonzero((between < 0) | (between >= regions.slacks[:-1]))
    if len(faults):
        before, region = regions[int(faults[0])], regions[int(faults[0]) + 1]
        if region.start < before.end:
            raise InvalidFileError(
                f"{region.what} (bytes {region.start} to {region.end}) overlaps {before.what} "
                f"(bytes {before.start} to {before.end})",
                rule="container.overlap",
                offset=region.start,
                declared=before.end,
                found=region.start,
            )
        raise InvalidFileError(
            f"{region.start - before.end} bytes between {before.what} and {region.what} belong to nothing",
            rule="container.hole",
            offset=before.end,
            declared=before.slack - 1,
            found=region.start - before.end,
        )
    return regions

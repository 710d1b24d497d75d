"""Where the buffers of a tensor lie: told by its descriptor, checked against the index (spec/container.md)."""

from __future__ import annotations

from ..errors import (
    InvalidFileError,
)
from ..model.descriptor import TensorDescriptor
from ..model.layouts import CompositeLayout, UnknownLayout
from ..wire.container import align_up
from ..wire.index import IndexEntry

__all__ = ["buffer_places"]


def buffer_places(descriptor: TensorDescriptor, entry: IndexEntry, alignment: int) -> list[tuple[int, int]]:
    """Offset and size of each buffer of a tensor, checked against its index entry."""
    if isinstance(descriptor.layout, UnknownLayout):
        return [(entry.data_offset, entry.data_length)] if entry.data_length else []
    if isinstance(descriptor.layout, CompositeLayout):
        places: list[tuple[int, int]] = []
        start = end = entry.data_offset
    else:
        places = []
        start = end = align_up(entry.descriptor_offset + entry.descriptor_length, alignment)
        for handle in descriptor.buffers:
            offset = align_up(end, alignment)
            places.append((offset, handle.byte_size))
            end = offset + handle.byte_size
        if entry.data_offset != start:
            raise InvalidFileError(
                f"the data is said to start at {entry.data_offset}, but follows its descriptor at {start}",
                rule="index.data-place",
                offset=entry.descriptor_offset,
                declared=entry.data_offset,
                found=start,
            )
    if entry.data_length != end - start:
        raise InvalidFileError(
            f"the index tells {entry.data_length} bytes of data, but the descriptor's buffers take {end - start}",
            rule="index.data-length",
            offset=entry.descriptor_offset,
            declared=entry.data_length,
            found=end - start,
        )
    return places

"""A snapshot as one composite group on a stream, on its way out (spec/snapshot.md, "On a stream").

The members of the group are the metadata (a row-major uint8 vector that holds an encoded key-value section), the
lengths, and then all other tensors, which the metadata key ``hurray_wire.names`` gives their names back. Whoever sends
a snapshot, ``send_snapshot`` or ``Snapshot.send``, plans its tensors and leaves the rest to :func:`send_group`. The way
in is told in ``received.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from .errors import LimitError, StreamError
from .limits import Limits
from .model import element_types as et
from .model.descriptor import TensorDescriptor
from .model.layouts import CompositeLayout, RowMajorLayout
from .store.handed import WRITTEN
from .store.stream import StreamWriter, check_streamable
from .wire.metadata import decode_metadata, encode_metadata

__all__ = ["NAMES_KEY", "Group", "check_metadata_size", "send_group"]

NAMES_KEY = "hurray_wire.names"

Group: TypeAlias = Sequence[tuple[str, tuple[TensorDescriptor, Callable[[], Sequence[Any]]]]]
"""The members of a group after the metadata: name, descriptor, and a function for the buffers."""


def check_metadata_size(size: int, limits: Limits) -> None:
    """Raise LimitError for a first member that is larger than the metadata of a file may be."""
    if size > limits.max_metadata_bytes:
        raise LimitError(
            f"the metadata has {size} bytes, above the limit of {limits.max_metadata_bytes}",
            rule="limit.metadata-bytes",
            declared=limits.max_metadata_bytes,
            found=size,
        )


def send_group(
    writable: Any,
    metadata: Mapping[str, Any],
    tensors: Group,
    *,
    cross_machine: bool,
) -> None:
    """Write a snapshot: its metadata, then its tensors in this order, each made when its turn comes.

    Raises StreamError for a tensor that a group or a stream cannot carry and LimitError for more than a receiver
    takes, before the first byte; then what making the buffers raises, which leaves the group without its tail, for the
    receiver to see.
    """
    section = encode_metadata({**metadata, NAMES_KEY: [name for name, _ in tensors]})
    check_metadata_size(len(section), WRITTEN)
    decode_metadata(memoryview(section), limits=WRITTEN)  # refused here rather than by whoever receives it
    for name, (descriptor, _) in tensors:
        if isinstance(descriptor.layout, CompositeLayout):
            raise StreamError(
                f"{name!r} is a composite, which the group of a snapshot cannot hold",
                rule="snapshot.stream-group",
                found=name,
            )
        check_streamable(descriptor, WRITTEN, cross_machine=cross_machine)
    head = TensorDescriptor(et.uint8, (), CompositeLayout("group", 1 + len(tensors)))
    described = TensorDescriptor.build(et.uint8, (len(section),), RowMajorLayout(), (len(section),))
    with StreamWriter(writable, cross_machine=cross_machine) as writer:
        writer.add(head)
        writer.add(described, [section])
        for _, (descriptor, buffers) in tensors:
            writer.add(descriptor, buffers())

"""Snapshots over streams (spec/snapshot.md, "On a stream").

On a stream tensors have no names, and a cut between two of them cannot be seen. So a snapshot goes over it as one
composite group, whose members are the metadata (a row-major uint8 vector that holds an encoded key-value section), the
lengths, and then the block-paged tensors. The member count makes a missing tail visible; the metadata key
``hurray_wire.names`` gives the members after it their names back. A receiver also takes a stream of bare tensors, named
by what their descriptors say.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import StreamError
from .limits import Limits
from .model import element_types as et
from .model.descriptor import TensorDescriptor
from .model.layouts import CompositeLayout, RowMajorLayout
from .paged_tensor import PagedTensor, make_tensor
from .preparing import prepare, tensor_name
from .snapshot import Snapshot
from .store.reader import SCALE_SUFFIX, SEQ_LENS, MissingTensorError, Report, checked_lengths, given_lengths
from .store.stream import StreamReader, StreamWriter
from .tensors import Tensor
from .wire.metadata import Metadata, decode_metadata, encode_metadata

__all__ = ["ReceivedTensors", "receive_snapshot", "receive_snapshots", "send_snapshot"]

NAMES_KEY = "hurray_wire.names"


def send_snapshot(writable: Any, layers: Any, *, cross_machine: bool = True, **batch: Any) -> None:
    """Write the paged KV cache of one batch to a stream: a pipe, a socket, any writable binary object.

    ``layers`` and ``batch`` are those of ``save_snapshot`` (its arguments that concern the file excepted), and so are
    the errors, all raised before the first byte. Pools go out of the caller's arrays page by page.
    """
    _check_stream(writable, "send_snapshot", "save_snapshot writes a file")
    prepared = prepare(layers, **batch)
    names = [name for name, _, _ in prepared.tensors]
    section = encode_metadata({**prepared.metadata, NAMES_KEY: names})
    decode_metadata(memoryview(section))  # refused here rather than by whoever receives it
    head = TensorDescriptor(et.uint8, (), CompositeLayout("group", 1 + len(names)))
    described = TensorDescriptor.build(et.uint8, (len(section),), RowMajorLayout(), (len(section),))
    with StreamWriter(writable, cross_machine=cross_machine) as writer:
        writer.add(head)
        writer.add(described, [section])
        for _, descriptor, buffers in prepared.tensors:
            writer.add(descriptor, buffers)


class ReceivedTensors(Mapping[str, Tensor]):
    """The tensors of one snapshot, received and held in memory: what ``hw.open`` gives for a file."""

    def __init__(
        self, tensors: Mapping[str, Tensor], metadata: Metadata, *, limits: Limits, seq_lens: ArrayLike | None
    ) -> None:
        self._given_seq_lens = None if seq_lens is None else given_lengths(seq_lens)
        self._metadata = metadata
        self._tensors = {
            name: make_tensor(
                name,
                tensor.descriptor,
                tensor.buffers,
                limits=limits,
                recorded_seq_lens=self.recorded_seq_lens,
                companion_scale=self._companion_scale,
            )
            for name, tensor in tensors.items()
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Tensor names in the order of the stream."""
        return tuple(self._tensors)

    @property
    def metadata(self) -> Metadata:
        """The snapshot's metadata, a copy."""
        return dict(self._metadata)

    @property
    def paged(self) -> tuple[PagedTensor, ...]:
        """The block-paged tensors, in the order of the stream."""
        return tuple(tensor for tensor in self.values() if isinstance(tensor, PagedTensor))

    def recorded_seq_lens(self) -> NDArray[Any] | None:
        """The lengths given when receiving, or those that came along."""
        if self._given_seq_lens is not None:
            return self._given_seq_lens
        tensor = self._tensors.get(SEQ_LENS)
        return None if tensor is None else checked_lengths(tensor)

    def verify(self, *, progress: Callable[[int, int], None] | None = None) -> Report:
        """Check every index buffer; a stream carries no checksums and no padding. See ``File.verify``."""
        for number, tensor in enumerate(self.values(), start=1):
            tensor.check_payload()
            if progress is not None:
                progress(number, len(self))
        buffers = [handle for tensor in self.values() for handle in tensor.descriptor.buffers]
        return Report(len(self), len(buffers), 0, 0, sum(handle.byte_size for handle in buffers))

    def close(self) -> None:
        """Nothing is open; the tensors stay valid."""

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise MissingTensorError(name, self.names) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def _companion_scale(self, name: str) -> NDArray[Any] | None:
        companion = self._tensors.get(f"{name}{SCALE_SUFFIX}")
        return None if companion is None else companion.numpy()


def receive_snapshot(
    readable: Any, *, limits: Limits | None = None, cross_machine: bool = True, seq_lens: ArrayLike | None = None
) -> Snapshot:
    """Read one snapshot from a stream into memory: a group as :func:`send_snapshot` writes it, or bare tensors.

    A group is read to its last member and no further, so that several may follow one another; bare tensors are read
    to the end of the stream. ``seq_lens`` gives lengths that the stream does not carry. Raises StreamError for a
    stream that ends early or holds something else, and the other errors of ours.
    """
    snapshot = _receive(readable, limits or Limits(), cross_machine, seq_lens)
    if snapshot is None:
        raise StreamError("the stream is empty", rule="stream.empty")
    return snapshot


def receive_snapshots(readable: Any, *, limits: Limits | None = None, cross_machine: bool = True) -> Iterator[Snapshot]:
    """The snapshots that follow one another on a stream, each as :func:`receive_snapshot` reads it, to its clean end.

    No more is read than the snapshot at hand needs. Raises as :func:`receive_snapshot`, but takes an empty stream for
    no snapshot.
    """
    while (snapshot := _receive(readable, limits or Limits(), cross_machine, None)) is not None:
        yield snapshot


def _receive(readable: Any, limits: Limits, cross_machine: bool, seq_lens: ArrayLike | None) -> Snapshot | None:
    """The next snapshot; None at the end of the stream."""
    _check_stream(readable, "receive_snapshot", "load_snapshot reads a file")
    reader = StreamReader(readable, limits=limits, cross_machine=cross_machine)
    first = next(reader, None)
    if first is None:
        return None
    metadata: Metadata = {}
    if isinstance(layout := first.descriptor.layout, CompositeLayout):
        if layout.composition_rule != "group":
            raise StreamError(
                f"a snapshot is a group, but the stream starts with a composite of rule {layout.composition_rule!r}",
                rule="snapshot.stream-group",
                found=layout.composition_rule,
            )
        members = [_member(reader) for _ in range(layout.member_count)]
        metadata = _metadata_of(members.pop(0), limits) if members else {}
    else:
        members = [first, *reader]
    names = metadata.pop(NAMES_KEY, None)
    return Snapshot(ReceivedTensors(_named(members, names), metadata, limits=limits, seq_lens=seq_lens))


def _check_stream(given: Any, function: str, instead: str) -> None:
    if isinstance(given, str | bytes | bytearray | memoryview | os.PathLike):
        raise TypeError(f"{function} takes a binary file, pipe or socket, not a {type(given).__name__}; {instead}")


def _member(reader: StreamReader) -> Tensor:
    tensor = next(reader, None)
    if tensor is None:  # the decoder raises for a missing member; this is only for the type
        raise StreamError("the stream ends before its last member", rule="composite.torn")
    if isinstance(tensor.descriptor.layout, CompositeLayout):
        raise StreamError("a snapshot's group holds another composite", rule="snapshot.stream-group")
    return tensor


def _metadata_of(tensor: Tensor, limits: Limits) -> Metadata:
    d = tensor.descriptor
    if d.element_type != et.uint8 or d.rank != 1 or not isinstance(d.layout, RowMajorLayout):
        raise StreamError(
            "the first member of a snapshot's group is not its metadata, a row-major vector of uint8",
            rule="snapshot.stream-metadata",
            found=repr(tensor),
        )
    return decode_metadata(memoryview(np.ascontiguousarray(tensor.numpy()).data), limits=limits)


def _named(members: list[Tensor], names: Any) -> dict[str, Tensor]:
    """The members by name: as recorded, or as their descriptors tell."""
    if names is not None and (
        not isinstance(names, list) or len(names) != len(members) or not all(isinstance(n, str) for n in names)
    ):
        raise StreamError(
            f"{NAMES_KEY} does not name the {len(members)} members that follow", rule="snapshot.stream-names"
        )
    named: dict[str, Tensor] = {}
    for number, tensor in enumerate(members):
        name = names[number] if names is not None else _own_name(tensor, number, named)
        if name in named:
            raise StreamError(f"two members are named {name!r}", rule="snapshot.stream-names", found=name)
        named[name] = tensor
    return named


def _own_name(tensor: Tensor, number: int, named: Mapping[str, Tensor]) -> str:
    if isinstance(tensor, PagedTensor):
        return tensor_name(tensor.layout.layer_index, tensor.layout.kv_role)
    d = tensor.descriptor
    is_lengths = d.rank == 1 and d.element_type in (et.uint32, et.uint64) and isinstance(d.layout, RowMajorLayout)
    return SEQ_LENS if is_lengths and SEQ_LENS not in named else f"tensor.{number}"

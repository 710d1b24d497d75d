"""Tensors of a stream collected into the snapshots that they are (spec/snapshot.md, "On a stream").

:class:`Collector` is the one place that knows how a group becomes a snapshot, and bare tensors too, named by what their
descriptors say; :class:`ReceivedTensors` is what it makes of them, and what a ``Snapshot`` then stands on. Where the
tensors come from is left to ``transfer.py``, the way out to ``framing.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import StreamError
from .framing import NAMES_KEY, check_metadata_size
from .limits import Limits
from .model import element_types as et
from .model.layouts import CompositeLayout, RowMajorLayout
from .paged_tensor import PagedTensor, make_tensor
from .preparing import tensor_name
from .store.reader import SCALE_SUFFIX, SEQ_LENS, MissingTensorError, Report, checked_lengths, given_lengths
from .tensors import Tensor
from .wire.metadata import Metadata, decode_metadata

__all__ = ["Collector", "ReceivedTensors"]


class ReceivedTensors(Mapping[str, Tensor]):
    """The tensors of one snapshot, received and held in memory: what ``hw.open`` gives for a file."""

    def __init__(
        self, tensors: Mapping[str, Tensor], metadata: Metadata, *, limits: Limits, seq_lens: NDArray[Any] | None
    ) -> None:
        self._given_seq_lens = seq_lens
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

    def verify(
        self, *, progress: Callable[[int, int], None] | None = None, only: Collection[str] | None = None
    ) -> Report:
        """Check every index buffer; a stream carries no checksums and no padding. See ``File.verify``."""
        tensors = [self[name] for name in (self.names if only is None else only)]
        for number, tensor in enumerate(tensors, start=1):
            tensor.check_payload()
            if progress is not None:
                progress(number, len(tensors))
        buffers = [handle for tensor in tensors for handle in tensor.descriptor.buffers]
        return Report(len(tensors), len(buffers), 0, 0, sum(handle.byte_size for handle in buffers))

    def reads_from(self, target: object) -> bool:
        """Nothing is read any more."""
        return False

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
        return None if companion is None or isinstance(companion, PagedTensor) else companion.numpy()


class Collector:
    """Takes the tensors of a stream in turn and gives the snapshots that they make up.

    A group is whole with its last member. A tensor outside of any group starts a snapshot of bare tensors, to which
    belongs all that follows: its end is that of the stream. ``seq_lens`` are lengths that the stream does not carry.
    """

    def __init__(self, limits: Limits, seq_lens: ArrayLike | None) -> None:
        self._limits = limits
        self._seq_lens = None if seq_lens is None else given_lengths(seq_lens)
        self._missing = 0  # members of the group at hand
        self._metadata: Metadata | None = None
        self._members: list[Tensor] = []

    def take(self, tensor: Tensor) -> ReceivedTensors | None:
        """One more tensor, and the snapshot if this was its last. Raises StreamError for what is none, and for
        metadata what reading those of a file raises."""
        layout = tensor.descriptor.layout
        if self._missing:
            self._take_member(tensor)
        elif isinstance(layout, CompositeLayout) and not self._members:
            if layout.composition_rule != "group":
                found = layout.composition_rule
                raise StreamError(
                    f"a snapshot is a group, but the stream starts with a composite of rule {found!r}",
                    rule="snapshot.stream-group",
                    found=found,
                )
            self._missing = layout.member_count
        else:
            self._members.append(tensor)
            return None
        return None if self._missing else self._whole()

    def end(self) -> ReceivedTensors | None:
        """The stream has come to a clean end: the snapshot of its bare tensors, if there are any."""
        return self._whole() if self._members else None

    def _take_member(self, tensor: Tensor) -> None:
        if isinstance(tensor.descriptor.layout, CompositeLayout):
            raise StreamError("a snapshot's group holds another composite", rule="snapshot.stream-group")
        if self._metadata is None:
            self._metadata = _metadata_of(tensor, self._limits)
        else:
            self._members.append(tensor)
        self._missing -= 1

    def _whole(self) -> ReceivedTensors:
        metadata, members = self._metadata or {}, self._members
        self._metadata, self._members = None, []
        names = metadata.pop(NAMES_KEY, None)
        return ReceivedTensors(_named(members, names), metadata, limits=self._limits, seq_lens=self._seq_lens)


def _metadata_of(tensor: Tensor, limits: Limits) -> Metadata:
    d = tensor.descriptor
    if d.element_type != et.uint8 or d.rank != 1 or not isinstance(d.layout, RowMajorLayout):
        raise StreamError(
            "the first member of a snapshot's group is not its metadata, a row-major vector of uint8",
            rule="snapshot.stream-metadata",
            found=repr(tensor),
        )
    check_metadata_size(d.buffers[0].byte_size, limits)
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

"""Comparing two snapshots by what their sequences hold.

Two snapshots are equal if they have the same layers and roles, the same sequences, and for every token the same stored
bits and the same real value. Where a token lies (pages, their size and order, what is shared), what unused slots hold,
names of tensors and metadata are no part of it. Nothing is printed here; the first difference is an object that says
what differs and where.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .paged_tensor import PagedTensor
from .snapshot import ROLES, Snapshot

__all__ = ["Difference", "first_difference"]

_GROUP_BYTES = 64 << 20  # short sequences are compared together up to this size, since a call costs more than one


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference: what differs, what either side holds, and where.

    ``what`` is "layers", "sequences" (their number), "tokens" (of a sequence), "roles", "type", "shape",
    "quantization", "scale" or "value". A place that says nothing here is None; ``layer`` is also None for a tensor of
    no layer, which has its ``role`` then. ``head`` and ``dim`` tell the element of a differing value.
    """

    what: str
    ours: Any
    theirs: Any
    layer: int | None = None
    role: str | None = None
    seq: int | None = None
    token: int | None = None
    head: int | None = None
    dim: int | None = None

    def __str__(self) -> str:
        place = [] if self.role is None and self.layer is None else [_layer_words(self.layer)]
        place += [] if self.role is None else [self.role]
        for name, number in (("sequence", self.seq), ("token", self.token), ("head", self.head), ("dim", self.dim)):
            place += [] if number is None else [f"{name} {number}"]
        where = f"{', '.join(place)}: " if place else ""
        return f"{where}{self.what}: {self.ours} here, {self.theirs} there"


def first_difference(ours: Snapshot, theirs: Snapshot) -> Difference | None:
    """The first difference in the order of layers, roles (key, value, fused), sequences and tokens, or None.

    Every token of both snapshots is read, some tens of MiB at a time. Raises IncompatibleError where the lengths of
    the sequences are not known, and whatever reading raises.
    """
    if ours.layers != theirs.layers:
        return Difference("layers", list(ours.layers), list(theirs.layers))
    lengths = _difference_of_lengths(ours.seq_lens, theirs.seq_lens)
    if lengths is not None:
        return lengths
    for layer in ours.layers:
        mine, other = ours[layer].tensors, theirs[layer].tensors
        if mine.keys() != other.keys():
            return Difference("roles", list(mine), list(other), layer)
        for role in ROLES:
            if role in mine:
                found = _difference_of_tensors(mine[role], other[role], (layer, role))
                if found is not None:
                    return found
    return None


def _difference_of_lengths(ours: NDArray[Any], theirs: NDArray[Any]) -> Difference | None:
    if len(ours) != len(theirs):
        return Difference("sequences", len(ours), len(theirs))
    for seq, (length, other) in enumerate(zip(ours.tolist(), theirs.tolist(), strict=True)):
        if length != other:
            return Difference("tokens", length, other, seq=seq)
    return None


def _difference_of_tensors(ours: PagedTensor, theirs: PagedTensor, place: tuple[int | None, str]) -> Difference | None:
    mine, other = ours.descriptor, theirs.descriptor
    if mine.element_type != other.element_type:
        return Difference("type", mine.element_type.name, other.element_type.name, *place)
    if mine.shape[1:] != other.shape[1:]:
        return Difference("shape", list(mine.shape[1:]), list(other.shape[1:]), *place)
    schemes = [None if d.quantization is None else d.quantization.name for d in (mine, other)]
    if schemes[0] != schemes[1]:
        return Difference("quantization", schemes[0], schemes[1], *place)
    scale, other_scale = _scale(ours), _scale(theirs)
    if scale != other_scale:
        return Difference("scale", scale, other_scale, *place)
    lengths = ours.seq_lens.tolist()
    if lengths != theirs.seq_lens.tolist():  # only files that record no lengths can have others in another tensor
        found = _difference_of_lengths(ours.seq_lens, theirs.seq_lens)
        assert found is not None
        return Difference(found.what, found.ours, found.theirs, *place, seq=found.seq)
    token_bytes = max(1, int(np.prod(mine.shape[1:], dtype=object)) * 4)
    for seqs in _groups(lengths, token_bytes):
        # equal numbers mean equal values only if the scales of their tokens are equal too
        for dequantize in (False,) if schemes[0] is None else (False, True):
            here, there = (tensor.ragged(seqs, dequantize=dequantize) for tensor in (ours, theirs))
            element = _first_other_element(here, there)
            if element is not None:
                row, head, dim = element
                seq, token = _sequence_of(seqs, lengths, row)
                return Difference("value", str(here[element]), str(there[element]), *place, seq, token, head, dim)
    return None


def _groups(lengths: list[int], token_bytes: int) -> Iterator[list[int]]:
    """Sequence numbers in order, as many together as have a moderate size in bytes; long ones alone."""
    group: list[int] = []
    tokens = 0
    for seq, length in enumerate(lengths):
        if group and (tokens + length) * token_bytes > _GROUP_BYTES:
            yield group
            group, tokens = [], 0
        group.append(seq)
        tokens += length
    if group:
        yield group


def _first_other_element(ours: NDArray[Any], theirs: NDArray[Any]) -> tuple[int, int, int] | None:
    """Row, head and dim of the first element whose bits differ. Bits, since a NaN is equal to nothing and -0 to 0."""
    mine, other = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (ours, theirs))
    if np.array_equal(mine, other):
        return None
    first = int(np.argmax(mine != other)) // ours.dtype.itemsize
    row, head, dim = (int(place) for place in np.unravel_index(first, ours.shape))
    return row, head, dim


def _sequence_of(seqs: list[int], lengths: list[int], token: int) -> tuple[int, int]:
    """Sequence and token of a row in the run of these sequences."""
    for seq in seqs:
        if token < lengths[seq]:
            return seq, token
        token -= lengths[seq]
    raise AssertionError("a row beyond the last sequence")


def _scale(tensor: PagedTensor) -> str | None:
    """The companion scale of a tensor, in words: a float32 is its shortest decimal, and a NaN is like itself."""
    scale = tensor.companion_scale
    return None if scale is None else str(scale.tolist())


def _layer_words(layer: int | None) -> str:
    return "no layer" if layer is None else f"layer {layer}"

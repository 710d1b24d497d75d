"""What the pools of an export are made of: which heads of which tensors, from one snapshot or those of several ranks.

Each rank of a tensor-parallel group saves its own share of the heads. An export may gather the shares of n ranks, hand
out that of one of m, or both; ``adapters/heads.py`` says which rank holds which heads. Scales that lie beside float8
caches are put together in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .adapters import HeadMove, PoolSpec, count_heads, head_moves, head_range
from .arrays.memory import check_limit, stored_bytes
from .errors import IncompatibleError, UnsupportedError
from .model.shape import is_dynamic
from .paged_tensor import PagedTensor

__all__ = ["Alone", "ExportPool", "Piece", "Share", "Shard", "pools_of"]

_NAMED_RANKS = 8  # of those that are missing; metadata may speak of any number


class _LayerTensors(Protocol):
    @property
    def tensors(self) -> Mapping[str, PagedTensor]: ...


class Shard(Protocol):
    """What an export needs of a snapshot."""

    @property
    def metadata(self) -> Mapping[str, Any]: ...
    @property
    def layers(self) -> Sequence[int | None]: ...
    def __getitem__(self, layer: int | None) -> _LayerTensors: ...


@dataclass(frozen=True, slots=True, eq=False)
class Alone:
    """One snapshot for itself, whatever rank it is of: all heads that are wanted are its own."""

    snapshot: Shard

    @property
    def metadata(self) -> Mapping[str, Any]:
        return {}

    @property
    def layers(self) -> Sequence[int | None]:
        return self.snapshot.layers

    def __getitem__(self, layer: int | None) -> _LayerTensors:
        return self.snapshot[layer]


@dataclass(frozen=True, slots=True)
class Share:
    """The heads that are wanted: those of rank ``rank`` of ``size``, or all there are; ``num_heads`` of the model."""

    num_heads: int | None = None
    rank: int | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        if (self.rank is None) != (self.size is None):
            raise TypeError("tp_rank and tp_size belong together")
        if self.rank is not None and self.size is not None and not 0 <= self.rank < self.size:
            raise IncompatibleError(
                f"tp_rank {self.rank} is not one of {self.size} ranks",
                rule="export.ranks",
                declared=self.size,
                found=self.rank,
            )


@dataclass(frozen=True, slots=True)
class Piece:
    """Heads ``take`` of a tensor, which become heads ``give`` of a pool."""

    tensor: PagedTensor
    take: slice
    give: slice


@dataclass(frozen=True, slots=True)
class ExportPool:
    """One pool of an export, and the pieces that fill all its heads."""

    index: int | None
    role: str
    spec: PoolSpec
    pieces: Sequence[Piece]

    @property
    def what(self) -> str:
        return self.role if self.index is None else f"the {self.role} of layer {self.index}"

    def scale(self) -> NDArray[np.float32] | None:
        """The companion scale of the pool, float32 [] or [num_heads], a copy; None if its tensors have none."""
        found = [(piece, piece.tensor.companion_scale) for piece in self.pieces]
        there = [(piece, _checked_scale(piece.tensor, scale)) for piece, scale in found if scale is not None]
        if not there:
            return None
        if len(there) < len(found):
            raise IncompatibleError(
                f"{self.what} has a scale on {len(there)} of {len(found)} ranks", rule="export.ranks", found=len(there)
            )
        first = there[0][1]
        if all(scale.ndim == 0 and scale.tobytes() == first.tobytes() for _, scale in there):
            return first
        stored = sum(stored_bytes(piece.tensor.descriptor) for piece in self.pieces)
        check_limit(4 * self.spec.num_heads, there[0][0].tensor.limits, f"the scales of {self.what}", stored=stored)
        by_head = np.empty(self.spec.num_heads, dtype=np.float32)
        for piece, scale in there:
            by_head[piece.give] = scale[piece.take] if scale.ndim else scale
        return by_head


def pools_of(
    snapshots: Sequence[Shard], layers: Iterable[int | None] | None, share: Share, *, dequantize: bool
) -> list[ExportPool]:
    """The pools of these layers (all by default), layer by layer, each with the heads that are wanted.

    ``snapshots`` are the ranks of one tensor-parallel group: as their metadata says, or else in this order. Raises
    KeyError for a layer that is not there, IncompatibleError for snapshots that do not go together, for heads that none
    of them has, and for numbers that mean nothing without their scales; UnsupportedError for values without a type.
    """
    if not snapshots:
        raise IncompatibleError("there is no snapshot to export", rule="export.ranks")
    whole = len(snapshots) == 1 and share.size is None and _place(snapshots[0]) == (None, None)
    ranks = [(0, 1)] if whole else _ranks(snapshots)
    indices = list(snapshots[0].layers if layers is None else layers)
    if not indices:
        raise IncompatibleError("there is no layer to export", rule="adapter.layers")
    if layers is None and any(tuple(other.layers) != tuple(snapshots[0].layers) for other in snapshots):
        raise IncompatibleError("the snapshots of the ranks have different layers", rule="export.ranks")
    pools = []
    for index in indices:
        entries = [snapshot[index].tensors for snapshot in snapshots]
        for role in entries[0]:
            if any(entry.keys() != entries[0].keys() for entry in entries):
                raise IncompatibleError(
                    f"the snapshots of the ranks have different roles in layer {index}", rule="export.ranks"
                )
            pools.append(_pool(index, role, [entry[role] for entry in entries], ranks, share, whole, dequantize))
    return pools


def _pool(
    index: int | None,
    role: str,
    tensors: Sequence[PagedTensor],
    ranks: Sequence[tuple[int, int]],
    share: Share,
    whole: bool,
    dequantize: bool,
) -> ExportPool:
    first = tensors[0]
    element_type, (_, heads, head_dim) = first.descriptor.element_type, first.shape
    for tensor in tensors:
        _check_meaning(tensor, dequantize)
        if tensor.descriptor.element_type != element_type or tensor.shape[1:] != first.shape[1:]:
            raise IncompatibleError(
                f"{first!r} and {tensor!r} are not shares of one tensor", rule="export.ranks", found=tensor.shape
            )
    if element_type.dtype is None:
        raise UnsupportedError(
            f"{first.name!r} has a private element type, which no array has", rule="element-type.dtype"
        )
    if is_dynamic(first.shape[1:]):
        raise UnsupportedError(
            f"{first.name!r} has a dynamic shape, so its pages have no size", rule="descriptor.dynamic"
        )
    dtype = np.dtype(np.float32) if dequantize else element_type.dtype
    if whole:
        moves, wanted = [HeadMove(0, slice(0, heads), 0, slice(0, heads))], heads
    else:
        moves, wanted = _moves(role, heads, ranks, share)
    pieces = [Piece(tensors[move.source], move.take, move.give) for move in moves]
    return ExportPool(index, role, PoolSpec(wanted, head_dim, dtype), pieces)


def _moves(role: str, heads: int, ranks: Sequence[tuple[int, int]], share: Share) -> tuple[list[HeadMove], int]:
    """Which heads to take from each rank, and how many there are then."""
    size = ranks[0][1]
    replicated = role == "fused" and heads == 1  # a latent row has no heads to divide, so every rank holds it
    num_heads = share.num_heads
    if num_heads is None:
        num_heads = 1 if replicated else heads * size
    held = [head_range(num_heads, size, rank) for rank, _ in ranks]
    if count_heads(held[0]) != heads:
        raise IncompatibleError(
            f"a rank of {size} has {count_heads(held[0])} of {num_heads} heads, but the snapshot has {heads}; say how "
            "many the model has with num_heads=",
            rule="export.ranks",
            declared=count_heads(held[0]),
            found=heads,
        )
    wanted = range(num_heads)
    if share.rank is not None and share.size is not None:
        wanted = head_range(num_heads, share.size, share.rank)
    elif len({there.start for there in held}) * heads < num_heads:
        raise IncompatibleError(
            f"ranks {_missing({rank for rank, _ in ranks}, size)} of {size} are missing; tp_rank= and tp_size= export "
            "a part that the others hold",
            rule="export.ranks",
            declared=size,
            found=len(ranks),
        )
    return head_moves(held, [wanted]), count_heads(wanted)


def _missing(there: set[int], size: int) -> str:
    """The ranks that are not there, the first few of them by number."""
    named = list(islice((rank for rank in range(size) if rank not in there), _NAMED_RANKS))
    more = size - len(there) - len(named)
    return ", ".join(map(str, named)) + (f" and {more} more" if more else "")


def _ranks(snapshots: Sequence[Shard]) -> list[tuple[int, int]]:
    """(rank, size) of each snapshot in its tensor-parallel group."""
    told = [_place(snapshot) for snapshot in snapshots]
    if all(place == (None, None) for place in told):
        return [(rank, len(told)) for rank in range(len(told))]
    for rank, size in told:
        if type(rank) is not int or type(size) is not int or not 0 <= rank < size or size != told[0][1]:
            raise IncompatibleError(
                f"the snapshots are not ranks of one group: their tp.rank and tp.size are {told}",
                rule="export.ranks",
                found=told,
            )
    if len(set(told)) < len(told):
        raise IncompatibleError(f"two snapshots are the same rank: {told}", rule="export.ranks", found=told)
    return told


def _place(snapshot: Shard) -> tuple[Any, Any]:
    metadata = snapshot.metadata
    return metadata.get("tp.rank"), metadata.get("tp.size")


def _check_meaning(tensor: PagedTensor, dequantize: bool) -> None:
    """Stored numbers are the values, or become real ones."""
    if dequantize:
        tensor.read_pages([], dequantize=True)  # refuses for no page what it refuses for any
        return
    quantization = tensor.descriptor.quantization
    if quantization is not None:
        raise IncompatibleError(
            f"{tensor.name!r} is quantized ({quantization.name}), and its numbers mean nothing without their scales; "
            "export with dequantize=True",
            rule="export.quantized",
            found=quantization.name,
        )


def _checked_scale(tensor: PagedTensor, scale: NDArray[Any]) -> NDArray[np.float32]:
    heads = tensor.shape[1]
    if scale.shape not in ((), (heads,)):
        raise IncompatibleError(
            f"the companion scale of {tensor.name!r} has shape {list(scale.shape)}, not [] or [{heads}]",
            rule="snapshot.scale-shape",
            declared=heads,
            found=scale.shape,
        )
    what = f"the companion scale of {tensor.name!r}"
    check_limit(4 * scale.size, tensor.limits, what, stored=stored_bytes(tensor.descriptor))
    with np.errstate(all="ignore"):
        return np.array(scale, dtype=np.float32)

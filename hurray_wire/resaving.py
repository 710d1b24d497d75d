"""Writing a snapshot again: one that came over a stream, compressed otherwise, or some of its layers and sequences.

What is planned here goes to a file (``Snapshot.save``) or to a stream (``Snapshot.send``). Tensors stay what they are,
and in their order: element types, quantization and scales, identity, and tensors that are no part of the cache. Only
the pages of the sequences are written again, as ``save_snapshot`` does it (spec/snapshot.md, "Privacy"). Everything is
planned from descriptors and tables; pools are read while they are written, those of mapped files and of memory without
a copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Protocol, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .adapters.tables import Tables
from .arrays.composite import Node, check_tree, group_members
from .arrays.dequantize import parameters
from .arrays.memory import stored_bytes
from .errors import IncompatibleError, UnsupportedError
from .export_pages import chosen_tables, several
from .identity import renewed_metadata
from .model.descriptor import TensorDescriptor
from .model.element_types import buffer_bytes
from .model.layouts import CompositeLayout
from .model.quantization import PerBlockAffine
from .model.shape import is_dynamic
from .paged_tensor import PagedTensor
from .preparing import lengths_tensor
from .selection import PagePlan, PoolChunks, PoolInput, plan_pages
from .store.reader import SCALE_SUFFIX, SEQ_LENS, checked_lengths
from .tensors import Tensor

__all__ = ["Resaved", "Tensors", "resaved"]

_OWN_BUFFERS = 3  # page pool, block table, seq_ptr; parameters of quantization follow


_Planned: TypeAlias = tuple[TensorDescriptor, Callable[[], Sequence[Any]]]
"""What is written, and a function for its buffers."""


class Tensors(Protocol):
    """What is needed of the file, or the received tensors, that hold a snapshot."""

    @property
    def metadata(self) -> dict[str, Any]: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    def __getitem__(self, name: str, /) -> Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class Resaved:
    """A snapshot that is ready to be written again: each tensor's name, and what is written of it.

    ``paged`` are the names of those that are block-paged, in the order in which they were chosen.
    """

    metadata: dict[str, Any]
    tensors: list[tuple[str, _Planned]]
    paged: tuple[str, ...]

    def in_group_order(self) -> list[tuple[str, _Planned]]:
        """The tensors as the group of a stream has them: the lengths, those that are block-paged, each with its scale
        behind it, and what is neither (spec/snapshot.md, "On a stream")."""
        paged = set(self.paged)
        own = ((name, *{f"{name}{SCALE_SUFFIX}"} - paged) for name in self.paged)
        order = [SEQ_LENS, *chain.from_iterable(own)]
        places = {name: place for place, name in enumerate(order)}
        return sorted(self.tensors, key=lambda named: places.get(named[0], len(places)))


@dataclass(frozen=True, slots=True, eq=False)
class _StoredPool:
    """The page pool of a tensor as a source of pages that need not lie in memory."""

    tensor: PagedTensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.layout.pool_shape(self.tensor.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.tensor.dtype

    def fill(self, pages: NDArray[np.int64], out: NDArray[Any]) -> None:
        out[...] = self.tensor.read_pages(pages)


def resaved(
    held: Tensors,
    kept: Iterable[PagedTensor],
    *,
    seqs: Iterable[SupportsIndex] | None,
    compact: bool,
    scrub: bool,
    metadata: Mapping[str, Any] | None,
) -> Resaved:
    """Plan how the ``kept`` of the block-paged tensors in ``held`` are written again, and all that is not block-paged.

    ``seqs`` chooses sequences, in this order (all by default); ``metadata`` takes the place of what it names, and what
    there is keeps its order. Raises what reading tables and lengths raises, IncompatibleError where the tensors are not
    of one batch, for a number that is no sequence, for what has the name of the lengths and is none, and for a
    composite of which only a part would be left; InvalidFileError for one that its members would not fit any more, and
    for a reserved key.
    """
    chosen = several(seqs, "seqs")
    plans: dict[str, _Planned] = {}
    first: Tables | None = None
    for tensor in kept:
        tables = chosen_tables(tensor, chosen)
        first = first or tables
        if not np.array_equal(tables.seq_lens, first.seq_lens):
            raise IncompatibleError(
                f"{tensor.name!r} is of another batch than {next(iter(plans))!r}: the lengths of its sequences differ",
                rule="export.batch",
            )
        plans[str(tensor.name)] = _plan(tensor, tables, compact=compact, scrub=scrub, whole=chosen is None)
    tensors = list(_tensors(held, plans, first))
    check_tree(group_members(descriptor for _, (descriptor, _) in tensors))
    return Resaved(renewed_metadata(held.metadata, metadata), tensors, tuple(plans))


def _tensors(held: Tensors, plans: Mapping[str, _Planned], tables: Tables | None) -> Iterator[tuple[str, _Planned]]:
    """Every tensor in the order in which it is held, but those that are left out, with their scales."""
    tensors = {name: held[name] for name in held.names}
    left_out = _left_out(tensors, plans)
    new = dict(plans)
    if tables is not None:
        _, descriptor, lengths = lengths_tensor(tables.seq_lens)
        if SEQ_LENS not in tensors:
            yield SEQ_LENS, (descriptor, lambda: lengths)
        # what has this name and is something else is refused rather than lost
        elif not np.array_equal(checked_lengths(tensors[SEQ_LENS]).astype(np.int64), tables.seq_lens):
            new[SEQ_LENS] = descriptor, lambda: lengths
    for name, tensor in tensors.items():
        if name not in left_out:
            yield name, new.get(name) or (tensor.descriptor, partial(list, tensor.buffers))


def _left_out(tensors: Mapping[str, Tensor], plans: Mapping[str, _Planned]) -> set[str]:
    """The block-paged tensors that are not planned, with their scales. No composite may lose a member to them."""
    paged = {name for name, tensor in tensors.items() if isinstance(tensor, PagedTensor)}
    heads = {name for name, tensor in tensors.items() if isinstance(tensor.descriptor.layout, CompositeLayout)}
    left_out = paged - plans.keys()
    scales = {f"{name}{SCALE_SUFFIX}" for name in left_out}
    left_out |= (scales & tensors.keys()) - paged - heads  # the members of a head would be left without it
    if left_out and heads:
        _check_whole(group_members(tensor.descriptor for tensor in tensors.values()), list(tensors), left_out)
    return left_out


def _check_whole(nodes: Iterable[Node], names: Sequence[str], left_out: Collection[str]) -> None:
    for node in nodes:
        for member in node.members:
            if names[member.number] in left_out:
                raise IncompatibleError(
                    f"the composite {names[node.number]!r} would lose its member {names[member.number]!r}, which is "
                    "not chosen",
                    rule="composite.torn",
                    found=names[member.number],
                )
        _check_whole(node.members, names, left_out)


def _plan(tensor: PagedTensor, tables: Tables, *, compact: bool, scrub: bool, whole: bool) -> _Planned:
    """How one block-paged tensor is written with these tables; ``whole`` says that they name all its tokens."""
    descriptor, layout = tensor.descriptor, tensor.layout
    if is_dynamic(descriptor.shape[1:]):
        raise UnsupportedError(
            f"{tensor.name!r} has a dynamic shape, so its pages have no size", rule="descriptor.dynamic"
        )
    plan = plan_pages(
        tables,
        num_pages=layout.num_pages,
        page_size=layout.page_size,
        compact=compact,
        scrub=scrub,
        limits=tensor.limits,
        stored=stored_bytes(descriptor),
    )
    parts = _parameters(tensor, plan)
    index = [array.astype(layout.index_dtype) for array in (plan.block_table, plan.seq_ptr)]

    def buffers() -> list[Any]:
        pool: PoolInput = tensor.page_pool if tensor.lends_pages else _StoredPool(tensor)
        return [PoolChunks(pool, plan, descriptor.element_type), *index, *parts]

    elements = plan.num_pages * math.prod(_StoredPool(tensor).shape[1:])
    sizes = [buffer_bytes(descriptor.element_type, elements), *(array.nbytes for array in (*index, *parts))]
    handles = zip(descriptor.buffers, sizes, strict=True)
    planned = replace(
        descriptor,
        shape=(int(tables.seq_lens.sum()), *descriptor.shape[1:]),
        layout=replace(layout, num_pages=plan.num_pages, num_seqs=tables.num_seqs),
        buffers=tuple(replace(handle, byte_size=size) for handle, size in handles),
        statistics=descriptor.statistics if whole else None,
    )
    return planned, buffers


def _parameters(tensor: PagedTensor, plan: PagePlan) -> list[NDArray[Any]]:
    """The buffers of quantization: as they are, or where they belong to slots, those of the pages that are written."""
    stored = dict(enumerate(tensor.buffers[_OWN_BUFFERS:], _OWN_BUFFERS))
    scheme = tensor.descriptor.quantization
    if isinstance(scheme, PerBlockAffine):
        pages = np.arange(plan.num_pages) if plan.pages is None else plan.pages
        parts: dict[int, list[NDArray[np.uint8]]] = {index: [] for index in scheme.parameter_buffers}
        indices = scheme.scale_buffer_index, scheme.zero_point_buffer_index
        for index, values, nothing in zip(indices, parameters(tensor.descriptor, tensor.buffers), (1, 0), strict=True):
            if index is None or values is None:
                continue
            slots = values.reshape(-1, plan.page_size)[pages]
            if plan.kept is not None:  # those of others tell how large their values were
                slots[np.arange(plan.page_size) >= plan.kept[:, np.newaxis]] = nothing
            parts[index].append(slots.reshape(-1).view(np.uint8))
        for index, halves in parts.items():
            stored[index] = np.concatenate(halves)
    return list(stored.values())

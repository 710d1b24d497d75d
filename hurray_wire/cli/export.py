"""A snapshot as arrays: pools with their tables as an engine holds them, or sequences in a row, or sequences padded.

    pages    layers.N.key [num_pages, page_size, num_heads, head_dim] ..., block_tables [num_seqs, max_blocks] padded
             with -1, seq_lens [num_seqs]; or the arrays of another engine layout. This is what hurray-pack takes.
    ragged   layers.N.key [sum of lengths, num_heads, head_dim] ..., seq_lens
    padded   layers.N.key [num_seqs, longest, num_heads, head_dim] ..., mask [num_seqs, longest], seq_lens

Scales that lie beside a tensor go along unless values are dequantized, and so do dense tensors that are no part of the
snapshot. An array is described now and made when it is written. Pools go out as they lie where that is possible; where
sequences are chosen or values computed, pages are filled anew and hold nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hurray_wire as hw

from ..adapters import LayerSpec, PoolAdapter, PoolSpec, Tables
from ..model.shape import is_dynamic
from ..selection import plan_pages
from ..snapshot import Holder, tensor_name
from ..store.reader import SCALE_SUFFIX, SEQ_LENS
from .arrays import OutArray
from .choices import Ranges, chosen
from .console import CliError
from .naming import array_name

__all__ = ["Choice", "dense_arrays", "snapshot_arrays"]

BLOCK_TABLES = "block_tables"
MASK = "mask"


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a snapshot is wanted, and how: ``form`` is "pages", "ragged" or "padded"; None of anything is all."""

    form: str
    adapter: PoolAdapter
    layers: Ranges | None
    seqs: Ranges | None
    dequantize: bool


@dataclass(frozen=True, slots=True)
class _Part:
    """One tensor of the snapshot with its place."""

    index: int | None
    role: str
    tensor: hw.PagedTensor

    @property
    def name(self) -> str:
        return tensor_name(self.index, self.role)


def snapshot_arrays(snapshot: hw.Snapshot, choice: Choice) -> list[OutArray]:
    """The arrays of the snapshot's tensors, tables and scales, each still to be made."""
    parts = _parts(snapshot, choice.layers)
    lengths = snapshot.seq_lens
    seqs = None if choice.seqs is None else chosen(choice.seqs, range(len(lengths)), "sequence")
    for part in parts:
        if not np.array_equal(part.tensor.seq_lens, lengths):
            raise CliError(f"{part.name} is of another batch than {parts[0].name}: the lengths of its sequences differ")
    wanted = lengths if seqs is None else lengths[seqs]
    if choice.form == "ragged":
        arrays = [_ragged(part, seqs, wanted, choice) for part in parts]
    elif choice.form == "padded":
        arrays = [_padded(part, seqs, wanted, choice) for part in parts]
        longest = int(wanted.max(initial=0))
        arrays.append(OutArray.of(MASK, np.arange(longest) < wanted.astype(np.int64)[:, np.newaxis]))
    else:
        arrays = list(_pages(parts, seqs, wanted, choice))
    arrays.append(OutArray.of(SEQ_LENS, _narrow(wanted)))
    return arrays if choice.dequantize else [*arrays, *_scales(parts)]


def dense_arrays(file: Holder, skip: Sequence[str], dequantize: bool) -> tuple[list[OutArray], list[str]]:
    """The dense tensors of a file but those in ``skip``, and the names of tensors that do not become arrays."""
    arrays, left_out = [], []
    for name in file.names:
        tensor = file[name]
        descriptor = tensor.descriptor
        if name in skip or isinstance(tensor, hw.PagedTensor):
            continue
        if not descriptor.layout.is_dense or is_dynamic(descriptor.shape) or descriptor.element_type.dtype is None:
            left_out.append(name)
            continue
        real = dequantize and descriptor.quantization is not None
        dtype = np.dtype(np.float32) if real else descriptor.element_type.dtype
        arrays.append(OutArray(name, descriptor.shape, dtype, _numpy_of(tensor, real)))
    return arrays, left_out


def _numpy_of(tensor: hw.Tensor, dequantize: bool) -> Callable[[], NDArray[Any]]:
    return lambda: tensor.numpy(dequantize=dequantize)


def _parts(snapshot: hw.Snapshot, wanted: Ranges | None) -> list[_Part]:
    there = [index for index in snapshot.layers if index is not None]
    indices = snapshot.layers if wanted is None else dict.fromkeys(chosen(wanted, there, "layer"))
    return [_Part(index, role, tensor) for index in indices for role, tensor in snapshot[index].tensors.items()]


def _dtype(part: _Part, choice: Choice) -> np.dtype[Any]:
    stored = part.tensor.descriptor.element_type.dtype
    if choice.dequantize:
        return np.dtype(np.float32)
    if stored is None:
        raise CliError(f"{part.name} has a private element type, which is no type of arrays")
    return stored


def _row(part: _Part) -> tuple[int, int]:
    _, heads, dim = part.tensor.shape
    return heads, dim


def _ragged(part: _Part, seqs: list[int] | None, lengths: NDArray[Any], choice: Choice) -> OutArray:
    return OutArray(
        part.name,
        (int(lengths.sum()), *_row(part)),
        _dtype(part, choice),
        lambda: part.tensor.ragged(seqs, dequantize=choice.dequantize),
    )


def _padded(part: _Part, seqs: list[int] | None, lengths: NDArray[Any], choice: Choice) -> OutArray:
    return OutArray(
        part.name,
        (len(lengths), int(lengths.max(initial=0)), *_row(part)),
        _dtype(part, choice),
        lambda: part.tensor.gather(seqs, dequantize=choice.dequantize).values,
    )


def _pages(parts: list[_Part], seqs: list[int] | None, lengths: NDArray[Any], choice: Choice) -> Iterator[OutArray]:
    """The pools in the chosen layout, and the block tables."""
    if not parts:
        yield OutArray.of(BLOCK_TABLES, np.empty((len(lengths), 0), np.int32))
        return
    first = parts[0]
    page_size = first.tensor.layout.page_size
    for part in parts:
        if part.tensor.layout.page_size != page_size:
            raise CliError(
                f"{part.name} has pages of {part.tensor.layout.page_size} tokens, {first.name} of {page_size}, which "
                "one block table cannot serve; write them --as ragged or padded"
            )
    tables = [_chosen_tables(part.tensor, seqs, lengths) for part in parts]
    num_pages = first.tensor.layout.num_pages
    shared = all(
        part.tensor.layout.num_pages == num_pages and np.array_equal(table.block_table, tables[0].block_table)
        for part, table in zip(parts, tables, strict=True)
    )
    as_they_lie = shared and seqs is None and not choice.dequantize
    table, slots = tables[0], None
    if not as_they_lie:
        if shared:
            plan = plan_pages(table, num_pages=num_pages, page_size=page_size, compact=True, scrub=False)
            table, num_pages = table._replace(block_table=plan.block_table), plan.num_pages
        else:  # every tensor has pages of its own for the batch: numbered in turn, they have one table
            num_pages = len(table.block_table)
            table = table._replace(block_table=np.arange(num_pages))
        slots = _slots(table, page_size)

    def pool(part: _Part) -> NDArray[Any]:
        if slots is None:
            return part.tensor.page_pool
        fresh = np.zeros((num_pages * page_size, *_row(part)), _dtype(part, choice))
        fresh[slots] = part.tensor.ragged(seqs, dequantize=choice.dequantize)
        return fresh.reshape(num_pages, page_size, *_row(part))

    yield from _in_layout(parts, choice, num_pages, page_size, pool)
    yield OutArray.of(BLOCK_TABLES, _padded_table(table))


def _in_layout(
    parts: list[_Part], choice: Choice, num_pages: int, page_size: int, pool: Callable[[_Part], NDArray[Any]]
) -> Iterator[OutArray]:
    """The arrays of an engine layout, each filled from the pools of the parts that it holds."""
    adapter = choice.adapter
    groups: dict[str, list[_Part]] = {}
    for part in parts:
        groups.setdefault(array_name(adapter, part.index, part.role), []).append(part)

    for name, members in groups.items():
        specs: dict[int | None, dict[str, PoolSpec]] = {}
        for part in members:
            specs.setdefault(part.index, {})[part.role] = PoolSpec(*_row(part), _dtype(part, choice))
        layers = [LayerSpec(index, pools) for index, pools in specs.items()]

        def allocate(layers: list[LayerSpec] = layers) -> Any:
            return adapter.allocate(layers, num_pages=num_pages, page_size=page_size)

        def make(members: list[_Part] = members, layers: list[LayerSpec] = layers) -> NDArray[Any]:
            if adapter.name == "split-nhd":  # the layout of the pools themselves
                return pool(members[0])
            fresh = allocate(layers)
            specs = dict(layers[0].pools)
            views = adapter.views(
                fresh,
                page_size=page_size,
                num_pages=num_pages,
                head_dim=next(iter(specs.values())).head_dim,
                value_head_dim=specs["value"].head_dim if "value" in specs else None,
                layer_indices=[layer.index for layer in layers],
                form=adapter.forms[0].name,
                writable=True,
            )
            places = {(layer.index, role): view for layer in views for role, view in layer.pools.items()}
            for part in members:
                np.copyto(places[part.index, part.role], pool(part), casting="equiv")
            return _only_array(fresh)

        example = _only_array(allocate(layers))  # fresh zeros take no memory until they are written
        yield OutArray(name, example.shape, example.dtype, make)


def _only_array(allocated: Any) -> NDArray[Any]:
    """The one array in what an adapter allocates for the layers of one array."""
    while not isinstance(allocated, np.ndarray):
        (allocated,) = allocated.values() if isinstance(allocated, dict) else allocated
    return allocated


def _chosen_tables(tensor: hw.PagedTensor, seqs: list[int] | None, lengths: NDArray[Any]) -> Tables:
    """The pages of the chosen sequences, cut to their lengths."""
    pages = -(-lengths.astype(np.int64) // tensor.layout.page_size)
    starts = tensor.seq_ptr[:-1].astype(np.int64)
    starts = starts if seqs is None else starts[seqs]
    ptr = np.zeros(len(pages) + 1, dtype=np.int64)
    np.cumsum(pages, out=ptr[1:])
    entries = np.repeat(starts - ptr[:-1], pages) + np.arange(ptr[-1])
    return Tables(tensor.block_table[entries].astype(np.int64), ptr, lengths.astype(np.int64))


def _slots(tables: Tables, page_size: int) -> NDArray[np.int64]:
    """The place in the pool of every token of the sequences in turn."""
    lengths = tables.seq_lens
    token = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    entry = np.repeat(tables.seq_ptr[:-1], lengths) + token // page_size
    slots: NDArray[np.int64] = tables.block_table[entry] * page_size + token % page_size
    return slots


def _padded_table(tables: Tables) -> NDArray[Any]:
    pages = np.diff(tables.seq_ptr)
    padded = np.full((len(pages), int(pages.max(initial=0))), -1, dtype=np.int64)
    padded[np.arange(padded.shape[1]) < pages[:, np.newaxis]] = tables.block_table
    return _narrow(padded)


def _scales(parts: list[_Part]) -> Iterator[OutArray]:
    for part in parts:
        if (scale := part.tensor.companion_scale) is not None:
            yield OutArray.of(f"{part.name}{SCALE_SUFFIX}", scale)


def _narrow(numbers: NDArray[Any]) -> NDArray[Any]:
    """As int32, in which engines keep tables and lengths, or as int64 where a number needs it."""
    return numbers.astype(np.int32 if int(numbers.max(initial=0)) < 1 << 31 else np.int64)

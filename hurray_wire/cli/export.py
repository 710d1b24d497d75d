"""A snapshot as arrays: pools with their tables as an engine holds them, or sequences in a row, or sequences padded.

    pages    layers.N.key [num_pages, page_size, num_heads, head_dim] ..., block_tables [num_seqs, max_blocks] padded
             with -1, seq_lens [num_seqs]; or the arrays of another engine layout. This is what hurray-pack takes.
    ragged   layers.N.key [sum of lengths, num_heads, head_dim] ..., seq_lens
    padded   layers.N.key [num_seqs, longest, num_heads, head_dim] ..., mask [num_seqs, longest], seq_lens

Scales that lie beside a tensor go along unless values are dequantized, and so do dense tensors that are no part of the
snapshot. An array is described now and made when it is written. Pools go out as they lie where nothing else is asked
for and one table serves them all; otherwise ``Snapshot.export`` fills new ones with the pages of the sequences alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hurray_wire as hw

from ..adapters import LayerSpec, PoolAdapter, PoolSpec, Tables
from ..export_pages import PageMap, chosen_tables
from ..model.shape import is_dynamic
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
    """The arrays of the snapshot's tensors (there is one at least), tables and scales, each still to be made."""
    parts = _parts(snapshot, choice.layers)
    lengths = parts[0].tensor.seq_lens
    for part in parts:
        _check_meaning(part.name, part.tensor, choice.dequantize)
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
        arrays = list(_pages(snapshot, parts, seqs, choice))
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
        _check_meaning(name, tensor, dequantize)
        real = dequantize and descriptor.quantization is not None
        dtype = np.dtype(np.float32) if real else descriptor.element_type.dtype
        arrays.append(OutArray(name, descriptor.shape, dtype, _numpy_of(tensor, real)))
    return arrays, left_out


def _check_meaning(name: str, tensor: hw.Tensor, dequantize: bool) -> None:
    """The scales of a quantized tensor are in no array, and without them its numbers mean nothing."""
    quantization = tensor.descriptor.quantization
    if quantization is not None and not dequantize:
        raise CliError(
            f"{name} is quantized ({quantization.name}), and arrays would hold its numbers without their scales; pass "
            "--dequantize"
        )


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


def _pages(snapshot: hw.Snapshot, parts: list[_Part], seqs: list[int] | None, choice: Choice) -> Iterator[OutArray]:
    """The pools in the chosen layout, and the block tables."""
    first = parts[0].tensor
    tables = [chosen_tables(part.tensor, seqs) for part in parts]
    like_first = all(
        part.tensor.layout.num_pages == first.layout.num_pages
        and part.tensor.layout.page_size == first.layout.page_size
        and np.array_equal(table.block_table, tables[0].block_table)
        for part, table in zip(parts, tables, strict=True)
    )
    if like_first and choice.adapter.name == "split-nhd" and seqs is None and not choice.dequantize:
        for part in parts:
            shape = part.tensor.layout.pool_shape(part.tensor.shape)
            yield OutArray(part.name, shape, _dtype(part, choice), partial(getattr, part.tensor, "page_pool"))
        yield OutArray.of(BLOCK_TABLES, _padded_table(tables[0]))
        return
    pages = PageMap.of([part.tensor for part in parts], seqs, first.layout.page_size)
    block_tables = _padded_table(pages.tables)
    for group in _groups(parts, choice.adapter):
        yield from _filled_arrays(snapshot, group, seqs, choice, pages, block_tables)
    yield OutArray.of(BLOCK_TABLES, block_tables)


def _groups(parts: list[_Part], adapter: PoolAdapter) -> list[list[_Part]]:
    """The parts that are filled together: of a layer, or of all where the layout has one array for all."""
    groups: dict[int | None, list[_Part]] = {}
    for part in parts:
        groups.setdefault(None if adapter.one_array else part.index, []).append(part)
    return list(groups.values())


def _filled_arrays(
    snapshot: hw.Snapshot,
    group: list[_Part],
    seqs: list[int] | None,
    choice: Choice,
    pages: PageMap,
    block_tables: NDArray[Any],
) -> Iterator[OutArray]:
    """The arrays of the parts of a group in the chosen layout; whichever is made first fills them all."""
    adapter = choice.adapter
    specs: dict[int | None, dict[str, PoolSpec]] = {}
    for part in group:
        specs.setdefault(part.index, {})[part.role] = PoolSpec(*_row(part), _dtype(part, choice))
    layers = [LayerSpec(index, pools) for index, pools in specs.items()]
    names = list(dict.fromkeys(array_name(adapter, part.index, part.role) for part in group))
    made: dict[str, NDArray[Any]] = {}

    def allocate() -> tuple[Any, dict[str, NDArray[Any]]]:
        fresh = adapter.allocate(layers, num_pages=pages.num_pages, page_size=pages.page_size)
        return fresh, dict(zip(names, _flat(fresh), strict=True))

    def make(name: str) -> NDArray[Any]:
        if name not in made:
            fresh, arrays = allocate()
            snapshot.export(
                layout=adapter.name,
                form=adapter.forms[0].name,
                page_size=pages.page_size,
                out=fresh,
                page_ids=block_tables,
                layers=list(specs),
                seqs=seqs,
                dequantize=choice.dequantize,
            )
            made.update(arrays)
        return made.pop(name)

    for name, array in allocate()[1].items():  # fresh zeros take no memory until they are written
        yield OutArray(name, array.shape, array.dtype, partial(make, name))


def _flat(allocated: Any) -> list[NDArray[Any]]:
    """The arrays in what an adapter allocates, in the order of roles."""
    if isinstance(allocated, np.ndarray):
        return [allocated]
    entries = allocated.values() if isinstance(allocated, dict) else allocated
    return [array for entry in entries for array in _flat(entry)]


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

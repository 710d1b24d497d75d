"""Handing a snapshot to an engine: as fresh arrays of its layout, or into pages of pools that it already has.

``Snapshot.export`` and :func:`export_merged` say what they do. All that can be refused is refused before the first
page is written: what an engine goes on using is never half changed by a mistake in a call. Pages are then copied in
pieces of about a MiB, on all cores, from wherever the file keeps them, so that no pool is held twice.

Which tensors and heads make up a pool is told in ``export_parts.py``, which pages there are and where they go in
``export_pages.py``, how they lie in a layout in ``adapters/``, what comes back in ``exported.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import adapters
from .adapters import LayerPools, LayerSpec, PageSource, PoolAdapter, PoolSpec, Tables
from .adapters.base import by_index, layer_name
from .adapters.copying import check_destination
from .arrays.memory import check_limit, check_together, stored_bytes, within_memory
from .element_names import array_type
from .errors import BufferSizeError, IncompatibleError
from .export_pages import PageMap, check_one_batch, chosen_layers, chosen_tables, place, several
from .export_parts import ExportPool, Piece, Shard, Share, pools_of
from .exported import Exported, declared_sizes
from .paged_tensor import PagedTensor

__all__ = ["count_pages", "export_merged"]

_REAL_TYPES = ("float16", "bfloat16", "float32", "float64")
_INT32_MAX = (1 << 31) - 1


@within_memory
def export_merged(
    snapshots: Sequence[Shard],
    *,
    layout: str = "split-nhd",
    form: str | None = None,
    page_size: int | None = None,
    out: Any = None,
    page_ids: Any = None,
    layers: Iterable[int | None] | None = None,
    seqs: Iterable[SupportsIndex] | None = None,
    dtype: Any = None,
    num_heads: int | None = None,
    tp_rank: int | None = None,
    tp_size: int | None = None,
    left_padded: bool = False,
    dequantize: bool = False,
) -> Exported:
    """Export the cache whose heads lie in the snapshots of several tensor-parallel ranks.

    ``snapshots`` are the ranks as their metadata tells (``tp.rank``, ``tp.size``), or else all ranks in order. Without
    ``tp_rank`` and ``tp_size`` all heads are merged; with them, those of one rank of another number of ranks are
    exported, for which it is enough to give the snapshots that hold them. ``num_heads`` of the model need only be
    told where ranks hold copies of heads. All other arguments, and the errors, are those of ``Snapshot.export``;
    snapshots that do not go together, or lack heads that are wanted, raise IncompatibleError.
    """
    layers, chosen = chosen_layers(layers), several(seqs, "seqs")
    pools = pools_of(snapshots, layers, Share(num_heads, tp_rank, tp_size), dequantize=dequantize)
    check_one_batch(_tensors(pools))
    if out is None and (page_ids is not None or dtype is not None):
        raise TypeError("page_ids= and dtype= are about arrays that are given with out=")
    numpy_type = array_type(dtype)
    if layout == adapters.dense.name:
        if page_size is not None or page_ids is not None:
            raise TypeError(f"{layout} has no pages, so page_size= and page_ids= mean nothing")
        return _export_dense(pools, chosen, out, form, dtype=numpy_type, left_padded=left_padded, dequantize=dequantize)
    if left_padded:
        raise TypeError(f"left_padded= is about a batch without pages, not {layout}")
    adapter = adapters.get(layout)
    size = pools[0].pieces[0].tensor.layout.page_size if page_size is None else page_size
    pages = PageMap.of(_tensors(pools), chosen, size)
    return _export_pages(pools, adapter, pages, out, page_ids, form, dtype=numpy_type, dequantize=dequantize)


@within_memory
def count_pages(
    snapshot: Shard,
    *,
    page_size: int | None = None,
    layers: Iterable[int | None] | None = None,
    seqs: Iterable[SupportsIndex] | None = None,
) -> int:
    """How many pages an export with these arguments has; see ``Snapshot.count_pages``."""
    layers, seqs = chosen_layers(layers), several(seqs, "seqs")
    indices = snapshot.layers if layers is None else layers
    tensors = [tensor for index in indices for tensor in snapshot[index].tensors.values()]
    if not tensors:
        raise IncompatibleError("there is no layer to export", rule="adapter.layers")
    check_one_batch(tensors)
    size = tensors[0].layout.page_size if page_size is None else page_size
    return PageMap.of(tensors, seqs, size).num_pages


def _export_pages(
    pools: Sequence[ExportPool],
    adapter: PoolAdapter,
    pages: PageMap,
    out: Any,
    page_ids: Any,
    form: str | None,
    *,
    dtype: DTypeLike | None,
    dequantize: bool,
) -> Exported:
    specs = _specs(pools)
    if out is None:
        form = form or adapter.forms[0].name
        _check_limits(pools, pages.num_pages * pages.page_size)
        arrays = adapter.allocate(specs, num_pages=pages.num_pages, page_size=pages.page_size, form=form)
    else:
        arrays = out
    views = _views(adapter, arrays, specs, page_size=pages.page_size, form=form, dtype=dtype)
    if page_ids is None:
        _check_every_page(pages, views)
    there = min(len(view) for view in views.values())
    placement = place(pages, range(pages.num_pages) if page_ids is None else page_ids, there)
    copies = []
    for pool in pools:
        view = views[pool.index, pool.role]
        _check_fit(pool, view.shape[2:], view.dtype, dequantize)
        for piece in pool.pieces:
            source = _source(piece, view.dtype, dequantize)
            copies.append(pages.plan_copy(piece.tensor, source, view[:, :, piece.give], placement))
    scales = _scales(pools, dequantize)
    for copy in copies:
        copy()
    tables = pages.tables._replace(block_table=placement.block_table)
    return Exported(
        adapter.name,
        form,
        arrays,
        tuple(spec.index for spec in specs),
        _narrow(tables.seq_lens),
        pages.page_size,
        _narrow(_padded(tables)),
        _narrow(tables.block_table),
        _narrow(tables.seq_ptr),
        scales,
        declared_sizes(specs, dtype),
    )


def _export_dense(
    pools: Sequence[ExportPool],
    seqs: Sequence[SupportsIndex] | None,
    out: Any,
    form: str | None,
    *,
    dtype: DTypeLike | None,
    left_padded: bool,
    dequantize: bool,
) -> Exported:
    dense, specs = adapters.dense, _specs(pools)
    lengths = chosen_tables(pools[0].pieces[0].tensor, seqs).seq_lens
    indices = [spec.index for spec in specs]
    if out is None:
        form = form or dense.forms[0].name
        padded = len(lengths) * int(lengths.max(initial=0))
        _check_limits(pools, padded if form == "batch" else int(lengths.sum()))
        arrays = dense.allocate(specs, seq_lens=lengths, form=form)
    elif form is not None:
        raise TypeError(f"the arrays of {dense.name} tell their form; form= is for fresh ones")
    else:
        arrays = _entries(dense.name, out, indices)
    views: dict[tuple[int | None, str], list[NDArray[Any]]] = {}
    if len(lengths):  # of no sequence there is nothing to write, and arrays of none tell no heads
        found = dense.views(
            arrays, seq_lens=lengths, left_padded=left_padded, layer_indices=indices, dtype=dtype, writable=True
        )
        _check_roles(dense.name, specs, {layer.index: layer.sequences.keys() for layer in found})
        views = {(layer.index, role): views for layer in found for role, views in layer.sequences.items()}
        _check_apart([views[0] for views in views.values()])
    copies = []
    for pool in pools:
        sequences = views.get((pool.index, pool.role), [])
        for view in sequences:
            _check_fit(pool, view.shape[1:], view.dtype, dequantize)
        for piece in pool.pieces if sequences else ():
            source = _source(piece, sequences[0].dtype, dequantize)
            parts = [view[:, piece.give] for view in sequences]
            for part in parts:
                check_destination(part, None if callable(source) else source)
            copies.append(partial(dense.restore, parts, source, chosen_tables(piece.tensor, seqs)))
    scales = _scales(pools, dequantize)
    for copy in copies:
        copy()
    given = arrays if out is None else out
    declared = {**declared_sizes(specs, dtype), **({"left_padded": True} if left_padded else {})}
    return Exported(dense.name, form, given, tuple(indices), _narrow(lengths), scales=scales, declared=declared)


def _tensors(pools: Iterable[ExportPool]) -> list[PagedTensor]:
    return [piece.tensor for pool in pools for piece in pool.pieces]


def _specs(pools: Iterable[ExportPool]) -> list[LayerSpec]:
    found: dict[int | None, dict[str, PoolSpec]] = {}
    for pool in pools:
        found.setdefault(pool.index, {})[pool.role] = pool.spec
    return [LayerSpec(index, specs) for index, specs in found.items()]


def _check_limits(pools: Sequence[ExportPool], tokens: int) -> None:
    """Sequences of a hostile file may share their pages: what they hold apart is not bounded by its size."""
    limits = pools[0].pieces[0].tensor.limits
    whole = stored = 0
    for pool in pools:
        spec = pool.spec
        nbytes = tokens * spec.num_heads * spec.head_dim * spec.dtype.itemsize
        check_limit(nbytes, limits, pool.what)
        whole += nbytes
        stored += sum(stored_bytes(piece.tensor.descriptor) for piece in pool.pieces)
    check_together(whole, limits, "the export", stored=stored)


def _entries(name: str, out: Any, indices: Sequence[int | None]) -> list[Any]:
    """The caller's entry for each layer: by its index in a mapping, in order in a sequence."""
    if not isinstance(out, Mapping):
        if isinstance(out, Sequence) and len(out) != len(indices):
            raise IncompatibleError(
                f"{name}: out has {len(out)} entries, and {len(indices)} layers are exported (layers= chooses some)",
                rule="adapter.layer-index",
                declared=len(indices),
                found=len(out),
            )
        return [entry for _, entry in by_index(name, out, indices)]
    for index in indices:
        if index not in out:
            raise IncompatibleError(f"{name}: out has no {layer_name(index)}", rule="adapter.layers", found=index)
    return [out[index] for index in indices]


def _views(
    adapter: PoolAdapter,
    arrays: Any,
    specs: Sequence[LayerSpec],
    *,
    page_size: int,
    form: str | None,
    dtype: DTypeLike | None,
) -> dict[tuple[int | None, str], NDArray[Any]]:
    """The destination of every pool. Layers are asked for one by one, as each may have other heads."""
    indices = [spec.index for spec in specs]
    if adapter.one_array:
        calls = [(arrays, indices, specs[0])]
    else:
        entries = _entries(adapter.name, arrays, indices)
        calls = [([entry], [spec.index], spec) for entry, spec in zip(entries, specs, strict=True)]
    found: list[LayerPools] = []
    for cache, numbers, spec in calls:
        one = next(iter(spec.pools.values()))
        found += adapter.views(
            cache,
            page_size=page_size,
            num_heads=one.num_heads,
            head_dim=one.head_dim,
            value_head_dim=spec.pools["value"].head_dim if "value" in spec.pools else None,
            layer_indices=numbers,
            form=form,
            dtype=dtype,
            writable=True,
        )
    _check_roles(adapter.name, specs, {layer.index: layer.pools.keys() for layer in found})
    views = {(layer.index, role): view for layer in found for role, view in layer.pools.items()}
    _check_apart(list(views.values()))
    return views


def _check_roles(name: str, specs: Sequence[LayerSpec], found: Mapping[int | None, Iterable[str]]) -> None:
    for spec in specs:
        roles = set(found[spec.index])
        if roles != set(spec.pools):
            raise IncompatibleError(
                f"{name}: {layer_name(spec.index)} of the snapshot has {' and '.join(spec.pools)}, but out has "
                f"{' and '.join(sorted(roles))}",
                rule="adapter.roles",
                declared=tuple(spec.pools),
                found=tuple(sorted(roles)),
            )


def _check_apart(destinations: Sequence[NDArray[Any]]) -> None:
    """No array is given twice: ``[pool] * num_layers`` is easily written, and keeps the last layer only."""
    starts = [view.__array_interface__["data"][0] for view in destinations if view.size]
    if len(set(starts)) < len(starts):
        raise IncompatibleError("out has the same memory in two places", rule="adapter.destination")


def _check_every_page(pages: PageMap, views: Mapping[Any, NDArray[Any]]) -> None:
    """Without page ids, a pool of the caller's must be there for the export alone."""
    for view in views.values():
        if len(view) != pages.num_pages:
            raise IncompatibleError(
                f"the export has {pages.num_pages} pages, out has {len(view)}; say which to write with page_ids=",
                rule="adapter.copy-count",
                declared=pages.num_pages,
                found=len(view),
            )


def _check_fit(pool: ExportPool, row: tuple[int, ...], dtype: np.dtype[Any], dequantize: bool) -> None:
    """A destination takes the values of the pool: its tokens have the shape ``row``, its elements are ``dtype``."""
    if row != (pool.spec.num_heads, pool.spec.head_dim):
        raise BufferSizeError(
            f"{pool.what} has {pool.spec.num_heads} heads of {pool.spec.head_dim}, but out has tokens of {list(row)}",
            rule="adapter.copy-shape",
            declared=(pool.spec.num_heads, pool.spec.head_dim),
            found=row,
        )
    native = dtype.newbyteorder("=")
    if native != pool.spec.dtype.newbyteorder("=") and not (dequantize and native.name in _REAL_TYPES):
        raise BufferSizeError(
            f"{pool.what} is {pool.spec.dtype}, but out is {dtype}; values are not converted",
            rule="adapter.copy-type",
            declared=str(pool.spec.dtype),
            found=str(dtype),
        )


def _source(piece: Piece, dtype: np.dtype[Any], dequantize: bool) -> PageSource:
    """The pages of a piece: the pool itself where it lies in memory and is taken as it is, else a function."""
    tensor, take = piece.tensor, piece.take
    if tensor.lends_pages and not dequantize:
        return tensor.page_pool[:, :, take]

    def read(ids: NDArray[np.int64]) -> NDArray[Any]:
        pages = tensor.read_pages(ids, dequantize=dequantize)[:, :, take]
        if not dequantize:
            return pages
        with np.errstate(all="ignore"):
            return pages.astype(dtype, copy=False)

    return read


def _scales(pools: Iterable[ExportPool], dequantize: bool) -> dict[int | None, dict[str, NDArray[np.float32]]]:
    scales: dict[int | None, dict[str, NDArray[np.float32]]] = {}
    for pool in () if dequantize else pools:
        if (scale := pool.scale()) is not None:
            scales.setdefault(pool.index, {})[pool.role] = scale
    return scales


def _padded(tables: Tables) -> NDArray[np.int64]:
    counts = np.diff(tables.seq_ptr)
    padded = np.full((len(counts), int(counts.max(initial=0))), -1, dtype=np.int64)
    padded[np.arange(padded.shape[1]) < counts[:, np.newaxis]] = tables.block_table
    return padded


def _narrow(numbers: NDArray[np.int64]) -> NDArray[Any]:
    """As int32, in which engines keep tables and lengths, if that holds every number."""
    return numbers.astype(np.int32) if int(numbers.max(initial=0)) <= _INT32_MAX else numbers

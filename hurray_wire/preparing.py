"""From a cache as its engine holds it to tensors that are ready to be written (spec/snapshot.md).

:func:`prepare` is the gate of everything that writes a snapshot, to a file or to a stream: whatever can be refused is
refused here, and what comes out is written without another question. Engine layouts are left to ``adapters/``, the
choice of pages to ``selection.py``; pools are read only while they are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import adapters
from .adapters.tables import Tables, normalise
from .companions import companion_scales
from .element_names import array_type
from .errors import IncompatibleError, InvalidDescriptorError, UnsupportedError
from .identity import identity_metadata
from .model import element_types as et
from .model.block_paged import BlockPagedLayout
from .model.descriptor import TensorDescriptor
from .model.element_types import ElementType
from .model.layouts import RowMajorLayout
from .model.quantization import PerBlockAffine
from .quantizing import Int8Chunks, slot_scales
from .selection import PagePlan, PoolChunks, PoolInput, deduplicated, plan_pages
from .store.reader import SCALE_SUFFIX, SEQ_LENS
from .token_pages import TokenPages

__all__ = ["Prepared", "lengths_tensor", "prepare", "tensor_name"]

CUT_PAGE_SIZE = 16  # what engines mostly have; of a cache without pages any will do
QUANTIZED_TYPES = (et.float16, et.bfloat16, et.float32, et.float64)

_U32_MAX = (1 << 32) - 1

_Pool: TypeAlias = tuple[int | None, str, PoolInput]
"""Layer index, role, and the pages to be written."""


def tensor_name(layer: int | None, role: str) -> str:
    """The name we give a tensor: ``layers.{i}.key``, or just the role for a tensor that belongs to no layer."""
    return role if layer is None else f"layers.{layer}.{role}"


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A batch that has passed every check and is ready to be written, to a file or a stream.

    ``tensors`` are (name, descriptor, buffers), ``seq_lens`` first; page pools are read from the caller's arrays only
    while they are written.
    """

    metadata: dict[str, Any]
    tensors: list[tuple[str, TensorDescriptor, list[Any]]]


def prepare(
    layers: Any,
    *,
    seq_lens: ArrayLike | None = None,
    block_tables: Any = None,
    block_table: Any = None,
    seq_ptr: Any = None,
    last_page_len: Any = None,
    token_slots: Any = None,
    left_padded: bool = False,
    layout: str = "split-nhd",
    form: str | None = None,
    page_size: int | None = None,
    num_heads: int | None = None,
    head_dim: int | None = None,
    value_head_dim: int | None = None,
    dtype: Any = None,
    layer_indices: Sequence[int | None] | None = None,
    compact: bool = True,
    scrub: bool = True,
    deduplicate: bool = False,
    index_type: str = "auto",
    metadata: Mapping[str, Any] | None = None,
    scales: Any = None,
    quantize: str | None = None,
    **identity: Any,
) -> Prepared:
    """Check a batch and plan how it is written; arguments and errors are those of :func:`save_snapshot`."""
    taken: dict[str, Any] = {
        "num_heads": num_heads,
        "head_dim": head_dim,
        "value_head_dim": value_head_dim,
        "layer_indices": layer_indices,
        "dtype": array_type(dtype),
    }
    tables_given = {
        "block_tables": block_tables,
        "block_table": block_table,
        "seq_ptr": seq_ptr,
        "last_page_len": last_page_len,
        "token_slots": token_slots,
    }
    for name, given in {"seq_lens": seq_lens, **tables_given}.items():
        if isinstance(given, np.ma.MaskedArray):
            raise UnsupportedError(
                f"{name} is a masked array, and what its mask hides would count; fill it", rule="adapter.array-kind"
            )
    has_tables = any(table is not None for table in tables_given.values())
    if layout == "auto":
        sizes = {name: size for name, size in taken.items() if name != "layer_indices"}
        layout = adapters.resolve_name(layers, page_size=page_size, dense_too=not has_tables, **sizes)
    plan_metadata = identity_metadata(metadata, layout, identity)
    if layout == adapters.dense.name:
        if form is not None:
            raise TypeError(f"form= is not for {layout}: its arrays tell their form")
        if has_tables:
            given = next(name for name, table in tables_given.items() if table is not None)
            raise TypeError(f"a {layout} cache has no block tables, so {given}= means nothing")
        pools, tables = _cut(layers, page_size, seq_lens=seq_lens, left_padded=left_padded, **taken)
    elif left_padded:
        raise TypeError(f"left_padded= is about a batch without pages, not {layout}")
    else:
        views = adapters.get(layout).views(layers, page_size=page_size, form=form, **taken)
        pools = [(layer.index, role, pool) for layer in views for role, pool in layer.pools.items()]
        num_pages, slots = pools[0][2].shape[:2]
        tables = normalise(page_size=slots, num_pages=num_pages, seq_lens=seq_lens, **tables_given)
    if quantize is not None:
        _check_quantize(quantize, scales, pools)
    num_pages, slots = pools[0][2].shape[:2]
    plan = plan_pages(tables, num_pages=num_pages, page_size=slots, compact=compact, scrub=scrub)
    if deduplicate:
        plan = deduplicated(plan, [pool for _, _, pool in pools])
    index = _index_type(index_type, plan)
    planned = [_plan_tensor(pool, layer, role, plan, tables, index, quantize) for layer, role, pool in pools]
    places = {(layer, role): tensor_name(layer, role) for layer, role, _ in pools}
    written = {tensor_name(layer, role): pool for layer, role, pool in pools}
    companions = companion_scales(scales, places, {name: pool.shape[2] for name, pool in written.items()})
    for name in companions:
        _check_scaled(name, et.from_dtype(written[name].dtype))
    tensors = [lengths_tensor(tables.seq_lens)]
    for tensor in planned:
        tensors.append(tensor)
        if tensor[0] in companions:
            tensors.append(_plan_array(f"{tensor[0]}{SCALE_SUFFIX}", companions[tensor[0]]))
    return Prepared(plan_metadata, tensors)


def _cut(layers: Any, page_size: int | None, **taken: Any) -> tuple[list[_Pool], Tables]:
    """The pages of a cache that has none, and the tables that name them."""
    found = adapters.dense.views(layers, **taken)
    cut = adapters.dense.cut(found, page_size=CUT_PAGE_SIZE if page_size is None else page_size)
    pools: list[_Pool] = [
        (layer.index, role, TokenPages(sequences, cut.tables, page_size=cut.page_size))
        for layer in found
        for role, sequences in layer.sequences.items()
    ]
    return pools, cut.tables


def _plan_tensor(
    pool: PoolInput,
    layer: int | None,
    role: str,
    plan: PagePlan,
    tables: Tables,
    index_type: str,
    quantize: str | None,
) -> tuple[str, TensorDescriptor, list[Any]]:
    element_type = et.from_dtype(pool.dtype)
    _, _, heads, dim = pool.shape
    layout = BlockPagedLayout(
        page_size=plan.page_size,
        num_pages=plan.num_pages,
        paged_axis=0,
        num_seqs=len(tables.seq_lens),
        kv_role=role,
        layer_index=layer,
        block_table_index_type=index_type,
    )
    name = tensor_name(layer, role)
    quantization = None
    buffers: list[Any] = [plan.block_table.astype(layout.index_dtype), plan.seq_ptr.astype(layout.index_dtype)]
    if quantize is None:
        buffers.insert(0, PoolChunks(pool, plan, element_type))
    else:
        element_type, scales = et.int8, slot_scales(pool, plan, name)
        quantization = PerBlockAffine.symmetric(0, plan.page_size, len(buffers) + 1, et.float32)
        buffers = [Int8Chunks(pool, plan, scales), *buffers, scales]
    shape = (int(tables.seq_lens.sum()), heads, dim)
    sizes = [buffer.nbytes for buffer in buffers]
    descriptor = TensorDescriptor.build(element_type, shape, layout, sizes, quantization=quantization)
    return name, descriptor, buffers


def _check_scaled(name: str, element_type: ElementType) -> None:
    """A scale multiplies numbers. Engines keep float8 as uint8, and those bits times a scale are numbers of nothing."""
    if element_type.name.startswith("uint"):
        raise IncompatibleError(
            f"{name!r} is given as {element_type.name}, and its scale would multiply raw bits; say what they are, as "
            "by dtype='float8_e4m3'",
            rule="snapshot.scale",
            found=element_type.name,
        )


def _check_quantize(quantize: str, scales: Any, pools: Sequence[_Pool]) -> None:
    """The pools can be quantized in this way."""
    if quantize != "int8":
        raise IncompatibleError(
            f"quantize is {quantize!r}; there is 'int8'", rule="snapshot.quantize", declared="int8", found=quantize
        )
    if scales is not None:
        raise IncompatibleError(
            "scales are of a cache that is quantized already, so it is not quantized again", rule="snapshot.quantize"
        )
    for layer, role, pool in pools:
        element_type = et.from_dtype(pool.dtype)
        if element_type not in QUANTIZED_TYPES:
            raise IncompatibleError(
                f"{tensor_name(layer, role)!r} is {element_type.name}; what is quantized is "
                f"{', '.join(known.name for known in QUANTIZED_TYPES)}",
                rule="snapshot.quantize",
                found=element_type.name,
            )
    page_size = pools[0][2].shape[1]
    if page_size < 2 or page_size & (page_size - 1):
        raise IncompatibleError(
            f"pages of {page_size} tokens cannot have a scale a slot: the format wants a power of two, at least 2",
            rule="snapshot.quantize",
            found=page_size,
        )


def _index_type(index_type: str, plan: PagePlan) -> str:
    if index_type != "auto":
        if index_type not in BlockPagedLayout.INDEX_TYPES:
            known = ("auto", *BlockPagedLayout.INDEX_TYPES)
            raise InvalidDescriptorError(
                f"index_type is {index_type!r}; there are {', '.join(map(repr, known))}",
                rule="block-paged.index-type",
                declared=known,
                found=index_type,
            )
        return index_type
    return "uint32" if max(plan.num_pages - 1, len(plan.block_table)) <= _U32_MAX else "uint64"


def lengths_tensor(seq_lens: NDArray[np.int64]) -> tuple[str, TensorDescriptor, list[Any]]:
    """The tensor that records the lengths of the sequences."""
    wide = len(seq_lens) and int(seq_lens.max()) > _U32_MAX
    return _plan_array(SEQ_LENS, seq_lens.astype("<u8" if wide else "<u4"))


def _plan_array(name: str, array: NDArray[Any]) -> tuple[str, TensorDescriptor, list[Any]]:
    element_type = et.from_dtype(array.dtype)
    return name, TensorDescriptor.build(element_type, array.shape, RowMajorLayout(), (array.nbytes,)), [array]

"""Layout fields: bytes to layout objects and back (spec/layouts.md, spec/block-paged.md).

For each layout one function each way. A decoder takes a cursor that stands on the first layout field and the rank, and
leaves the cursor behind the last; the object itself judges the values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import InvalidDescriptorError, UnsupportedError
from ..limits import MAX_NESTING
from ..model import layouts as m
from ..model.block_paged import BlockPagedLayout
from . import structs
from .doorway import Cursor, build, located

__all__ = ["decode_layout", "encode_layout", "is_known"]


def is_known(tag: int) -> bool:
    """True if this version can interpret the layout fields of this tag."""
    return tag in _DECODERS or tag in m.PRIVATE_TAGS


def decode_layout(tag: int, rank: int, cursor: Cursor) -> m.Layout:
    """The layout whose fields start at the cursor. An unknown tag is UnsupportedError."""
    with located(cursor.offset):
        if tag in m.PRIVATE_TAGS:
            return _decode_private(tag, cursor)
        decoder = _DECODERS.get(tag)
        if decoder is None:
            raise UnsupportedError(f"layout tag 0x{tag:02X} is unknown", rule="layout.tag", found=tag)
        return decoder(rank, cursor)


def encode_layout(layout: m.Layout) -> bytes:
    """The layout fields; an unknown layout gives back the bytes it was read from."""
    return _ENCODERS[type(layout)](layout)


def word_of(words: dict[str, int], value: int, what: str, rule: str) -> str:
    """The word that a number on the wire stands for."""
    for word, number in words.items():
        if number == value:
            return word
    raise InvalidDescriptorError(f"{what} {value} is unknown", rule=rule, found=value)


def _decode_strided(rank: int, cursor: Cursor) -> m.StridedLayout:
    return m.StridedLayout(tuple(cursor.take(structs.i64_array(rank), "strides").numbers))


def _encode_strided(layout: m.StridedLayout) -> bytes:
    return build(structs.i64_array(len(layout.strides)), {"numbers": layout.strides})


def _decode_tiled(rank: int, cursor: Cursor, depth: int = 1) -> m.TiledLayout:
    if depth > MAX_NESTING:
        raise InvalidDescriptorError(
            f"tiles are nested more than {MAX_NESTING} deep", rule="layout.tile-depth", declared=MAX_NESTING
        )
    if rank == 0:
        raise InvalidDescriptorError("a tiled layout needs at least one dimension", rule="layout.rank-zero")
    tile_shape = tuple(cursor.take(structs.u64_array(rank), "tile_shape").numbers)
    kinds = cursor.take(structs.TILED_KINDS, "tiled layout fields")
    outer = word_of(m.TiledLayout.OUTER_LAYOUTS, kinds.outer_layout, "outer layout", "layout.tile-outer")
    inner = word_of(m.TiledLayout.INNER_LAYOUTS, kinds.inner_layout, "inner layout", "layout.tile-inner")
    strides: dict[str, tuple[int, ...] | None] = {}
    for side, kind in (("outer", outer), ("inner", inner)):
        strided = kind == "strided"
        strides[side] = tuple(cursor.take(structs.i64_array(rank), f"{side}_strides").numbers) if strided else None
    nested = _decode_tiled(rank, cursor, depth + 1) if inner == "tiled" else None
    return m.TiledLayout(tile_shape, outer, inner, strides["outer"], strides["inner"], nested)


def _encode_tiled(layout: m.TiledLayout) -> bytes:
    rank = len(layout.tile_shape)
    parts = [
        build(structs.u64_array(rank), {"numbers": layout.tile_shape}),
        build(
            structs.TILED_KINDS,
            {
                "outer_layout": m.TiledLayout.OUTER_LAYOUTS[layout.outer_layout],
                "inner_layout": m.TiledLayout.INNER_LAYOUTS[layout.inner_layout],
            },
        ),
    ]
    given = [strides for strides in (layout.outer_strides, layout.inner_strides) if strides is not None]
    parts += [build(structs.i64_array(rank), {"numbers": strides}) for strides in given]
    if layout.inner_tiled is not None:
        parts.append(_encode_tiled(layout.inner_tiled))
    return b"".join(parts)


def _decode_morton(rank: int, cursor: Cursor) -> m.MortonLayout:
    return m.MortonLayout(tuple(cursor.take(structs.u32_array(rank), "morton_bits").numbers))


def _encode_morton(layout: m.MortonLayout) -> bytes:
    return build(structs.u32_array(len(layout.morton_bits)), {"numbers": layout.morton_bits})


def _decode_coo(rank: int, cursor: Cursor) -> m.CooLayout:
    record = cursor.take(structs.COO, "COO fields")
    if record.is_sorted > 1:
        raise InvalidDescriptorError(
            f"is_sorted is {record.is_sorted}, not 0 or 1", rule="layout.is-sorted", found=record.is_sorted
        )
    return m.CooLayout(record.nnz, bool(record.is_sorted))


def _encode_coo(layout: m.CooLayout) -> bytes:
    return build(structs.COO, {"nnz": layout.nnz, "is_sorted": int(layout.is_sorted)})


def _encode_compressed(layout: m.CsrLayout | m.CscLayout) -> bytes:
    return build(structs.COMPRESSED, {"nnz": layout.nnz})


def _decode_csf(rank: int, cursor: Cursor) -> m.CsfLayout:
    record = cursor.take(structs.csf(rank), "CSF fields")
    return m.CsfLayout(record.nnz, tuple(record.mode_order))


def _encode_csf(layout: m.CsfLayout) -> bytes:
    return build(structs.csf(len(layout.mode_order)), {"nnz": layout.nnz, "mode_order": layout.mode_order})


def _decode_block_paged(rank: int, cursor: Cursor) -> BlockPagedLayout:
    record = cursor.take(structs.BLOCK_PAGED, "block-paged fields")
    index_types = BlockPagedLayout.INDEX_TYPES
    return BlockPagedLayout(
        page_size=record.page_size,
        num_pages=record.num_pages,
        paged_axis=record.paged_axis,
        num_seqs=record.num_seqs,
        kv_role=word_of(BlockPagedLayout.KV_ROLES, record.kv_role, "kv_role", "block-paged.kv-role"),
        layer_index=None if record.layer_index == BlockPagedLayout.NO_LAYER else record.layer_index,
        block_table_index_type=word_of(
            index_types, record.block_table_index_type, "block_table_index_type", "block-paged.index-type"
        ),
    )


def _encode_block_paged(layout: BlockPagedLayout) -> bytes:
    return build(
        structs.BLOCK_PAGED,
        {
            "page_size": layout.page_size,
            "num_pages": layout.num_pages,
            "paged_axis": layout.paged_axis,
            "num_seqs": layout.num_seqs,
            "kv_role": BlockPagedLayout.KV_ROLES[layout.kv_role],
            "layer_index": BlockPagedLayout.NO_LAYER if layout.layer_index is None else layout.layer_index,
            "block_table_index_type": BlockPagedLayout.INDEX_TYPES[layout.block_table_index_type],
        },
    )


def _decode_composite(rank: int, cursor: Cursor) -> m.CompositeLayout:
    record = cursor.take(structs.COMPOSITE, "composite fields")
    number = record.composition_rule
    if number in m.PRIVATE_TAGS:
        rule: str | int = number
    else:
        rule = word_of(m.CompositeLayout.RULES, number, "composition rule", "layout.composition-rule")
    combine = None
    if record.combine_op or rule == "overlay":
        combine = word_of(m.CompositeLayout.COMBINE_OPS, record.combine_op, "combine_op", "layout.combine-op")
    return m.CompositeLayout(rule, record.member_count, combine)


def _encode_composite(layout: m.CompositeLayout) -> bytes:
    rule = layout.composition_rule
    combine = layout.combine_op
    return build(
        structs.COMPOSITE,
        {
            "composition_rule": rule if isinstance(rule, int) else m.CompositeLayout.RULES[rule],
            "combine_op": 0 if combine is None else m.CompositeLayout.COMBINE_OPS[combine],
            "member_count": layout.member_count,
        },
    )


def _decode_hilbert(rank: int, cursor: Cursor) -> m.HilbertLayout:
    record = cursor.take(structs.HILBERT, "Hilbert fields")
    return m.HilbertLayout(record.hilbert_order, record.hilbert_rank)


def _encode_hilbert(layout: m.HilbertLayout) -> bytes:
    return build(structs.HILBERT, {"hilbert_order": layout.hilbert_order, "hilbert_rank": layout.hilbert_rank})


def _decode_private(tag: int, cursor: Cursor) -> m.PrivateExtensionLayout:
    record = cursor.take(structs.PRIVATE_LAYOUT, "private layout fields")
    data = cursor.take_bytes(record.extension_data_length, "private layout data")
    return m.PrivateExtensionLayout(tag, record.extension_layout_id, data)


def _encode_private(layout: m.PrivateExtensionLayout) -> bytes:
    fields = {
        "extension_layout_id": layout.extension_layout_id,
        "extension_data_length": len(layout.extension_data),
    }
    return build(structs.PRIVATE_LAYOUT, fields) + layout.extension_data


_DECODERS: dict[int, Callable[[int, Cursor], m.Layout]] = {
    0x01: lambda rank, cursor: m.RowMajorLayout(),
    0x02: lambda rank, cursor: m.ColMajorLayout(),
    0x03: _decode_strided,
    0x04: _decode_tiled,
    0x05: _decode_morton,
    0x06: _decode_coo,
    0x07: lambda rank, cursor: m.CsrLayout(cursor.take(structs.COMPRESSED, "CSR fields").nnz),
    0x08: lambda rank, cursor: m.CscLayout(cursor.take(structs.COMPRESSED, "CSC fields").nnz),
    0x09: _decode_csf,
    0x0A: _decode_block_paged,
    0x0B: _decode_composite,
    0x40: _decode_hilbert,
}

_ENCODERS: dict[type[m.Layout], Callable[[Any], bytes]] = {
    m.RowMajorLayout: lambda layout: b"",
    m.ColMajorLayout: lambda layout: b"",
    m.StridedLayout: _encode_strided,
    m.TiledLayout: _encode_tiled,
    m.MortonLayout: _encode_morton,
    m.CooLayout: _encode_coo,
    m.CsrLayout: _encode_compressed,
    m.CscLayout: _encode_compressed,
    m.CsfLayout: _encode_csf,
    BlockPagedLayout: _encode_block_paged,
    m.CompositeLayout: _encode_composite,
    m.HilbertLayout: _encode_hilbert,
    m.PrivateExtensionLayout: _encode_private,
    m.UnknownLayout: lambda layout: layout.raw_bytes,
}

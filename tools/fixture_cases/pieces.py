"""The fields of layouts, quantization schemes and optional sections, with the numbers of the wire.

Each function returns the fields of one table in order. A layout function returns ``(layout_tag, fields)``, ready for
``Descriptor(..., **layout(...))``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .emit import COMPOSITE, Field

F16, BF16, F32, F64 = 0x01, 0x02, 0x03, 0x04
I8, U8, I16, U16, I32, U32, I64, U64 = range(0x10, 0x18)
BOOL = 0x20
E4M3, E5M2, E8M0, E2M1, E2M3, E3M2, F128 = range(0x40, 0x47)
I4, U4, I2, U2 = range(0x48, 0x4C)
C64, C128 = 0x50, 0x51

TYPES: dict[str, tuple[int, int]] = {
    "float16": (F16, 16),
    "bfloat16": (BF16, 16),
    "float32": (F32, 32),
    "float64": (F64, 64),
    "int8": (I8, 8),
    "uint8": (U8, 8),
    "int16": (I16, 16),
    "uint16": (U16, 16),
    "int32": (I32, 32),
    "uint32": (U32, 32),
    "int64": (I64, 64),
    "uint64": (U64, 64),
    "bool": (BOOL, 1),
    "float8_e4m3": (E4M3, 8),
    "float8_e5m2": (E5M2, 8),
    "float8_e8m0": (E8M0, 8),
    "float4_e2m1": (E2M1, 4),
    "float6_e2m3": (E2M3, 6),
    "float6_e3m2": (E3M2, 6),
    "float128": (F128, 128),
    "int4": (I4, 4),
    "uint4": (U4, 4),
    "int2": (I2, 2),
    "uint2": (U2, 2),
    "complex64": (C64, 64),
    "complex128": (C128, 128),
}
BITS = dict(TYPES.values())

KEY, VALUE, FUSED = 0, 1, 2
NO_LAYER = NO_BUFFER = 0xFFFFFFFF
DYNAMIC = (1 << 64) - 1
PARTITION, OVERLAY, GROUP = 1, 2, 3
REPLACE, ADD = 1, 2


def packed_size(bits: int, count: int) -> int:
    """Bytes of ``count`` elements; 6-bit ones come in groups of four to three bytes."""
    return (count + 3) // 4 * 3 if bits == 6 else (count * bits + 7) // 8


def _fields(name: str, code: str, numbers: Sequence[int]) -> list[Field]:
    return [Field(f"{name}[{k}]", code, number) for k, number in enumerate(numbers)]


def column_major() -> dict[str, Any]:
    return {"layout_tag": 0x02}


def strided(*strides: int) -> dict[str, Any]:
    return {"layout_tag": 0x03, "layout": tuple(_fields("strides", "q", strides))}


def tiled_fields(
    tile: Sequence[int],
    *,
    outer: int = 1,
    inner: int = 1,
    outer_strides: Sequence[int] = (),
    inner_strides: Sequence[int] = (),
    nested: Sequence[Field] = (),
) -> tuple[Field, ...]:
    """One level of tiles; ``nested`` is the level within."""
    return (
        *_fields("tile_shape", "Q", tile),
        Field("outer_layout", "B", outer),
        Field("inner_layout", "B", 4 if nested else inner),
        Field("tiled_reserved", "raw", bytes(2)),
        *_fields("outer_strides", "q", outer_strides),
        *_fields("inner_strides", "q", inner_strides),
        *(Field(f"inner.{field.name}", field.code, field.value) for field in nested),
    )


def tiled(tile: Sequence[int], **options: Any) -> dict[str, Any]:
    return {"layout_tag": 0x04, "layout": tiled_fields(tile, **options)}


def morton(*bits: int) -> dict[str, Any]:
    return {"layout_tag": 0x05, "layout": tuple(_fields("morton_bits", "I", bits))}


def coo(nnz: int, *, is_sorted: int = 0) -> dict[str, Any]:
    fields = (Field("nnz", "Q", nnz), Field("is_sorted", "B", is_sorted), Field("layout_reserved", "raw", bytes(7)))
    return {"layout_tag": 0x06, "layout": fields}


def csr(nnz: int) -> dict[str, Any]:
    return {"layout_tag": 0x07, "layout": (Field("nnz", "Q", nnz), Field("layout_reserved", "raw", bytes(8)))}


def csc(nnz: int) -> dict[str, Any]:
    return {**csr(nnz), "layout_tag": 0x08}


def csf(nnz: int, *mode_order: int) -> dict[str, Any]:
    fields = (
        Field("nnz", "Q", nnz),
        *_fields("mode_order", "I", mode_order),
        Field("layout_reserved", "raw", bytes(8)),
    )
    return {"layout_tag": 0x09, "layout": fields}


def block_paged(
    page_size: int, num_pages: int, num_seqs: int, *, role: int = KEY, layer: int = 0, wide: int = 0
) -> dict[str, Any]:
    """``wide`` 1 makes both index buffers uint64."""
    fields = (
        Field("page_size", "I", page_size),
        Field("num_pages", "Q", num_pages),
        Field("paged_axis", "I", 0),
        Field("num_seqs", "I", num_seqs),
        Field("kv_role", "B", role),
        Field("layer_index", "I", layer),
        Field("block_table_index_type", "B", wide),
        Field("layout_reserved", "raw", bytes(6)),
    )
    return {"layout_tag": 0x0A, "layout": fields}


def composite(rule: int, members: int, *, combine: int = 0) -> dict[str, Any]:
    fields = (
        Field("composition_rule", "B", rule),
        Field("combine_op", "B", combine),
        Field("layout_reserved", "raw", bytes(2)),
        Field("member_count", "I", members),
    )
    return {"layout_tag": COMPOSITE, "layout": fields}


def hilbert(order: int, rank: int) -> dict[str, Any]:
    return {"layout_tag": 0x40, "layout": (Field("hilbert_order", "I", order), Field("hilbert_rank", "I", rank))}


def private_layout(tag: int, layout_id: int, data: bytes) -> dict[str, Any]:
    fields = (
        Field("extension_layout_id", "Q", layout_id),
        Field("extension_data_length", "I", len(data)),
        Field("extension_data", "raw", data),
    )
    return {"layout_tag": tag, "layout": fields}


def _scheme(tag: int, flags: int = 0) -> tuple[Field, ...]:
    return Field("scheme_tag", "B", tag), Field("scheme_version", "B", 1), Field("flags", "H", flags)


def per_tensor(scale: float, zero_point: int = 0) -> tuple[Field, ...]:
    return (
        *_scheme(1),
        Field("scale", "f", scale),
        Field("zero_point", "i", zero_point),
        Field("reserved", "raw", bytes(4)),
    )


def per_channel(axis: int, scales: int, zero_points: int = NO_BUFFER) -> tuple[Field, ...]:
    return (
        *_scheme(2, int(zero_points == NO_BUFFER)),
        Field("axis", "I", axis),
        Field("scale_buffer_index", "I", scales),
        Field("zero_point_buffer_index", "I", zero_points),
        Field("scale_type_tag", "B", F32),
        Field("reserved", "raw", bytes(3)),
    )


def per_block(
    axis: int, block_size: int, scales: int, zero_points: int = NO_BUFFER, *, scale_type: int = F32
) -> tuple[Field, ...]:
    return (
        *_scheme(3, int(zero_points == NO_BUFFER)),
        Field("axis", "I", axis),
        Field("block_size", "I", block_size),
        Field("scale_buffer_index", "I", scales),
        Field("zero_point_buffer_index", "I", zero_points),
        Field("scale_type_tag", "B", scale_type),
        Field("reserved", "raw", bytes(3)),
    )


def nf4(axis: int, block_size: int, scales: int) -> tuple[Field, ...]:
    fields = Field("axis", "I", axis), Field("block_size", "I", block_size), Field("scale_buffer_index", "I", scales)
    return (*_scheme(4), *fields)


def mxfp(axis: int, block_size: int, scales: int) -> tuple[Field, ...]:
    return (*_scheme(5), *nf4(axis, block_size, scales)[3:])


def padded(scheme: tuple[Field, ...], size: int = 8) -> tuple[Field, ...]:
    """A scheme with zeros behind it, within quantization_length."""
    return (*scheme, Field("padding", "raw", bytes(size)))


_STATISTICS = (
    ("nnz", "Q", 0),
    ("sparsity_ratio", "d", 1),
    ("value_min", "d", 2),
    ("value_max", "d", 2),
    ("value_abs_max", "d", 2),
    ("value_mean", "d", 3),
    ("value_stddev", "d", 3),
    ("nm_n", "B", 4),
    ("nm_m", "B", 4),
    ("has_nan", "B", 5),
    ("has_inf", "B", 5),
)


def statistics(**values: Any) -> tuple[Field, ...]:
    """The statistics section; the mask covers the groups of the values given, everything else is zero."""
    mask = 0
    fields = []
    for name, code, bit in _STATISTICS:
        if name in values:
            mask |= 1 << bit
        fields.append(Field(name, code, values.get(name, 0)))
    return (
        Field("computed_mask", "I", mask),
        Field("reserved", "raw", bytes(4)),
        *fields,
        Field("reserved_end", "raw", bytes(4)),
    )


def extension_type(
    bit_width: int,
    *,
    is_float: int = 0,
    is_signed: int = 0,
    bits: tuple[int, int, int] = (0, 0, 0),
    bias: int = 0,
    has_nan: int = 0,
    has_inf: int = 0,
) -> tuple[Field, ...]:
    """The extension type section; ``bits`` are those of sign, exponent and mantissa."""
    return (
        Field("bit_width", "I", bit_width),
        Field("packing_factor", "B", 1 if bit_width >= 8 else 8 // bit_width),
        Field("is_float", "B", is_float),
        Field("is_signed", "B", is_signed),
        Field("sign_bits", "B", bits[0]),
        Field("exponent_bits", "B", bits[1]),
        Field("mantissa_bits", "B", bits[2]),
        Field("reserved", "raw", bytes(2)),
        Field("exponent_bias", "I", bias),
        Field("has_nan", "B", has_nan),
        Field("has_inf", "B", has_inf),
        Field("reserved_end", "raw", bytes(2)),
    )

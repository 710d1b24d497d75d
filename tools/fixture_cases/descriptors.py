"""Accepted bare descriptors: every element type, every layout, every scheme, every optional section.

(Long because it is one table, a row for each descriptor.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from . import pieces as p
from .cases import Case
from .emit import Descriptor

ALL_STATISTICS: dict[str, Any] = {
    "nnz": 5,
    "sparsity_ratio": 0.25,
    "value_min": -2.5,
    "value_max": 4.0,
    "value_abs_max": 4.0,
    "value_mean": 0.125,
    "value_stddev": 1.5,
    "nm_n": 2,
    "nm_m": 4,
    "has_nan": 0,
    "has_inf": 1,
}

# The worked example of the format: layer 3, keys, 2 sequences, 4 tokens a page, 5 pages, 2 heads, 8 dimensions.
WORKED_EXAMPLE = Descriptor(p.F16, (9, 2, 8), (640, 12, 12), **p.block_paged(4, 5, 2, layer=3))

PLAIN = Descriptor(p.F32, (2, 3), (24,))
SHARDED = replace(PLAIN, shard=((4, 6), (2, 3)))
PRIVATE_TYPE = Descriptor(0xF0, (2, 3), (6,), extension_type=p.extension_type(8, is_signed=1))
STRIDED_BACKWARDS = Descriptor(p.U8, (2, 3), (6,), byte_offset=3, **p.strided(-3, 1))
NESTED_TILES = p.tiled((4, 4), nested=p.tiled_fields((2, 2), outer=2, inner=3, inner_strides=(1, 2)))
COO_2D = Descriptor(p.F32, (3, 4), (16, 64), **p.coo(4, is_sorted=1))
CSR = Descriptor(p.F32, (3, 4), (16, 32, 32), **p.csr(4))
CSF_3D = Descriptor(p.F32, (2, 3, 4), (16, 16, 24, 32, 24, 32, 32), **p.csf(4, 2, 0, 1))
Q_PER_CHANNEL = Descriptor(p.I8, (4, 6), (24, 24, 24), quantization=p.per_channel(1, 1, 2))
Q_PER_BLOCK = Descriptor(p.I4, (4, 32), (64, 32, 64), quantization=p.per_block(1, 8, 1, 2, scale_type=p.F16))
Q_NF4 = Descriptor(p.U4, (2, 64), (64, 8), quantization=p.nf4(1, 64, 1))
Q_MXFP = Descriptor(p.E2M1, (2, 64), (64, 4), quantization=p.mxfp(1, 32, 1))
PAGED_Q_SLOTS = Descriptor(
    p.I8, (9, 2, 8), (320, 12, 12, 40, 80), quantization=p.per_block(0, 4, 3, 4, scale_type=p.F16),
    **p.block_paged(4, 5, 2, role=p.FUSED, layer=p.NO_LAYER),
)  # fmt: skip


def cases() -> list[Case]:
    return [Case(name, words, subject, options=options) for name, words, subject, options in _rows()]


Row = tuple[str, str, Descriptor, dict[str, Any]]


def _rows() -> Iterator[Row]:
    for group in (_types, _dense, _sparse, _paged, _others, _handles, _quantized, _sections, _shapes):
        for name, words, subject, *options in group():
            yield name, words, subject, options[0] if options else {}


def _types() -> Iterator[Any]:
    for name, (tag, bits) in p.TYPES.items():
        yield (
            f"type-{name.replace('_', '-')}",
            f"row-major {name} [3, 5]",
            Descriptor(tag, (3, 5), (p.packed_size(bits, 15),)),
        )
    floating = {"is_float": 1, "is_signed": 1, "has_nan": 1, "has_inf": 1}
    for name, tag, width, options, size in (
        ("1-bit", 0xF0, 1, {}, 2),
        ("2-bit", 0xF1, 2, {"is_signed": 1}, 4),
        ("4-bit-float", 0xF2, 4, {"is_float": 1, "is_signed": 1, "bits": (1, 2, 1), "bias": 1}, 8),
        ("8-bit", 0xF3, 8, {"is_signed": 1}, 15),
        ("12-bit", 0xF4, 12, {}, 30),
        ("24-bit", 0xF5, 24, {}, 45),
        ("80-bit-float", 0xFE, 80, {**floating, "bits": (1, 15, 64), "bias": 16383}, 150),
    ):
        yield (
            f"type-private-{name}",
            f"a private type of {width} bits, tag 0x{tag:02X}",
            Descriptor(tag, (3, 5), (size,), extension_type=p.extension_type(width, **options)),
        )


def _dense() -> Iterator[Any]:
    yield "col-major", "column-major float16 [4, 3]", Descriptor(p.F16, (4, 3), (24,), **p.column_major())
    yield "col-major-bool", "column-major bool [4, 3]", Descriptor(p.BOOL, (4, 3), (2,), **p.column_major())
    yield (
        "row-major-offset",
        "the first element 16 bytes into the buffer",
        replace(PLAIN, byte_offset=16, handles=(40,)),
    )
    yield "row-major-slack", "a buffer with 104 bytes more than its tensor needs", replace(PLAIN, handles=(128,))
    yield (
        "strided",
        "strided float32 [3, 4], rows 8 elements apart",
        Descriptor(p.F32, (3, 4), (80,), **p.strided(8, 1)),
    )
    yield "strided-negative", "row 1 lies before row 0", STRIDED_BACKWARDS
    yield "strided-zero", "one row of 3 for all 1000", Descriptor(p.F32, (1000, 3), (12,), **p.strided(0, 1))
    yield (
        "strided-overlapping",
        "a sliding window of 4 over 6 elements",
        Descriptor(p.F32, (3, 4), (24,), **p.strided(1, 1)),
    )
    yield (
        "strided-uint4",
        "strided uint4 [3, 5], rows 7 elements apart",
        Descriptor(p.U4, (3, 5), (10,), **p.strided(7, 1)),
    )
    yield "strided-scalar", "strided, rank 0", Descriptor(p.F64, (), (8,), **p.strided())
    yield "tiled", "tiled [6, 8] by [4, 4], edge tiles whole", Descriptor(p.F16, (6, 8), (128,), **p.tiled((4, 4)))
    yield (
        "tiled-col",
        "tiles and their elements in column-major order",
        Descriptor(p.U8, (6, 8), (64,), **p.tiled((4, 4), outer=2, inner=2)),
    )
    yield "tiled-strided", "tiles backwards in rows of 4, elements transposed", Descriptor(
        p.U8, (4, 4), (24,), byte_offset=4,
        **p.tiled((2, 2), outer=3, outer_strides=(4, -1), inner=3, inner_strides=(1, 2)),
    )  # fmt: skip
    yield "tiled-nested", "4 by 4 tiles of 2 by 2 tiles", Descriptor(p.U8, (6, 8), (64,), **NESTED_TILES)
    yield (
        "tiled-nested-8",
        "the deepest nesting there is, 8 levels",
        Descriptor(p.U8, (256,), (256,), **p.tiled((128,), nested=_nest(64, 7))),
    )
    yield "tiled-float6", "tiled float6_e2m3 [4, 6] by [2, 4]", Descriptor(p.E2M3, (4, 6), (24,), **p.tiled((2, 4)))
    yield "morton", "Morton [4, 3] in a 4 by 4 square", Descriptor(p.F32, (4, 3), (64,), **p.morton(2, 2))
    yield (
        "morton-unequal",
        "Morton [2, 8, 3] with bits 1, 3, 2",
        Descriptor(p.U8, (2, 8, 3), (64,), **p.morton(1, 3, 2)),
    )
    yield "morton-bool", "Morton bool [8, 8]", Descriptor(p.BOOL, (8, 8), (8,), **p.morton(3, 3))
    yield "hilbert", "Hilbert [8, 8]", Descriptor(p.F32, (8, 8), (256,), **p.hilbert(3, 2))
    yield "hilbert-3d", "Hilbert int4 [4, 4, 4]", Descriptor(p.I4, (4, 4, 4), (32,), **p.hilbert(2, 3))
    yield "hilbert-4d", "Hilbert [2, 2, 2, 2]", Descriptor(p.U16, (2, 2, 2, 2), (32,), **p.hilbert(1, 4))


def _nest(edge: int, levels: int) -> tuple[Any, ...]:
    return p.tiled_fields((edge,), nested=_nest(edge // 2, levels - 1) if levels > 1 else ())


def _sparse() -> Iterator[Any]:
    yield "coo", "COO float32 [3, 4], 4 stored, sorted", COO_2D
    yield "coo-unsorted", "COO int8 [3, 4, 5], 2 stored, no order", Descriptor(p.I8, (3, 4, 5), (2, 48), **p.coo(2))
    yield "coo-uint2", "COO uint2 [9], 5 stored", Descriptor(p.U2, (9,), (2, 40), **p.coo(5, is_sorted=1))
    yield (
        "coo-empty",
        "COO without a stored element",
        Descriptor(p.F32, (3, 4), ((0, 1), (0, 64)), **p.coo(0, is_sorted=1)),
    )
    yield "csr", "CSR float32 [3, 4], 4 stored", CSR
    yield "csr-bool", "CSR bool [2, 9], 3 stored", Descriptor(p.BOOL, (2, 9), (1, 24, 24), **p.csr(3))
    yield "csc", "CSC float64 [3, 4], 4 stored", Descriptor(p.F64, (3, 4), (32, 32, 40), **p.csc(4))
    yield "csf", "CSF [2, 3, 4], 4 stored, levels over dimensions 2, 0, 1", CSF_3D
    yield (
        "csf-4d",
        "CSF bfloat16 [2, 2, 2, 2], 1 stored",
        Descriptor(p.BF16, (2, 2, 2, 2), (2, *(16, 8) * 4), **p.csf(1, 0, 1, 2, 3)),
    )


def _paged() -> Iterator[Any]:
    yield "paged-worked-example", "the worked example of the format, 133 bytes", WORKED_EXAMPLE
    yield "paged-value", "values of layer 0", replace(WORKED_EXAMPLE, **p.block_paged(4, 5, 2, role=p.VALUE))
    yield (
        "paged-fused-no-layer",
        "fused keys and values of no layer",
        replace(WORKED_EXAMPLE, **p.block_paged(4, 5, 2, role=p.FUSED, layer=p.NO_LAYER)),
    )
    yield (
        "paged-last-layer",
        "the highest layer index, 0xFFFFFFFE",
        replace(WORKED_EXAMPLE, **p.block_paged(4, 5, 2, layer=0xFFFFFFFE)),
    )
    yield (
        "paged-uint64",
        "uint64 block_table and seq_ptr",
        replace(WORKED_EXAMPLE, handles=(640, 24, 24), **p.block_paged(4, 5, 2, layer=3, wide=1)),
    )
    yield (
        "paged-empty-batch",
        "no sequence and no page",
        Descriptor(
            p.F32, (0, 2, 8), ((0, 64), (0, 64), 8), **p.block_paged(16, 0, 0, role=p.VALUE, layer=p.NO_LAYER, wide=1)
        ),
    )
    yield (
        "paged-one-token",
        "one sequence of one token, page size 1",
        Descriptor(p.BF16, (1, 1, 1), (2, 4, 8), **p.block_paged(1, 1, 1)),
    )
    yield "paged-int4", "int4 elements, 16 a page", Descriptor(p.I4, (5, 2, 4), (24, 8, 8), **p.block_paged(2, 3, 1))
    yield "paged-float8", "float8_e4m3 elements", Descriptor(p.E4M3, (5, 2, 4), (48, 8, 8), **p.block_paged(2, 3, 1))
    yield "paged-bool-heads-zero", "no heads at all", Descriptor(p.BOOL, (5, 0, 4), (0, 8, 8), **p.block_paged(2, 3, 1))
    yield (
        "paged-shared-prefix",
        "more tokens than slots, since sequences share pages",
        Descriptor(p.F16, (24, 1, 4), (64, 24, 16), **p.block_paged(4, 2, 3)),
    )
    yield (
        "paged-slack",
        "a page pool and a seq_ptr larger than they need be",
        replace(WORKED_EXAMPLE, handles=(4096, 12, 64)),
    )
    yield "paged-dynamic", "head_dim unknown", replace(WORKED_EXAMPLE, shape=(9, 2, p.DYNAMIC))


def _others() -> Iterator[Any]:
    yield "composite-partition", "head of a partition into 2", Descriptor(p.F32, (8, 8), **p.composite(p.PARTITION, 2))
    yield (
        "composite-overlay",
        "head of an overlay of 3 that replaces",
        Descriptor(p.F32, (8, 8), **p.composite(p.OVERLAY, 3, combine=p.REPLACE)),
    )
    yield (
        "composite-overlay-add",
        "head of an overlay of 2 that adds",
        Descriptor(p.F32, (8, 8), **p.composite(p.OVERLAY, 2, combine=p.ADD)),
    )
    yield "composite-group", "head of a group of 5, rank 0", Descriptor(p.U8, (), **p.composite(p.GROUP, 5))
    yield "composite-group-empty", "head of a group of nothing", Descriptor(p.U8, (), **p.composite(p.GROUP, 0))
    yield "composite-private", "head of a private rule, 0xF7", Descriptor(p.U8, (4,), **p.composite(0xF7, 1))
    yield (
        "composite-sharded",
        "a head that is itself a member of a partition",
        Descriptor(p.F32, (4, 8), shard=((8, 8), (4, 0)), **p.composite(p.PARTITION, 2)),
    )
    yield (
        "private-layout",
        "a private layout with 5 bytes of data and 3 buffers",
        Descriptor(
            p.F32, (8, 8), (100, 7, (0, 64)), byte_offset=4, **p.private_layout(0xF3, 0x1122334455667788, b"hello")
        ),
    )
    yield (
        "private-layout-bare",
        "a private layout without data",
        Descriptor(p.F32, (), (4,), **p.private_layout(0xFE, 0, b"")),
    )
    yield (
        "unknown-layout",
        "layout tag 0x7B, kept whole by permissive reading",
        Descriptor(p.F32, (8, 8), (256,), layout_tag=0x7B, layout=p.private_layout(0, 7, b"who knows")["layout"]),
        {"permissive": True},
    )
    yield (
        "unknown-layout-sections",
        "layout tag 0x0C with statistics and a shard section, which stay unread",
        replace(SHARDED, layout_tag=0x0C, statistics=p.statistics(nnz=1)),
        {"permissive": True},
    )


def _handles() -> Iterator[Any]:
    devices = ["cpu", "cuda", "rocm", "metal", "vulkan", "webgpu", "hexagon", "level-zero", "opencl"]
    classes = ["standard", "host-pinned", "unified", "peer"]
    for device, device_name in enumerate(devices):
        for memory, class_name in enumerate(classes):
            if (memory in (1, 2) and device == 5) or (memory == 3 and device not in (1, 2, 4, 7)):
                continue
            sync = 0 if device == 0 else memory % 3
            words = f"{class_name} memory on {device_name}, sync mode {sync}"
            handle = (24, 256, device, sync, memory)
            yield f"handle-{device_name}-{class_name}", words, replace(PLAIN, handles=(handle,))
    yield (
        "handle-private",
        "a private device and its private memory",
        replace(PLAIN, handles=((24, 64, 0xF0, 1, 0xFE),)),
    )
    yield (
        "handle-empty-alignment-1",
        "an empty buffer with alignment 1",
        replace(PLAIN, shape=(0, 3), handles=((0, 1),)),
    )
    yield "handle-alignment-2g", "the largest alignment, 2^31", replace(PLAIN, handles=((24, 1 << 31),))


def _quantized() -> Iterator[Any]:
    yield (
        "quant-per-tensor",
        "int8, scale 0.5, zero point -3",
        Descriptor(p.I8, (4, 6), (24,), quantization=p.per_tensor(0.5, -3)),
    )
    yield (
        "quant-per-tensor-uint32",
        "uint32, negative scale",
        Descriptor(p.U32, (4,), (16,), quantization=p.per_tensor(-0.25, 7)),
    )
    yield (
        "quant-per-tensor-padded",
        "zeros behind the scheme",
        Descriptor(p.I8, (4, 6), (24,), quantization=p.padded(p.per_tensor(0.5, -3))),
    )
    yield "quant-per-channel", "int8, asymmetric along axis 1", Q_PER_CHANNEL
    yield (
        "quant-per-channel-symmetric",
        "int16, symmetric along axis 0",
        Descriptor(p.I16, (4, 6), (48, 16), quantization=p.per_channel(0, 1)),
    )
    yield (
        "quant-per-channel-one-buffer",
        "scales and zero points in one buffer",
        Descriptor(p.U8, (4, 6), (24, 48), quantization=p.per_channel(1, 1, 1)),
    )
    yield (
        "quant-per-channel-swapped",
        "zero points in the buffer before the scales",
        Descriptor(p.U8, (4, 6), (24, 24, 24), quantization=p.per_channel(1, 2, 1)),
    )
    yield "quant-per-block", "int4, asymmetric, float16 scales, blocks of 8 on axis 1", Q_PER_BLOCK
    yield (
        "quant-per-block-bfloat16",
        "uint8, symmetric, bfloat16 scales, a last block that is not full",
        Descriptor(p.U8, (10, 3), (30, 18), quantization=p.per_block(0, 4, 1, scale_type=p.BF16)),
    )
    yield (
        "quant-per-block-one-buffer",
        "uint2, scales and zero points in one buffer",
        Descriptor(p.U2, (4, 8), (8, 128), quantization=p.per_block(1, 2, 1, 1)),
    )
    yield "quant-nf4", "NF4, blocks of 64 on axis 1", Q_NF4
    yield "quant-mxfp4", "MXFP of float4_e2m1, blocks of 32", Q_MXFP
    for name, tag, size in (("fp8", p.E4M3, 128), ("fp8-e5m2", p.E5M2, 128), ("fp6", p.E3M2, 96), ("int8", p.I8, 128)):
        yield (
            f"quant-mx{name}",
            f"MXFP of {name}, blocks of 16 on axis 0",
            Descriptor(tag, (32, 4), (size, 8), quantization=p.mxfp(0, 16, 1)),
        )
    yield (
        "quant-tiled",
        "per-channel on a tiled tensor",
        Descriptor(p.I8, (4, 6), (32, 24), quantization=p.per_channel(1, 1), **p.tiled((2, 4))),
    )
    yield (
        "quant-csr",
        "per-tensor on a sparse tensor",
        Descriptor(p.I8, (3, 4), (4, 32, 32), quantization=p.per_tensor(2.0), **p.csr(4)),
    )
    yield (
        "quant-paged-per-tensor",
        "int8 pages with one scale",
        Descriptor(p.I8, (9, 2, 8), (320, 12, 12), quantization=p.per_tensor(0.125, 4), **p.block_paged(4, 5, 2)),
    )
    yield (
        "quant-paged-per-head",
        "uint8 pages, scale and zero point per head",
        Descriptor(p.U8, (9, 2, 8), (320, 12, 12, 8, 8), quantization=p.per_channel(1, 3, 4), **p.block_paged(4, 5, 2)),
    )
    yield (
        "quant-paged-per-dim",
        "int8 pages, symmetric, scale per dimension",
        Descriptor(p.I8, (9, 2, 8), (320, 12, 12, 32), quantization=p.per_channel(2, 3), **p.block_paged(4, 5, 2)),
    )
    yield "quant-paged-per-slot", "int8 pages, float16 scale and int32 zero point per page slot", PAGED_Q_SLOTS
    yield (
        "quant-paged-per-slot-symmetric",
        "int4 pages, float32 scale per page slot",
        Descriptor(p.I4, (9, 2, 8), (160, 12, 12, 80), quantization=p.per_block(0, 4, 3), **p.block_paged(4, 5, 2)),
    )
    yield "quant-paged-per-slot-one-buffer", "scales and zero points per page slot in one padded buffer", Descriptor(
        p.I8, (9, 2, 8), (320, 12, 12, 256), quantization=p.padded(p.per_block(0, 4, 3, 3), 4),
        **p.block_paged(4, 5, 2),
    )  # fmt: skip


def _sections() -> Iterator[Any]:
    yield "shard", "a quarter of a [4, 6] tensor", SHARDED
    yield "shard-scalar", "a shard of rank 0", Descriptor(p.F32, (), (4,), shard=((), ()))
    yield "shard-sparse", "a COO shard", replace(COO_2D, shard=((6, 4), (3, 0)))
    yield "statistics-all", "every statistic", replace(PLAIN, statistics=p.statistics(**ALL_STATISTICS))
    yield (
        "statistics-none",
        "a statistics section in which nothing is computed",
        replace(PLAIN, statistics=p.statistics()),
    )
    for name, values in (
        ("nnz", {"nnz": (1 << 64) - 1}),
        ("sparsity", {"sparsity_ratio": 1.0}),
        ("range", {"value_min": float("-inf"), "value_max": float("inf"), "value_abs_max": float("inf")}),
        ("moments", {"value_mean": -0.0, "value_stddev": 5e-324}),
        ("n-of-m", {"nm_n": 1, "nm_m": 255}),
        ("nan-inf", {"has_nan": 1, "has_inf": 0}),
    ):
        yield f"statistics-{name}", f"only {name}", replace(PLAIN, statistics=p.statistics(**values))
    yield "member-base", "the base of an overlay", replace(SHARDED, shard=((2, 3), (0, 0)), member=1)
    yield "member-correction", "a correction in an overlay", replace(SHARDED, member=0)
    yield (
        "sections-all",
        "quantization, shard, statistics and composite member in one",
        replace(Q_PER_CHANNEL, shard=((8, 6), (4, 0)), statistics=p.statistics(**ALL_STATISTICS), member=0),
    )
    yield (
        "sections-private-type",
        "shard, statistics, extension type and composite member in one",
        replace(PRIVATE_TYPE, shard=((2, 3), (0, 0)), statistics=p.statistics(nnz=6), member=1),
    )
    yield "minor-1", "minor version 1 that adds nothing", replace(PLAIN, minor=1)
    yield (
        "minor-1-tail",
        "minor version 1 with 11 bytes that nobody knows yet",
        replace(WORKED_EXAMPLE, minor=1, tail=b"from later!"),
    )
    yield (
        "minor-255-tail",
        "the last minor version, behind all sections",
        replace(SHARDED, minor=255, statistics=p.statistics(**ALL_STATISTICS), tail=bytes(range(7))),
    )


def _shapes() -> Iterator[Any]:
    yield "scalar", "rank 0", Descriptor(p.F32, (), (4,))
    yield "rank-64", "rank 64, every dimension 1", Descriptor(p.U8, (1,) * 64, (1,))
    yield "empty", "no element, a buffer of no bytes", Descriptor(p.F32, (0, 4), ((0, 64),))
    yield "empty-huge", "a dimension of 0 beside one of 2^63", Descriptor(p.F32, (1 << 63, 0), ((0, 64),))
    yield "empty-slack", "no element, but a buffer", Descriptor(p.F32, (0, 4), (64,))
    for name, layout in (
        ("strided", p.strided(-9, 7)),
        ("tiled", p.tiled((2, 2))),
        ("morton", p.morton(1, 2)),
        ("hilbert", p.hilbert(2, 2)),
    ):
        yield f"empty-{name}", f"{name}, no element", Descriptor(p.F32, (0, 4), ((0, 64),), **layout)
    yield "dynamic", "a dynamic dimension", Descriptor(p.F32, (p.DYNAMIC, 4), (64,))
    yield "dynamic-strided", "a dynamic dimension, strided", Descriptor(p.F32, (p.DYNAMIC, 4), (64,), **p.strided(4, 1))
    yield "dynamic-coo", "a dynamic dimension, COO", Descriptor(p.F32, (p.DYNAMIC, 4), (16, 64), **p.coo(4))
    yield (
        "dynamic-quantized",
        "a dynamic dimension along the quantization axis",
        Descriptor(p.I8, (4, p.DYNAMIC), (24, 24), quantization=p.per_channel(1, 1)),
    )
    yield "large-sizes", "sizes beyond 2^32 on paper", Descriptor(p.F32, (1 << 40, 1 << 20), ((1 << 62),))

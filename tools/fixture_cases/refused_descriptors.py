"""Bare descriptors that break one rule each.

(Long because it is one table: a row for each way to be wrong, in the order of the specification.)
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from . import descriptors as d
from . import pieces as p
from .cases import Case, by_name
from .emit import Descriptor

Row = tuple[Any, ...]  # rule[--variant], accepted sibling, words, then changes, a subject or an edit
BIG = 1 << 63


def cases() -> list[Case]:
    accepted = by_name(d.cases())
    return [_case(accepted, *row) for group in _GROUPS for row in group()]


def _case(accepted: dict[str, Case], name: str, of: str, words: str, *breaks: Any) -> Case:
    sibling = accepted[of]
    case = Case(
        name, words, sibling.subject, rule=name.partition("--")[0], when="decode", keeps=sibling.file,
    )  # fmt: skip
    for change in breaks:
        if isinstance(change, dict):
            case = replace(case, changes=change)
        elif isinstance(change, Descriptor):
            case = replace(case, subject=change)
        else:
            case = replace(case, edit=change)
    return case


def _cut(count: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:-count]


def _set_length(data: bytes) -> bytes:
    return data[:6] + struct.pack("<I", len(data)) + data[10:]


def _header() -> Iterator[Row]:
    of = "type-float32"
    yield "descriptor.magic", of, "the magic is HRRX", {"magic": b"HRRX"}
    yield "descriptor.version-major--0", of, "version_major is 0", {"version_major": 0}
    yield "descriptor.version-major--2", of, "version_major is 2", {"version_major": 2}
    yield "descriptor.length--19", of, "descriptor_length is 19", {"descriptor_length": 19}
    yield "descriptor.length--cut", of, "the last byte is missing", _cut(1)
    yield "descriptor.length--tail", of, "a byte follows the descriptor", lambda data: data + b"\0"
    yield (
        "descriptor.length--counted-tail",
        of,
        "descriptor_length counts a byte behind the last section",
        replace(_of(of), tail=b"\0"),
    )
    yield "descriptor.truncated--header", of, "19 bytes are no header", lambda data: data[:19]
    yield "descriptor.truncated--shape", of, "rank is 64, but the descriptor ends before 64 dimensions do", {"rank": 64}
    yield "descriptor.truncated--handles", of, "the second buffer handle is not there", {"buffer_count": 2}
    yield (
        "descriptor.truncated--layout",
        "strided",
        "the descriptor ends within the strides",
        (lambda data: _set_length(data[: 20 + 16 + 8 + 12])),
    )
    yield (
        "descriptor.truncated--quantization",
        "quant-per-tensor",
        "quantization_length is 17 of 16 bytes",
        {"quantization.quantization_length": 17},
    )
    yield "descriptor.truncated--shard", "shard", "the shard section ends early", lambda data: _set_length(data[:-4])
    yield (
        "descriptor.truncated--statistics",
        "statistics-all",
        "the statistics end early",
        (lambda data: _set_length(data[:-1])),
    )
    yield (
        "descriptor.truncated--private-layout",
        "private-layout",
        "extension_data_length passes the end",
        {"extension_data_length": 0xFFFFFFFF},
    )
    yield "descriptor.flags--5", of, "flag bit 5 is set", {"flags": 32}
    yield "descriptor.flags--31", "minor-1", "flag bit 31 is set, even under a later minor version", {"flags": 1 << 31}
    yield "descriptor.rank--65", of, "rank is 65", {"rank": 65}
    yield "descriptor.rank--max", of, "rank is 2^32 - 1", {"rank": 0xFFFFFFFF}
    for field, of in (
        ("buffer_handles[0].reserved", "type-float32"),
        ("tiled_reserved", "tiled"),
        ("layout_reserved", "coo"),
        ("layout_reserved", "csr"),
        ("layout_reserved", "csf"),
        ("layout_reserved", "paged-worked-example"),
        ("layout_reserved", "composite-partition"),
        ("statistics.reserved", "statistics-all"),
        ("statistics.reserved_end", "statistics-all"),
        ("extension_type.reserved", "type-private-8-bit"),
        ("extension_type.reserved_end", "type-private-8-bit"),
        ("composite_member.reserved", "member-base"),
    ):
        size = next(place.size for place in _places(of) if place.name == field)
        where = field.removeprefix("layout_").removeprefix("tiled_").replace(".", "-").replace("_", "-")
        yield (
            f"descriptor.reserved--{of}-{where.replace('[0]', '')}",
            of,
            "the last reserved byte is 1",
            {field: bytes(size - 1) + b"\1"},
        )
    yield "descriptor.byte-offset--past-end", "dynamic", "byte_offset is 65 in a buffer of 64", {"byte_offset": 65}
    for of in ("coo", "csr", "csf", "paged-worked-example", "composite-partition"):
        yield f"descriptor.byte-offset--{of}", of, "byte_offset is 8", {"byte_offset": 8}
    yield "descriptor.buffer-count--none", of, "no buffer", replace(d.PLAIN, handles=())
    yield (
        "descriptor.buffer-count--private-none",
        "private-layout",
        "no buffer, even in a private layout",
        replace(_of("private-layout"), handles=(), byte_offset=0),
    )
    yield "descriptor.buffer-count--extra", of, "a second buffer that nobody needs", replace(d.PLAIN, handles=(24, 24))
    yield (
        "descriptor.buffer-count--paged-2",
        "paged-worked-example",
        "no seq_ptr",
        replace(d.WORKED_EXAMPLE, handles=(640, 12)),
    )
    yield (
        "descriptor.buffer-count--composite",
        "composite-partition",
        "a head with a buffer",
        replace(_of("composite-partition"), handles=(256,)),
    )
    yield (
        "descriptor.buffer-count--composite-quantized",
        "composite-partition",
        "a head with quantization",
        replace(_of("composite-partition"), type_tag=p.I8, quantization=p.per_tensor(1.0)),
    )
    yield "element-type.tag--00", of, "type_tag is 0x00", {"type_tag": 0x00}
    yield "element-type.tag--47", of, "type_tag is 0x47, which is reserved", {"type_tag": 0x47}
    yield "element-type.tag--FF", of, "type_tag is 0xFF", {"type_tag": 0xFF}
    yield "limit.descriptor-bytes", of, "descriptor_length is 2^32 - 1", {"descriptor_length": 0xFFFFFFFF}


def _handles() -> Iterator[Row]:
    of = "type-float32"
    for value in (0, 1, 32, 63, 96, 0xFFFFFFFF):
        yield f"buffer.alignment--{value}", of, f"alignment is {value}", {"buffer_handles[0].alignment": value}
    yield (
        "buffer.alignment--empty-0",
        "handle-empty-alignment-1",
        "alignment is 0, of an empty buffer",
        {"buffer_handles[0].alignment": 0},
    )
    for value in (0x09, 0xEF, 0xFF):
        yield f"buffer.device--{value:02X}", of, f"device_tag is 0x{value:02X}", {"buffer_handles[0].device_tag": value}
    yield "buffer.sync-mode--3", "handle-cuda-standard", "sync_mode is 3", {"buffer_handles[0].sync_mode": 3}
    yield "buffer.sync-mode--cpu", of, "an event on the CPU", {"buffer_handles[0].sync_mode": 1}
    for value in (0x04, 0xEF, 0xFF):
        yield (
            f"buffer.memory-class--{value:02X}",
            "handle-private",
            f"memory_class is 0x{value:02X}",
            {"buffer_handles[0].memory_class": value},
        )
    for device, memory in (
        ("webgpu", 1),
        ("webgpu", 2),
        ("webgpu", 3),
        ("cpu", 3),
        ("metal", 3),
        ("hexagon", 3),
        ("opencl", 3),
        ("cuda", 0xF0),
    ):
        of = f"handle-{device}-standard"
        yield (
            f"buffer.device-memory--{device}-{memory:02X}",
            of,
            f"memory class 0x{memory:02X} on {device}",
            {"buffer_handles[0].memory_class": memory},
        )
    yield (
        "buffer.same-device",
        "csr",
        "the values are on CUDA, the rest on the CPU",
        {"buffer_handles[0].device_tag": 1},
    )
    yield "buffer.same-memory-class", "csr", "the last buffer is host-pinned", {"buffer_handles[2].memory_class": 1}


def _sizes() -> Iterator[Row]:
    for name, of, buffer, size in (
        ("row-major", "type-float32", 0, 59),
        ("row-major-packed", "type-int2", 0, 3),
        ("row-major-6-bit", "type-float6-e2m3", 0, 11),
        ("col-major", "col-major", 0, 23),
        ("offset", "row-major-offset", 0, 39),
        ("strided", "strided", 0, 79),
        ("strided-negative", "strided-negative", 0, 5),
        ("tiled-edge", "tiled", 0, 127),
        ("tiled-nested", "tiled-nested", 0, 63),
        ("morton", "morton", 0, 63),
        ("hilbert", "hilbert", 0, 255),
        ("coo-values", "coo", 0, 15),
        ("coo-indices", "coo", 1, 63),
        ("csr-indices", "csr", 1, 31),
        ("csr-pointers", "csr", 2, 31),
        ("csc-pointers", "csc", 2, 39),
        ("csf-root", "csf", 1, 8),
        ("csf-leaves", "csf", 6, 24),
        ("page-pool", "paged-worked-example", 0, 639),
        ("seq-ptr", "paged-worked-example", 2, 8),
        ("seq-ptr-empty-batch", "paged-empty-batch", 2, 0),
        ("scales-per-channel", "quant-per-channel", 1, 23),
        ("zero-points-per-channel", "quant-per-channel", 2, 23),
        ("scales-one-buffer", "quant-per-channel-one-buffer", 1, 47),
        ("scales-per-block", "quant-per-block-bfloat16", 1, 17),
        ("scales-nf4", "quant-nf4", 1, 7),
        ("scales-mxfp", "quant-mxfp4", 1, 3),
        ("scales-page-slots", "quant-paged-per-slot", 3, 39),
        ("zero-points-page-slots", "quant-paged-per-slot", 4, 79),
        ("scales-per-head", "quant-paged-per-head", 3, 7),
    ):
        yield (
            f"buffer.too-small--{name}",
            of,
            f"buffer {buffer} has {size} bytes, too few",
            {f"buffer_handles[{buffer}].byte_size": size},
        )
    yield "buffer.too-small--2-32-squared", "type-float32", "a shape of [2^32, 2^32], whose product wraps to 0", {
        "shape[0]": 1 << 32, "shape[1]": 1 << 32
    }  # fmt: skip
    yield "buffer.too-small--bits-wrap", "type-int4", "2^63 elements of 4 bits, whose bit count wraps", {
        "shape[0]": 1 << 62, "shape[1]": 2
    }  # fmt: skip
    yield (
        "buffer.too-small--pages-wrap",
        "paged-worked-example",
        "2^63 pages, whose bytes wrap to 0",
        {"num_pages": BIG},
    )
    yield "buffer.too-small--nnz-wrap", "coo", "nnz 2^61, whose index bytes wrap", {"nnz": 1 << 61}
    yield "buffer.too-small--rows-wrap", "csr", "2^61 rows, whose pointer bytes wrap", {"shape[0]": 1 << 61}
    yield "buffer.too-small--stride-wrap", "strided", "a stride of 2^62, whose bytes wrap to 0", {"strides[0]": 1 << 62}
    yield "buffer.too-small--tile-wrap", "tiled", "tiles of 2^32 by 2^32, whose product wraps to 0", {
        "tile_shape[0]": 1 << 32, "tile_shape[1]": 1 << 32
    }  # fmt: skip
    yield (
        "buffer.entries--block-table",
        "paged-worked-example",
        "a block_table of 13 bytes",
        {"buffer_handles[1].byte_size": 13},
    )
    yield (
        "buffer.entries--block-table-uint64",
        "paged-uint64",
        "a block_table of 20 bytes, uint64",
        {"buffer_handles[1].byte_size": 20},
    )
    yield "buffer.entries--csf", "csf", "crd_0 has 25 bytes", {"buffer_handles[2].byte_size": 25}


def _layouts() -> Iterator[Row]:
    for tag in (0x00, 0x0C, 0x3F, 0x41, 0xEF, 0xFF):
        yield f"layout.tag--{tag:02X}", "type-float32", f"layout_tag is 0x{tag:02X}", {"layout_tag": tag}
    yield (
        "layout.strided-reach",
        "strided-negative",
        "byte_offset is 2, but row 1 starts 3 bytes before",
        replace(d.STRIDED_BACKWARDS, byte_offset=2, handles=(64,)),
    )
    yield "layout.strided-reach--most-negative", "strided-negative", "a stride of -2^63", {"strides[0]": -BIG}
    yield (
        "layout.strided-reach--tiles",
        "tiled-strided",
        "byte_offset is 3, but tile 1 starts 4 bytes before",
        {"byte_offset": 3},
    )
    yield (
        "layout.strided-reach--bits",
        "strided-uint4",
        "4-bit rows backwards from byte 3: bit 28 back of 24",
        replace(_of("strided-uint4"), shape=(2, 5), byte_offset=3, handles=(64,), **p.strided(-7, 1)),
    )
    yield "layout.rank-zero--tiled", "tiled", "tiled, rank 0", Descriptor(p.F16, (), (2,), **p.tiled(()))
    yield "layout.rank-zero--coo", "coo", "COO, rank 0", Descriptor(p.F32, (), (4, 64), **p.coo(1))
    yield "layout.tile-shape", "tiled", "a tile of 0 by 4", {"tile_shape[0]": 0}
    yield "layout.tile-shape--nested", "tiled-nested", "an inner tile of 2 by 0", {"inner.tile_shape[1]": 0}
    for value in (0, 4, 5, 255):
        yield f"layout.tile-outer--{value}", "tiled", f"outer_layout is {value}", {"outer_layout": value}
    for value in (0, 5, 255):
        yield f"layout.tile-inner--{value}", "tiled", f"inner_layout is {value}", {"inner_layout": value}
    yield (
        "layout.tile-depth",
        "tiled-nested-8",
        "9 levels of tiles",
        Descriptor(p.U8, (256,), (256,), **p.tiled((256,), nested=d._nest(128, 8))),
    )
    yield "layout.morton-bits--0", "morton", "a dimension of no bits", {"morton_bits[0]": 0, "shape[0]": 1}
    yield "layout.morton-bits--shape", "morton", "5 rows in 2 bits", {"shape[0]": 5}
    yield "layout.morton-bits--sum", "morton", "65 bits in all", {"morton_bits[0]": 33, "morton_bits[1]": 32}
    yield "layout.morton-bits--max", "morton", "2^32 - 1 bits", {"morton_bits[1]": 0xFFFFFFFF}
    yield "layout.hilbert-order--0", "hilbert", "hilbert_order is 0", {
        "hilbert_order": 0, "shape[0]": 1, "shape[1]": 1
    }  # fmt: skip
    yield "layout.hilbert-order--shape", "hilbert", "8 by 7", {"shape[1]": 7}
    yield (
        "layout.hilbert-order--sum",
        "hilbert",
        "33 bits in each of 2 dimensions",
        Descriptor(p.U8, (1 << 33, 1 << 33), (BIG,), **p.hilbert(33, 2)),
    )
    yield "layout.hilbert-rank--1", "hilbert", "hilbert_rank is 1", Descriptor(p.U8, (8,), (8,), **p.hilbert(3, 1))
    yield "layout.hilbert-rank--3", "hilbert", "hilbert_rank is 3, rank is 2", {"hilbert_rank": 3}
    yield "layout.sparse-rank--csr", "csr", "CSR, rank 3", replace(d.CSR, shape=(3, 4, 1))
    yield "layout.sparse-rank--csc", "csc", "CSC, rank 1", Descriptor(p.F64, (4,), (32, 32, 40), **p.csc(4))
    yield (
        "layout.sparse-rank--csf",
        "csf",
        "CSF, rank 2",
        Descriptor(p.F32, (2, 3), (16, 16, 24, 32, 32), **p.csf(4, 1, 0)),
    )
    yield "layout.is-sorted", "coo", "is_sorted is 2", {"is_sorted": 2}
    yield "layout.mode-order--twice", "csf", "mode_order is 2, 0, 2", {"mode_order[2]": 2}
    yield "layout.mode-order--range", "csf", "mode_order is 2, 0, 3", {"mode_order[2]": 3}
    for value in (0, 4, 0xEF, 0xFF):
        yield (
            f"layout.composition-rule--{value:02X}",
            "composite-partition",
            f"composition_rule is 0x{value:02X}",
            {"composition_rule": value},
        )
    yield "layout.combine-op--partition", "composite-partition", "a partition that replaces", {"combine_op": 1}
    yield "layout.combine-op--private", "composite-private", "a private rule that adds", {"combine_op": 2}
    yield (
        "layout.combine-op--overlay-0",
        "composite-overlay",
        "an overlay that neither replaces nor adds",
        {"combine_op": 0},
    )
    yield "layout.combine-op--overlay-3", "composite-overlay", "combine_op is 3", {"combine_op": 3}
    yield "layout.member-count", "composite-group", "member_count is 2^32 - 1", {"member_count": 0xFFFFFFFF}


def _paged() -> Iterator[Row]:
    of = "paged-worked-example"
    yield "block-paged.rank--2", of, "rank 2", replace(d.WORKED_EXAMPLE, shape=(9, 2))
    yield "block-paged.rank--4", of, "rank 4", replace(d.WORKED_EXAMPLE, shape=(9, 2, 8, 1))
    yield "block-paged.page-size", of, "page_size is 0", {"page_size": 0}
    yield "block-paged.paged-axis", of, "paged_axis is 1", {"paged_axis": 1}
    yield "block-paged.kv-role", of, "kv_role is 3", {"kv_role": 3}
    yield "block-paged.index-type", of, "block_table_index_type is 2", {"block_table_index_type": 2}
    of = "quant-paged-per-dim"
    yield "block-paged.quantization--per-channel", of, "a scale per token", {
        "quantization.axis": 0, "buffer_handles[3].byte_size": 64
    }  # fmt: skip
    of = "quant-paged-per-slot"
    yield "block-paged.quantization--axis", of, "blocks along the heads", {"quantization.axis": 1}
    yield "block-paged.quantization--block-size", of, "block_size 8, page_size 4", {"quantization.block_size": 8}
    yield (
        "block-paged.quantization--nf4",
        "quant-nf4",
        "NF4 pages",
        Descriptor(p.U4, (9, 2, 8), (160, 12, 12, 72), quantization=p.nf4(2, 8, 3), **p.block_paged(4, 5, 2)),
    )
    yield (
        "block-paged.quantization--mxfp",
        "quant-mxint8",
        "MXFP pages",
        Descriptor(p.I8, (9, 2, 16), (640, 12, 12, 18), quantization=p.mxfp(2, 16, 3), **p.block_paged(4, 5, 2)),
    )


def _sections() -> Iterator[Row]:
    yield "shard.dynamic--parent", "shard", "a dynamic parent", {"shard.parent_shape[0]": p.DYNAMIC}
    yield "shard.dynamic--shape", "shard", "a dynamic shape", {"shape[0]": p.DYNAMIC}
    yield "shard.bounds", "shard", "the shard ends one row too far", {"shard.shard_offset[0]": 3}
    yield "shard.bounds--wrap", "shard", "offset and size together wrap to 0", {"shard.shard_offset[0]": (1 << 64) - 2}
    yield (
        "shard.layout--block-paged",
        "paged-worked-example",
        "a block-paged shard",
        replace(d.WORKED_EXAMPLE, shard=((9, 2, 8), (0, 0, 0))),
    )
    yield "shard.layout--csf", "csf", "a CSF shard", replace(d.CSF_3D, shard=((2, 3, 4), (0, 0, 0)))
    yield "statistics.mask--6", "statistics-all", "bit 6 of computed_mask", {"statistics.computed_mask": 127}
    yield "statistics.mask--31", "statistics-none", "bit 31 of computed_mask", {"statistics.computed_mask": 1 << 31}
    yield "statistics.value--nan", "statistics-all", "has_nan is 2", {"statistics.has_nan": 2}
    yield "statistics.value--inf", "statistics-all", "has_inf is 255", {"statistics.has_inf": 255}
    of = "type-private-8-bit"
    yield (
        "extension-type.presence--missing",
        of,
        "a private type that says nothing of itself",
        Descriptor(0xF3, (3, 5), (15,)),
    )
    yield (
        "extension-type.presence--extra",
        "type-int8",
        "an extension type section of int8",
        Descriptor(p.I8, (3, 5), (15,), extension_type=p.extension_type(8)),
    )
    yield "extension-type.bit-width--0", of, "a width of 0", {"extension_type.bit_width": 0}
    for width in (3, 5, 6, 7):
        yield f"extension-type.bit-width--{width}", of, f"a width of {width}", {"extension_type.bit_width": width}
    yield "extension-type.packing--8-bit", of, "two 8-bit elements a byte", {"extension_type.packing_factor": 2}
    yield (
        "extension-type.packing--4-bit",
        "type-private-4-bit-float",
        "one 4-bit element a byte",
        {"extension_type.packing_factor": 1},
    )
    for field in ("is_float", "is_signed", "has_nan", "has_inf"):
        yield (
            f"extension-type.flag--{field.replace('_', '-')}",
            "type-private-80-bit-float",
            f"{field} is 2",
            {f"extension_type.{field}": 2},
        )
    for field in ("sign_bits", "exponent_bits", "mantissa_bits", "exponent_bias", "has_nan", "has_inf"):
        yield (
            f"extension-type.integer--{field.replace('_', '-')}",
            of,
            f"an integer with {field} 1",
            {f"extension_type.{field}": 1},
        )
    yield "composite-member.role", "member-base", "role is 2", {"composite_member.role": 2}
    yield (
        "composite-member.head",
        "composite-sharded",
        "a head with a composite member section",
        replace(_of("composite-sharded"), member=1),
    )


def _quantization() -> Iterator[Row]:
    of = "quant-per-tensor"
    q = "quantization."
    yield (
        "quantization.truncated--header",
        of,
        "a section of 3 bytes",
        replace(_of(of), quantization=p.per_tensor(1.0)[:2]),
    )
    yield (
        "quantization.truncated--fields",
        of,
        "a section that ends before the reserved bytes",
        replace(_of(of), quantization=p.per_tensor(1.0)[:5]),
    )
    for tag in (0x00, 0x06, 0x3F, 0x60, 0xEF, 0xFF):
        yield f"quantization.tag--{tag:02X}", of, f"scheme_tag is 0x{tag:02X}", {q + "scheme_tag": tag}
    for version in (0, 2):
        yield f"quantization.version--{version}", of, f"scheme_version is {version}", {q + "scheme_version": version}
    for scheme in ("per-tensor", "nf4", "mxfp4"):
        yield (
            f"quantization.flags--{scheme}",
            f"quant-{scheme}",
            "SYMMETRIC, where nothing else is possible",
            {q + "flags": 1},
        )
    yield "quantization.flags--unknown", "quant-per-channel", "flag bit 1", {q + "flags": 2}
    for scheme in ("per-tensor", "per-channel", "per-block"):
        yield (
            f"quantization.reserved--{scheme}",
            f"quant-{scheme}",
            "a reserved byte is 1",
            {q + "reserved": b"\1" + bytes(3 if scheme == "per-tensor" else 2)},
        )
    for name, of, tag in (
        ("per-tensor-float32", "quant-per-tensor-uint32", p.F32),
        ("per-tensor-float8", "quant-per-tensor", p.E4M3),
        ("per-tensor-int64", "quant-per-tensor-uint32", p.I64),
        ("per-channel-bool", "quant-per-channel-one-buffer", p.BOOL),
        ("per-channel-float8", "quant-paged-per-head", p.E4M3),
        ("per-block-float4", "quant-per-block", p.E2M1),
        ("nf4-int4", "quant-nf4", p.I4),
        ("mxfp-uint8", "quant-mxint8", p.U8),
        ("mxfp-uint4", "quant-mxfp4", p.U4),
    ):
        sizes = {"buffer_handles[0].byte_size": 1024} if tag == p.I64 else {}
        yield f"quantization.storage--{name}", of, "a storage type that the scheme does not take", {
            "type_tag": tag, **sizes
        }  # fmt: skip
    yield "quantization.storage--per-block-int16", "quant-per-block-bfloat16", "16-bit elements, per block", {
        "type_tag": p.I16, "buffer_handles[0].byte_size": 60
    }  # fmt: skip
    for scheme in ("per-channel", "per-block", "nf4", "mxfp4"):
        yield f"quantization.axis--{scheme}", f"quant-{scheme}", "axis is 2, rank is 2", {q + "axis": 2}
    yield (
        "quantization.padding",
        "quant-per-tensor-padded",
        "a byte of the padding is 1",
        {q + "padding": bytes(7) + b"\1"},
    )
    yield (
        "quantization.buffer-index--count",
        "quant-per-channel-symmetric",
        "scale_buffer_index is buffer_count",
        {q + "scale_buffer_index": 2},
    )
    yield "quantization.buffer-index--layout", "quant-per-channel-one-buffer", "scales in the buffer of the elements", {
        q + "scale_buffer_index": 0, "buffer_handles[0].byte_size": 64
    }  # fmt: skip
    yield (
        "quantization.buffer-index--zero-points",
        "quant-per-channel",
        "zero_point_buffer_index is 7",
        {q + "zero_point_buffer_index": 7},
    )
    yield (
        "quantization.buffer-index--seq-ptr",
        "quant-paged-per-head",
        "scales in seq_ptr",
        {q + "scale_buffer_index": 2},
    )
    yield (
        "quantization.buffer-index--none",
        "quant-nf4",
        "scale_buffer_index is 2^32 - 1",
        {q + "scale_buffer_index": 0xFFFFFFFF},
    )
    yield "quantization.symmetric--with", "quant-per-channel", "SYMMETRIC, but there are zero points", {q + "flags": 1}
    yield (
        "quantization.symmetric--without",
        "quant-per-channel-symmetric",
        "asymmetric, but without zero points",
        {q + "flags": 0},
    )
    yield (
        "quantization.scale-type--per-channel",
        "quant-per-channel",
        "float16 scales per channel",
        {q + "scale_type_tag": p.F16},
    )
    yield (
        "quantization.scale-type--per-block",
        "quant-per-block",
        "float64 scales per block",
        {q + "scale_type_tag": p.F64},
    )
    yield "quantization.scale-type--unknown", "quant-per-block", "scales of type 0x47", {q + "scale_type_tag": 0x47}
    of = "quant-per-tensor"
    for name, value in (("0", 0.0), ("negative-0", -0.0), ("infinite", float("inf")), ("nan", float("nan"))):
        yield f"quantization.scale--{name}", of, f"scale is {value}", {q + "scale": value}
    for name, of, value in (
        ("int8-high", "quant-per-tensor", 128),
        ("int8-low", "quant-per-tensor", -129),
        ("uint8", "quant-paged-per-tensor", -129),
        ("uint32", "quant-per-tensor-uint32", -1),
    ):
        yield f"quantization.zero-point--{name}", of, f"zero_point is {value}", {q + "zero_point": value}
    for scheme, values in (
        ("per-block", (0, 1, 3, 6, 0xFFFFFFFF)),
        ("nf4", (0, 4, 24)),
        ("mxfp4", (8, 48, 4096)),
    ):
        for value in values:
            yield (
                f"quantization.block-size--{scheme}-{value}",
                f"quant-{scheme}",
                f"block_size is {value}",
                {q + "block_size": value},
            )
    yield "quantization.mxfp-multiple", "quant-mxfp4", "60 elements in blocks of 32", {"shape[1]": 60}
    yield "quantization.mxfp-multiple--0", "quant-mxfp4", "no element along the axis", {"shape[1]": 0}


def _of(name: str) -> Descriptor:
    subject = by_name(d.cases())[name].subject
    assert isinstance(subject, Descriptor)
    return subject


def _places(name: str) -> list[Any]:
    return by_name(d.cases())[name].emit()[1]


_GROUPS = (_header, _handles, _sizes, _layouts, _paged, _sections, _quantization)

"""Every construct schema, one per table of the specification.

A schema here has a fixed size: what varies (a rank, a name, a count) is read first, bounded by its reader, and then
asks for a schema of exactly that size. Numbers are plain integers, so that an unknown value is judged by a named rule
and not by the schema; reserved bytes and magics are constants, which are refused unless they hold what they must. All
integers are little-endian. Only ``doorway.py`` parses or builds with these.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from construct import (
    Array,
    Bytes,
    Const,
    Float32l,
    Float64l,
    Int8ul,
    Int16ul,
    Int32sl,
    Int32ul,
    Int64sl,
    Int64ul,
    Struct,
)

DESCRIPTOR_MAGIC = b"HRRY"
FILE_MAGIC = b"HRRYFILE"


def _reserved(size: int) -> Any:
    return "reserved" / Const(bytes(size))


# Integers that stand alone. spec/descriptor.md, spec/container.md
U8 = Struct("value" / Int8ul)
U16 = Struct("value" / Int16ul)
U32 = Struct("value" / Int32ul)
U64 = Struct("value" / Int64ul)
I64 = Struct("value" / Int64sl)
F64 = Struct("value" / Float64l)


@cache
def u64_array(count: int) -> Any:
    """``count`` u64: a shape, tile dimensions. The count is at most a rank, hence at most 64."""
    return Struct("numbers" / Array(count, Int64ul))


@cache
def i64_array(count: int) -> Any:
    """``count`` i64: strides."""
    return Struct("numbers" / Array(count, Int64sl))


@cache
def u32_array(count: int) -> Any:
    """``count`` u32: Morton bit counts, a CSF mode order."""
    return Struct("numbers" / Array(count, Int32ul))


# The tensor descriptor. spec/descriptor.md
DESCRIPTOR_HEADER = Struct(
    "magic" / Const(DESCRIPTOR_MAGIC),
    "version_major" / Int8ul,
    "version_minor" / Int8ul,
    "descriptor_length" / Int32ul,
    "flags" / Int32ul,
    "type_tag" / Int8ul,
    "layout_tag" / Int8ul,
    "rank" / Int32ul,
)
BUFFER_HANDLE = Struct(
    "byte_size" / Int64ul,
    "alignment" / Int32ul,
    "device_tag" / Int8ul,
    "sync_mode" / Int8ul,
    "memory_class" / Int8ul,
    _reserved(1),
)


@cache
def shard(rank: int) -> Any:
    """The shard section of a tensor of this rank."""
    return Struct("parent_shape" / Array(rank, Int64ul), "shard_offset" / Array(rank, Int64ul))


STATISTICS = Struct(
    "computed_mask" / Int32ul,
    _reserved(4),
    "nnz" / Int64ul,
    "sparsity_ratio" / Float64l,
    "value_min" / Float64l,
    "value_max" / Float64l,
    "value_abs_max" / Float64l,
    "value_mean" / Float64l,
    "value_stddev" / Float64l,
    "nm_n" / Int8ul,
    "nm_m" / Int8ul,
    "has_nan" / Int8ul,
    "has_inf" / Int8ul,
    "reserved_end" / Const(bytes(4)),
)
EXTENSION_TYPE = Struct(
    "bit_width" / Int32ul,
    "packing_factor" / Int8ul,
    "is_float" / Int8ul,
    "is_signed" / Int8ul,
    "sign_bits" / Int8ul,
    "exponent_bits" / Int8ul,
    "mantissa_bits" / Int8ul,
    _reserved(2),
    "exponent_bias" / Int32ul,
    "has_nan" / Int8ul,
    "has_inf" / Int8ul,
    "reserved_end" / Const(bytes(2)),
)
COMPOSITE_MEMBER = Struct("role" / Int8ul, _reserved(15))

# Layout fields. spec/layouts.md, spec/block-paged.md
TILED_KINDS = Struct("outer_layout" / Int8ul, "inner_layout" / Int8ul, _reserved(2))
COO = Struct("nnz" / Int64ul, "is_sorted" / Int8ul, _reserved(7))
COMPRESSED = Struct("nnz" / Int64ul, _reserved(8))


@cache
def csf(rank: int) -> Any:
    """The CSF fields of a tensor of this rank."""
    return Struct("nnz" / Int64ul, "mode_order" / Array(rank, Int32ul), _reserved(8))


BLOCK_PAGED = Struct(
    "page_size" / Int32ul,
    "num_pages" / Int64ul,
    "paged_axis" / Int32ul,
    "num_seqs" / Int32ul,
    "kv_role" / Int8ul,
    "layer_index" / Int32ul,
    "block_table_index_type" / Int8ul,
    _reserved(6),
)
COMPOSITE = Struct("composition_rule" / Int8ul, "combine_op" / Int8ul, _reserved(2), "member_count" / Int32ul)
HILBERT = Struct("hilbert_order" / Int32ul, "hilbert_rank" / Int32ul)
PRIVATE_LAYOUT = Struct("extension_layout_id" / Int64ul, "extension_data_length" / Int32ul)

# Quantization. spec/quantization.md
QUANTIZATION_HEADER = Struct("scheme_tag" / Int8ul, "scheme_version" / Int8ul, "flags" / Int16ul)
PER_TENSOR_AFFINE = Struct("scale" / Float32l, "zero_point" / Int32sl, _reserved(4))
PER_CHANNEL_AFFINE = Struct(
    "axis" / Int32ul,
    "scale_buffer_index" / Int32ul,
    "zero_point_buffer_index" / Int32ul,
    "scale_type_tag" / Int8ul,
    _reserved(3),
)
PER_BLOCK_AFFINE = Struct(
    "axis" / Int32ul,
    "block_size" / Int32ul,
    "scale_buffer_index" / Int32ul,
    "zero_point_buffer_index" / Int32ul,
    "scale_type_tag" / Int8ul,
    _reserved(3),
)
BLOCK_SCALED = Struct("axis" / Int32ul, "block_size" / Int32ul, "scale_buffer_index" / Int32ul)

# The file container. spec/container.md
FILE_HEADER = Struct(
    "magic" / Const(FILE_MAGIC),
    "container_major" / Int8ul,
    "container_minor" / Int8ul,
    _reserved(2),
    "file_flags" / Int32ul,
    "data_buffer_alignment" / Int32ul,
    "first_descriptor_offset" / Int64ul,
    "tensor_count_hint" / Int64ul,
    "reserved_end" / Const(bytes(28)),
)
INDEX_ENTRY = Struct(
    "descriptor_offset" / Int64ul,
    "descriptor_length" / Int32ul,
    "data_offset" / Int64ul,
    "data_length" / Int64ul,
    "flags" / Int32ul,
)
TRAILER = Struct(
    "index_offset" / Int64ul,
    "index_length" / Int64ul,
    "kv_offset" / Int64ul,
    "kv_length" / Int32ul,
    "index_crc32c" / Int32ul,
    _reserved(4),
    "magic" / Const(DESCRIPTOR_MAGIC),
)
ARRAY_HEADER = Struct("element_tag" / Int8ul, "count" / Int32ul)

# The seekable Zstandard form. spec/compressed.md
SKIPPABLE_HEADER = Struct("magic" / Bytes(4), "frame_size" / Int32ul)
SEEK_ENTRY = Struct("compressed_size" / Int32ul, "decompressed_size" / Int32ul)
SEEK_ENTRY_CHECKED = Struct("compressed_size" / Int32ul, "decompressed_size" / Int32ul, "checksum" / Int32ul)
SEEK_FOOTER = Struct("number_of_frames" / Int32ul, "descriptor" / Int8ul, "magic" / Bytes(4))

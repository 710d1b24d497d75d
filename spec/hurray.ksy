# The Hurray container and tensor descriptor for Kaitai Struct (https://kaitai.io): a second, declarative statement of
# the bytes that the documents beside this file describe, from which parsers in a dozen languages can be generated.
#
# It holds every layout, every optional section, the KV section, the index and the trailer. It checks what one structure
# tells of itself: magics, reserved bytes, tags, bounds. What relates several (sizes against shapes, sections against the
# element type, overlaps, checksums, the index buffers of block-paged tensors, composites) is left to whoever uses the
# parser.
meta:
  id: hurray
  title: Hurray tensor file
  file-extension: hrry
  license: Apache-2.0
  ks-version: 0.11
  endian: le

doc: |
  A container of named tensors. The header is at the start; the trailer, the last 40 bytes, leads to the index and to the
  KV section, and an index entry leads to its descriptor and buffers. A stream (type `tensor_stream`) is descriptors with
  their buffers, one after another. A descriptor by itself is of type `bare_descriptor`.

seq:
  - id: header
    type: file_header
instances:
  trailer:
    pos: _io.size - 40
    type: file_trailer
  kv_metadata:
    pos: trailer.kv_offset
    size: trailer.kv_length
    type: kv_section
    if: trailer.kv_length != 0
    doc: Present by its place in the trailer; some writers leave the header's flag unset.
  index:
    pos: trailer.index_offset
    size: trailer.index_length
    type: index_section

types:
  # ---- container ---------------------------------------------------------------------------------------------------
  file_header:
    seq:
      - id: magic
        contents: HRRYFILE
      - id: container_major
        type: u1
        valid: 1
      - id: container_minor
        type: u1
      - id: reserved_versions
        contents: [0, 0]
      - id: file_flags
        type: u4
        valid:
          max: 7
        doc: bit 0 HAS_KV_METADATA, 1 SORTED_INDEX, 2 HAS_INDEX_CRC32C
      - id: data_buffer_alignment
        type: u4
        valid:
          any-of: [4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576, 2097152]
      - id: first_descriptor_offset
        type: u8
        valid:
          expr: _ >= 64 and _ % 8 == 0
      - id: tensor_count_hint
        type: u8
      - id: reserved
        contents: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]

  file_trailer:
    seq:
      - id: index_offset
        type: u8
        valid:
          expr: _ >= 64 and _ % 8 == 0
      - id: index_length
        type: u8
        valid:
          expr: index_offset + _ <= _root._io.size - 40
      - id: kv_offset
        type: u8
      - id: kv_length
        type: u4
        valid:
          expr: "_ == 0 ? kv_offset == 0 : kv_offset >= 64 and kv_offset % 8 == 0 and kv_offset + _ <= _root._io.size - 40"
      - id: index_crc32c
        type: u4
      - id: reserved
        contents: [0, 0, 0, 0]
      - id: magic
        contents: HRRY

  index_section:
    seq:
      - id: count
        type: u8
      - id: entries
        type: index_entry
        repeat: expr
        repeat-expr: count
      - id: tail
        size-eos: true
        valid:
          expr: _.length == 0

  index_entry:
    seq:
      - id: name_length
        type: u2
        valid:
          min: 1
      - id: name
        type: str
        size: name_length
        encoding: UTF-8
      - id: descriptor_offset
        type: u8
        valid:
          expr: _ >= 64 and _ % 8 == 0
      - id: descriptor_length
        type: u4
      - id: data_offset
        type: u8
      - id: data_length
        type: u8
      - id: flags
        type: u4
        valid: 0
    instances:
      descriptor:
        io: _root._io
        pos: descriptor_offset
        size: descriptor_length
        type: descriptor
      buffers:
        io: _root._io
        pos: data_offset
        type: placed_buffer(_index)
        repeat: expr
        repeat-expr: descriptor.body.buffer_count

  placed_buffer:
    doc: A buffer in a file, behind the padding that brings it to data_buffer_alignment.
    params:
      - id: number
        type: u1
    seq:
      - id: padding
        size: (-_io.pos) % _root.header.data_buffer_alignment
      - id: data
        size: _parent.as<index_entry>.descriptor.body.buffer_handles[number].byte_size

  kv_section:
    seq:
      - id: count
        type: u4
      - id: entries
        type: kv_entry
        repeat: expr
        repeat-expr: count
      - id: tail
        size-eos: true
        valid:
          expr: _.length == 0

  kv_entry:
    seq:
      - id: key_length
        type: u2
        valid:
          min: 1
      - id: key
        type: str
        size: key_length
        encoding: UTF-8
      - id: value_tag
        type: u1
        enum: kv_kind
        valid:
          in-enum: true
      - id: value
        type:
          switch-on: value_tag
          cases:
            'kv_kind::array': kv_array
            _: kv_value(value_tag)

  kv_array:
    seq:
      - id: element_tag
        type: u1
        enum: kv_kind
        valid:
          expr: _.to_i >= 1 and _.to_i <= 6
      - id: count
        type: u4
      - id: values
        type: kv_value(element_tag)
        repeat: expr
        repeat-expr: count

  kv_value:
    params:
      - id: kind
        type: u1
        enum: kv_kind
    seq:
      - id: value
        type:
          switch-on: kind
          cases:
            'kv_kind::string': kv_string
            'kv_kind::i64': s8
            'kv_kind::u64': u8
            'kv_kind::f64': f8
            'kv_kind::bool': kv_bool
            'kv_kind::bytes': kv_bytes

  kv_string:
    seq:
      - id: length
        type: u4
      - id: text
        type: str
        size: length
        encoding: UTF-8

  kv_bool:
    seq:
      - id: flag
        type: u1
        valid:
          max: 1

  kv_bytes:
    seq:
      - id: length
        type: u4
      - id: data
        size: length

  # ---- stream ------------------------------------------------------------------------------------------------------
  tensor_stream:
    seq:
      - id: tensors
        type: streamed_tensor
        repeat: eos

  streamed_tensor:
    seq:
      - id: descriptor
        type: descriptor
      - id: buffers
        size: descriptor.body.buffer_handles[_index].byte_size
        repeat: expr
        repeat-expr: descriptor.body.buffer_count

  # ---- descriptor --------------------------------------------------------------------------------------------------
  bare_descriptor:
    doc: An input that is one descriptor and nothing else.
    seq:
      - id: descriptor
        type: descriptor
      - id: tail
        size-eos: true
        valid:
          expr: _.length == 0

  descriptor:
    seq:
      - id: magic
        contents: HRRY
      - id: version_major
        type: u1
        valid: 1
      - id: version_minor
        type: u1
      - id: descriptor_length
        type: u4
        valid:
          min: 20
      - id: body
        size: descriptor_length - 10
        type: descriptor_body(version_minor)

  descriptor_body:
    params:
      - id: version_minor
        type: u1
    seq:
      - id: flags
        type: u4
        valid:
          max: 31
        doc: bit 0 quantization, 1 shard, 2 extension type, 3 statistics, 4 composite member
      - id: type_tag
        type: u1
        enum: element_type
        valid:
          in-enum: true
      - id: layout_tag
        type: u1
        enum: layout
        valid:
          in-enum: true
      - id: rank
        type: u4
        valid:
          expr: >-
            layout_tag == layout::block_paged ? _ == 3
            : layout_tag == layout::csr or layout_tag == layout::csc ? _ == 2
            : _ <= 64 and _ >= (layout_tag == layout::csf ? 3 : layout_tag == layout::hilbert ? 2
            : layout_tag == layout::tiled or layout_tag == layout::coo ? 1 : 0)
      - id: shape
        type: u8
        repeat: expr
        repeat-expr: rank
      - id: byte_offset
        type: u8
        valid:
          expr: _ == 0 or layout_tag.to_i < 0x06 or layout_tag.to_i > 0x0b
        doc: In sparse, block-paged and composite layouts, 0.
      - id: layout
        type:
          switch-on: layout_tag
          cases:
            'layout::row_major': no_fields
            'layout::column_major': no_fields
            'layout::strided': strided(rank)
            'layout::tiled': tiled(rank, 1)
            'layout::morton': morton(rank)
            'layout::coo': coo
            'layout::csr': compressed_sparse
            'layout::csc': compressed_sparse
            'layout::csf': csf(rank)
            'layout::block_paged': block_paged
            'layout::composite': composite
            'layout::hilbert': hilbert(rank)
            _: private_layout
      - id: buffer_count
        type: u1
        valid:
          expr: (_ == 0) == (layout_tag == layout::composite)
      - id: buffer_handles
        type: buffer_handle
        repeat: expr
        repeat-expr: buffer_count
      - id: quantization
        type: quantization
        if: flags & 1 != 0
      - id: shard
        type: shard(rank)
        if: flags & 2 != 0
      - id: statistics
        type: statistics
        if: flags & 8 != 0
      - id: extension_type
        type: extension_type
        if: flags & 4 != 0
      - id: composite_member
        type: composite_member
        if: flags & 16 != 0
      - id: later_sections
        size-eos: true
        valid:
          expr: version_minor > 0 or _.length == 0
        doc: What a later minor version may append; nothing in version 1.0.

  buffer_handle:
    seq:
      - id: byte_size
        type: u8
      - id: alignment
        type: u4
        valid:
          expr: _ > 0 and (_ & (_ - 1)) == 0 and (_ >= 64 or byte_size == 0)
      - id: device_tag
        type: u1
        valid:
          expr: _ <= 8 or (_ >= 0xf0 and _ <= 0xfe)
      - id: sync_mode
        type: u1
        valid:
          expr: _ <= 2 and (_ == 0 or device_tag != 0)
      - id: memory_class
        type: u1
        valid:
          expr: >-
            _ == 0 or (_ <= 2 and device_tag != 5) or (_ >= 0xf0 and _ <= 0xfe and device_tag >= 0xf0)
            or (_ == 3 and (device_tag == 1 or device_tag == 2 or device_tag == 4 or device_tag == 7))
        doc: 0 standard, 1 host-pinned, 2 unified, 3 peer; not every device has each.
      - id: reserved
        contents: [0]

  # ---- layouts: the fields after byte_offset -----------------------------------------------------------------------
  no_fields: {}

  strided:
    params:
      - id: rank
        type: u4
    seq:
      - id: strides
        type: s8
        repeat: expr
        repeat-expr: rank

  tiled:
    params:
      - id: rank
        type: u4
      - id: level
        type: u4
    seq:
      - id: tile_shape
        type: u8
        valid:
          min: 1
        repeat: expr
        repeat-expr: rank
      - id: outer_layout
        type: u1
        valid:
          any-of: [1, 2, 3]
      - id: inner_layout
        type: u1
        valid:
          expr: _ >= 1 and (_ <= 3 or (_ == 4 and level < 8))
        doc: Tiles nest at most 8 levels deep.
      - id: reserved
        contents: [0, 0]
      - id: outer_strides
        type: s8
        repeat: expr
        repeat-expr: rank
        if: outer_layout == 3
      - id: inner_strides
        type: s8
        repeat: expr
        repeat-expr: rank
        if: inner_layout == 3
      - id: inner
        type: tiled(rank, level + 1)
        if: inner_layout == 4

  morton:
    params:
      - id: rank
        type: u4
    seq:
      - id: morton_bits
        type: u4
        valid:
          min: 1
        repeat: expr
        repeat-expr: rank

  coo:
    seq:
      - id: nnz
        type: u8
      - id: is_sorted
        type: u1
        valid:
          max: 1
      - id: reserved
        contents: [0, 0, 0, 0, 0, 0, 0]

  compressed_sparse:
    seq:
      - id: nnz
        type: u8
      - id: reserved
        contents: [0, 0, 0, 0, 0, 0, 0, 0]

  csf:
    params:
      - id: rank
        type: u4
    seq:
      - id: nnz
        type: u8
      - id: mode_order
        type: u4
        valid:
          expr: _ < rank
        repeat: expr
        repeat-expr: rank
      - id: reserved
        contents: [0, 0, 0, 0, 0, 0, 0, 0]

  block_paged:
    seq:
      - id: page_size
        type: u4
        valid:
          min: 1
        doc: tokens per page
      - id: num_pages
        type: u8
      - id: paged_axis
        type: u4
        valid: 0
      - id: num_seqs
        type: u4
      - id: kv_role
        type: u1
        valid:
          max: 2
        doc: 0 key, 1 value, 2 fused
      - id: layer_index
        type: u4
        doc: 0xffffffff where the tensor belongs to no layer
      - id: block_table_index_type
        type: u1
        valid:
          max: 1
        doc: 0 = u4, 1 = u8, for buffers 1 and 2
      - id: reserved
        contents: [0, 0, 0, 0, 0, 0]

  composite:
    seq:
      - id: composition_rule
        type: u1
        valid:
          expr: (_ >= 1 and _ <= 3) or (_ >= 0xf0 and _ <= 0xfe)
        doc: 1 partition, 2 overlay, 3 group
      - id: combine_op
        type: u1
        valid:
          expr: "composition_rule == 2 ? _ == 1 or _ == 2 : _ == 0"
        doc: of an overlay, 1 replace, 2 add
      - id: reserved
        contents: [0, 0]
      - id: member_count
        type: u4
        valid:
          max: 0xfffffffe

  hilbert:
    params:
      - id: rank
        type: u4
    seq:
      - id: hilbert_order
        type: u4
        valid:
          expr: _ >= 1 and _ * rank <= 64
      - id: hilbert_rank
        type: u4
        valid:
          expr: _ == rank

  private_layout:
    seq:
      - id: extension_layout_id
        type: u8
      - id: extension_data_length
        type: u4
      - id: extension_data
        size: extension_data_length

  # ---- sections ----------------------------------------------------------------------------------------------------
  quantization:
    seq:
      - id: quantization_length
        type: u4
      - id: scheme
        size: quantization_length
        type: quantization_scheme

  quantization_scheme:
    seq:
      - id: scheme_tag
        type: u1
        valid:
          expr: _ >= 1 and _ <= 5
      - id: scheme_version
        type: u1
        valid: 1
      - id: flags
        type: u2
        valid:
          expr: "_ <= (scheme_tag == 2 or scheme_tag == 3 ? 1 : 0)"
        doc: bit 0 SYMMETRIC
      - id: parameters
        type:
          switch-on: scheme_tag
          cases:
            1: per_tensor_affine
            2: per_channel_affine
            3: per_block_affine
            4: blocks(8, 0xffffffff)
            5: blocks(16, 2048)
      - id: padding
        type: u1
        valid: 0
        repeat: eos

  per_tensor_affine:
    seq:
      - id: scale
        type: f4
        valid:
          expr: _ != 0 and _ - _ == 0
        doc: Neither 0 nor infinite nor NaN.
      - id: zero_point
        type: s4
      - id: reserved
        contents: [0, 0, 0, 0]

  per_channel_affine:
    seq:
      - id: axis
        type: u4
      - id: scale_buffer_index
        type: u4
      - id: zero_point_buffer_index
        type: u4
        valid:
          expr: (_ == 0xffffffff) == (_parent.flags == 1)
        doc: 0xffffffff where the scheme is symmetric
      - id: scale_type_tag
        type: u1
        valid: 3
      - id: reserved
        contents: [0, 0, 0]

  per_block_affine:
    seq:
      - id: axis
        type: u4
      - id: block_size
        type: u4
        valid:
          expr: _ >= 2 and (_ & (_ - 1)) == 0
      - id: scale_buffer_index
        type: u4
      - id: zero_point_buffer_index
        type: u4
        valid:
          expr: (_ == 0xffffffff) == (_parent.flags == 1)
        doc: 0xffffffff where the scheme is symmetric
      - id: scale_type_tag
        type: u1
        valid:
          any-of: [1, 2, 3]
      - id: reserved
        contents: [0, 0, 0]

  blocks:
    doc: NF4 and MXFP
    params:
      - id: smallest
        type: u4
      - id: largest
        type: u4
    seq:
      - id: axis
        type: u4
      - id: block_size
        type: u4
        valid:
          expr: _ >= smallest and _ <= largest and (_ & (_ - 1)) == 0
      - id: scale_buffer_index
        type: u4

  shard:
    params:
      - id: rank
        type: u4
    seq:
      - id: parent_shape
        type: u8
        repeat: expr
        repeat-expr: rank
      - id: shard_offset
        type: u8
        repeat: expr
        repeat-expr: rank

  statistics:
    seq:
      - id: computed_mask
        type: u4
        valid:
          max: 63
      - id: reserved_mask
        contents: [0, 0, 0, 0]
      - id: nnz
        type: u8
      - id: sparsity_ratio
        type: f8
      - id: value_min
        type: f8
      - id: value_max
        type: f8
      - id: value_abs_max
        type: f8
      - id: value_mean
        type: f8
      - id: value_stddev
        type: f8
      - id: nm_n
        type: u1
      - id: nm_m
        type: u1
      - id: has_nan
        type: u1
        valid:
          expr: _ <= 1 or computed_mask & 32 == 0
      - id: has_inf
        type: u1
        valid:
          expr: _ <= 1 or computed_mask & 32 == 0
      - id: reserved
        contents: [0, 0, 0, 0]

  extension_type:
    seq:
      - id: bit_width
        type: u4
        valid:
          expr: _ >= 8 or _ == 1 or _ == 2 or _ == 4
      - id: packing_factor
        type: u1
        valid:
          expr: "_ == (bit_width >= 8 ? 1 : 8 / bit_width)"
      - id: is_float
        type: u1
        valid:
          max: 1
      - id: is_signed
        type: u1
        valid:
          max: 1
      - id: sign_bits
        type: u1
        valid:
          expr: _ == 0 or is_float == 1
      - id: exponent_bits
        type: u1
        valid:
          expr: _ == 0 or is_float == 1
      - id: mantissa_bits
        type: u1
        valid:
          expr: _ == 0 or is_float == 1
      - id: reserved_bits
        contents: [0, 0]
      - id: exponent_bias
        type: u4
        valid:
          expr: _ == 0 or is_float == 1
      - id: has_nan
        type: u1
        valid:
          expr: _ <= is_float
      - id: has_inf
        type: u1
        valid:
          expr: _ <= is_float
      - id: reserved
        contents: [0, 0]

  composite_member:
    seq:
      - id: role
        type: u1
        valid:
          max: 1
        doc: 0 correction, 1 base
      - id: reserved
        contents: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]

enums:
  element_type:
    0x01: float16
    0x02: bfloat16
    0x03: float32
    0x04: float64
    0x10: int8
    0x11: uint8
    0x12: int16
    0x13: uint16
    0x14: int32
    0x15: uint32
    0x16: int64
    0x17: uint64
    0x20: bool
    0x40: float8_e4m3
    0x41: float8_e5m2
    0x42: float8_e8m0
    0x43: float4_e2m1
    0x44: float6_e2m3
    0x45: float6_e3m2
    0x46: float128
    0x48: int4
    0x49: uint4
    0x4a: int2
    0x4b: uint2
    0x50: complex64
    0x51: complex128
    0xf0: private_f0
    0xf1: private_f1
    0xf2: private_f2
    0xf3: private_f3
    0xf4: private_f4
    0xf5: private_f5
    0xf6: private_f6
    0xf7: private_f7
    0xf8: private_f8
    0xf9: private_f9
    0xfa: private_fa
    0xfb: private_fb
    0xfc: private_fc
    0xfd: private_fd
    0xfe: private_fe
  layout:
    0x01: row_major
    0x02: column_major
    0x03: strided
    0x04: tiled
    0x05: morton
    0x06: coo
    0x07: csr
    0x08: csc
    0x09: csf
    0x0a: block_paged
    0x0b: composite
    0x40: hilbert
    0xf0: private_f0
    0xf1: private_f1
    0xf2: private_f2
    0xf3: private_f3
    0xf4: private_f4
    0xf5: private_f5
    0xf6: private_f6
    0xf7: private_f7
    0xf8: private_f8
    0xf9: private_f9
    0xfa: private_fa
    0xfb: private_fb
    0xfc: private_fc
    0xfd: private_fd
    0xfe: private_fe
  kv_kind:
    1: string
    2: i64
    3: u64
    4: f64
    5: bool
    6: bytes
    7: array

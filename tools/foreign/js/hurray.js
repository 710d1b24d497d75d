#!/usr/bin/env node
'use strict';
// Writes and reads Hurray files, streams and bare descriptors of block-paged tensors. Node.js and its standard library only:
//
//     node hurray.js write CASE OUT
//
// Commands, cases and the JSON shape are described in ../README.md. Both directions are driven by the tables below: a
// structure is a list of [field, type], in the order of the bytes, and the object that a table gives is already what
// the dump prints. A u64 or i64 is a BigInt from the first byte to the last, so nothing is ever rounded.

const fs = require('node:fs');
const readline = require('node:readline');

const ROW_MAJOR = 0x01;
const COLUMN_MAJOR = 0x02;
const BLOCK_PAGED = 0x0a;
const COMPOSITE = 0x0b;
const DYNAMIC = 2n ** 64n - 1n;
const NO_BUFFER = 0xffffffff;
const TRAILER_SIZE = 40;

const FLAG = { quantization: 1, shard: 2, extensionType: 4, statistics: 8, compositeMember: 16 };
const FILE_FLAG = { metadata: 1, sortedIndex: 2, indexCrc: 4 };

// A type is a method name of Reader and of Writer; `zeros:n` is n reserved bytes and gives no field.
const STRUCTURES = {
  header: [
    ['container_major', 'u8'], ['container_minor', 'u8'], ['', 'zeros:2'], ['file_flags', 'u32'],
    ['data_buffer_alignment', 'u32'], ['first_descriptor_offset', 'u64'], ['tensor_count_hint', 'u64'],
    ['', 'zeros:28'],
  ],
  indexEntry: [
    ['name', 'name'], ['descriptor_offset', 'u64'], ['descriptor_length', 'u32'], ['data_offset', 'u64'],
    ['data_length', 'u64'], ['flags', 'u32'],
  ],
  trailer: [
    ['index_offset', 'u64'], ['index_length', 'u64'], ['kv_offset', 'u64'], ['kv_length', 'u32'],
    ['index_crc32c', 'bits32'], ['', 'zeros:4'],
  ],
  descriptorStart: [['version_major', 'u8'], ['version_minor', 'u8'], ['descriptor_length', 'u32']],
  descriptorHead: [['flags', 'u32'], ['type_tag', 'u8'], ['layout_tag', 'u8'], ['rank', 'u32']],
  bufferHandle: [
    ['byte_size', 'u64'], ['alignment', 'u32'], ['device_tag', 'u8'], ['sync_mode', 'u8'], ['memory_class', 'u8'],
    ['', 'zeros:1'],
  ],
  blockPaged: [
    ['page_size', 'u32'], ['num_pages', 'u64'], ['paged_axis', 'u32'], ['num_seqs', 'u32'], ['kv_role', 'u8'],
    ['layer_index', 'u32'], ['block_table_index_type', 'u8'], ['', 'zeros:6'],
  ],
  composite: [['composition_rule', 'u8'], ['combine_op', 'u8'], ['', 'zeros:2'], ['member_count', 'u32']],
  scheme: [['scheme_tag', 'u8'], ['scheme_version', 'u8'], ['flags', 'u16']],
  scheme1: [['scale', 'bits32'], ['zero_point', 'i32'], ['', 'zeros:4']],
  scheme2: [
    ['axis', 'u32'], ['scale_buffer_index', 'u32'], ['zero_point_buffer_index', 'u32'], ['scale_type_tag', 'u8'],
    ['', 'zeros:3'],
  ],
  scheme3: [
    ['axis', 'u32'], ['block_size', 'u32'], ['scale_buffer_index', 'u32'], ['zero_point_buffer_index', 'u32'],
    ['scale_type_tag', 'u8'], ['', 'zeros:3'],
  ],
  scheme4: [['axis', 'u32'], ['block_size', 'u32'], ['scale_buffer_index', 'u32']],
  scheme5: [['axis', 'u32'], ['block_size', 'u32'], ['scale_buffer_index', 'u32']],
  statistics: [
    ['computed_mask', 'u32'], ['', 'zeros:4'], ['nnz', 'u64'], ['sparsity_ratio', 'bits64'], ['value_min', 'bits64'],
    ['value_max', 'bits64'], ['value_abs_max', 'bits64'], ['value_mean', 'bits64'], ['value_stddev', 'bits64'],
    ['nm_n', 'u8'], ['nm_m', 'u8'], ['has_nan', 'u8'], ['has_inf', 'u8'], ['', 'zeros:4'],
  ],
  extensionType: [
    ['bit_width', 'u32'], ['packing_factor', 'u8'], ['is_float', 'u8'], ['is_signed', 'u8'], ['sign_bits', 'u8'],
    ['exponent_bits', 'u8'], ['mantissa_bits', 'u8'], ['', 'zeros:2'], ['exponent_bias', 'u32'], ['has_nan', 'u8'],
    ['has_inf', 'u8'], ['', 'zeros:2'],
  ],
  compositeMember: [['role', 'u8'], ['', 'zeros:15']],
};

const KINDS = [null, 'string', 'i64', 'u64', 'f64', 'bool', 'bytes', 'array'];

const TYPE_BITS = new Map(Object.entries({
  1: [0x20], 2: [0x4a, 0x4b], 4: [0x43, 0x48, 0x49], 6: [0x44, 0x45], 8: [0x10, 0x11, 0x40, 0x41, 0x42],
  16: [0x01, 0x02, 0x12, 0x13], 32: [0x03, 0x14, 0x15], 64: [0x04, 0x16, 0x17, 0x50], 128: [0x46, 0x51],
}).flatMap(([bits, tags]) => tags.map((tag) => [tag, BigInt(bits)])));

const INTEGERS = new Set([0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x48, 0x49, 0x4a, 0x4b]);
const NARROW_INTEGERS = new Set([0x10, 0x11, 0x48, 0x49, 0x4a, 0x4b]);
const MXFP_STORAGE = new Set([0x10, 0x40, 0x41, 0x43, 0x44, 0x45, 0x48]);

class Refusal extends Error {
  constructor(rule, offset) {
    super(`${rule} (at byte ${offset})`);
  }
}

class Unsupported extends Error {}

// ---- CRC-32C --------------------------------------------------------------------------------------------------------

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0x82f63b78 : value >>> 1;
  return value;
});

function crc32c(bytes) {
  let crc = -1;
  for (const byte of bytes) crc = (crc >>> 8) ^ CRC_TABLE[(crc ^ byte) & 0xff];
  return ~crc >>> 0;
}

// ---- fields ---------------------------------------------------------------------------------------------------------

const hexDigits = (value, digits) => value.toString(16).padStart(digits, '0');
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

class Reader {
  constructor(buffer, start = 0, end = buffer.length) {
    this.buffer = buffer;
    this.at = start;
    this.end = end;
  }

  get empty() {
    return this.at === this.end;
  }

  must(good, rule) {
    if (!good) throw new Refusal(rule, this.at);
  }

  /** The next `length` bytes (a number or a BigInt), as a view. */
  bytes(length) {
    this.must(length <= this.end - this.at, 'the bytes end inside a field');
    const start = this.at;
    this.at += Number(length);
    return this.buffer.subarray(start, this.at);
  }

  u8() { return this.bytes(1)[0]; }

  u16() { return this.bytes(2).readUInt16LE(); }

  u32() { return this.bytes(4).readUInt32LE(); }

  i32() { return this.bytes(4).readInt32LE(); }

  u64() { return this.bytes(8).readBigUInt64LE(); }

  i64() { return this.bytes(8).readBigInt64LE(); }

  bits32() { return hexDigits(this.u32(), 8); }

  bits64() { return hexDigits(this.u64(), 16); }

  u64s(count) { return Array.from({ length: count }, () => this.u64()); }

  zeros(count) {
    this.must(this.bytes(count).every((byte) => byte === 0), 'reserved bytes are zero');
  }

  text(length) {
    try {
      return utf8.decode(this.bytes(length));
    } catch (error) {
      if (error instanceof Refusal) throw error;
      throw new Refusal('text is UTF-8', this.at);
    }
  }

  name() {
    const length = this.u16();
    this.must(length > 0, 'a name or key is not empty');
    return this.text(length);
  }

  structure(name) {
    const result = {};
    for (const [field, type] of STRUCTURES[name]) {
      const [method, count] = type.split(':');
      const value = this[method](Number(count));
      if (field) result[field] = value;
    }
    return result;
  }
}

class Writer {
  constructor() {
    this.chunks = [];
    this.length = 0;
  }

  bytes(chunk) {
    this.chunks.push(chunk);
    this.length += chunk.length;
    return this;
  }

  number(width, value) {
    const chunk = Buffer.alloc(width);
    if (width === 8) chunk.writeBigUInt64LE(BigInt.asUintN(64, BigInt(value)));
    else chunk.writeUIntLE(Number(BigInt.asUintN(width * 8, BigInt(value))), 0, width);
    return this.bytes(chunk);
  }

  u8(value) { return this.number(1, value); }

  u16(value) { return this.number(2, value); }

  u32(value) { return this.number(4, value); }

  u64(value) { return this.number(8, value); }

  bits32(digits) { return this.number(4, Number.parseInt(digits, 16)); }

  zeros(count) { return this.bytes(Buffer.alloc(count)); }

  name(text) {
    const raw = Buffer.from(text);
    return this.u16(raw.length).bytes(raw);
  }

  pad(alignment) { return this.zeros((alignment - (this.length % alignment)) % alignment); }

  structure(name, values) {
    for (const [field, type] of STRUCTURES[name]) {
      const [method, count] = type.split(':');
      this[method](field ? values[field] : Number(count));
    }
    return this;
  }

  get result() { return Buffer.concat(this.chunks); }
}

// ---- reading a descriptor -------------------------------------------------------------------------------------------

const isPrivate = (tag) => tag >= 0xf0 && tag <= 0xfe;
const isPowerOfTwo = (value) => value > 0 && Math.log2(value) % 1 === 0;
const product = (numbers) => numbers.reduce((a, b) => a * b, 1n);
const ceilDivide = (a, b) => (a + b - 1n) / b;
const byteLength = (count, bits) => (bits === 6n ? ceilDivide(count, 4n) * 3n : ceilDivide(count * bits, 8n));

function elementBits(d) {
  if (TYPE_BITS.has(d.type_tag)) return TYPE_BITS.get(d.type_tag);
  const width = BigInt(d.extension_type.bit_width);
  return width < 8n ? width : ceilDivide(width, 8n) * 8n;
}

function readBufferHandle(r) {
  const h = r.structure('bufferHandle');
  const { device_tag: device, memory_class: memory } = h;
  r.must(isPowerOfTwo(h.alignment), "a buffer's alignment is a power of two");
  r.must(h.alignment >= 64 || h.byte_size === 0n, 'a buffer that is not empty is aligned to 64 or more');
  r.must(device <= 8 || isPrivate(device), 'device_tag is known');
  r.must(h.sync_mode <= 2 && (device !== 0 || h.sync_mode === 0), 'sync_mode is known, and 0 on the CPU');
  r.must(memory <= 3 || (isPrivate(memory) && isPrivate(device)), 'memory_class is known');
  r.must(device !== 5 || ![1, 2].includes(memory), 'WebGPU has no host-pinned or unified memory');
  r.must(memory !== 3 || [1, 2, 4, 7].includes(device), 'the device has peer memory');
  return h;
}

function readLayout(r, d) {
  const tag = d.layout_tag;
  if (tag === ROW_MAJOR || tag === COLUMN_MAJOR) return {};
  if ((tag > COLUMN_MAJOR && tag < BLOCK_PAGED) || tag === 0x40 || isPrivate(tag)) {
    throw new Unsupported(`layout ${tag} is not supported here`);
  }
  r.must(tag === BLOCK_PAGED || tag === COMPOSITE, 'layout_tag is known');
  r.must(d.byte_offset === 0n, 'byte_offset of a block-paged tensor or composite head is 0');
  if (tag === BLOCK_PAGED) {
    r.must(d.rank === 3, 'a block-paged tensor has rank 3');
    r.must(!(d.flags & FLAG.shard), 'a block-paged tensor has no shard section');
    const layout = r.structure('blockPaged');
    r.must(layout.page_size >= 1, 'page_size is at least 1');
    r.must(layout.paged_axis === 0, 'paged_axis is 0');
    r.must(layout.kv_role <= 2, 'kv_role is key, value or fused');
    r.must(layout.block_table_index_type <= 1, 'block_table_index_type is 0 or 1');
    return layout;
  }
  r.must(!(d.flags & (FLAG.quantization | FLAG.compositeMember)), 'a head has no quantization or member section');
  const layout = r.structure('composite');
  const { composition_rule: rule, combine_op: op } = layout;
  r.must([1, 2, 3].includes(rule) || isPrivate(rule), 'composition_rule is known');
  r.must(rule === 2 ? op === 1 || op === 2 : op === 0, 'combine_op fits the composition rule');
  r.must(layout.member_count !== 0xffffffff, 'member_count is definite');
  return layout;
}

function readQuantization(outer, d) {
  const quantizationLength = outer.u32();
  outer.bytes(quantizationLength);
  const r = new Reader(outer.buffer, outer.at - quantizationLength, outer.at);
  const q = { quantization_length: quantizationLength, ...r.structure('scheme') };
  const tag = q.scheme_tag;
  r.must(tag >= 1 && tag <= 5, 'scheme_tag is 1 to 5');
  r.must(q.scheme_version === 1, 'scheme_version is 1');
  r.must(q.flags === 0 || (q.flags === 1 && (tag === 2 || tag === 3)), 'only schemes 2 and 3 have a flag, SYMMETRIC');
  Object.assign(q, r.structure(`scheme${tag}`));
  r.zeros(r.end - r.at); // padding
  const type = d.type_tag;
  if (tag === 1) {
    const scale = Buffer.from(q.scale, 'hex').readFloatBE();
    r.must(Number.isFinite(scale) && scale !== 0, 'scale is finite and not 0');
    r.must(INTEGERS.has(type), 'per-tensor affine has integer storage of up to 32 bits');
    const span = 2 ** Number(TYPE_BITS.get(type));
    const low = type % 2 === 0 ? -span / 2 : 0;
    r.must(q.zero_point >= low && q.zero_point < low + span, "zero_point is in the storage type's range");
    return q;
  }
  const { axis, block_size: block, scale_type_tag: scaleType } = q;
  r.must(axis < d.rank, 'the quantization axis is below rank');
  r.must(tag === 2 || isPowerOfTwo(block), 'block_size is a power of two');
  if (tag <= 3) {
    const without = q.zero_point_buffer_index === NO_BUFFER;
    r.must(without === (q.flags === 1), 'exactly a symmetric scheme has no zero points');
  }
  const fits = {
    2: () => INTEGERS.has(type) && scaleType === 0x03,
    3: () => NARROW_INTEGERS.has(type) && [1, 2, 3].includes(scaleType) && block >= 2,
    4: () => type === 0x49 && block >= 8,
    5: () => MXFP_STORAGE.has(type) && block >= 16 && block <= 2048,
  }[tag]();
  r.must(fits, 'storage type, scale type and block_size fit the scheme');
  if (tag === 5 && d.shape[axis] !== DYNAMIC) {
    const whole = d.shape[axis] > 0n && d.shape[axis] % BigInt(block) === 0n;
    r.must(whole, "shape[axis] is a positive multiple of MXFP's block_size");
  }
  if (d.layout_tag === BLOCK_PAGED) {
    const perChannel = tag === 2 && (axis === 1 || axis === 2);
    const perPageSlot = tag === 3 && axis === 0 && block === d.layout.page_size;
    r.must(perChannel || perPageSlot, 'the scheme composes with pages');
  }
  return q;
}

function readShard(r, d) {
  const shard = { parent_shape: r.u64s(d.rank), shard_offset: r.u64s(d.rank) };
  d.shape.forEach((size, k) => {
    const parent = shard.parent_shape[k];
    r.must(size !== DYNAMIC && parent !== DYNAMIC, 'a shard has no dynamic dimension');
    r.must(shard.shard_offset[k] + size <= parent, 'a shard lies inside its parent');
  });
  return shard;
}

function readStatistics(r) {
  const statistics = r.structure('statistics');
  r.must(statistics.computed_mask < 64, 'computed_mask has six bits');
  const truth = !(statistics.computed_mask & 32) || (statistics.has_nan <= 1 && statistics.has_inf <= 1);
  r.must(truth, 'has_nan and has_inf are 0 or 1 where they are computed');
  return statistics;
}

function readExtensionType(r) {
  const e = r.structure('extensionType');
  const factor = e.bit_width >= 8 ? 1 : { 1: 8, 2: 4, 4: 2 }[e.bit_width];
  r.must(factor !== undefined, 'bit_width is 1, 2, 4 or at least 8');
  r.must(e.packing_factor === factor, 'packing_factor follows from bit_width');
  const truth = ['is_float', 'is_signed', 'has_nan', 'has_inf'].every((field) => e[field] <= 1);
  r.must(truth, 'what is yes or no is 0 or 1');
  const floatFields = ['sign_bits', 'exponent_bits', 'mantissa_bits', 'exponent_bias', 'has_nan', 'has_inf'];
  r.must(e.is_float || floatFields.every((field) => e[field] === 0), 'an integer type has no float fields');
  return e;
}

function readCompositeMember(r) {
  const member = r.structure('compositeMember');
  r.must(member.role <= 1, 'a member is a correction or a base');
  return member;
}

/** The descriptor at the reader, which afterwards stands behind it. */
function readDescriptor(outer) {
  const start = outer.at;
  outer.must(outer.bytes(4).toString('latin1') === 'HRRY', 'a descriptor starts with HRRY');
  const d = outer.structure('descriptorStart');
  outer.must(d.version_major === 1, 'version_major is 1');
  outer.must(d.descriptor_length >= 20, 'descriptor_length is at least 20');
  outer.must(d.descriptor_length <= outer.end - start, 'the descriptor is there to its end');
  const r = new Reader(outer.buffer, outer.at, start + d.descriptor_length);
  outer.at = r.end;

  Object.assign(d, r.structure('descriptorHead'));
  r.must(d.flags < 32, 'flags has five bits');
  r.must(TYPE_BITS.has(d.type_tag) || isPrivate(d.type_tag), 'type_tag is known');
  const extended = (d.flags & FLAG.extensionType) !== 0;
  r.must(extended === isPrivate(d.type_tag), 'exactly a private type has the extension section');
  r.must(d.rank <= 64, 'rank is at most 64');
  d.shape = r.u64s(d.rank);
  d.byte_offset = r.u64();
  d.layout = readLayout(r, d);

  d.buffer_count = r.u8();
  r.must((d.buffer_count === 0) === (d.layout_tag === COMPOSITE), 'exactly a composite head has no buffers');
  d.buffer_handles = Array.from({ length: d.buffer_count }, () => readBufferHandle(r));
  for (const handle of d.buffer_handles) {
    for (const field of ['device_tag', 'memory_class']) {
      r.must(handle[field] === d.buffer_handles[0][field], 'all buffers are in one memory of one device');
    }
  }
  const inside = d.buffer_count === 0 || d.byte_offset <= d.buffer_handles[0].byte_size;
  r.must(inside, 'byte_offset is inside buffer 0');

  const optional = (flag, read) => (d.flags & flag ? read(r, d) : null);
  d.quantization = optional(FLAG.quantization, readQuantization);
  d.shard = optional(FLAG.shard, readShard);
  d.statistics = optional(FLAG.statistics, readStatistics);
  d.extension_type = optional(FLAG.extensionType, readExtensionType);
  d.composite_member = optional(FLAG.compositeMember, readCompositeMember);
  r.must(d.version_minor > 0 || r.empty, 'descriptor_length is what the sections take');
  if (d.layout_tag !== COMPOSITE) judgeBuffers(r, d);
  return d;
}

function parameterBuffers(q) {
  if (!q || q.scheme_tag === 1) return new Set();
  const zeros = q.zero_point_buffer_index ?? NO_BUFFER;
  return new Set(zeros === NO_BUFFER ? [q.scale_buffer_index] : [q.scale_buffer_index, zeros]);
}

function judgeBuffers(r, d) {
  const { layout, quantization: q } = d;
  const paged = d.layout_tag === BLOCK_PAGED;
  const own = paged ? 3 : 1;
  const parameters = parameterBuffers(q);
  for (const index of parameters) {
    r.must(index < d.buffer_count, "a parameter buffer's index is below buffer_count");
    r.must(index >= own, 'a parameter buffer is not a layout buffer');
  }
  const fits = d.buffer_count === own || (parameters.size > 0 && d.buffer_count > own);
  r.must(fits, 'buffer_count fits the layout and its scales');

  const needs = new Map();
  const add = (index, bytes) => needs.set(index, (needs.get(index) ?? 0n) + bytes);
  const elements = elementCount(d);
  if (elements !== null) add(0, d.byte_offset + byteLength(elements, elementBits(d)));
  if (paged) {
    const width = layout.block_table_index_type ? 8n : 4n;
    r.must(d.buffer_handles[1].byte_size % width === 0n, 'block_table holds whole page ids');
    add(2, (BigInt(layout.num_seqs) + 1n) * width);
  }
  const count = parameters.size ? parameterCount(d) : null;
  if (count !== null) {
    const scaleWidth = q.scheme_tag === 5 ? 1n : { 1: 2n, 2: 2n }[q.scale_type_tag] ?? 4n;
    add(q.scale_buffer_index, count * scaleWidth);
    const zeros = q.zero_point_buffer_index ?? NO_BUFFER;
    if (zeros !== NO_BUFFER) add(zeros, count * 4n);
  }
  for (const [index, bytes] of needs) {
    r.must(d.buffer_handles[index].byte_size >= bytes, `buffer ${index} holds what it must`);
  }
}

/** How many elements buffer 0 holds, or null where a dynamic dimension hides it. */
function elementCount({ layout_tag: layoutTag, layout, shape }) {
  const [dimensions, slots] = layoutTag === BLOCK_PAGED
    ? [shape.slice(1), layout.num_pages * BigInt(layout.page_size)]
    : [shape, 1n];
  return dimensions.includes(DYNAMIC) ? null : slots * product(dimensions);
}

/** How many scales there are, or null where a dynamic dimension hides it. */
function parameterCount({ layout_tag: layoutTag, layout, shape, quantization: q }) {
  if (layoutTag === BLOCK_PAGED && q.scheme_tag === 3) return layout.num_pages * BigInt(layout.page_size);
  if (q.scheme_tag === 2) return shape[q.axis] === DYNAMIC ? null : shape[q.axis];
  if (shape.includes(DYNAMIC)) return null;
  return product(shape.map((size, k) => (k === q.axis ? ceilDivide(size, BigInt(q.block_size)) : size)));
}

// ---- reading tensors ------------------------------------------------------------------------------------------------

/** What the bytes in the buffers must be. */
function judgePayload({ descriptor: d, buffers, offset }) {
  const must = (good, rule) => { if (!good) throw new Refusal(rule, offset); };
  if (d.layout_tag === COMPOSITE) return;
  if (d.layout_tag === BLOCK_PAGED) judgeIndices(d, buffers, must);
  const elements = elementCount(d);
  const bits = elementBits(d);
  if (bits < 8n && elements !== null) {
    const [perGroup, groupBytes] = bits === 6n ? [4n, 3] : [8n / bits, 1];
    const start = Number(d.byte_offset) + Number(elements / perGroup) * groupBytes;
    const used = (elements % perGroup) * bits;
    const group = used === 0n ? 0 : buffers[0].readUIntLE(start, groupBytes);
    must(group >> Number(used) === 0, 'the unused bits behind the last packed element are zero');
  }
  if (d.quantization?.scheme_tag === 5 && parameterCount(d) !== null) {
    const scales = buffers[d.quantization.scale_buffer_index].subarray(0, Number(parameterCount(d)));
    must(!scales.includes(0x00) && !scales.includes(0xff), 'no MXFP scale is 0x00 or 0xFF');
  }
}

/** The invariants of block_table and seq_ptr. */
function judgeIndices(d, buffers, must) {
  const width = d.layout.block_table_index_type ? 8 : 4;
  const indices = (raw, count) => {
    const r = new Reader(raw);
    return Array.from({ length: count }, () => (width === 8 ? r.u64() : BigInt(r.u32())));
  };
  const table = indices(buffers[1], buffers[1].length / width);
  const pointers = indices(buffers[2], d.layout.num_seqs + 1);
  must(pointers[0] === 0n, 'seq_ptr starts with 0');
  must(pointers.every((pointer, s) => s === 0 || pointer >= pointers[s - 1]), 'seq_ptr never decreases');
  must(pointers.at(-1) === BigInt(table.length), 'seq_ptr ends with the length of block_table');
  must(table.every((page) => page < d.layout.num_pages), 'every page id is below num_pages');
}

/** Binds members to composite heads, in write order. */
function judgeComposites(tensors) {
  const must = (good, rule, tensor) => { if (!good) throw new Refusal(rule, tensor.offset); };
  const sameShape = (a, b) => a.length === b.length && a.every((size, k) => size === b[k]);
  let next = 0;

  const member = (head, rule, first, tensor) => {
    const { composite_member: section, shard, shape, layout_tag: tag, type_tag: type } = tensor.descriptor;
    must(rule === 2 || !section, 'only overlay members carry a member section', tensor);
    if (rule !== 1 && rule !== 2) return;
    const sameExtension = json(tensor.descriptor.extension_type) === json(head.extension_type);
    must(type === head.type_tag && sameExtension, 'a member has the element type of its partition or overlay', tensor);
    const ofHead = shard !== null && sameShape(shard.parent_shape, head.shape);
    must(ofHead, 'partition and overlay members are shards of the head', tensor);
    if (rule === 1) return;
    must(section || tag === COMPOSITE, 'overlay members carry a member section', tensor);
    must(!section || (section.role === 1) === first, 'the first overlay member alone is the base', tensor);
    must(!first || sameShape(shape, head.shape), 'the base spans the head', tensor);
  };

  const partition = (head, members, tensor) => {
    const filled = members.filter(({ shape }) => !shape.includes(0n));
    const apart = (a, b) => a.shape.some((_, k) => {
      const [low, other] = [a.shard.shard_offset[k], b.shard.shard_offset[k]];
      return low >= other + b.shape[k] || other >= low + a.shape[k];
    });
    filled.forEach((a, i) => must(filled.slice(0, i).every((b) => apart(a, b)), 'members do not overlap', tensor));
    const covered = filled.reduce((sum, { shape }) => sum + product(shape), 0n);
    must(covered === product(head.shape), 'the members of a partition cover the head', tensor);
  };

  const tree = (depth) => {
    const tensor = tensors[next];
    const head = tensor.descriptor;
    next += 1;
    if (head.layout_tag !== COMPOSITE) return;
    must(depth <= 8, 'composites nest at most 8 deep', tensor);
    const { composition_rule: rule, member_count: count } = head.layout;
    must(rule !== 2 || count > 0, 'an overlay has a base', tensor);
    const members = [];
    for (let i = 0; i < count; i += 1) {
      must(next < tensors.length, 'a composite has all its members', tensor);
      member(head, rule, i === 0, tensors[next]);
      members.push(tensors[next].descriptor);
      tree(depth + 1);
    }
    if (rule === 1) partition(head, members, tensor);
  };

  while (next < tensors.length) {
    must(!tensors[next].descriptor.composite_member, 'only overlay members carry a member section', tensors[next]);
    tree(1);
  }
}

/** The descriptor that is all of the input. */
function readBareDescriptor(buffer) {
  const r = new Reader(buffer);
  const descriptor = readDescriptor(r);
  r.must(r.empty, 'nothing follows the descriptor');
  return { form: 'descriptor', descriptor };
}

function readStream(buffer) {
  const r = new Reader(buffer);
  const tensors = [];
  while (!r.empty) {
    const offset = r.at;
    const descriptor = readDescriptor(r);
    const buffers = descriptor.buffer_handles.map((handle) => r.bytes(handle.byte_size));
    tensors.push({ descriptor, buffers, offset });
    judgePayload(tensors.at(-1));
  }
  judgeComposites(tensors);
  return { form: 'stream', tensors };
}

// ---- reading a file -------------------------------------------------------------------------------------------------

function readValue(r, tag) {
  switch (KINDS[tag]) {
    case 'string': return r.text(r.u32());
    case 'i64': return r.i64();
    case 'u64': return r.u64();
    case 'f64': return r.bits64();
    case 'bool': {
      const byte = r.u8();
      r.must(byte <= 1, 'a bool is 0 or 1');
      return byte === 1;
    }
    case 'bytes': return r.bytes(r.u32()).toString('hex');
    default: throw new Refusal("a value's tag is known", r.at);
  }
}

function readMetadata(r) {
  const entries = new Map();
  const start = r.at;
  let unsealed = start;
  for (let left = r.u32(); left > 0; left -= 1) {
    unsealed = r.at;
    const key = r.name();
    r.must(!entries.has(key), 'metadata keys are unique');
    const tag = r.u8();
    if (KINDS[tag] === 'array') {
      const elementTag = r.u8();
      const count = r.u32();
      r.must(elementTag >= 1 && elementTag <= 6, "an array's element tag is 1 to 6");
      const value = [];
      for (let i = 0; i < count; i += 1) value.push(readValue(r, elementTag));
      entries.set(key, { key, kind: 'array', element_kind: KINDS[elementTag], value });
    } else {
      entries.set(key, { key, kind: KINDS[tag], value: readValue(r, tag) });
    }
  }
  r.must(r.empty, 'kv_length is what the entries take');
  const last = [...entries.values()].at(-1);
  if (last?.key === 'hurray_wire.metadata_crc32c' && last.kind === 'u64') { // it is for all that stands before it
    const crc = crc32c(r.buffer.subarray(start, unsealed));
    r.must(last.value === BigInt(crc), 'the checksum of the metadata is the one recorded');
  }
  return [...entries.values()];
}

function readIndex(r, sorted) {
  const entries = [];
  const seen = new Set();
  for (let left = r.u64(); left > 0n; left -= 1n) {
    const entry = r.structure('indexEntry');
    r.must(!seen.has(entry.name), 'tensor names are unique');
    seen.add(entry.name);
    r.must(entry.flags === 0, "an index entry's flags are 0");
    const last = entries.at(-1);
    if (last && sorted) {
      // By bytes: JavaScript's own order of strings is that of UTF-16.
      r.must(Buffer.compare(Buffer.from(last.name), Buffer.from(entry.name)) < 0, 'the index is sorted by name');
    } else if (last) {
      r.must(last.descriptor_offset < entry.descriptor_offset, 'the index is in write order');
    }
    entries.push(entry);
  }
  r.must(r.empty, 'index_length is what the entries take');
  return entries;
}

class FileReader {
  constructor(buffer) {
    this.buffer = buffer;
    this.limit = buffer.length - TRAILER_SIZE;
    this.taken = [];
  }

  /** Notes what takes a part of the file, and how many bytes of padding may follow it. */
  take(start, end, slack) {
    this.taken.push({ start, end, slack });
  }

  /** A section that trailer or index place: start and length are BigInts. */
  section(start, length, alignment, rule) {
    const fits = start >= 64n && start % alignment === 0n && start + length <= BigInt(this.limit);
    if (!fits) throw new Refusal(rule, this.limit);
    return new Reader(this.buffer, Number(start), Number(start + length));
  }

  padding(start, end) {
    if (this.buffer.subarray(start, end).some((byte) => byte !== 0)) throw new Refusal('padding is zero', start);
  }

  read() {
    const header = this.header();
    const trailer = this.trailer();
    const must = (good, rule, offset) => { if (!good) throw new Refusal(rule, offset); };
    let metadata = null;
    const both = (trailer.kv_offset === 0n) === (trailer.kv_length === 0);
    must(both, 'kv_offset and kv_length are both 0 or both not', this.limit);
    if (trailer.kv_offset) {
      const rule = 'the KV section is before the trailer, at a multiple of 8';
      const kv = this.section(trailer.kv_offset, BigInt(trailer.kv_length), 8n, rule);
      this.take(kv.at, kv.end, 7);
      metadata = readMetadata(kv);
    } else {
      must(!(header.file_flags & FILE_FLAG.metadata), 'HAS_KV_METADATA needs a KV section', this.limit);
    }
    const rule = 'the index is before the trailer, at a multiple of 8';
    const r = this.section(trailer.index_offset, trailer.index_length, 8n, rule);
    this.take(r.at, r.end, 7);
    const crc = header.file_flags & FILE_FLAG.indexCrc ? crc32c(this.buffer.subarray(r.at, r.end)) : 0;
    r.must(hexDigits(crc, 8) === trailer.index_crc32c, 'index_crc32c is that of the index, or 0 without its flag');
    const index = readIndex(r, (header.file_flags & FILE_FLAG.sortedIndex) !== 0);

    const ordered = index.toSorted?.(byOffset) ?? [...index].sort(byOffset);
    const rightStart = ordered.length === 0 || ordered[0].descriptor_offset === header.first_descriptor_offset;
    must(rightStart, 'the first descriptor is at first_descriptor_offset', 20);
    let reached = 64;
    const tensors = ordered.map((entry) => {
      const tensor = this.tensor(entry, BigInt(header.data_buffer_alignment));
      must(tensor.offset >= reached, 'tensors follow one another', tensor.offset);
      reached = tensor.end;
      return tensor;
    });
    judgeComposites(tensors);
    const first = Number(header.first_descriptor_offset);
    if (tensors.length === 0) {
      const right = this.taken.every(({ start }) => start >= first);
      must(right, 'first_descriptor_offset is not beyond what comes first', 20);
    }
    this.take(0, 64, first - 64 + (tensors.length ? 0 : 7));
    this.take(this.limit, this.buffer.length, 0);
    this.judgeExtents();
    this.judgeChecksums(metadata, tensors);
    return { form: 'file', header, kv_metadata: metadata, index, trailer, tensors };
  }

  header() {
    const r = new Reader(this.buffer);
    r.must(r.bytes(8).toString('latin1') === 'HRRYFILE', 'a file starts with HRRYFILE');
    const header = r.structure('header');
    r.must(header.container_major === 1, "the container's major version is 1");
    r.must(header.file_flags < 8, 'file_flags has three bits');
    const alignment = header.data_buffer_alignment;
    const allowed = isPowerOfTwo(alignment) && alignment >= 4096 && alignment <= 2097152;
    r.must(allowed, 'data_buffer_alignment is a power of two, 4096 to 2097152');
    const first = header.first_descriptor_offset;
    r.must(first >= 64n && first % 8n === 0n, 'the first descriptor is at a multiple of 8');
    return header;
  }

  trailer() {
    if (this.limit < 64) throw new Refusal('a file has room for its trailer', this.buffer.length);
    const r = new Reader(this.buffer, this.limit);
    const ending = this.buffer.subarray(-4).toString('latin1');
    r.must(ending === 'HRRY', 'a file ends with HRRY');
    return r.structure('trailer');
  }

  tensor(entry, alignment) {
    const rule = 'a descriptor is before the trailer, at a multiple of 8';
    const r = this.section(entry.descriptor_offset, BigInt(entry.descriptor_length), 8n, rule);
    this.take(r.at, r.end, Number(alignment) - 1);
    const tensor = { name: entry.name, offset: r.at, end: r.end, buffers: [] };
    tensor.descriptor = readDescriptor(r);
    r.must(r.empty, "the index tells the descriptor's length");
    if (tensor.descriptor.layout_tag === COMPOSITE) {
      r.must(entry.data_length === 0n, 'a composite head has no data');
      return tensor;
    }
    const aligned = (offset) => ceilDivide(offset, alignment) * alignment;
    let at = entry.data_offset;
    r.must(at === aligned(BigInt(r.end)), 'data is at the next multiple of data_buffer_alignment');
    const region = this.section(at, entry.data_length, 1n, 'data is before the trailer');
    if (!region.empty) this.take(region.at, region.end, 7);
    for (const handle of tensor.descriptor.buffer_handles) {
      const buffer = this.section(aligned(at), handle.byte_size, alignment, 'a buffer is before the trailer');
      this.padding(Number(at), buffer.at);
      tensor.buffers.push(this.buffer.subarray(buffer.at, buffer.end));
      at = BigInt(buffer.end);
    }
    r.must(at - entry.data_offset === entry.data_length, 'data_length spans the buffers');
    tensor.end = Math.max(tensor.end, Number(at));
    judgePayload(tensor);
    return tensor;
  }

  /** Every byte belongs to one thing, or is one of few enough zeros between two things. */
  judgeExtents() {
    const taken = this.taken.sort((a, b) => a.start - b.start || a.end - b.end);
    taken.slice(1).forEach(({ start }, i) => {
      const { end, slack } = taken[i];
      if (start < end) throw new Refusal('no two things take the same byte', start);
      if (start - end > slack) throw new Refusal('no hole is between two things', end);
      this.padding(end, start);
    });
  }

  judgeChecksums(metadata, tensors) {
    const entry = metadata?.find(({ key }) => key === 'hurray_wire.crc32c');
    if (!entry) return;
    if (entry.element_kind !== 'u64') throw new Refusal('hurray_wire.crc32c is an array of u64', 0);
    const actual = tensors.flatMap(({ offset, descriptor, buffers }) => {
      const encoded = this.buffer.subarray(offset, offset + descriptor.descriptor_length);
      return [encoded, ...buffers].map((piece) => ({ crc: BigInt(crc32c(piece)), offset }));
    });
    if (actual.length !== entry.value.length) throw new Refusal('there is one checksum for everything', 0);
    actual.forEach(({ crc, offset }, i) => {
      if (crc !== entry.value[i]) throw new Refusal('the checksums are those recorded', offset);
    });
  }
}

function byOffset(a, b) {
  return a.descriptor_offset < b.descriptor_offset ? -1 : Number(a.descriptor_offset > b.descriptor_offset);
}

const FORMS = { '--stream': readStream, '--descriptor': readBareDescriptor };

const readFile = (buffer) => new FileReader(buffer).read();

/** A document with its buffers told by size and checksum. */
function shaped(document) {
  const buffer = (raw) => ({ size: raw.length, crc32c: hexDigits(crc32c(raw), 8) });
  const tensors = document.tensors?.map((tensor) => (
    { name: tensor.name, descriptor: tensor.descriptor, buffers: tensor.buffers.map(buffer) }));
  return { ...document, tensors };
}

function json(document) {
  return JSON.stringify(document, (_, value) => {
    if (typeof value !== 'bigint') return value;
    return value >= -Number.MAX_SAFE_INTEGER && value <= Number.MAX_SAFE_INTEGER ? Number(value) : String(value);
  });
}

// ---- writing --------------------------------------------------------------------------------------------------------

const packed = (width, numbers) => numbers.reduce((w, value) => w.number(width, value), new Writer()).result;
const range = (count, formula) => Array.from({ length: count }, (_, i) => formula(i));

const WORKED_EXAMPLE = {
  name: 'layers.3.key',
  type_tag: 0x01,
  shape: [9, 2, 8],
  paged: { page_size: 4, num_pages: 5, num_seqs: 2, kv_role: 0, layer_index: 3, block_table_index_type: 0 },
  buffers: [packed(2, range(320, (i) => 0x3c00 + i)), packed(4, [0, 1, 0]), packed(4, [0, 2, 3])],
};

const EMPTY_BATCH = {
  name: 'empty',
  type_tag: 0x03,
  shape: [0, 2, 8],
  paged: {
    page_size: 16, num_pages: 0, num_seqs: 0, kv_role: 1, layer_index: 0xffffffff, block_table_index_type: 1,
  },
  buffers: [Buffer.alloc(0), Buffer.alloc(0), packed(8, [0])],
};

const INT8_PAGE_SLOT = {
  name: 'cache',
  type_tag: 0x10,
  shape: [9, 2, 8],
  paged: { ...WORKED_EXAMPLE.paged, kv_role: 2, layer_index: 0xffffffff },
  quantization: {
    scheme_tag: 3, scheme_version: 1, flags: 0, axis: 0, block_size: 4, scale_buffer_index: 3,
    zero_point_buffer_index: 4, scale_type_tag: 0x01,
  },
  buffers: [
    packed(1, range(320, (i) => 7 * i + 3)),
    ...WORKED_EXAMPLE.buffers.slice(1),
    packed(2, range(20, (slot) => 0x3000 + 8 * slot)),
    packed(4, range(20, (slot) => slot - 10)),
  ],
};

const MULTI_LAYERS = [0, 1].flatMap((layer) => ['key', 'value'].map((roleName, role) => ({
  name: `layers.${layer}.${roleName}`,
  type_tag: 0x02,
  shape: [17, 2, 4],
  paged: { page_size: 4, num_pages: 6, num_seqs: 3, kv_role: role, layer_index: layer, block_table_index_type: 1 },
  buffers: [
    packed(2, range(192, (i) => i * 2477 + layer * 641 + role * 97)),
    packed(8, [3, 1, 4, 3, 5]),
    packed(8, [0, 3, 5, 5]),
  ],
})));

const flat = (name, typeTag, length, data) => ({ name, type_tag: typeTag, shape: [length], buffers: [data] });
const SEQ_LENS = flat('seq_lens', 0x15, 3, packed(4, [10, 7, 0]));

const MULTI_METADATA = [
  ['hurray_wire.snapshot', 'i64', 1],
  ['producer', 'string', 'foreign'],
  ['model.id', 'string', 'llama-β'],
  ['n', 'i64', -7],
  ['u', 'u64', DYNAMIC],
  ['f', 'f64', 0.1],
  ['b', 'bool', true],
  ['raw', 'bytes', Buffer.from([0x00, 0xff, 0x01])],
  ['arr', 'array', ['string', ['a', '']]],
  ['ints', 'array', ['i64', [-1, 2]]],
];

function writeValue(w, kind, value) {
  switch (kind) {
    case 'string': return w.u32(Buffer.byteLength(value)).bytes(Buffer.from(value));
    case 'i64':
    case 'u64': return w.u64(value);
    case 'f64': {
      const raw = Buffer.alloc(8);
      raw.writeDoubleLE(value);
      return w.bytes(raw);
    }
    case 'bool': return w.u8(value ? 1 : 0);
    case 'bytes': return w.u32(value.length).bytes(value);
    default: {
      const [elementKind, elements] = value;
      w.u8(KINDS.indexOf(elementKind)).u32(elements.length);
      return elements.reduce((to, element) => writeValue(to, elementKind, element), w);
    }
  }
}

function encodeMetadata(entries) {
  const w = new Writer().u32(entries.length);
  for (const [key, kind, value] of entries) writeValue(w.name(key).u8(KINDS.indexOf(kind)), kind, value);
  return w.result;
}

function encodeDescriptor(draft) {
  const w = new Writer();
  const layoutTag = draft.paged ? BLOCK_PAGED : draft.composite ? COMPOSITE : ROW_MAJOR;
  const flags = draft.quantization ? FLAG.quantization : 0;
  w.structure('descriptorHead', { flags, type_tag: draft.type_tag, layout_tag: layoutTag, rank: draft.shape.length });
  draft.shape.forEach((size) => w.u64(size));
  w.u64(0);
  if (draft.paged) w.structure('blockPaged', { ...draft.paged, paged_axis: 0 });
  if (draft.composite) w.structure('composite', draft.composite);
  w.u8(draft.buffers.length);
  for (const { length } of draft.buffers) {
    w.structure('bufferHandle', { byte_size: length, alignment: 64, device_tag: 0, sync_mode: 0, memory_class: 0 });
  }
  if (draft.quantization) {
    const scheme = new Writer().structure('scheme', draft.quantization);
    scheme.structure(`scheme${draft.quantization.scheme_tag}`, draft.quantization).pad(4);
    w.u32(scheme.length).bytes(scheme.result);
  }
  const start = { version_major: 1, version_minor: 0, descriptor_length: w.length + 10 };
  return new Writer().bytes(Buffer.from('HRRY')).structure('descriptorStart', start).bytes(w.result).result;
}

function encodeFile(drafts, options = {}) {
  const { flags = FILE_FLAG.indexCrc, alignment = 4096, hint = DYNAMIC, metadata = [], checksums = false } = options;
  const w = new Writer().bytes(Buffer.from('HRRYFILE')).structure('header', {
    container_major: 1,
    container_minor: 0,
    file_flags: flags,
    data_buffer_alignment: alignment,
    first_descriptor_offset: 64n,
    tensor_count_hint: hint,
  });
  const recorded = [];
  const entries = drafts.map((draft) => {
    const descriptor = encodeDescriptor(draft);
    const entry = { name: draft.name, descriptor_offset: w.pad(8).length, descriptor_length: descriptor.length };
    w.bytes(descriptor);
    for (const buffer of draft.buffers) {
      entry.data_offset ??= w.pad(alignment).length;
      w.pad(alignment).bytes(buffer);
    }
    recorded.push(...[descriptor, ...draft.buffers].map(crc32c));
    return { ...entry, data_length: w.length - entry.data_offset, flags: 0 };
  });
  const all = checksums ? [...metadata, ['hurray_wire.crc32c', 'array', ['u64', recorded]]] : metadata;
  const kv = all.length ? encodeMetadata(all) : Buffer.alloc(0);
  const kvOffset = all.length ? w.pad(8).length : 0;
  w.bytes(kv);
  if (flags & FILE_FLAG.sortedIndex) entries.sort((a, b) => Buffer.compare(Buffer.from(a.name), Buffer.from(b.name)));
  const index = new Writer().u64(entries.length);
  entries.forEach((entry) => index.structure('indexEntry', entry));
  const indexOffset = w.pad(8).length;
  const crc = flags & FILE_FLAG.indexCrc ? crc32c(index.result) : 0;
  return w.bytes(index.result).structure('trailer', {
    index_offset: indexOffset,
    index_length: index.length,
    kv_offset: kvOffset,
    kv_length: kv.length,
    index_crc32c: hexDigits(crc, 8),
  }).bytes(Buffer.from('HRRY')).result;
}

function encodeStream(drafts) {
  return Buffer.concat(drafts.flatMap((draft) => [encodeDescriptor(draft), ...draft.buffers]));
}

function groupStream() {
  const kv = encodeMetadata(MULTI_METADATA);
  const members = [flat('', 0x11, kv.length, kv), SEQ_LENS, ...MULTI_LAYERS];
  const composite = { composition_rule: 3, combine_op: 0, member_count: members.length };
  return encodeStream([{ type_tag: 0x11, shape: [], composite, buffers: [] }, ...members]);
}

const CASES = {
  spec_example: () => encodeFile([WORKED_EXAMPLE]),
  multi: () => encodeFile([...MULTI_LAYERS, SEQ_LENS], {
    flags: FILE_FLAG.metadata | FILE_FLAG.indexCrc, metadata: MULTI_METADATA, checksums: true,
  }),
  empty_batch: () => encodeFile([EMPTY_BATCH], { flags: 0, hint: 1n }),
  int8_page_slot: () => encodeFile([INT8_PAGE_SLOT]),
  unflagged_metadata: () => encodeFile([WORKED_EXAMPLE, flat('bytes', 0x11, 5, Buffer.from([1, 2, 3, 4, 5]))], {
    flags: FILE_FLAG.sortedIndex | FILE_FLAG.indexCrc,
    alignment: 8192,
    metadata: [['producer', 'string', 'foreign'], ['tensor_count', 'i64', 2]],
  }),
  stream: () => encodeStream([WORKED_EXAMPLE, EMPTY_BATCH]),
  group_stream: groupStream,
};

// ---- commands -------------------------------------------------------------------------------------------------------

function dump(path, read) {
  try {
    console.log(json(shaped(read(fs.readFileSync(path)))));
    return 0;
  } catch (error) {
    if (!(error instanceof Refusal || error instanceof Unsupported || error.syscall)) throw error;
    console.error(`${path}: ${error.message}`);
    if (!(error instanceof Unsupported)) return 1;
    console.log('"unsupported"');
    return 3;
  }
}

function verdict(path, read) {
  try {
    read(fs.readFileSync(path));
    return 'ok';
  } catch (error) {
    if (error instanceof Unsupported) return 'unsupported';
    if (error instanceof Refusal || error.syscall) return `refused: ${error.message}`;
    throw error;
  }
}

async function check(read) {
  for await (const path of readline.createInterface({ input: process.stdin })) console.log(verdict(path, read));
  return 0;
}

function cuts(path, read) {
  const whole = fs.readFileSync(path);
  const accepted = [];
  for (let size = 0; size <= whole.length; size += 1) {
    try {
      read(whole.subarray(0, size));
      accepted.push(size);
    } catch (error) {
      if (!(error instanceof Refusal || error instanceof Unsupported)) throw error;
    }
  }
  console.log(JSON.stringify(accepted));
  return 0;
}

function writeCase(name, path) {
  if (!Object.hasOwn(CASES, name)) {
    console.error(`there is no case named ${name}`);
    return 2;
  }
  fs.writeFileSync(path, CASES[name]());
  return 0;
}

async function main([command, ...rest]) {
  const read = FORMS[rest[0]] ?? readFile;
  const paths = read === readFile ? rest : rest.slice(1);
  if (command === 'write' && rest.length === 2) return writeCase(...rest);
  if (command === 'check' && paths.length === 0) return check(read);
  const each = { dump, cuts }[command];
  if (!each || paths.length === 0) {
    console.error('usage: hurray.js write CASE OUT | dump [FORM] FILE... | check [FORM] | cuts [FORM] FILE...');
    console.error('FORM is --stream or --descriptor; otherwise inputs are files');
    return 2;
  }
  // Up to the first that fails, and with its status.
  return paths.reduce((status, path) => status || each(path, read), 0);
}

main(process.argv.slice(2)).then((status) => { process.exitCode = status; });

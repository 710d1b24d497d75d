#!/usr/bin/env python3
"""A second opinion on Hurray bytes: slow, obvious, and written to disagree with the library.

This file uses the standard library only, imports nothing of the project, and shares no code with it. It decodes tensor
descriptors, container files and streams, and raises `Refused` with the words of the first broken rule and the byte
offset where it stands. It favours one plain loop over every cleverness: expected values of tests come from here. (It
is long because it must stand alone; everything in it is read top to bottom: cursor, descriptor, file, stream, values,
dump.)

    python tools/plain_decoder.py FILE                 a container file
    python tools/plain_decoder.py --stream FILE        a stream
    python tools/plain_decoder.py --descriptor FILE    one bare descriptor

prints one JSON document, the shape every reader under ``tools/foreign`` prints too:

* Fields carry the names of the specification and the numbers of the wire, uninterpreted: ``type_tag`` 1, ``kv_role`` 0,
  ``layer_index`` 4294967295 when there is no layer. Reserved bytes and magics are checked and left out.
* An integer is a JSON integer if its magnitude is below 2^53, otherwise a string of decimal digits.
* A floating-point field is a string with the hexadecimal digits of its bits, most significant first: 8 for f32, 16 for
  f64. Opaque bytes are lower-case hexadecimal. A CRC-32C is 8 hexadecimal digits. An absent section is null.

``{"form": "file", "header": H, "kv_metadata": K, "index": [...], "trailer": T, "tensors": [...]}``
    H is container_major, container_minor, file_flags, data_buffer_alignment, first_descriptor_offset,
    tensor_count_hint. K is null without a KV section, else a list in file order of ``{"key", "kind", "value"}``;
    kind is string, i64, u64, f64, bool, bytes or array, and an array also has "element_kind". ``index`` holds, in
    index order, name, descriptor_offset, descriptor_length, data_offset, data_length, flags. T is index_offset,
    index_length, kv_offset, kv_length, index_crc32c. ``tensors`` holds, in ascending descriptor offset,
    ``{"name", "descriptor", "buffers"}``.
``{"form": "stream", "tensors": [{"descriptor", "buffers"}, ...]}``
``{"form": "descriptor", "descriptor": D}``

``buffers`` is a list of ``{"size", "crc32c"}``. D is version_major, version_minor, descriptor_length, flags, type_tag,
layout_tag, rank, shape, byte_offset, layout, buffer_count, buffer_handles (each byte_size, alignment, device_tag,
sync_mode, memory_class), quantization, shard, statistics, extension_type, composite_member. ``layout`` is an object of
the layout's own fields in the specification's words (tiled: outer_strides, inner_strides and ``inner``, the nested
level, are null where absent); ``quantization`` starts with quantization_length, scheme_tag, scheme_version, flags.
"""

from __future__ import annotations

import argparse
import json
import math
import struct
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

Json = dict[str, Any]

DYNAMIC = 2**64 - 1
NO_BUFFER = 0xFFFFFFFF

# type_tag: (name, bits)
TYPES = {
    0x01: ("float16", 16),
    0x02: ("bfloat16", 16),
    0x03: ("float32", 32),
    0x04: ("float64", 64),
    0x10: ("int8", 8),
    0x11: ("uint8", 8),
    0x12: ("int16", 16),
    0x13: ("uint16", 16),
    0x14: ("int32", 32),
    0x15: ("uint32", 32),
    0x16: ("int64", 64),
    0x17: ("uint64", 64),
    0x20: ("bool", 1),
    0x40: ("float8_e4m3", 8),
    0x41: ("float8_e5m2", 8),
    0x42: ("float8_e8m0", 8),
    0x43: ("float4_e2m1", 4),
    0x44: ("float6_e2m3", 6),
    0x45: ("float6_e3m2", 6),
    0x46: ("float128", 128),
    0x48: ("int4", 4),
    0x49: ("uint4", 4),
    0x4A: ("int2", 2),
    0x4B: ("uint2", 2),
    0x50: ("complex64", 64),
    0x51: ("complex128", 128),
}

ROW_MAJOR, COLUMN_MAJOR, STRIDED, TILED, MORTON = 1, 2, 3, 4, 5
COO, CSR, CSC, CSF, BLOCK_PAGED, COMPOSITE, HILBERT = 6, 7, 8, 9, 10, 11, 0x40
KIND_NAMES = {1: "string", 2: "i64", 3: "u64", 4: "f64", 5: "bool", 6: "bytes", 7: "array"}


class Refused(Exception):  # noqa: N818 - the word a reader of the report wants
    """The bytes break a rule: ``rule`` says which in words, ``offset`` is where (in the input that was given)."""

    def __init__(self, rule: str, offset: int) -> None:
        super().__init__(f"{rule} (at byte {offset})")
        self.rule = rule
        self.offset = offset


class Cursor:
    """Reads little-endian fields from ``data[at:end]`` and refuses to step past ``end``."""

    def __init__(self, data: bytes, at: int, end: int, what: str) -> None:
        self.data, self.at, self.end, self.what = data, at, end, what

    def take(self, count: int) -> bytes:
        if count > self.end - self.at:
            raise Refused(f"the {self.what} ends inside a field", self.at)
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def u8(self) -> int:
        return int(self.number("B"))

    def u16(self) -> int:
        return int(self.number("H"))

    def u32(self) -> int:
        return int(self.number("I"))

    def u64(self) -> int:
        return int(self.number("Q"))

    def many(self, code: str, count: int) -> list[int]:
        return [int(self.number(code)) for _ in range(count)]

    def bits32(self) -> str:
        return f"{self.u32():08x}"

    def bits64(self) -> str:
        return f"{self.u64():016x}"

    def zeros(self, count: int) -> None:
        at = self.at
        if any(self.take(count)):
            raise Refused("reserved bytes are zero", at)

    def must(self, good: bool, rule: str) -> None:
        if not good:
            raise Refused(rule, self.at)


# ---- checksum -------------------------------------------------------------------------------------------------------


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ 0x82F63B78 if value & 1 else value >> 1
        table.append(value)
    return table


_CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of ``data``, a byte at a time."""
    value = 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ _CRC_TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


# ---- sizes ----------------------------------------------------------------------------------------------------------


def storage_bits(descriptor: Json) -> int:
    """Bits from one stored element to the next. A private type of 8 bits or more takes whole bytes."""
    if descriptor["type_tag"] in TYPES:
        return TYPES[descriptor["type_tag"]][1]
    width = int(descriptor["extension_type"]["bit_width"])
    return width if width < 8 else (width + 7) // 8 * 8


def byte_length(count: int, bits: int) -> int:
    """Bytes of a buffer of ``count`` elements; 6-bit elements come in groups of four to three bytes."""
    if bits == 6:
        return (count + 3) // 4 * 3
    return (count * bits + 7) // 8


def product(numbers: Sequence[int]) -> int:
    return math.prod(numbers)


# ---- descriptor -----------------------------------------------------------------------------------------------------


def decode_descriptor(data: bytes, permissive: bool = False) -> Json:
    """The descriptor that is exactly ``data``, as a dict in the shape of the dump."""
    descriptor = _descriptor(data, 0, len(data), permissive)
    if descriptor["descriptor_length"] != len(data):
        raise Refused("nothing follows the descriptor", descriptor["descriptor_length"])
    return descriptor


def _descriptor(data: bytes, start: int, limit: int, permissive: bool) -> Json:
    c = Cursor(data, start, limit, "input")
    d: Json = {}
    c.must(c.take(4) == b"HRRY", "a descriptor starts with HRRY")
    d["version_major"], d["version_minor"] = c.u8(), c.u8()
    c.must(d["version_major"] == 1, "version_major is 1")
    d["descriptor_length"] = c.u32()
    c.must(d["descriptor_length"] >= 20, "descriptor_length is at least 20")
    c.must(start + d["descriptor_length"] <= limit, "the input ends before the descriptor does")
    c = Cursor(data, c.at, start + d["descriptor_length"], "descriptor")
    flags = d["flags"] = c.u32()
    c.must(flags < 32, "only flag bits 0 to 4 are known")
    d["type_tag"], d["layout_tag"], d["rank"] = c.u8(), c.u8(), c.u32()
    private_type = 0xF0 <= d["type_tag"] <= 0xFE
    c.must(d["type_tag"] in TYPES or private_type, "the type_tag is one of the 26 element types or private")
    c.must(bool(flags & 4) == private_type, "the extension type flag is set if and only if the type is private")
    c.must(d["rank"] <= 64, "rank is at most 64")
    d["shape"] = c.many("Q", d["rank"])
    d["byte_offset"] = c.u64()
    known = d["layout_tag"] in LAYOUT_PARSERS or 0xF0 <= d["layout_tag"] <= 0xFE
    if not known:
        c.must(permissive, "the layout_tag is a known one")
        d["layout"] = None
        d["opaque"] = data[start : c.end].hex()
        return d
    d["layout"] = LAYOUT_PARSERS.get(d["layout_tag"], _private_layout)(c, d)
    indirect = d["layout_tag"] in (COO, CSR, CSC, CSF, BLOCK_PAGED, COMPOSITE)
    c.must(not indirect or d["byte_offset"] == 0, "byte_offset is 0 for sparse, block-paged and composite layouts")

    d["buffer_count"] = c.u8()
    if d["layout_tag"] == COMPOSITE:
        c.must(d["buffer_count"] == 0, "a composite head has no buffer")
    else:
        c.must(d["buffer_count"] >= 1, "buffer_count is at least 1")
    d["buffer_handles"] = [_handle(c) for _ in range(d["buffer_count"])]
    for name in ("device_tag", "memory_class"):
        c.must(len({handle[name] for handle in d["buffer_handles"]}) <= 1, f"all buffer handles share one {name}")
    if d["buffer_handles"]:
        fits = d["byte_offset"] <= d["buffer_handles"][0]["byte_size"]
        c.must(fits, "byte_offset is at most the size of buffer 0")

    for name in ("quantization", "shard", "statistics", "extension_type", "composite_member"):
        d[name] = None
    if flags & 1:
        d["quantization"] = _quantization(c, d)
    if flags & 2:
        d["shard"] = _shard(c, d)
    if flags & 8:
        d["statistics"] = _statistics(c)
    if flags & 4:
        d["extension_type"] = _extension_type(c)
    if flags & 16:
        c.must(d["layout_tag"] != COMPOSITE, "a composite head has no composite member section")
        d["composite_member"] = {"role": c.u8()}
        c.must(d["composite_member"]["role"] <= 1, "role is 0 (correction) or 1 (base)")
        c.zeros(15)
    if d["version_minor"] == 0:
        c.must(c.at == c.end, "descriptor_length equals what the sections take")
    _check_buffers(c, d)
    return d


def _handle(c: Cursor) -> Json:
    h: Json = {"byte_size": c.u64(), "alignment": c.u32(), "device_tag": c.u8()}
    h["sync_mode"], h["memory_class"] = c.u8(), c.u8()
    c.zeros(1)
    device, memory = h["device_tag"], h["memory_class"]
    power = h["alignment"] > 0 and h["alignment"] & (h["alignment"] - 1) == 0
    c.must(power, "alignment is a power of two")
    c.must(h["alignment"] >= 64 or h["byte_size"] == 0, "alignment is at least 64 unless the buffer is empty")
    private_device = 0xF0 <= device <= 0xFE
    c.must(device <= 8 or private_device, "device_tag is 0..8 or private")
    c.must(h["sync_mode"] <= 2, "sync_mode is 0, 1 or 2")
    c.must(device != 0 or h["sync_mode"] == 0, "a CPU buffer is producer-synced")
    private_memory = 0xF0 <= memory <= 0xFE
    c.must(memory <= 3 or private_memory, "memory_class is 0..3 or private")
    c.must(not private_memory or private_device, "a private memory_class needs a private device")
    c.must(memory not in (1, 2) or device != 5, "WebGPU has neither host-pinned nor unified memory")
    c.must(memory != 3 or device in (1, 2, 4, 7), "peer memory is for CUDA, ROCm, Vulkan and Level Zero")
    return h


# ---- layouts: each parser reads the fields after byte_offset and checks what needs no buffer ------------------------


def _plain_layout(c: Cursor, d: Json) -> Json:
    return {}


def _strided(c: Cursor, d: Json) -> Json:
    return {"strides": c.many("q", d["rank"])}


def _tiled(c: Cursor, d: Json) -> Json:
    c.must(d["rank"] > 0, "a tiled tensor has rank 1 or more")
    return _tiled_level(c, d["rank"], 1)


def _tiled_level(c: Cursor, rank: int, level: int) -> Json:
    c.must(level <= 8, "tiles nest at most 8 levels deep")
    t: Json = {"tile_shape": c.many("Q", rank), "outer_layout": c.u8(), "inner_layout": c.u8()}
    c.must(0 not in t["tile_shape"], "every tile dimension is above 0")
    c.must(t["outer_layout"] in (1, 2, 3), "outer_layout is 1, 2 or 3")
    c.must(t["inner_layout"] in (1, 2, 3, 4), "inner_layout is 1, 2, 3 or 4")
    c.zeros(2)
    t["outer_strides"] = c.many("q", rank) if t["outer_layout"] == STRIDED else None
    t["inner_strides"] = c.many("q", rank) if t["inner_layout"] == STRIDED else None
    t["inner"] = _tiled_level(c, rank, level + 1) if t["inner_layout"] == TILED else None
    return t


def _morton(c: Cursor, d: Json) -> Json:
    bits = c.many("I", d["rank"])
    c.must(0 not in bits and sum(bits) <= 64, "every morton_bits is above 0, and together they are at most 64")
    for size, width in zip(d["shape"], bits, strict=True):
        c.must(size == DYNAMIC or size <= 1 << width, "shape[k] is at most 2^morton_bits[k]")
    return {"morton_bits": bits}


def _coo(c: Cursor, d: Json) -> Json:
    c.must(d["rank"] > 0, "a COO tensor has rank 1 or more")
    layout = {"nnz": c.u64(), "is_sorted": c.u8()}
    c.must(layout["is_sorted"] <= 1, "is_sorted is 0 or 1")
    c.zeros(7)
    return layout


def _compressed(c: Cursor, d: Json) -> Json:
    c.must(d["rank"] == 2, "a CSR or CSC tensor has rank 2")
    layout = {"nnz": c.u64()}
    c.zeros(8)
    return layout


def _csf(c: Cursor, d: Json) -> Json:
    c.must(d["rank"] >= 3, "a CSF tensor has rank 3 or more")
    c.must(not d["flags"] & 2, "a CSF tensor has no shard section")
    layout: Json = {"nnz": c.u64(), "mode_order": c.many("I", d["rank"])}
    c.must(sorted(layout["mode_order"]) == list(range(d["rank"])), "mode_order is a permutation of the dimensions")
    c.zeros(8)
    return layout


def _block_paged(c: Cursor, d: Json) -> Json:
    c.must(d["rank"] == 3, "a block-paged tensor has rank 3")
    c.must(not d["flags"] & 2, "a block-paged tensor has no shard section")
    p: Json = {"page_size": c.u32(), "num_pages": c.u64(), "paged_axis": c.u32(), "num_seqs": c.u32()}
    c.must(p["page_size"] >= 1, "page_size is at least 1")
    c.must(p["paged_axis"] == 0, "paged_axis is 0")
    p["kv_role"] = c.u8()
    c.must(p["kv_role"] <= 2, "kv_role is 0, 1 or 2")
    p["layer_index"], p["block_table_index_type"] = c.u32(), c.u8()
    c.must(p["block_table_index_type"] <= 1, "block_table_index_type is 0 or 1")
    c.zeros(6)
    return p


def _composite(c: Cursor, d: Json) -> Json:
    c.must(not d["flags"] & 1, "a composite head has no quantization")
    layout: Json = {"composition_rule": c.u8(), "combine_op": c.u8()}
    rule, combine = layout["composition_rule"], layout["combine_op"]
    c.must(rule in (1, 2, 3) or 0xF0 <= rule <= 0xFE, "composition_rule is 1, 2, 3 or private")
    if rule == 2:
        c.must(combine in (1, 2), "an overlay's combine_op is 1 or 2")
    else:
        c.must(combine == 0, "combine_op is 0 unless the rule is overlay")
    c.zeros(2)
    layout["member_count"] = c.u32()
    c.must(layout["member_count"] != 0xFFFFFFFF, "member_count is a definite number")
    return layout


def _hilbert(c: Cursor, d: Json) -> Json:
    layout = {"hilbert_order": c.u32(), "hilbert_rank": c.u32()}
    order = layout["hilbert_order"]
    c.must(order > 0, "hilbert_order is above 0")
    c.must(layout["hilbert_rank"] == d["rank"] and d["rank"] >= 2, "hilbert_rank is the rank, 2 or more")
    c.must(order * d["rank"] <= 64, "hilbert_order * hilbert_rank is at most 64")
    cube = 0 in d["shape"] or all(size == 1 << order for size in d["shape"])
    c.must(cube, "every dimension is 2^hilbert_order, unless the tensor is empty")
    return layout


def _private_layout(c: Cursor, d: Json) -> Json:
    layout: Json = {"extension_layout_id": c.u64(), "extension_data_length": c.u32()}
    layout["extension_data"] = c.take(layout["extension_data_length"]).hex()
    return layout


LAYOUT_PARSERS = {
    ROW_MAJOR: _plain_layout,
    COLUMN_MAJOR: _plain_layout,
    STRIDED: _strided,
    TILED: _tiled,
    MORTON: _morton,
    COO: _coo,
    CSR: _compressed,
    CSC: _compressed,
    CSF: _csf,
    BLOCK_PAGED: _block_paged,
    COMPOSITE: _composite,
    HILBERT: _hilbert,
}


# ---- sections -------------------------------------------------------------------------------------------------------


INTEGER_RANGES = {0x10: (8, True), 0x11: (8, False), 0x12: (16, True), 0x13: (16, False), 0x14: (32, True)}
INTEGER_RANGES |= {0x15: (32, False), 0x48: (4, True), 0x49: (4, False), 0x4A: (2, True), 0x4B: (2, False)}
NARROW_INTEGERS = {0x10, 0x11, 0x48, 0x49, 0x4A, 0x4B}
MXFP_STORAGE = {0x40, 0x41, 0x43, 0x44, 0x45, 0x10, 0x48}


def _quantization(c: Cursor, d: Json) -> Json:
    length = c.u32()
    c.must(length <= c.end - c.at, "quantization_length stays inside the descriptor")
    q = Cursor(c.data, c.at, c.at + length, "quantization section")
    c.at += length
    fields = {"quantization_length": length} | _scheme(q, d)
    q.zeros(q.end - q.at)  # padding
    return fields


def _scheme(q: Cursor, d: Json) -> Json:
    fields: Json = {"scheme_tag": q.u8(), "scheme_version": q.u8(), "flags": q.u16()}
    tag, flags, storage = fields["scheme_tag"], fields["flags"], d["type_tag"]
    q.must(1 <= tag <= 5, "the scheme_tag is 1 to 5")
    q.must(fields["scheme_version"] == 1, "scheme_version is 1")
    q.must(flags <= (1 if tag in (2, 3) else 0), "only SYMMETRIC is a flag, and only of schemes 2 and 3")
    if tag == 1:
        q.must(storage in INTEGER_RANGES, "per-tensor affine needs an integer storage type of up to 32 bits")
        fields["scale"] = q.bits32()
        scale = struct.unpack(">f", bytes.fromhex(fields["scale"]))[0]
        q.must(math.isfinite(scale) and scale != 0, "scale is finite and not 0")
        fields["zero_point"] = int(q.number("i"))
        bits, signed = INTEGER_RANGES[storage]
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        q.must(low <= fields["zero_point"] <= high, "zero_point is in the storage type's range")
        q.zeros(4)
        return fields
    fields["axis"] = q.u32()
    q.must(fields["axis"] < d["rank"], "axis is below rank")
    if tag > 2:
        fields["block_size"] = q.u32()
    fields["scale_buffer_index"] = q.u32()
    if tag in (2, 3):
        fields["zero_point_buffer_index"] = q.u32()
        none = fields["zero_point_buffer_index"] == NO_BUFFER
        q.must(none == bool(flags), "zero_point_buffer_index is 0xFFFFFFFF if and only if symmetric")
        fields["scale_type_tag"] = q.u8()
        q.zeros(3)
    if tag == 2:
        q.must(storage in INTEGER_RANGES, "per-channel affine needs an integer storage type of up to 32 bits")
        q.must(fields["scale_type_tag"] == 0x03, "a per-channel scale is float32")
    elif tag == 3:
        q.must(storage in NARROW_INTEGERS, "per-block affine needs an integer storage type of up to 8 bits")
        q.must(fields["scale_type_tag"] in (1, 2, 3), "a per-block scale is float16, bfloat16 or float32")
        _power(q, fields, 2, 2**32)
    elif tag == 4:
        q.must(storage == 0x49, "NF4 is stored as uint4")
        _power(q, fields, 8, 2**32)
    else:
        q.must(storage in MXFP_STORAGE, "MXFP is stored as fp8, fp6, fp4, int8 or int4")
        _power(q, fields, 16, 2048)
        size = d["shape"][fields["axis"]]
        whole = size == DYNAMIC or (size > 0 and size % fields["block_size"] == 0)
        q.must(whole, "shape[axis] is a positive multiple of the MXFP block_size")
    if d["layout_tag"] == BLOCK_PAGED:
        axis, page_size = fields["axis"], d["layout"]["page_size"]
        if tag == 2:
            q.must(axis in (1, 2), "per-channel affine on a block-paged tensor is on axis 1 or 2")
        else:
            q.must(tag == 3, "a block-paged tensor takes the affine schemes only")
            q.must(axis == 0, "per-block affine on a block-paged tensor is on axis 0")
            q.must(fields["block_size"] == page_size, "block_size equals page_size")
    return fields


def _power(q: Cursor, fields: Json, low: int, high: int) -> None:
    size = fields["block_size"]
    q.must(low <= size <= high and size & (size - 1) == 0, f"block_size is a power of two, {low} or more")


def _shard(c: Cursor, d: Json) -> Json:
    s = {"parent_shape": c.many("Q", d["rank"]), "shard_offset": c.many("Q", d["rank"])}
    for size, parent, offset in zip(d["shape"], s["parent_shape"], s["shard_offset"], strict=True):
        c.must(DYNAMIC not in (size, parent), "a shard has no dynamic dimension")
        c.must(offset + size <= parent, "a shard lies inside its parent")
    return s


def _statistics(c: Cursor) -> Json:
    s: Json = {"computed_mask": c.u32()}
    c.must(s["computed_mask"] < 64, "only bits 0 to 5 of computed_mask are known")
    c.zeros(4)
    s["nnz"] = c.u64()
    for name in ("sparsity_ratio", "value_min", "value_max", "value_abs_max", "value_mean", "value_stddev"):
        s[name] = c.bits64()
    for name in ("nm_n", "nm_m", "has_nan", "has_inf"):
        s[name] = c.u8()
    truth = not s["computed_mask"] & 32 or (s["has_nan"] <= 1 and s["has_inf"] <= 1)
    c.must(truth, "has_nan and has_inf are 0 or 1 where they are computed")
    c.zeros(4)
    return s


def _extension_type(c: Cursor) -> Json:
    e: Json = {"bit_width": c.u32(), "packing_factor": c.u8()}
    width = e["bit_width"]
    c.must(width > 0, "bit_width is above 0")
    c.must(width >= 8 or width in (1, 2, 4), "a private type narrower than a byte has 1, 2 or 4 bits")
    factor = 1 if width >= 8 else 8 // width
    c.must(e["packing_factor"] == factor, "packing_factor follows from bit_width")
    for name in ("is_float", "is_signed", "sign_bits", "exponent_bits", "mantissa_bits"):
        e[name] = c.u8()
    c.zeros(2)
    e["exponent_bias"], e["has_nan"], e["has_inf"] = c.u32(), c.u8(), c.u8()
    c.zeros(2)
    truth = all(e[name] <= 1 for name in ("is_float", "is_signed", "has_nan", "has_inf"))
    c.must(truth, "is_float, is_signed, has_nan and has_inf are 0 or 1")
    float_fields = ("sign_bits", "exponent_bits", "mantissa_bits", "exponent_bias", "has_nan", "has_inf")
    zero = all(e[name] == 0 for name in float_fields)
    c.must(bool(e["is_float"]) or zero, "the float fields of an integer type are zero")
    return e


# ---- what the buffers must hold -------------------------------------------------------------------------------------


def _check_buffers(c: Cursor, d: Json) -> None:
    """Buffer count, and that no handle is smaller than its layout needs. Larger is padding, and fine."""
    tag, layout = d["layout_tag"], d["layout"]
    if tag == COMPOSITE:
        return
    sizes = [handle["byte_size"] for handle in d["buffer_handles"]]
    layout_buffers = {COO: 2, CSR: 3, CSC: 3, CSF: 2 * d["rank"] + 1, BLOCK_PAGED: 3}.get(tag, 1)
    quantization = d["quantization"]
    parameters = set()
    if quantization and quantization["scheme_tag"] != 1:
        parameters.add(quantization["scale_buffer_index"])
        if quantization.get("zero_point_buffer_index", NO_BUFFER) != NO_BUFFER:
            parameters.add(quantization["zero_point_buffer_index"])
    c.must(all(index < len(sizes) for index in parameters), "a parameter buffer's index is below buffer_count")
    c.must(all(index >= layout_buffers for index in parameters), "a parameter buffer is not a layout buffer")
    if tag >= 0xF0 or parameters:
        c.must(len(sizes) >= layout_buffers, "buffer_count covers the layout's buffers")
    else:
        c.must(len(sizes) == layout_buffers, "buffer_count is that of the layout")

    for index, (name, need) in enumerate(_needed_bytes(c, d)):
        c.must(need is None or sizes[index] >= need, f"the {name} buffer holds what the layout needs")
    if tag == BLOCK_PAGED:
        width = 8 if layout["block_table_index_type"] else 4
        c.must(sizes[1] % width == 0, "block_table holds whole page ids")
    if tag == CSF:
        c.must(all(size % 8 == 0 for size in sizes[1:layout_buffers]), "pos and crd buffers hold whole entries")
    if parameters and quantization:
        count = _parameter_count(d)
        if count is not None:
            scale, zero = quantization["scale_buffer_index"], quantization.get("zero_point_buffer_index", NO_BUFFER)
            width = {1: 2, 2: 2, 3: 4}[quantization.get("scale_type_tag", 3)]
            width = 1 if quantization["scheme_tag"] == 5 else width
            need = count * width + (count * 4 if zero == scale else 0)
            c.must(sizes[scale] >= need, "the scale buffer holds every scale")
            if zero not in (NO_BUFFER, scale):
                c.must(sizes[zero] >= count * 4, "the zero point buffer holds every zero point")


def _parameter_count(d: Json) -> int | None:
    q, shape = d["quantization"], d["shape"]
    if d["layout_tag"] == BLOCK_PAGED and q["scheme_tag"] == 3:
        return int(d["layout"]["num_pages"] * d["layout"]["page_size"])
    axis = q["axis"]
    if q["scheme_tag"] == 2:
        return None if shape[axis] == DYNAMIC else int(shape[axis])
    if DYNAMIC in shape:
        return None
    blocks = -(-shape[axis] // q["block_size"])
    return int(blocks * product(shape[:axis] + shape[axis + 1 :]))


def _needed_bytes(c: Cursor, d: Json) -> list[tuple[str, int | None]]:
    """Name and least size of every layout buffer; None where a dynamic dimension hides the size."""
    tag, layout, shape, bits = d["layout_tag"], d["layout"], d["shape"], storage_bits(d)
    if tag == COO:
        nnz = layout["nnz"]
        return [("values", byte_length(nnz, bits)), ("indices", nnz * d["rank"] * 8)]
    if tag in (CSR, CSC):
        nnz, outer = layout["nnz"], shape[0 if tag == CSR else 1]
        pointers = None if outer == DYNAMIC else (outer + 1) * 8
        return [("values", byte_length(nnz, bits)), ("index", nnz * 8), ("pointer", pointers)]
    if tag == CSF:
        needs: list[tuple[str, int | None]] = [("values", byte_length(layout["nnz"], bits))]
        for level in range(d["rank"]):
            needs.append((f"pos_{level}", 16 if level == 0 else 8))
            needs.append((f"crd_{level}", layout["nnz"] * 8 if level == d["rank"] - 1 else 0))
        return needs
    if tag == BLOCK_PAGED:
        width = 8 if layout["block_table_index_type"] else 4
        slots = layout["num_pages"] * layout["page_size"]
        pool = None if DYNAMIC in shape[1:] else byte_length(slots * shape[1] * shape[2], bits)
        return [("page_pool", pool), ("block_table", 0), ("seq_ptr", (layout["num_seqs"] + 1) * width)]
    if tag >= 0xF0 or DYNAMIC in shape:
        return [("data", None)]
    if 0 in shape:
        return [("data", d["byte_offset"])]
    low, high = _reach(d)
    before = -(low * bits // 8) if low < 0 else 0
    c.must(before <= d["byte_offset"], "every element lies inside buffer 0")
    return [("data", d["byte_offset"] + byte_length(high + 1, bits))]


def _reach(d: Json) -> tuple[int, int]:
    """The lowest and highest element position a dense layout reaches, relative to byte_offset."""
    tag, layout, shape = d["layout_tag"], d["layout"], d["shape"]
    if tag == STRIDED:
        return _affine_reach(shape, layout["strides"])
    if tag == TILED:
        return _tiled_reach(shape, layout)
    if tag == MORTON:
        return 0, (1 << sum(layout["morton_bits"])) - 1
    if tag == HILBERT:
        return 0, (1 << layout["hilbert_order"] * layout["hilbert_rank"]) - 1
    return 0, product(shape) - 1


def _affine_reach(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    steps = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)


def _tiled_reach(shape: Sequence[int], t: Json) -> tuple[int, int]:
    tile = t["tile_shape"]
    grid = [-(-size // edge) for size, edge in zip(shape, tile, strict=True)]
    low, high = 0, product(grid) - 1
    if t["outer_layout"] == STRIDED:
        low, high = _affine_reach(grid, t["outer_strides"])
    inner_low, inner_high = 0, product(tile) - 1
    if t["inner_layout"] == STRIDED:
        inner_low, inner_high = _affine_reach(tile, t["inner_strides"])
    elif t["inner_layout"] == TILED:
        inner_low, inner_high = _tiled_reach(tile, t["inner"])
    size = _tile_size(t)
    return low * size + inner_low, high * size + inner_high


def _tile_size(t: Json) -> int:
    """Elements from one tile to the next: where tiles are tiled again, inner tiles at the edge are stored whole."""
    if not t["inner"]:
        return product(t["tile_shape"])
    grid = [-(-edge // inner) for edge, inner in zip(t["tile_shape"], t["inner"]["tile_shape"], strict=True)]
    return product(grid) * _tile_size(t["inner"])


# ---- rules that need the payload, and rules across tensors ----------------------------------------------------------


def _check_payload(d: Json, buffers: Sequence[bytes], offset: int, verify: bool) -> None:
    """What the bytes in buffers must be. ``offset`` is where the tensor's descriptor starts.

    The invariants of block_table and seq_ptr always; what nobody needs to look at before using a tensor, on ``verify``.
    """
    if d["layout_tag"] == BLOCK_PAGED:
        block_table, seq_ptr = paged_indices(d, buffers)
        for good, rule in (
            (seq_ptr[0] == 0, "seq_ptr starts with 0"),
            (all(a <= b for a, b in pairwise(seq_ptr)), "seq_ptr never decreases"),
            (seq_ptr[-1] == len(block_table), "seq_ptr ends with the length of block_table"),
            (all(page < d["layout"]["num_pages"] for page in block_table), "every page id is below num_pages"),
        ):
            if not good:
                raise Refused(rule, offset)
    if not verify or d["layout_tag"] >= 0xF0:
        return
    if d["layout_tag"] in (COO, CSR, CSC, CSF):
        try:
            sparse_entries(d, buffers)
        except Refused as refused:
            raise Refused(refused.rule, offset) from refused
    _check_tail_bits(d, buffers, offset)
    quantization = d["quantization"]
    if quantization and quantization["scheme_tag"] == 5:
        count = _parameter_count(d)
        scales = buffers[quantization["scale_buffer_index"]][: count or 0]
        if 0x00 in scales or 0xFF in scales:
            raise Refused("no MXFP scale is 0x00 or 0xFF", offset)


def _check_tail_bits(d: Json, buffers: Sequence[bytes], offset: int) -> None:
    """The bits after the last packed element, up to the end of its byte or of its group of 6-bit elements, are zero."""
    tag, layout, bits = d["layout_tag"], d["layout"], storage_bits(d)
    if tag in (COO, CSR, CSC, CSF):
        count = layout["nnz"]
    elif bits >= 8 or tag in (COMPOSITE, STRIDED) or DYNAMIC in d["shape"]:
        return
    elif tag == BLOCK_PAGED:
        count = layout["num_pages"] * layout["page_size"] * d["shape"][1] * d["shape"][2]
    else:
        count = 0 if 0 in d["shape"] else _reach(d)[1] + 1
    last = buffers[0][d["byte_offset"] :][: byte_length(count, bits)]
    if int.from_bytes(last, "little") >> count * bits:
        raise Refused("the unused bits after the last packed element are zero", offset)


def _check_composites(tensors: Sequence[tuple[Json, int]]) -> None:
    """Binds members to heads in write order; ``tensors`` is (descriptor, offset of the descriptor)."""
    at = 0
    while at < len(tensors):
        descriptor, offset = tensors[at]
        if descriptor.get("composite_member"):
            raise Refused("only overlay members carry a composite member section", offset)
        at = _check_tree(tensors, at, 1)


def _check_tree(tensors: Sequence[tuple[Json, int]], at: int, depth: int) -> int:
    """The position after the tensor at ``at`` and, if it is a head, all its members."""
    head, offset = tensors[at]
    at += 1
    if head["layout_tag"] != COMPOSITE:
        return at
    if depth > 8:
        raise Refused("composites nest at most 8 deep", offset)
    rule, members = head["layout"]["composition_rule"], []
    for number in range(head["layout"]["member_count"]):
        if at >= len(tensors):
            raise Refused("a composite has all the members it promises", offset)
        _check_member(head, rule, number, tensors[at])
        members.append(tensors[at][0])
        at = _check_tree(tensors, at, depth + 1)
    if rule == 2 and not members:
        raise Refused("an overlay has a base", offset)
    if rule == 1:
        boxes = [
            [(low, low + size) for low, size in zip(m["shard"]["shard_offset"], m["shape"], strict=True)]
            for m in members
        ]
        boxes = [box for box in boxes if all(low < high for low, high in box)]
        for i, box in enumerate(boxes):
            for other in boxes[:i]:
                if all(a < d and c < b for (a, b), (c, d) in zip(box, other, strict=True)):
                    raise Refused("the members of a partition do not overlap", offset)
        if sum(product([high - low for low, high in box]) for box in boxes) != product(head["shape"]):
            raise Refused("the members of a partition cover the head", offset)
    return at


def _check_member(head: Json, rule: int, number: int, member: tuple[Json, int]) -> None:
    d, offset = member
    section = d.get("composite_member")
    if rule != 2 and section:
        raise Refused("only overlay members carry a composite member section", offset)
    if rule in (1, 2):
        if any(d.get(field) != head.get(field) for field in ("type_tag", "extension_type")):
            raise Refused("a partition or overlay member has the head's element type", offset)
        if not d.get("shard"):
            raise Refused("a partition or overlay member carries a shard section", offset)
        if d["shard"]["parent_shape"] != head["shape"]:
            raise Refused("a member's parent_shape is the head's shape", offset)
    if rule == 2:
        if not section and d["layout_tag"] != COMPOSITE:
            raise Refused("an overlay member carries a composite member section", offset)
        if section and section["role"] != (1 if number == 0 else 0):
            raise Refused("the first overlay member, and no other, is the base", offset)
        if number == 0 and d["shape"] != head["shape"]:
            raise Refused("the base of an overlay spans the head", offset)


# ---- file -----------------------------------------------------------------------------------------------------------


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def decode_file(data: bytes, permissive: bool = False, verify: bool = True) -> Json:
    """A container file. Each tensor's ``buffers`` is a list of bytes; `dump` turns the result into the JSON shape.

    ``verify`` also checks the checksums in metadata where the file has them, and payload that a reader need not look
    at: sparse indices, unused bits behind packed elements, MXFP scales.
    """
    data = bytes(data)
    header = _file_header(data)
    trailer = _trailer(data, header)
    limit = len(data) - 40
    metadata = None
    extents: list[Extent] = [(0, 64, "header", 0), (limit, len(data), "trailer", 0)]
    if bool(trailer["kv_offset"]) != bool(trailer["kv_length"]):
        raise Refused("kv_offset and kv_length are both 0 or both not", limit + 16)
    if trailer["kv_offset"]:
        start, end = trailer["kv_offset"], trailer["kv_offset"] + trailer["kv_length"]
        if start % 8 or start < 64 or end > limit:
            raise Refused("the KV section starts at a multiple of 8 and lies before the trailer", limit + 16)
        metadata = _metadata(data, start, end)
        extents.append((start, end, "KV section", 7))
    elif header["file_flags"] & 1:
        raise Refused("HAS_KV_METADATA needs a KV section", limit + 16)
    index = _index(data, trailer["index_offset"], trailer["index_length"], bool(header["file_flags"] & 2))
    extents.append((trailer["index_offset"], trailer["index_offset"] + trailer["index_length"], "index", 7))

    tensors: list[Json] = []
    ordered = sorted(index, key=lambda entry: int(entry["descriptor_offset"]))
    if ordered and ordered[0]["descriptor_offset"] != header["first_descriptor_offset"]:
        raise Refused("the first descriptor is at first_descriptor_offset", 20)
    reached = 64
    for entry in ordered:
        tensor, spans = _file_tensor(data, entry, header["data_buffer_alignment"], limit, permissive, verify)
        if entry["descriptor_offset"] < reached:
            raise Refused("tensors do not overlap", entry["descriptor_offset"])
        tensors.append(tensor)
        extents += spans
        reached = max(span[1] for span in spans)
    _check_composites([(t["descriptor"], e["descriptor_offset"]) for t, e in zip(tensors, ordered, strict=True)])
    _check_extents(data, extents, header["first_descriptor_offset"], bool(ordered))
    if verify and metadata is not None:
        _check_seal(data, trailer, metadata)
        _check_recorded_checksums(data, metadata, ordered, tensors)
    return {
        "form": "file",
        "header": header,
        "kv_metadata": metadata,
        "index": index,
        "trailer": trailer,
        "tensors": tensors,
    }


def _file_header(data: bytes) -> Json:
    c = Cursor(data, 0, len(data), "file")
    c.must(c.take(8) == b"HRRYFILE", "a file starts with HRRYFILE")
    h: Json = {"container_major": c.u8(), "container_minor": c.u8()}
    c.must(h["container_major"] == 1, "the container's major version is 1")
    c.zeros(2)
    h["file_flags"] = c.u32()
    c.must(h["file_flags"] < 8, "only file flag bits 0 to 2 are known")
    alignment = h["data_buffer_alignment"] = c.u32()
    good = 4096 <= alignment <= 2097152 and alignment & (alignment - 1) == 0
    c.must(good, "data_buffer_alignment is a power of two, 4096..2097152")
    h["first_descriptor_offset"] = c.u64()
    good = h["first_descriptor_offset"] >= 64 and h["first_descriptor_offset"] % 8 == 0
    c.must(good, "first_descriptor_offset is a multiple of 8, 64 or more")
    h["tensor_count_hint"] = c.u64()
    c.zeros(28)
    return h


def _trailer(data: bytes, header: Json) -> Json:
    limit = len(data) - 40
    if limit < 64:
        raise Refused("a file has room for header and trailer", len(data))
    if data[-4:] != b"HRRY":
        raise Refused("a file ends with HRRY", len(data) - 4)
    c = Cursor(data, limit, len(data), "trailer")
    t: Json = {"index_offset": c.u64(), "index_length": c.u64(), "kv_offset": c.u64(), "kv_length": c.u32()}
    recorded = c.u32()
    t["index_crc32c"] = f"{recorded:08x}"
    c.zeros(4)
    start, length = t["index_offset"], t["index_length"]
    c.must(start + length <= limit, "the index lies before the trailer")
    c.must(start >= 64 and start % 8 == 0, "the index starts at a multiple of 8, after the header")
    if header["file_flags"] & 4:
        c.must(crc32c(data[start : start + length]) == recorded, "index_crc32c is the CRC-32C of the index")
    else:
        c.must(recorded == 0, "index_crc32c is 0 without its flag")
    return t


def _index(data: bytes, start: int, length: int, sorted_index: bool) -> list[Json]:
    c = Cursor(data, start, start + length, "index")
    entries: list[Json] = []
    seen: set[bytes] = set()
    previous: Any = None
    for _ in range(c.u64()):
        at, name = c.at, c.take(c.u16())
        text = _utf8(name, at, "a tensor's name")
        if name in seen:
            raise Refused("tensor names are unique", at)
        seen.add(name)
        entry: Json = {"name": text, "descriptor_offset": c.u64(), "descriptor_length": c.u32()}
        entry |= {"data_offset": c.u64(), "data_length": c.u64(), "flags": c.u32()}
        c.must(entry["flags"] == 0, "an index entry's flags are 0")
        order = name if sorted_index else entry["descriptor_offset"]
        good = previous is None or previous < order
        c.must(good, "the index is sorted by name" if sorted_index else "the index is in write order")
        previous = order
        entries.append(entry)
    c.must(c.at == c.end, "index_length is what the entries take")
    return entries


def _utf8(raw: bytes, at: int, what: str) -> str:
    if not raw:
        raise Refused(f"{what} is not empty", at)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused(f"{what} is UTF-8", at) from None


def _metadata(data: bytes, start: int, end: int) -> list[Json]:
    c = Cursor(data, start, end, "KV section")
    entries: list[Json] = []
    seen: set[str] = set()
    for _ in range(c.u32()):
        at = c.at
        key = _utf8(c.take(c.u16()), at, "a key")
        if key in seen:
            raise Refused("metadata keys are unique", at)
        seen.add(key)
        tag = c.u8()
        c.must(1 <= tag <= 7, "a value_tag is 1 to 7")
        entry: Json = {"key": key, "kind": KIND_NAMES[tag]}
        if tag == 7:
            element = c.u8()
            c.must(1 <= element <= 6, "an array's element tag is 1 to 6")
            entry["element_kind"] = KIND_NAMES[element]
            entry["value"] = [_value(c, element) for _ in range(c.u32())]
        else:
            entry["value"] = _value(c, tag)
        entries.append(entry)
    c.must(c.at == c.end, "kv_length is what the entries take")
    return entries


def _value(c: Cursor, tag: int) -> Any:
    if tag == 1:
        at, raw = c.at, c.take(c.u32())
        return _utf8(raw, at, "a string value") if raw else ""
    if tag == 2:
        return int(c.number("q"))
    if tag == 3:
        return c.u64()
    if tag == 4:
        return c.bits64()
    if tag == 5:
        byte = c.u8()
        c.must(byte <= 1, "a bool is 0 or 1")
        return bool(byte)
    return c.take(c.u32()).hex()


Extent = tuple[int, int, str, int]  # start, end, what it is, and how many bytes of padding may follow it


def _file_tensor(
    data: bytes, entry: Json, alignment: int, limit: int, permissive: bool, verify: bool
) -> tuple[Json, list[Extent]]:
    """One tensor and what it takes of the file: its descriptor, and its data with the padding between buffers."""
    start, name = entry["descriptor_offset"], entry["name"]
    if start % 8 or start < 64 or start + entry["descriptor_length"] > limit:
        raise Refused("a descriptor starts at a multiple of 8 and lies before the trailer", min(start, limit))
    d = _descriptor(data, start, start + entry["descriptor_length"], permissive)
    if d["descriptor_length"] != entry["descriptor_length"]:
        raise Refused("the index tells the descriptor's own descriptor_length", start + 6)
    end = start + d["descriptor_length"]
    extents: list[Extent] = [(start, end, f"descriptor of {name!r}", alignment - 1)]
    at: int = entry["data_offset"]
    buffers: list[bytes] = []
    if d["layout_tag"] == COMPOSITE:
        if entry["data_length"] != 0:
            raise Refused("a composite head has no data", start)
        return {"name": name, "descriptor": d, "buffers": buffers}, extents
    if at != _align(end, alignment) or at + entry["data_length"] > limit:
        raise Refused("data starts at the next multiple of data_buffer_alignment and lies before the trailer", start)
    data_end = at + entry["data_length"]
    if at < data_end:
        extents.append((at, data_end, f"data of {name!r}", 7))
    if d["layout"] is None:  # permissive: the region is known, the buffers are not
        return {"name": name, "descriptor": d, "buffers": [data[at:data_end]]}, extents
    for handle in d["buffer_handles"]:
        reached, at = at, _align(at, alignment)
        if at + handle["byte_size"] > limit:
            raise Refused("a buffer lies before the trailer", start)
        _check_zero(data, reached, at)
        buffers.append(data[at : at + handle["byte_size"]])
        at += handle["byte_size"]
    if at != data_end:
        raise Refused("data_length runs from the first buffer's first byte to the last buffer's last", start)
    _check_payload(d, buffers, start, verify)
    return {"name": name, "descriptor": d, "buffers": buffers}, extents


def _check_zero(data: bytes, start: int, end: int) -> None:
    gap = data[start:end]
    if gap.count(0) != len(gap):
        raise Refused("padding is zero", start + next(i for i, byte in enumerate(gap) if byte))


def _check_extents(data: bytes, extents: list[Extent], first_descriptor: int, has_tensors: bool) -> None:
    """Every byte belongs to one thing, or is one of few enough zero bytes between two things."""
    reached, last, slack = 0, "start of the file", 0
    for start, end, what, room in sorted(extents):
        if start < reached:
            raise Refused(f"the {what} does not overlap the {last}", start)
        if last == "header":
            slack = first_descriptor - 64 + (0 if has_tensors else 7)
            if start < first_descriptor and not has_tensors:
                raise Refused("first_descriptor_offset is not beyond what comes first", 20)
        if start - reached > slack:
            raise Refused(f"no hole follows the {last}", reached)
        _check_zero(data, reached, start)
        reached, last, slack = end, what, room


def _check_seal(data: bytes, trailer: Json, metadata: list[Json]) -> None:
    """The last entry, if it is ``hurray_wire.metadata_crc32c``, tells the checksum of what stands before it."""
    key = "hurray_wire.metadata_crc32c"
    if not metadata or (metadata[-1]["key"], metadata[-1]["kind"]) != (key, "u64"):
        return
    start, end = trailer["kv_offset"], trailer["kv_offset"] + trailer["kv_length"] - (2 + len(key) + 1 + 8)
    if metadata[-1]["value"] != crc32c(data[start:end]):
        raise Refused("the checksum of the metadata is the one recorded", end)


def _check_recorded_checksums(data: bytes, metadata: list[Json], ordered: list[Json], tensors: list[Json]) -> None:
    found = [entry for entry in metadata if entry["key"] == "hurray_wire.crc32c"]
    if not found:
        return
    if found[0]["kind"] != "array" or found[0]["element_kind"] != "u64":
        raise Refused("hurray_wire.crc32c is an array of u64", 0)
    expected = []
    for entry, tensor in zip(ordered, tensors, strict=True):
        start = entry["descriptor_offset"]
        expected.append((crc32c(data[start : start + entry["descriptor_length"]]), start, entry["name"]))
        expected += [(crc32c(buffer), start, entry["name"]) for buffer in tensor["buffers"]]
    recorded = found[0]["value"]
    if len(recorded) != len(expected):
        raise Refused("hurray_wire.crc32c has a checksum for every descriptor and buffer", 0)
    for value, (crc, start, name) in zip(recorded, expected, strict=True):
        if value != crc:
            raise Refused(f"the checksums of {name!r} are those recorded", start)


# ---- stream ---------------------------------------------------------------------------------------------------------


def decode_stream(data: bytes, verify: bool = True) -> Json:
    """A stream: descriptors, each followed by its buffers. The end is clean only where a descriptor would start.

    ``verify`` also looks at payload that a reader need not look at, as `decode_file` does.
    """
    data = bytes(data)
    at, tensors, places = 0, [], []
    while at < len(data):
        start = at
        d = _descriptor(data, start, len(data), False)
        at += d["descriptor_length"]
        buffers = []
        for handle in d["buffer_handles"]:
            if at + handle["byte_size"] > len(data):
                raise Refused("the stream ends inside a buffer", len(data))
            buffers.append(data[at : at + handle["byte_size"]])
            at += handle["byte_size"]
        _check_payload(d, buffers, start, verify)
        tensors.append({"descriptor": d, "buffers": buffers})
        places.append((d, start))
    _check_composites(places)
    return {"form": "stream", "tensors": tensors}


# ---- values ---------------------------------------------------------------------------------------------------------


def element_bits(buffer: bytes, index: int, bits: int, byte_offset: int = 0) -> int:
    """The raw bits of the element at position ``index``, packed LSB first, as an unsigned integer."""
    start = byte_offset * 8 + index * bits
    first, last = start // 8, (start + bits + 7) // 8
    if first < 0 or last > len(buffer):
        raise Refused("every element lies inside its buffer", max(first, 0))
    return (int.from_bytes(buffer[first:last], "little") >> start % 8) & ((1 << bits) - 1)


def paged_indices(d: Json, buffers: Sequence[bytes]) -> tuple[list[int], list[int]]:
    """(block_table, seq_ptr) of a block-paged tensor."""
    width = 8 if d["layout"]["block_table_index_type"] else 4
    table = [element_bits(buffers[1], i, width * 8) for i in range(len(buffers[1]) // width)]
    pointers = [element_bits(buffers[2], i, width * 8) for i in range(d["layout"]["num_seqs"] + 1)]
    return table, pointers


def element_offset(d: Json, block_table: Sequence[int], seq_ptr: Sequence[int], s: int, t: int, h: int, k: int) -> int:
    """Position in the page pool of sequence s, token t, head h, dimension k: the formula, word for word."""
    page_size = d["layout"]["page_size"]
    _, num_heads, head_dim = d["shape"]
    page = block_table[seq_ptr[s] + t // page_size]
    slot = t % page_size
    return int(((page * page_size + slot) * num_heads + h) * head_dim + k)


def paged_sequence(d: Json, buffers: Sequence[bytes], s: int, length: int) -> Iterator[bytes]:
    """The tokens of sequence ``s``, each as the raw bytes of its [num_heads, head_dim] elements.

    An element narrower than a byte comes as one byte that holds its bits.
    """
    table, pointers = paged_indices(d, buffers)
    pages = pointers[s + 1] - pointers[s]
    if -(-length // d["layout"]["page_size"]) > pages:
        raise Refused(f"the {pages} pages of sequence {s} hold its {length} tokens", 0)
    bits = storage_bits(d)
    width = max(1, bits // 8)
    for token in range(length):
        row = b""
        for head in range(d["shape"][1]):
            for k in range(d["shape"][2]):
                flat = element_offset(d, table, pointers, s, token, head, k)
                row += element_bits(buffers[0], flat, bits).to_bytes(width, "little")
        yield row


def known_lengths(d: Json, buffers: Sequence[bytes]) -> list[int] | None:
    """The sequence lengths where the descriptor alone tells them, else None."""
    _, pointers = paged_indices(d, buffers)
    total, page_size, count = d["shape"][0], d["layout"]["page_size"], d["layout"]["num_seqs"]
    if count == 0:
        return []
    if count == 1:
        return [total]
    if total == pointers[-1] * page_size:
        return [(b - a) * page_size for a, b in pairwise(pointers)]
    return None


def gather(d: Json, buffers: Sequence[bytes], seq_lens: Sequence[int]) -> list[bytes]:
    """Every sequence of a block-paged tensor as raw bytes, [length, num_heads, head_dim] elements each."""
    if len(seq_lens) != d["layout"]["num_seqs"]:
        raise Refused("there is one length per sequence", 0)
    if sum(seq_lens) != d["shape"][0]:
        raise Refused("the lengths add up to total_tokens", 0)
    return [b"".join(paged_sequence(d, buffers, s, length)) for s, length in enumerate(seq_lens)]


def coordinates(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every coordinate of ``shape`` in row-major order, the last dimension fastest."""
    if not shape:
        yield ()
        return
    for first in range(shape[0]):
        for rest in coordinates(shape[1:]):
            yield (first, *rest)


def _affine(at: Sequence[int], shape: Sequence[int], order: int, strides: Sequence[int] | None) -> int:
    if order == STRIDED and strides is not None:
        return sum(i * stride for i, stride in zip(at, strides, strict=True))
    position = 0
    dimensions = range(len(shape)) if order == ROW_MAJOR else reversed(range(len(shape)))
    for k in dimensions:
        position = position * shape[k] + at[k]
    return position


def _tiled_position(at: Sequence[int], shape: Sequence[int], t: Json) -> int:
    tile = t["tile_shape"]
    grid = [-(-size // edge) for size, edge in zip(shape, tile, strict=True)]
    outer = [i // edge for i, edge in zip(at, tile, strict=True)]
    inner = [i % edge for i, edge in zip(at, tile, strict=True)]
    number = _affine(outer, grid, t["outer_layout"], t["outer_strides"])
    if t["inner"]:
        return number * _tile_size(t) + _tiled_position(inner, tile, t["inner"])
    return number * _tile_size(t) + _affine(inner, tile, t["inner_layout"], t["inner_strides"])


def morton_position(at: Sequence[int], bits: Sequence[int]) -> int:
    """Interleaves from bit 0 of dimension 0 up, in rounds over the dimensions that still have bits."""
    position, place = 0, 0
    for b in range(max(bits, default=0)):
        for k, width in enumerate(bits):
            if b < width:
                position |= (at[k] >> b & 1) << place
                place += 1
    return position


def hilbert_position(at: Sequence[int], order: int) -> int:
    """Skilling's transform of a coordinate, then its bits interleaved, dimension 0 most significant in each round."""
    x, rank = list(at), len(at)
    top = 1 << (order - 1)
    q = top
    while q > 1:  # undo the rotations and reflections, from the coarsest level down
        for i in range(rank):
            if x[i] & q:
                x[0] ^= q - 1
            else:
                swap = (x[0] ^ x[i]) & (q - 1)
                x[0] ^= swap
                x[i] ^= swap
        q >>= 1
    for i in range(1, rank):  # Gray code
        x[i] ^= x[i - 1]
    flip, q = 0, top
    while q > 1:
        if x[rank - 1] & q:
            flip ^= q - 1
        q >>= 1
    x = [value ^ flip for value in x]
    position = 0
    for b in range(order):
        for k in range(rank):
            position |= (x[k] >> b & 1) << (b * rank + rank - 1 - k)
    return position


def dense_elements(d: Json, buffers: Sequence[bytes]) -> list[int]:
    """The raw bits of every logical element of a dense tensor, in row-major order of the coordinates."""
    tag, layout, shape, bits = d["layout_tag"], d["layout"], d["shape"], storage_bits(d)
    elements = []
    for at in coordinates(shape):
        if tag == TILED:
            position = _tiled_position(at, shape, layout)
        elif tag == MORTON:
            position = morton_position(at, layout["morton_bits"])
        elif tag == HILBERT:
            position = hilbert_position(at, layout["hilbert_order"])
        elif tag in (ROW_MAJOR, COLUMN_MAJOR, STRIDED):
            position = _affine(at, shape, tag, layout.get("strides"))
        else:
            raise Refused("the layout is a dense one", 0)
        elements.append(element_bits(buffers[0], position, bits, d["byte_offset"]))
    return elements


def sparse_entries(d: Json, buffers: Sequence[bytes]) -> list[tuple[tuple[int, ...], int]]:
    """(coordinate, raw bits) of every stored element of a COO, CSR, CSC or CSF tensor, in storage order."""
    tag, nnz, rank, bits = d["layout_tag"], d["layout"]["nnz"], d["rank"], storage_bits(d)

    def word(buffer: int, index: int) -> int:
        return element_bits(buffers[buffer], index, 64)

    found: list[tuple[int, ...]] = []
    if tag == COO:
        found = [tuple(word(1, i * rank + k) for k in range(rank)) for i in range(nnz)]
        if d["layout"]["is_sorted"] and any(a >= b for a, b in pairwise(found)):
            raise Refused("is_sorted says the coordinates ascend", 0)
    elif tag in (CSR, CSC):
        outer_axis = 0 if tag == CSR else 1
        previous = 0
        for outer in range(d["shape"][outer_axis]):
            start, end = word(2, outer), word(2, outer + 1)
            if start != previous or end < start or end > nnz:
                raise Refused("pointers start at 0, never decrease and stay within nnz", 0)
            inner = [word(1, i) for i in range(start, end)]
            if any(a >= b for a, b in pairwise(inner)):
                raise Refused("indices ascend within a row or column", 0)
            found += [(outer, i) if tag == CSR else (i, outer) for i in inner]
            previous = end
        if previous != nnz or word(2, 0) != 0:
            raise Refused("pointers run from 0 to nnz", 0)
    elif tag == CSF:
        order = d["layout"]["mode_order"]
        reached = [0] * rank  # nodes of each level that have been visited: they come in order, none left out

        def descend(level: int, parent: int, path: tuple[int, ...]) -> None:
            start, end = word(1 + 2 * level, parent), word(1 + 2 * level, parent + 1)
            if start != reached[level] or end < start:
                raise Refused("pos starts at 0 and never decreases", 0)
            reached[level] = end
            siblings = [word(2 + 2 * level, child) for child in range(start, end)]
            if any(a >= b for a, b in pairwise(siblings)):
                raise Refused("coordinates ascend among siblings", 0)
            for child, coordinate in enumerate(siblings, start):
                here = (*path, coordinate)
                if level + 1 < rank:
                    descend(level + 1, child, here)
                else:
                    found.append(tuple(here[order.index(k)] for k in range(rank)))

        descend(0, 0, ())
        if len(found) != nnz:
            raise Refused("the tree has nnz leaves", 0)
    else:
        raise Refused("the layout is a sparse one", 0)
    if len(set(found)) != len(found):
        raise Refused("no coordinate is stored twice", 0)
    if any(i >= size for at in found for i, size in zip(at, d["shape"], strict=True)):
        raise Refused("every coordinate is inside the shape", 0)
    return [(at, element_bits(buffers[0], i, bits)) for i, at in enumerate(found)]


def sparse_elements(d: Json, buffers: Sequence[bytes]) -> list[int]:
    """The raw bits of every logical element of a sparse tensor, absent ones 0, in row-major order."""
    stored = dict(sparse_entries(d, buffers))
    return [stored.get(at, 0) for at in coordinates(d["shape"])]


# ---- dump -----------------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return {"size": _plain(len(value)), "crc32c": f"{crc32c(value):08x}"}
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**53:
        return str(value)
    return value


def dump(document: Json) -> Json:
    """What `decode_file`, `decode_stream` or ``{"form": "descriptor", ...}`` gave, in the JSON shape."""
    shaped: Json = _plain(document)
    return shaped


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Decode Hurray bytes plainly, and print them as JSON.")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--stream", action="store_true", help="FILE is a stream")
    kind.add_argument("--descriptor", action="store_true", help="FILE is one descriptor")
    parser.add_argument("file")
    options = parser.parse_args(argv)
    try:
        data = Path(options.file).read_bytes()
        if options.stream:
            document = decode_stream(data)
        elif options.descriptor:
            document = {"form": "descriptor", "descriptor": decode_descriptor(data)}
        else:
            document = decode_file(data)
    except (OSError, Refused) as error:
        print(f"{options.file}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(dump(document), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

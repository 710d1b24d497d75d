//! Writes and reads Hurray files, streams and bare descriptors of block-paged tensors. Rust's standard library only:
//!
//! ```text
//! rustc --edition 2021 -O -o hurray hurray.rs
//! ```
//!
//! Commands, cases and the JSON shape are described in `../README.md`. Reading turns a byte slice into an [`Input`] or
//! a [`Refusal`], without copying payload: every section and buffer is a sub-slice of the input. Sizes that follow from
//! the input are `Option<u64>`, where `None` means more than any buffer can hold.

use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Write as _};
use std::io::{self, BufRead, Write as _};
use std::process::ExitCode;
use std::{env, fs, str};

const DYNAMIC: u64 = u64::MAX;
const NO_BUFFER: u32 = u32::MAX;
const BUFFER_ALIGNMENT: u32 = 64;

mod layout_tag {
    pub const ROW_MAJOR: u8 = 0x01;
    pub const COLUMN_MAJOR: u8 = 0x02;
    pub const BLOCK_PAGED: u8 = 0x0A;
    pub const COMPOSITE: u8 = 0x0B;
}

mod flag {
    pub const QUANTIZATION: u32 = 1;
    pub const SHARD: u32 = 1 << 1;
    pub const EXTENSION_TYPE: u32 = 1 << 2;
    pub const STATISTICS: u32 = 1 << 3;
    pub const COMPOSITE_MEMBER: u32 = 1 << 4;
}

mod file_flag {
    pub const HAS_KV_METADATA: u32 = 1;
    pub const SORTED_INDEX: u32 = 1 << 1;
    pub const HAS_INDEX_CRC32C: u32 = 1 << 2;
}

// ---- refusals -------------------------------------------------------------------------------------------------------

#[derive(Debug)]
enum Refusal {
    /// The bytes break a rule of the format.
    Broken { rule: &'static str, offset: usize },
    /// The bytes may be fine, but this program knows no such layout.
    Unsupported { layout_tag: u8 },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Refusal::Broken { rule, offset } => write!(f, "{rule} (at byte {offset})"),
            Refusal::Unsupported { layout_tag } => write!(f, "layout {layout_tag:#04x} is not supported here"),
        }
    }
}

type Outcome<T> = Result<T, Refusal>;

fn rule(holds: bool, rule: &'static str, offset: usize) -> Outcome<()> {
    if holds {
        Ok(())
    } else {
        Err(Refusal::Broken { rule, offset })
    }
}

// ---- CRC-32C --------------------------------------------------------------------------------------------------------

const CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let (mut value, mut bit) = (i as u32, 0);
        while bit < 8 {
            value = (value >> 1) ^ (0x82F6_3B78 * (value & 1));
            bit += 1;
        }
        table[i] = value;
        i += 1;
    }
    table
};

fn crc32c(data: &[u8]) -> u32 {
    !data.iter().fold(!0, |crc, byte| (crc >> 8) ^ CRC_TABLE[usize::from(crc as u8 ^ byte)])
}

// ---- fields ---------------------------------------------------------------------------------------------------------

/// A window of the input that gives little-endian fields from its front.
struct Fields<'a> {
    rest: &'a [u8],
    /// Where `rest` ends in the whole input, so that a refusal can say where it stands.
    end: usize,
}

impl<'a> Fields<'a> {
    fn new(input: &'a [u8], start: usize, length: usize) -> Self {
        Fields { rest: &input[start..start + length], end: start + length }
    }

    fn offset(&self) -> usize {
        self.end - self.rest.len()
    }

    fn rule(&self, holds: bool, words: &'static str) -> Outcome<()> {
        rule(holds, words, self.offset())
    }

    fn bytes(&mut self, length: u64) -> Outcome<&'a [u8]> {
        self.rule(length <= self.rest.len() as u64, "the bytes end inside a field")?;
        let (taken, rest) = self.rest.split_at(length as usize);
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Outcome<[u8; N]> {
        Ok(self.bytes(N as u64)?.try_into().expect("bytes() gives as many as were asked for"))
    }

    fn u8(&mut self) -> Outcome<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Outcome<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Outcome<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Outcome<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn u64s(&mut self, count: usize) -> Outcome<Vec<u64>> {
        (0..count).map(|_| self.u64()).collect()
    }

    fn reserved(&mut self, length: u64) -> Outcome<()> {
        let zero = self.bytes(length)?.iter().all(|&byte| byte == 0);
        self.rule(zero, "reserved bytes are zero")
    }

    fn text(&mut self, length: u64) -> Outcome<&'a str> {
        let raw = self.bytes(length)?;
        str::from_utf8(raw).map_err(|_| Refusal::Broken { rule: "text is UTF-8", offset: self.offset() })
    }

    fn name(&mut self) -> Outcome<&'a str> {
        let length = self.u16()?;
        self.rule(length > 0, "a name or key is not empty")?;
        self.text(length.into())
    }
}

fn is_private(tag: u8) -> bool {
    (0xF0..=0xFE).contains(&tag)
}

fn product<'a>(numbers: impl IntoIterator<Item = &'a u64> + Clone) -> Option<u64> {
    if numbers.clone().into_iter().any(|&n| n == 0) {
        return Some(0);
    }
    numbers.into_iter().try_fold(1_u64, |so_far, &n| so_far.checked_mul(n))
}

/// Bytes that `count` elements of `bits` each take.
fn byte_length(count: Option<u64>, bits: u64) -> Option<u64> {
    let count = count?;
    match bits {
        1 | 2 | 4 => Some(count / (8 / bits) + u64::from(count % (8 / bits) != 0)),
        6 => (count / 4 + u64::from(count % 4 != 0)).checked_mul(3),
        _ => count.checked_mul(bits / 8),
    }
}

/// Whether a buffer of `size` bytes holds `need`, where `None` is more than can be.
fn holds(size: u64, need: Option<u64>) -> bool {
    need.map_or(false, |need| size >= need)
}

fn type_bits(type_tag: u8) -> Option<u64> {
    Some(match type_tag {
        0x20 => 1,
        0x4A | 0x4B => 2,
        0x43 | 0x48 | 0x49 => 4,
        0x44 | 0x45 => 6,
        0x10 | 0x11 | 0x40..=0x42 => 8,
        0x01 | 0x02 | 0x12 | 0x13 => 16,
        0x03 | 0x14 | 0x15 => 32,
        0x04 | 0x16 | 0x17 | 0x50 => 64,
        0x46 | 0x51 => 128,
        _ => return None,
    })
}

/// The values that an integer storage type of at most 32 bits can take.
fn integer_range(type_tag: u8) -> Option<std::ops::RangeInclusive<i64>> {
    let bits = match type_tag {
        0x10..=0x15 | 0x48..=0x4B => type_bits(type_tag)?,
        _ => return None,
    };
    let half = 1_i64 << (bits - 1);
    Some(if type_tag % 2 == 0 { -half..=half - 1 } else { 0..=2 * half - 1 })
}

// ---- the descriptor -------------------------------------------------------------------------------------------------

#[derive(Clone)]
struct Handle {
    byte_size: u64,
    alignment: u32,
    device_tag: u8,
    sync_mode: u8,
    memory_class: u8,
}

#[derive(Clone)]
struct BlockPaged {
    page_size: u32,
    num_pages: u64,
    num_seqs: u32,
    kv_role: u8,
    layer_index: u32,
    wide: bool,
}

#[derive(Clone)]
enum Layout {
    /// Row-major or column-major: one buffer, no fields.
    Dense { tag: u8 },
    BlockPaged(BlockPaged),
    Composite { composition_rule: u8, combine_op: u8, member_count: u32 },
}

#[derive(Clone)]
enum Scheme {
    PerTensor { scale: u32, zero_point: i32 },
    /// Schemes 2 to 5: parameters lie in buffers.
    InBuffers { axis: u32, block_size: Option<u32>, scales: u32, zero_points: Option<u32>, scale_type: Option<u8> },
}

#[derive(Clone)]
struct Quantization {
    length: u32,
    tag: u8,
    version: u8,
    flags: u16,
    scheme: Scheme,
}

#[derive(Clone)]
struct Shard {
    parent_shape: Vec<u64>,
    offset: Vec<u64>,
}

#[derive(Clone)]
struct Statistics {
    computed_mask: u32,
    nnz: u64,
    values: [u64; 6],
    bytes: [u8; 4],
}

#[derive(Clone, PartialEq)]
struct ExtensionType {
    bit_width: u32,
    exponent_bias: u32,
    /// packing_factor, is_float, is_signed, sign_bits, exponent_bits, mantissa_bits, has_nan, has_inf
    bytes: [u8; 8],
}

#[derive(Clone)]
struct Descriptor {
    version_major: u8,
    version_minor: u8,
    length: u32,
    flags: u32,
    type_tag: u8,
    shape: Vec<u64>,
    byte_offset: u64,
    layout: Layout,
    handles: Vec<Handle>,
    quantization: Option<Quantization>,
    shard: Option<Shard>,
    statistics: Option<Statistics>,
    extension_type: Option<ExtensionType>,
    member_role: Option<u8>,
}

impl Layout {
    fn tag(&self) -> u8 {
        match self {
            Layout::Dense { tag } => *tag,
            Layout::BlockPaged(_) => layout_tag::BLOCK_PAGED,
            Layout::Composite { .. } => layout_tag::COMPOSITE,
        }
    }

    fn buffer_count(&self) -> usize {
        match self {
            Layout::Dense { .. } => 1,
            Layout::BlockPaged(_) => 3,
            Layout::Composite { .. } => 0,
        }
    }

    fn decode(tag: u8, rank: usize, byte_offset: u64, flags: u32, f: &mut Fields) -> Outcome<Layout> {
        match tag {
            layout_tag::ROW_MAJOR | layout_tag::COLUMN_MAJOR => Ok(Layout::Dense { tag }),
            layout_tag::BLOCK_PAGED => {
                f.rule(rank == 3, "a block-paged tensor has rank 3")?;
                f.rule(byte_offset == 0, "byte_offset of a block-paged tensor is 0")?;
                f.rule(flags & flag::SHARD == 0, "a block-paged tensor has no shard section")?;
                BlockPaged::decode(f).map(Layout::BlockPaged)
            }
            layout_tag::COMPOSITE => {
                f.rule(byte_offset == 0, "byte_offset of a composite head is 0")?;
                let without = flags & (flag::QUANTIZATION | flag::COMPOSITE_MEMBER) == 0;
                f.rule(without, "a composite head has no quantization or member section")?;
                let (composition_rule, combine_op) = (f.u8()?, f.u8()?);
                f.reserved(2)?;
                let member_count = f.u32()?;
                let known = matches!(composition_rule, 1..=3) || is_private(composition_rule);
                f.rule(known, "composition_rule is known")?;
                let fits = if composition_rule == 2 { matches!(combine_op, 1 | 2) } else { combine_op == 0 };
                f.rule(fits, "combine_op fits the composition rule")?;
                f.rule(member_count != u32::MAX, "member_count is definite")?;
                Ok(Layout::Composite { composition_rule, combine_op, member_count })
            }
            0x03..=0x09 | 0x40 | 0xF0..=0xFE => Err(Refusal::Unsupported { layout_tag: tag }),
            _ => Err(Refusal::Broken { rule: "layout_tag is known", offset: f.offset() }),
        }
    }
}

impl BlockPaged {
    fn decode(f: &mut Fields) -> Outcome<Self> {
        let (page_size, num_pages, paged_axis, num_seqs) = (f.u32()?, f.u64()?, f.u32()?, f.u32()?);
        let (kv_role, layer_index, index_type) = (f.u8()?, f.u32()?, f.u8()?);
        f.reserved(6)?;
        f.rule(page_size > 0, "page_size is at least 1")?;
        f.rule(paged_axis == 0, "paged_axis is 0")?;
        f.rule(kv_role <= 2, "kv_role is key, value or fused")?;
        f.rule(index_type <= 1, "block_table_index_type is 0 or 1")?;
        Ok(BlockPaged { page_size, num_pages, num_seqs, kv_role, layer_index, wide: index_type == 1 })
    }

    fn index_width(&self) -> usize {
        if self.wide {
            8
        } else {
            4
        }
    }

    fn slots(&self) -> Option<u64> {
        self.num_pages.checked_mul(self.page_size.into())
    }

    /// The numbers in one of the two index buffers.
    fn indices<'a>(&self, buffer: &'a [u8]) -> impl Iterator<Item = u64> + 'a {
        buffer.chunks_exact(self.index_width()).map(|raw| raw.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte)))
    }

    fn check_indices(&self, block_table: &[u8], seq_ptr: &[u8], offset: usize) -> Outcome<()> {
        let mut previous = 0;
        for (s, pointer) in self.indices(seq_ptr).take(self.num_seqs as usize + 1).enumerate() {
            rule(s > 0 || pointer == 0, "seq_ptr starts with 0", offset)?;
            rule(pointer >= previous, "seq_ptr never decreases", offset)?;
            previous = pointer;
        }
        let pages = (block_table.len() / self.index_width()) as u64;
        rule(previous == pages, "seq_ptr ends with the length of block_table", offset)?;
        let in_pool = self.indices(block_table).all(|page| page < self.num_pages);
        rule(in_pool, "every page id is below num_pages", offset)
    }
}

impl Handle {
    fn decode(f: &mut Fields) -> Outcome<Self> {
        let (byte_size, alignment) = (f.u64()?, f.u32()?);
        let (device_tag, sync_mode, memory_class) = (f.u8()?, f.u8()?, f.u8()?);
        f.reserved(1)?;
        f.rule(alignment.is_power_of_two(), "a buffer's alignment is a power of two")?;
        f.rule(alignment >= 64 || byte_size == 0, "a buffer that is not empty is aligned to 64 or more")?;
        f.rule(device_tag <= 8 || is_private(device_tag), "device_tag is known")?;
        f.rule(sync_mode <= if device_tag == 0 { 0 } else { 2 }, "sync_mode is known, and 0 on the CPU")?;
        let possible = match memory_class {
            0 => true,
            1 | 2 => device_tag != 5,
            3 => matches!(device_tag, 1 | 2 | 4 | 7),
            _ => is_private(memory_class) && is_private(device_tag),
        };
        f.rule(possible, "memory_class is known, and the device has it")?;
        Ok(Handle { byte_size, alignment, device_tag, sync_mode, memory_class })
    }
}

impl Quantization {
    fn decode(outer: &mut Fields, type_tag: u8, shape: &[u64], layout: &Layout) -> Outcome<Self> {
        let length = outer.u32()?;
        let section = outer.bytes(length.into())?;
        let f = &mut Fields { rest: section, end: outer.offset() };
        let (tag, version, flags) = (f.u8()?, f.u8()?, f.u16()?);
        f.rule((1..=5).contains(&tag), "scheme_tag is 1 to 5")?;
        f.rule(version == 1, "scheme_version is 1")?;
        let symmetric = flags == 1 && matches!(tag, 2 | 3);
        f.rule(flags == 0 || symmetric, "only schemes 2 and 3 have a flag, SYMMETRIC")?;
        let scheme = if tag == 1 {
            let (scale, zero_point) = (f.u32()?, f.u32()? as i32);
            f.reserved(4)?;
            let real = f32::from_bits(scale);
            f.rule(real.is_finite() && real != 0.0, "scale is finite and not 0")?;
            let fits = integer_range(type_tag).map_or(false, |range| range.contains(&zero_point.into()));
            f.rule(fits, "per-tensor affine has integer storage, with zero_point in its range")?;
            Scheme::PerTensor { scale, zero_point }
        } else {
            let axis = f.u32()?;
            let block_size = if tag > 2 { Some(f.u32()?) } else { None };
            let scales = f.u32()?;
            let (mut zero_points, mut scale_type) = (None, None);
            if tag <= 3 {
                let index = f.u32()?;
                scale_type = Some(f.u8()?);
                f.reserved(3)?;
                f.rule((index == NO_BUFFER) == symmetric, "exactly a symmetric scheme has no zero points")?;
                zero_points = if symmetric { None } else { Some(index) };
            }
            Scheme::InBuffers { axis, block_size, scales, zero_points, scale_type }
        };
        let this = Quantization { length, tag, version, flags, scheme };
        this.check(f, type_tag, shape, layout)?;
        f.reserved(f.rest.len() as u64)?; // padding
        Ok(this)
    }

    fn check(&self, f: &Fields, type_tag: u8, shape: &[u64], layout: &Layout) -> Outcome<()> {
        let (axis, block_size, scale_type) = match self.scheme {
            Scheme::InBuffers { axis, block_size, scale_type, .. } => (axis, block_size, scale_type),
            _ => return Ok(()),
        };
        let size = shape.get(axis as usize).copied();
        f.rule(size.is_some(), "the quantization axis is below rank")?;
        f.rule(block_size.map_or(true, u32::is_power_of_two), "block_size is a power of two")?;
        let block = block_size.unwrap_or(0);
        let narrow = matches!(type_tag, 0x10 | 0x11 | 0x48..=0x4B);
        let fits = match self.tag {
            2 => integer_range(type_tag).is_some() && scale_type == Some(0x03),
            3 => narrow && block >= 2 && matches!(scale_type, Some(1..=3)),
            4 => type_tag == 0x49 && block >= 8,
            _ => matches!(type_tag, 0x10 | 0x40 | 0x41 | 0x43..=0x45 | 0x48) && (16..=2048).contains(&block),
        };
        f.rule(fits, "storage type, scale type and block_size fit the scheme")?;
        if self.tag == 5 {
            let whole = size.map_or(false, |n| n == DYNAMIC || (n > 0 && n % u64::from(block) == 0));
            f.rule(whole, "shape[axis] is a positive multiple of MXFP's block_size")?;
        }
        if let Layout::BlockPaged(paged) = layout {
            let per_channel = self.tag == 2 && matches!(axis, 1 | 2);
            let per_page_slot = self.tag == 3 && axis == 0 && block == paged.page_size;
            f.rule(per_channel || per_page_slot, "the scheme composes with pages")?;
        }
        Ok(())
    }
}

impl Shard {
    fn decode(f: &mut Fields, shape: &[u64]) -> Outcome<Self> {
        let shard = Shard { parent_shape: f.u64s(shape.len())?, offset: f.u64s(shape.len())? };
        for ((&size, &parent), &offset) in shape.iter().zip(&shard.parent_shape).zip(&shard.offset) {
            f.rule(size != DYNAMIC && parent != DYNAMIC, "a shard has no dynamic dimension")?;
            let inside = offset.checked_add(size).map_or(false, |end| end <= parent);
            f.rule(inside, "a shard lies inside its parent")?;
        }
        Ok(shard)
    }
}

impl Statistics {
    fn decode(f: &mut Fields) -> Outcome<Self> {
        let computed_mask = f.u32()?;
        f.rule(computed_mask < 64, "computed_mask has six bits")?;
        f.reserved(4)?;
        let nnz = f.u64()?;
        let mut values = [0; 6];
        for value in &mut values {
            *value = f.u64()?;
        }
        let bytes: [u8; 4] = f.array()?;
        let truth = computed_mask & 1 << 5 == 0 || bytes[2].max(bytes[3]) <= 1;
        f.rule(truth, "has_nan and has_inf are 0 or 1 where they are computed")?;
        f.reserved(4)?;
        Ok(Statistics { computed_mask, nnz, values, bytes })
    }
}

impl ExtensionType {
    fn decode(f: &mut Fields) -> Outcome<Self> {
        let bit_width = f.u32()?;
        let [packing_factor, is_float, is_signed, sign_bits, exponent_bits, mantissa_bits] = f.array()?;
        f.reserved(2)?;
        let exponent_bias = f.u32()?;
        let [has_nan, has_inf] = f.array()?;
        f.reserved(2)?;
        let factor = match bit_width {
            1 | 2 | 4 => 8 / bit_width,
            8.. => 1,
            _ => 0,
        };
        f.rule(factor > 0, "bit_width is 1, 2, 4 or at least 8")?;
        f.rule(factor == packing_factor.into(), "packing_factor follows from bit_width")?;
        let truth = [is_float, is_signed, has_nan, has_inf].iter().all(|&byte| byte <= 1);
        f.rule(truth, "what is yes or no is 0 or 1")?;
        let plain = [sign_bits, exponent_bits, mantissa_bits, has_nan, has_inf] == [0; 5] && exponent_bias == 0;
        f.rule(is_float != 0 || plain, "an integer type has no float fields")?;
        let bytes = [packing_factor, is_float, is_signed, sign_bits, exponent_bits, mantissa_bits, has_nan, has_inf];
        Ok(ExtensionType { bit_width, exponent_bias, bytes })
    }
}

impl Descriptor {
    /// The descriptor at the front of `outer`, which afterwards stands behind it.
    fn decode(outer: &mut Fields) -> Outcome<Self> {
        let start = outer.offset();
        let f = &mut Fields { rest: outer.rest, end: outer.end };
        let magic = f.array::<4>()?;
        f.rule(&magic == b"HRRY", "a descriptor starts with HRRY")?;
        let (version_major, version_minor, length) = (f.u8()?, f.u8()?, f.u32()?);
        f.rule(version_major == 1, "version_major is 1")?;
        f.rule(length >= 20, "descriptor_length is at least 20")?;
        let whole = outer.bytes(length.into())?;
        let f = &mut Fields { rest: &whole[10..], end: start + whole.len() };

        let (flags, type_tag, tag, rank) = (f.u32()?, f.u8()?, f.u8()?, f.u32()?);
        f.rule(flags < 1 << 5, "flags has five bits")?;
        f.rule(type_bits(type_tag).is_some() || is_private(type_tag), "type_tag is known")?;
        let extended = flags & flag::EXTENSION_TYPE != 0;
        f.rule(extended == is_private(type_tag), "exactly a private type has the extension section")?;
        f.rule(rank <= 64, "rank is at most 64")?;
        let shape = f.u64s(rank as usize)?;
        let byte_offset = f.u64()?;
        let layout = Layout::decode(tag, shape.len(), byte_offset, flags, f)?;

        let buffer_count = f.u8()?;
        let is_head = matches!(layout, Layout::Composite { .. });
        f.rule((buffer_count == 0) == is_head, "exactly a composite head has no buffers")?;
        let handles = (0..buffer_count).map(|_| Handle::decode(f)).collect::<Outcome<Vec<_>>>()?;
        if let Some(first) = handles.first() {
            let together =
                handles.iter().all(|h| (h.device_tag, h.memory_class) == (first.device_tag, first.memory_class));
            f.rule(together, "all buffers are in one memory of one device")?;
            f.rule(byte_offset <= first.byte_size, "byte_offset is inside buffer 0")?;
        }

        let has = |bit: u32| flags & bit != 0;
        let quantization =
            has(flag::QUANTIZATION).then(|| Quantization::decode(f, type_tag, &shape, &layout)).transpose()?;
        let shard = has(flag::SHARD).then(|| Shard::decode(f, &shape)).transpose()?;
        let statistics = has(flag::STATISTICS).then(|| Statistics::decode(f)).transpose()?;
        let extension_type = extended.then(|| ExtensionType::decode(f)).transpose()?;
        let mut member_role = None;
        if has(flag::COMPOSITE_MEMBER) {
            let role = f.u8()?;
            f.rule(role <= 1, "a member is a correction or a base")?;
            f.reserved(15)?;
            member_role = Some(role);
        }
        f.rule(version_minor > 0 || f.rest.is_empty(), "descriptor_length is what the sections take")?;
        let this = Descriptor {
            version_major,
            version_minor,
            length,
            flags,
            type_tag,
            shape,
            byte_offset,
            layout,
            handles,
            quantization,
            shard,
            statistics,
            extension_type,
            member_role,
        };
        this.check_buffer_count(f)?;
        this.check_buffer_sizes(f)?;
        Ok(this)
    }

    fn element_bits(&self) -> u64 {
        let private = || self.extension_type.as_ref().map_or(0, |e| u64::from(e.bit_width));
        type_bits(self.type_tag).unwrap_or_else(|| match private() {
            narrow @ 0..=7 => narrow,
            wide => (wide + 7) / 8 * 8,
        })
    }

    /// The buffers that hold scales and zero points.
    fn parameter_buffers(&self) -> Option<(u32, Option<u32>)> {
        match self.quantization.as_ref()?.scheme {
            Scheme::InBuffers { scales, zero_points, .. } => Some((scales, zero_points)),
            _ => None,
        }
    }

    fn check_buffer_count(&self, f: &Fields) -> Outcome<()> {
        let own = self.layout.buffer_count();
        let parameters: HashSet<u32> =
            self.parameter_buffers().into_iter().flat_map(|(scales, zeros)| zeros.into_iter().chain([scales])).collect();
        for &index in &parameters {
            f.rule((index as usize) < self.handles.len(), "a parameter buffer's index is below buffer_count")?;
            f.rule(index as usize >= own, "a parameter buffer is not a layout buffer")?;
        }
        let fits = self.handles.len() == own || (!parameters.is_empty() && self.handles.len() > own);
        f.rule(fits, "buffer_count fits the layout and its scales")
    }

    fn check_buffer_sizes(&self, f: &Fields) -> Outcome<()> {
        let bits = self.element_bits();
        let size = |i: usize| self.handles[i].byte_size;
        if let Some(elements) = self.element_count() {
            let need = byte_length(elements, bits).and_then(|n| n.checked_add(self.byte_offset));
            f.rule(holds(size(0), need), "buffer 0 holds every element")?;
        }
        if let Layout::BlockPaged(paged) = &self.layout {
            let width = paged.index_width() as u64;
            f.rule(size(1) % width == 0, "block_table holds whole page ids")?;
            let need = (u64::from(paged.num_seqs) + 1) * width;
            f.rule(size(2) >= need, "seq_ptr holds num_seqs + 1 offsets")?;
        }
        if let Some((scales, zero_points)) = self.parameter_buffers() {
            let Some((count, width)) = self.parameter_count() else { return Ok(()) };
            let zeros = byte_length(count, 32);
            let mut need = byte_length(count, width);
            if zero_points == Some(scales) {
                need = need.and_then(|n| n.checked_add(zeros?));
            } else if let Some(index) = zero_points {
                f.rule(holds(size(index as usize), zeros), "every zero point is there")?;
            }
            f.rule(holds(size(scales as usize), need), "every scale is there")?;
        }
        Ok(())
    }

    /// How many elements buffer 0 holds. No count can be told where a dimension is dynamic, or there is no buffer.
    fn element_count(&self) -> Option<Option<u64>> {
        let factors = match &self.layout {
            Layout::Composite { .. } => return None,
            Layout::Dense { .. } => self.shape.clone(),
            Layout::BlockPaged(p) => vec![p.num_pages, p.page_size.into(), self.shape[1], self.shape[2]],
        };
        let known = !factors.contains(&DYNAMIC) || matches!(&self.layout, Layout::BlockPaged(p) if p.num_pages == DYNAMIC);
        known.then(|| product(&factors))
    }

    /// How many scales there are, and the bits of each. No count can be told where a dimension is dynamic.
    fn parameter_count(&self) -> Option<(Option<u64>, u64)> {
        let quantization = self.quantization.as_ref()?;
        let Scheme::InBuffers { axis, block_size, scale_type, .. } = quantization.scheme else { return None };
        let width = match (quantization.tag, scale_type) {
            (5, _) => 8,
            (_, Some(1 | 2)) => 16,
            _ => 32,
        };
        let axis = axis as usize;
        let count = match (&self.layout, quantization.tag) {
            (Layout::BlockPaged(paged), 3) => paged.slots(),
            (_, 2) if self.shape[axis] == DYNAMIC => return None,
            (_, 2) => Some(self.shape[axis]),
            _ if self.shape.contains(&DYNAMIC) => return None,
            _ => {
                let (size, block) = (self.shape[axis], u64::from(block_size?));
                let mut blocks = self.shape.clone();
                blocks[axis] = size / block + u64::from(size % block != 0);
                product(&blocks)
            }
        };
        Some((count, width))
    }
}

// ---- tensors and composites -----------------------------------------------------------------------------------------

struct Tensor<'a> {
    descriptor: Descriptor,
    buffers: Vec<&'a [u8]>,
    /// Where its descriptor starts.
    offset: usize,
}

impl Tensor<'_> {
    fn check_payload(&self) -> Outcome<()> {
        let d = &self.descriptor;
        if let Layout::BlockPaged(paged) = &d.layout {
            paged.check_indices(self.buffers[1], self.buffers[2], self.offset)?;
        }
        let bits = d.element_bits();
        if let (Some(Some(elements)), 1..=6) = (d.element_count(), bits) {
            let (per_group, group_bytes) = if bits == 6 { (4, 3) } else { (8 / bits, 1) };
            let last = self.buffers[0][d.byte_offset as usize..].chunks(group_bytes).nth((elements / per_group) as usize);
            let used = elements % per_group * bits;
            let group = last.unwrap_or(&[]).iter().rev().fold(0_u32, |n, &byte| n << 8 | u32::from(byte));
            rule(used == 0 || group >> used == 0, "the unused bits behind the last packed element are zero", self.offset)?;
        }
        if let (Some(5), Some((scales, _))) = (d.quantization.as_ref().map(|q| q.tag), d.parameter_buffers()) {
            let count = d.parameter_count().and_then(|(count, _)| count).unwrap_or(0) as usize;
            let valid = self.buffers[scales as usize][..count].iter().all(|scale| !matches!(scale, 0x00 | 0xFF));
            rule(valid, "no MXFP scale is 0x00 or 0xFF", self.offset)?;
        }
        Ok(())
    }
}

/// Binds members to composite heads, in write order.
fn check_composites(tensors: &[Tensor]) -> Outcome<()> {
    let mut rest = tensors;
    while let Some(first) = rest.first() {
        rule(first.descriptor.member_role.is_none(), "only overlay members carry a member section", first.offset)?;
        rest = check_tree(rest, 1)?;
    }
    Ok(())
}

/// Checks the first tensor with all its members, and gives what follows them.
fn check_tree<'t, 'a>(tensors: &'t [Tensor<'a>], depth: u32) -> Outcome<&'t [Tensor<'a>]> {
    let (head, mut rest) = tensors.split_first().expect("the caller looked");
    let Layout::Composite { composition_rule, member_count, .. } = head.descriptor.layout else { return Ok(rest) };
    rule(depth <= 8, "composites nest at most 8 deep", head.offset)?;
    rule(composition_rule != 2 || member_count > 0, "an overlay has a base", head.offset)?;
    let mut members = Vec::new();
    for number in 0..member_count {
        let Some(member) = rest.first() else {
            return Err(Refusal::Broken { rule: "a composite has all its members", offset: head.offset });
        };
        check_member(&head.descriptor, composition_rule, number == 0, member)?;
        members.push(&member.descriptor);
        rest = check_tree(rest, depth + 1)?;
    }
    if composition_rule == 1 {
        check_partition(&head.descriptor, &members, head.offset)?;
    }
    Ok(rest)
}

fn check_member(head: &Descriptor, composition_rule: u8, first: bool, member: &Tensor) -> Outcome<()> {
    let (d, at) = (&member.descriptor, member.offset);
    rule(composition_rule == 2 || d.member_role.is_none(), "only overlay members carry a member section", at)?;
    if matches!(composition_rule, 1 | 2) {
        let same_type = (d.type_tag, &d.extension_type) == (head.type_tag, &head.extension_type);
        rule(same_type, "a member has the element type of its partition or overlay", at)?;
        let of_head = d.shard.as_ref().map_or(false, |shard| shard.parent_shape == head.shape);
        rule(of_head, "partition and overlay members are shards of the head", at)?;
    }
    if composition_rule == 2 {
        let nested = matches!(d.layout, Layout::Composite { .. });
        rule(nested || d.member_role.is_some(), "overlay members carry a member section", at)?;
        let role = d.member_role.map_or(true, |role| (role == 1) == first);
        rule(role, "the first overlay member alone is the base", at)?;
        rule(!first || d.shape == head.shape, "the base spans the head", at)?;
    }
    Ok(())
}

fn check_partition(head: &Descriptor, members: &[&Descriptor], at: usize) -> Outcome<()> {
    let boxes: Vec<Vec<(u64, u64)>> = members
        .iter()
        .filter(|m| !m.shape.contains(&0))
        .filter_map(|m| Some((m.shard.as_ref()?, &m.shape)))
        .map(|(shard, shape)| shard.offset.iter().zip(shape).map(|(&low, &size)| (low, low + size)).collect())
        .collect();
    for (i, a) in boxes.iter().enumerate() {
        let meets = |b: &Vec<(u64, u64)>| a.iter().zip(b).all(|(a, b)| a.0 < b.1 && b.0 < a.1);
        rule(!boxes[..i].iter().any(meets), "the members of a partition do not overlap", at)?;
    }
    let covered = members.iter().try_fold(0_u64, |sum, m| sum.checked_add(product(&m.shape)?));
    rule(covered == product(&head.shape), "the members of a partition cover the head", at)
}

// ---- streams and files ----------------------------------------------------------------------------------------------

enum Value<'a> {
    Text(&'a str),
    Signed(i64),
    Unsigned(u64),
    Float(u64),
    Bool(bool),
    Bytes(&'a [u8]),
    Array(u8, Vec<Value<'a>>),
}

struct Entry<'a> {
    name: &'a str,
    descriptor_offset: u64,
    descriptor_length: u32,
    data_offset: u64,
    data_length: u64,
}

struct Container<'a> {
    major: u8,
    minor: u8,
    file_flags: u32,
    data_buffer_alignment: u32,
    first_descriptor_offset: u64,
    tensor_count_hint: u64,
    index_offset: u64,
    index_length: u64,
    kv_offset: u64,
    kv_length: u32,
    index_crc32c: u32,
    metadata: Option<Vec<(&'a str, Value<'a>)>>,
    index: Vec<Entry<'a>>,
}

struct Input<'a> {
    /// What a file has around its tensors; a stream has nothing.
    container: Option<Container<'a>>,
    /// In write order; the name is that of the index.
    tensors: Vec<(Option<&'a str>, Tensor<'a>)>,
}

/// The descriptor that is all of the input.
fn decode_descriptor(data: &[u8]) -> Outcome<Descriptor> {
    let mut f = Fields::new(data, 0, data.len());
    let descriptor = Descriptor::decode(&mut f)?;
    f.rule(f.rest.is_empty(), "nothing follows the descriptor")?;
    Ok(descriptor)
}

fn decode_stream(data: &[u8]) -> Outcome<Input<'_>> {
    let mut f = Fields::new(data, 0, data.len());
    let mut tensors = Vec::new();
    while !f.rest.is_empty() {
        let offset = f.offset();
        let descriptor = Descriptor::decode(&mut f)?;
        let buffers = descriptor.handles.iter().map(|h| f.bytes(h.byte_size)).collect::<Outcome<_>>()?;
        let tensor = Tensor { descriptor, buffers, offset };
        tensor.check_payload()?;
        tensors.push(tensor);
    }
    check_composites(&tensors)?;
    Ok(Input { container: None, tensors: tensors.into_iter().map(|tensor| (None, tensor)).collect() })
}

const TRAILER: usize = 40;

/// A section that the trailer or index places: at a multiple of `alignment`, behind the header, before the trailer.
fn section<'a>(data: &'a [u8], start: u64, length: u64, alignment: u64, words: &'static str) -> Outcome<Fields<'a>> {
    let limit = (data.len() - TRAILER) as u64;
    let fits = start >= 64 && start % alignment == 0 && start.checked_add(length).map_or(false, |end| end <= limit);
    rule(fits, words, data.len() - TRAILER)?;
    Ok(Fields::new(data, start as usize, length as usize))
}

fn decode_file(data: &[u8]) -> Outcome<Input<'_>> {
    let mut container = decode_header(data)?;
    decode_trailer(data, &mut container)?;
    let mut taken = vec![Extent { start: data.len() - TRAILER, end: data.len(), slack: 0 }];
    let has_metadata = container.kv_offset != 0;
    let both = has_metadata == (container.kv_length != 0);
    rule(both, "kv_offset and kv_length are both 0 or both not", data.len() - TRAILER)?;
    let flagged = container.file_flags & file_flag::HAS_KV_METADATA != 0;
    rule(has_metadata || !flagged, "HAS_KV_METADATA needs a KV section", data.len() - TRAILER)?;
    if has_metadata {
        let words = "the KV section is before the trailer, at a multiple of 8";
        let f = section(data, container.kv_offset, container.kv_length.into(), 8, words)?;
        taken.push(Extent { start: f.offset(), end: f.end, slack: 7 });
        container.metadata = Some(decode_metadata(f)?);
    }
    let words = "the index is before the trailer, at a multiple of 8";
    let f = section(data, container.index_offset, container.index_length, 8, words)?;
    taken.push(Extent { start: f.offset(), end: f.end, slack: 7 });
    let checked = container.file_flags & file_flag::HAS_INDEX_CRC32C != 0;
    let crc = if checked { crc32c(f.rest) } else { 0 };
    f.rule(crc == container.index_crc32c, "index_crc32c is that of the index, or 0 without its flag")?;
    container.index = decode_index(f, container.file_flags & file_flag::SORTED_INDEX != 0)?;

    let mut entries: Vec<&Entry> = container.index.iter().collect();
    entries.sort_by_key(|entry| entry.descriptor_offset);
    if let Some(first) = entries.first() {
        let right = first.descriptor_offset == container.first_descriptor_offset;
        rule(right, "the first descriptor is at first_descriptor_offset", 20)?;
    }
    let (mut tensors, mut reached) = (Vec::new(), 64);
    for entry in &entries {
        let tensor = decode_tensor(data, entry, container.data_buffer_alignment.into(), &mut taken)?;
        rule(tensor.offset >= reached, "tensors follow one another", tensor.offset)?;
        reached = tensor.offset + tensor.descriptor.length as usize;
        reached = reached.max(if tensor.buffers.is_empty() { 0 } else { (entry.data_offset + entry.data_length) as usize });
        tensors.push(tensor);
    }
    check_composites(&tensors)?;
    let first = container.first_descriptor_offset;
    if entries.is_empty() {
        let right = taken.iter().all(|extent| extent.start as u64 >= first);
        rule(right, "first_descriptor_offset is not beyond what comes first", 20)?;
    }
    taken.push(Extent { start: 0, end: 64, slack: first - 64 + if entries.is_empty() { 7 } else { 0 } });
    check_extents(data, taken)?;
    if let Some(metadata) = &container.metadata {
        check_checksums(data, metadata, &tensors)?;
    }
    let tensors = entries.iter().map(|entry| Some(entry.name)).zip(tensors).collect();
    Ok(Input { container: Some(container), tensors })
}

fn decode_header(data: &[u8]) -> Outcome<Container<'_>> {
    let f = &mut Fields::new(data, 0, data.len());
    let magic = f.array::<8>()?;
    f.rule(&magic == b"HRRYFILE", "a file starts with HRRYFILE")?;
    let (major, minor) = (f.u8()?, f.u8()?);
    f.rule(major == 1, "the container's major version is 1")?;
    f.reserved(2)?;
    let (file_flags, data_buffer_alignment) = (f.u32()?, f.u32()?);
    f.rule(file_flags < 1 << 3, "file_flags has three bits")?;
    let allowed = data_buffer_alignment.is_power_of_two() && (4096..=2_097_152).contains(&data_buffer_alignment);
    f.rule(allowed, "data_buffer_alignment is a power of two, 4096 to 2097152")?;
    let (first_descriptor_offset, tensor_count_hint) = (f.u64()?, f.u64()?);
    let placed = first_descriptor_offset >= 64 && first_descriptor_offset % 8 == 0;
    f.rule(placed, "the first descriptor is at a multiple of 8")?;
    f.reserved(28)?;
    Ok(Container {
        major,
        minor,
        file_flags,
        data_buffer_alignment,
        first_descriptor_offset,
        tensor_count_hint,
        index_offset: 0,
        index_length: 0,
        kv_offset: 0,
        kv_length: 0,
        index_crc32c: 0,
        metadata: None,
        index: Vec::new(),
    })
}

fn decode_trailer(data: &[u8], container: &mut Container) -> Outcome<()> {
    rule(data.len() >= 64 + TRAILER, "a file has room for its trailer", data.len())?;
    let f = &mut Fields::new(data, data.len() - TRAILER, TRAILER);
    rule(data.ends_with(b"HRRY"), "a file ends with HRRY", data.len() - 4)?;
    container.index_offset = f.u64()?;
    container.index_length = f.u64()?;
    container.kv_offset = f.u64()?;
    container.kv_length = f.u32()?;
    container.index_crc32c = f.u32()?;
    f.reserved(4)
}

fn decode_metadata(mut f: Fields<'_>) -> Outcome<Vec<(&str, Value<'_>)>> {
    let (section, mut unsealed) = (f.rest, 0);
    let (mut entries, mut seen) = (Vec::new(), HashSet::new());
    for _ in 0..f.u32()? {
        unsealed = section.len() - f.rest.len();
        let key = f.name()?;
        f.rule(seen.insert(key), "metadata keys are unique")?;
        let tag = f.u8()?;
        let value = if tag == 7 {
            let (element, count) = (f.u8()?, f.u32()?);
            let values = (0..count).map(|_| decode_value(&mut f, element)).collect::<Outcome<Vec<_>>>()?;
            f.rule((1..=6).contains(&element), "an array's element tag is 1 to 6")?;
            Value::Array(element, values)
        } else {
            decode_value(&mut f, tag)?
        };
        entries.push((key, value));
    }
    f.rule(f.rest.is_empty(), "kv_length is what the entries take")?;
    if let Some(("hurray_wire.metadata_crc32c", Value::Unsigned(recorded))) = entries.last() {
        // the last entry, which is for all that stands before it
        f.rule(*recorded == crc32c(&section[..unsealed]).into(), "the checksum of the metadata is the one recorded")?;
    }
    Ok(entries)
}

fn decode_value<'a>(f: &mut Fields<'a>, tag: u8) -> Outcome<Value<'a>> {
    Ok(match tag {
        1 => {
            let length = f.u32()?;
            Value::Text(f.text(length.into())?)
        }
        2 => Value::Signed(f.u64()? as i64),
        3 => Value::Unsigned(f.u64()?),
        4 => Value::Float(f.u64()?),
        5 => {
            let byte = f.u8()?;
            f.rule(byte <= 1, "a bool is 0 or 1")?;
            Value::Bool(byte == 1)
        }
        6 => {
            let length = f.u32()?;
            Value::Bytes(f.bytes(length.into())?)
        }
        _ => return Err(Refusal::Broken { rule: "a value's tag is known", offset: f.offset() }),
    })
}

fn decode_index(mut f: Fields<'_>, sorted: bool) -> Outcome<Vec<Entry<'_>>> {
    let (mut entries, mut seen) = (Vec::<Entry>::new(), HashSet::new());
    for _ in 0..f.u64()? {
        let name = f.name()?;
        f.rule(seen.insert(name), "tensor names are unique")?;
        let (descriptor_offset, descriptor_length) = (f.u64()?, f.u32()?);
        let (data_offset, data_length, flags) = (f.u64()?, f.u64()?, f.u32()?);
        f.rule(flags == 0, "an index entry's flags are 0")?;
        if let Some(last) = entries.last() {
            if sorted {
                f.rule(last.name.as_bytes() < name.as_bytes(), "the index is sorted by name")?;
            } else {
                f.rule(last.descriptor_offset < descriptor_offset, "the index is in write order")?;
            }
        }
        entries.push(Entry { name, descriptor_offset, descriptor_length, data_offset, data_length });
    }
    f.rule(f.rest.is_empty(), "index_length is what the entries take")?;
    Ok(entries)
}

fn decode_tensor<'a>(
    data: &'a [u8],
    entry: &Entry,
    alignment: u64,
    taken: &mut Vec<Extent>,
) -> Outcome<Tensor<'a>> {
    let words = "a descriptor is before the trailer, at a multiple of 8";
    let mut f = section(data, entry.descriptor_offset, entry.descriptor_length.into(), 8, words)?;
    let offset = f.offset();
    let descriptor = Descriptor::decode(&mut f)?;
    f.rule(f.rest.is_empty(), "the index tells the descriptor's length")?;
    taken.push(Extent { start: offset, end: f.end, slack: alignment - 1 });
    let mut tensor = Tensor { descriptor, buffers: Vec::new(), offset };
    if let Layout::Composite { .. } = tensor.descriptor.layout {
        f.rule(entry.data_length == 0, "a composite head has no data")?;
        return Ok(tensor);
    }
    let aligned = |at: u64| (at + alignment - 1) / alignment * alignment;
    f.rule(entry.data_offset == aligned(f.end as u64), "data is at the next multiple of the alignment")?;
    let region = section(data, entry.data_offset, entry.data_length, 1, "data is before the trailer")?;
    if !region.rest.is_empty() {
        taken.push(Extent { start: region.offset(), end: region.end, slack: 7 });
    }
    let mut at = entry.data_offset;
    for handle in &tensor.descriptor.handles {
        let start = aligned(at);
        let buffer = section(data, start, handle.byte_size, alignment, "a buffer is before the trailer")?;
        check_padding(data, at as usize, start as usize)?;
        tensor.buffers.push(buffer.rest);
        at = start + handle.byte_size;
    }
    f.rule(at - entry.data_offset == entry.data_length, "data_length spans the buffers")?;
    tensor.check_payload()?;
    Ok(tensor)
}

/// A part of the file that one thing takes, and how many bytes of padding may follow it.
struct Extent {
    start: usize,
    end: usize,
    slack: u64,
}

fn check_padding(data: &[u8], start: usize, end: usize) -> Outcome<()> {
    rule(data[start..end].iter().all(|&byte| byte == 0), "padding is zero", start)
}

fn check_extents(data: &[u8], mut taken: Vec<Extent>) -> Outcome<()> {
    taken.sort_unstable_by_key(|extent| (extent.start, extent.end));
    for pair in taken.windows(2) {
        let (end, start) = (pair[0].end, pair[1].start);
        rule(end <= start, "no two things take the same byte", start)?;
        rule((start - end) as u64 <= pair[0].slack, "no hole is between two things", end)?;
        check_padding(data, end, start)?;
    }
    Ok(())
}

fn check_checksums(data: &[u8], metadata: &[(&str, Value)], tensors: &[Tensor]) -> Outcome<()> {
    let Some((_, recorded)) = metadata.iter().find(|(key, _)| *key == "hurray_wire.crc32c") else { return Ok(()) };
    let Value::Array(3, recorded) = recorded else {
        return Err(Refusal::Broken { rule: "hurray_wire.crc32c is an array of u64", offset: 0 });
    };
    let mut recorded = recorded.iter();
    for tensor in tensors {
        let descriptor = &data[tensor.offset..tensor.offset + tensor.descriptor.length as usize];
        for piece in std::iter::once(&descriptor).chain(&tensor.buffers) {
            let same = matches!(recorded.next(), Some(&Value::Unsigned(crc)) if crc == crc32c(piece).into());
            rule(same, "the checksums are those recorded", tensor.offset)?;
        }
    }
    rule(recorded.next().is_none(), "there is no checksum too many", 0)
}

// ---- JSON -----------------------------------------------------------------------------------------------------------

enum Json {
    Null,
    Bool(bool),
    Number(i128),
    Text(String),
    List(Vec<Json>),
    Object(BTreeMap<&'static str, Json>),
}

macro_rules! object {
    ($($name:literal: $value:expr),* $(,)?) => { Json::Object(BTreeMap::from([$(($name, Json::from($value))),*])) };
}

macro_rules! json_from_integer {
    ($($integer:ty)*) => { $(impl From<$integer> for Json {
        fn from(value: $integer) -> Json { Json::Number(value.into()) }
    })* };
}
json_from_integer!(u8 u16 u32 u64 i32 i64);

impl From<bool> for Json {
    fn from(value: bool) -> Json {
        Json::Bool(value)
    }
}

impl From<String> for Json {
    fn from(value: String) -> Json {
        Json::Text(value)
    }
}

impl From<&str> for Json {
    fn from(value: &str) -> Json {
        Json::Text(value.into())
    }
}

impl<T: Into<Json>> From<Option<T>> for Json {
    fn from(value: Option<T>) -> Json {
        value.map_or(Json::Null, Into::into)
    }
}

impl<T: Into<Json>> From<Vec<T>> for Json {
    fn from(values: Vec<T>) -> Json {
        Json::List(values.into_iter().map(Into::into).collect())
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Json::Null => f.write_str("null"),
            Json::Bool(value) => write!(f, "{value}"),
            Json::Number(value) if value.unsigned_abs() < 1 << 53 => write!(f, "{value}"),
            Json::Number(value) => write!(f, "\"{value}\""),
            Json::Text(text) => write_text(f, text),
            Json::List(items) => {
                f.write_char('[')?;
                for (i, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if i > 0 { "," } else { "" })?;
                }
                f.write_char(']')
            }
            Json::Object(fields) => {
                f.write_char('{')?;
                for (i, (name, value)) in fields.iter().enumerate() {
                    write!(f, "{}\"{name}\":{value}", if i > 0 { "," } else { "" })?;
                }
                f.write_char('}')
            }
        }
    }
}

fn write_text(f: &mut fmt::Formatter, text: &str) -> fmt::Result {
    f.write_char('"')?;
    for letter in text.chars() {
        match letter {
            '"' | '\\' => write!(f, "\\{letter}")?,
            '\0'..='\x1F' => write!(f, "\\u{:04x}", letter as u32)?,
            _ => f.write_char(letter)?,
        }
    }
    f.write_char('"')
}

fn hex(data: &[u8]) -> String {
    data.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl From<&Quantization> for Json {
    fn from(q: &Quantization) -> Json {
        let mut fields = BTreeMap::from([
            ("quantization_length", q.length.into()),
            ("scheme_tag", q.tag.into()),
            ("scheme_version", q.version.into()),
            ("flags", q.flags.into()),
        ]);
        match &q.scheme {
            Scheme::PerTensor { scale, zero_point } => {
                fields.insert("scale", format!("{scale:08x}").into());
                fields.insert("zero_point", (*zero_point).into());
            }
            Scheme::InBuffers { axis, block_size, scales, zero_points, scale_type } => {
                fields.insert("axis", (*axis).into());
                fields.insert("scale_buffer_index", (*scales).into());
                if let Some(block_size) = block_size {
                    fields.insert("block_size", (*block_size).into());
                }
                if let Some(scale_type) = scale_type {
                    fields.insert("scale_type_tag", (*scale_type).into());
                    fields.insert("zero_point_buffer_index", zero_points.unwrap_or(NO_BUFFER).into());
                }
            }
        }
        Json::Object(fields)
    }
}

impl From<&Layout> for Json {
    fn from(layout: &Layout) -> Json {
        match layout {
            Layout::Dense { .. } => object! {},
            Layout::BlockPaged(p) => object! {
                "page_size": p.page_size, "num_pages": p.num_pages, "paged_axis": 0_u32, "num_seqs": p.num_seqs,
                "kv_role": p.kv_role, "layer_index": p.layer_index, "block_table_index_type": u8::from(p.wide),
            },
            Layout::Composite { composition_rule, combine_op, member_count } => object! {
                "composition_rule": *composition_rule, "combine_op": *combine_op, "member_count": *member_count,
            },
        }
    }
}

impl From<&Handle> for Json {
    fn from(h: &Handle) -> Json {
        object! {
            "byte_size": h.byte_size, "alignment": h.alignment, "device_tag": h.device_tag,
            "sync_mode": h.sync_mode, "memory_class": h.memory_class,
        }
    }
}

impl From<&Shard> for Json {
    fn from(s: &Shard) -> Json {
        object! { "parent_shape": s.parent_shape.clone(), "shard_offset": s.offset.clone() }
    }
}

impl From<&Statistics> for Json {
    fn from(s: &Statistics) -> Json {
        let bits = |i: usize| format!("{:016x}", s.values[i]);
        object! {
            "computed_mask": s.computed_mask, "nnz": s.nnz,
            "sparsity_ratio": bits(0), "value_min": bits(1), "value_max": bits(2), "value_abs_max": bits(3),
            "value_mean": bits(4), "value_stddev": bits(5),
            "nm_n": s.bytes[0], "nm_m": s.bytes[1], "has_nan": s.bytes[2], "has_inf": s.bytes[3],
        }
    }
}

impl From<&ExtensionType> for Json {
    fn from(e: &ExtensionType) -> Json {
        let [packing_factor, is_float, is_signed, sign_bits, exponent_bits, mantissa_bits, has_nan, has_inf] = e.bytes;
        object! {
            "bit_width": e.bit_width, "packing_factor": packing_factor, "is_float": is_float, "is_signed": is_signed,
            "sign_bits": sign_bits, "exponent_bits": exponent_bits, "mantissa_bits": mantissa_bits,
            "exponent_bias": e.exponent_bias, "has_nan": has_nan, "has_inf": has_inf,
        }
    }
}

impl From<&Descriptor> for Json {
    fn from(d: &Descriptor) -> Json {
        object! {
            "version_major": d.version_major, "version_minor": d.version_minor, "descriptor_length": d.length,
            "flags": d.flags, "type_tag": d.type_tag, "layout_tag": d.layout.tag(), "rank": d.shape.len() as u32,
            "shape": d.shape.clone(), "byte_offset": d.byte_offset, "layout": &d.layout,
            "buffer_count": d.handles.len() as u32, "buffer_handles": d.handles.iter().collect::<Vec<_>>(),
            "quantization": d.quantization.as_ref(), "shard": d.shard.as_ref(), "statistics": d.statistics.as_ref(),
            "extension_type": d.extension_type.as_ref(),
            "composite_member": d.member_role.map(|role| object! { "role": role }),
        }
    }
}

impl From<&Value<'_>> for Json {
    fn from(value: &Value) -> Json {
        match value {
            Value::Text(text) => (*text).into(),
            Value::Signed(number) => (*number).into(),
            Value::Unsigned(number) => (*number).into(),
            Value::Float(bits) => format!("{bits:016x}").into(),
            Value::Bool(value) => (*value).into(),
            Value::Bytes(data) => hex(data).into(),
            Value::Array(_, values) => values.iter().collect::<Vec<_>>().into(),
        }
    }
}

const KINDS: [&str; 7] = ["string", "i64", "u64", "f64", "bool", "bytes", "array"];

fn json_of_entry((key, value): &(&str, Value)) -> Json {
    let tag = match value {
        Value::Text(_) => 1,
        Value::Signed(_) => 2,
        Value::Unsigned(_) => 3,
        Value::Float(_) => 4,
        Value::Bool(_) => 5,
        Value::Bytes(_) => 6,
        Value::Array(..) => 7,
    };
    let kind = KINDS[tag - 1];
    match value {
        Value::Array(element, _) => {
            object! { "key": *key, "kind": kind, "element_kind": KINDS[usize::from(*element) - 1], "value": value }
        }
        _ => object! { "key": *key, "kind": kind, "value": value },
    }
}

fn json_of_buffer(buffer: &&[u8]) -> Json {
    object! { "size": buffer.len() as u64, "crc32c": format!("{:08x}", crc32c(buffer)) }
}

fn json_of_input(input: &Input) -> Json {
    let tensor = |(name, tensor): &(Option<&str>, Tensor)| {
        let mut fields = BTreeMap::from([
            ("descriptor", Json::from(&tensor.descriptor)),
            ("buffers", Json::List(tensor.buffers.iter().map(json_of_buffer).collect())),
        ]);
        fields.extend(name.map(|name| ("name", name.into())));
        Json::Object(fields)
    };
    let tensors: Vec<Json> = input.tensors.iter().map(tensor).collect();
    let Some(c) = &input.container else { return object! { "form": "stream", "tensors": tensors } };
    let entry = |e: &Entry| {
        object! {
            "name": e.name, "descriptor_offset": e.descriptor_offset, "descriptor_length": e.descriptor_length,
            "data_offset": e.data_offset, "data_length": e.data_length, "flags": 0_u32,
        }
    };
    object! {
        "form": "file",
        "header": object! {
            "container_major": c.major, "container_minor": c.minor, "file_flags": c.file_flags,
            "data_buffer_alignment": c.data_buffer_alignment, "first_descriptor_offset": c.first_descriptor_offset,
            "tensor_count_hint": c.tensor_count_hint,
        },
        "kv_metadata": c.metadata.as_ref().map(|entries| entries.iter().map(json_of_entry).collect::<Vec<_>>()),
        "index": c.index.iter().map(entry).collect::<Vec<_>>(),
        "trailer": object! {
            "index_offset": c.index_offset, "index_length": c.index_length, "kv_offset": c.kv_offset,
            "kv_length": c.kv_length, "index_crc32c": format!("{:08x}", c.index_crc32c),
        },
        "tensors": tensors,
    }
}

// ---- writing --------------------------------------------------------------------------------------------------------

/// A tensor to be written: its descriptor's variable parts, already encoded, and its buffers.
struct Draft {
    name: &'static str,
    type_tag: u8,
    shape: Vec<u64>,
    layout_tag: u8,
    layout_fields: Vec<u8>,
    quantization: Option<Vec<u8>>,
    buffers: Vec<Vec<u8>>,
}

fn u32s(numbers: impl IntoIterator<Item = u32>) -> Vec<u8> {
    numbers.into_iter().flat_map(u32::to_le_bytes).collect()
}

fn u64s(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    numbers.into_iter().flat_map(u64::to_le_bytes).collect()
}

fn u16s(numbers: impl IntoIterator<Item = u16>) -> Vec<u8> {
    numbers.into_iter().flat_map(u16::to_le_bytes).collect()
}

impl Draft {
    fn paged(name: &'static str, type_tag: u8, shape: [u64; 3], layout: &BlockPaged, buffers: Vec<Vec<u8>>) -> Self {
        let mut fields = u32s([layout.page_size]);
        fields.extend(layout.num_pages.to_le_bytes());
        fields.extend(u32s([0, layout.num_seqs]));
        fields.push(layout.kv_role);
        fields.extend(layout.layer_index.to_le_bytes());
        fields.push(layout.wide.into());
        fields.extend([0; 6]);
        let tag = layout_tag::BLOCK_PAGED;
        let shape = shape.to_vec();
        Draft { name, type_tag, shape, layout_tag: tag, layout_fields: fields, quantization: None, buffers }
    }

    fn flat(name: &'static str, type_tag: u8, length: usize, data: Vec<u8>) -> Self {
        Draft {
            name,
            type_tag,
            shape: vec![length as u64],
            layout_tag: layout_tag::ROW_MAJOR,
            layout_fields: Vec::new(),
            quantization: None,
            buffers: vec![data],
        }
    }

    fn group(member_count: usize) -> Self {
        let mut fields = vec![3, 0, 0, 0];
        fields.extend((member_count as u32).to_le_bytes());
        Draft {
            name: "",
            type_tag: 0x11,
            shape: Vec::new(),
            layout_tag: layout_tag::COMPOSITE,
            layout_fields: fields,
            quantization: None,
            buffers: Vec::new(),
        }
    }

    fn descriptor(&self) -> Vec<u8> {
        let mut out = b"HRRY\x01\x00\0\0\0\0".to_vec();
        out.extend(u32s([self.quantization.as_ref().map_or(0, |_| flag::QUANTIZATION)]));
        out.extend([self.type_tag, self.layout_tag]);
        out.extend(u32s([self.shape.len() as u32]));
        out.extend(u64s(self.shape.iter().copied().chain([0])));
        out.extend(&self.layout_fields);
        out.push(self.buffers.len() as u8);
        for buffer in &self.buffers {
            out.extend((buffer.len() as u64).to_le_bytes());
            out.extend(u32s([BUFFER_ALIGNMENT, 0]));
        }
        if let Some(section) = &self.quantization {
            out.extend(u32s([section.len() as u32]));
            out.extend(section);
        }
        let length = out.len() as u32;
        out[6..10].copy_from_slice(&length.to_le_bytes());
        out
    }
}

/// The worked example of the specification: layer 3, key, two sequences of which the second shares page 0.
fn worked_example() -> Draft {
    let layout = BlockPaged { page_size: 4, num_pages: 5, num_seqs: 2, kv_role: 0, layer_index: 3, wide: false };
    let pool = u16s((0..5 * 4 * 2 * 8).map(|i| 0x3C00 + i));
    Draft::paged("layers.3.key", 0x01, [9, 2, 8], &layout, vec![pool, u32s([0, 1, 0]), u32s([0, 2, 3])])
}

fn empty_batch() -> Draft {
    let layout =
        BlockPaged { page_size: 16, num_pages: 0, num_seqs: 0, kv_role: 1, layer_index: u32::MAX, wide: true };
    Draft::paged("empty", 0x03, [0, 2, 8], &layout, vec![vec![], vec![], u64s([0])])
}

fn int8_page_slot() -> Draft {
    let layout =
        BlockPaged { page_size: 4, num_pages: 5, num_seqs: 2, kv_role: 2, layer_index: u32::MAX, wide: false };
    let pool = (0..5 * 4 * 2 * 8_u32).map(|i| (7 * i + 3) as u8).collect();
    let scales = u16s((0..20).map(|slot| 0x3000 + 8 * slot));
    let zero_points = (0..20_i32).flat_map(|slot| (slot - 10).to_le_bytes()).collect();
    let buffers = vec![pool, u32s([0, 1, 0]), u32s([0, 2, 3]), scales, zero_points];
    let mut draft = Draft::paged("cache", 0x10, [9, 2, 8], &layout, buffers);
    let mut section = vec![3, 1, 0, 0];
    section.extend(u32s([0, layout.page_size, 3, 4, 0x01]));
    draft.quantization = Some(section);
    draft
}

fn multi_layers() -> Vec<Draft> {
    let names = ["layers.0.key", "layers.0.value", "layers.1.key", "layers.1.value"];
    let draft = |(i, name): (usize, &'static str)| {
        let (layer, role) = (i as u32 / 2, i as u32 % 2);
        let layout = BlockPaged {
            page_size: 4,
            num_pages: 6,
            num_seqs: 3,
            kv_role: role as u8,
            layer_index: layer,
            wide: true,
        };
        let pool = u16s((0..6 * 4 * 2 * 4).map(|i| (i * 2477 + layer * 641 + role * 97) as u16));
        let buffers = vec![pool, u64s([3, 1, 4, 3, 5]), u64s([0, 3, 5, 5])];
        Draft::paged(name, 0x02, [17, 2, 4], &layout, buffers)
    };
    names.into_iter().enumerate().map(draft).collect()
}

fn seq_lens() -> Draft {
    Draft::flat("seq_lens", 0x15, 3, u32s([10, 7, 0]))
}

fn multi_metadata() -> Vec<(&'static str, Value<'static>)> {
    vec![
        ("hurray_wire.snapshot", Value::Signed(1)),
        ("producer", Value::Text("foreign")),
        ("model.id", Value::Text("llama-β")),
        ("n", Value::Signed(-7)),
        ("u", Value::Unsigned(u64::MAX)),
        ("f", Value::Float(0.1_f64.to_bits())),
        ("b", Value::Bool(true)),
        ("raw", Value::Bytes(&[0x00, 0xFF, 0x01])),
        ("arr", Value::Array(1, vec![Value::Text("a"), Value::Text("")])),
        ("ints", Value::Array(2, vec![Value::Signed(-1), Value::Signed(2)])),
    ]
}

/// The payload of a value onto `out`, and the value's tag.
fn encode_value(value: &Value, out: &mut Vec<u8>) -> u8 {
    match value {
        Value::Text(text) => {
            out.extend(u32s([text.len() as u32]));
            out.extend(text.as_bytes());
            1
        }
        Value::Signed(number) => {
            out.extend(number.to_le_bytes());
            2
        }
        Value::Unsigned(number) => {
            out.extend(number.to_le_bytes());
            3
        }
        Value::Float(bits) => {
            out.extend(bits.to_le_bytes());
            4
        }
        Value::Bool(value) => {
            out.push((*value).into());
            5
        }
        Value::Bytes(data) => {
            out.extend(u32s([data.len() as u32]));
            out.extend(*data);
            6
        }
        Value::Array(element, values) => {
            out.push(*element);
            out.extend(u32s([values.len() as u32]));
            for value in values {
                encode_value(value, out);
            }
            7
        }
    }
}

fn encode_metadata(entries: &[(&str, Value)]) -> Vec<u8> {
    let mut out = u32s([entries.len() as u32]);
    for (key, value) in entries {
        let mut payload = Vec::new();
        let tag = encode_value(value, &mut payload);
        out.extend((key.len() as u16).to_le_bytes());
        out.extend(key.as_bytes());
        out.push(tag);
        out.extend(payload);
    }
    out
}

fn pad(out: &mut Vec<u8>, alignment: usize) {
    out.resize((out.len() + alignment - 1) / alignment * alignment, 0);
}

struct FileOptions {
    file_flags: u32,
    alignment: u32,
    tensor_count_hint: u64,
    metadata: Vec<(&'static str, Value<'static>)>,
    record_checksums: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        FileOptions {
            file_flags: file_flag::HAS_INDEX_CRC32C,
            alignment: 4096,
            tensor_count_hint: u64::MAX,
            metadata: Vec::new(),
            record_checksums: false,
        }
    }
}

fn encode_file(drafts: &[Draft], mut options: FileOptions) -> Vec<u8> {
    let mut out = b"HRRYFILE\x01\x00\0\0".to_vec();
    out.extend(u32s([options.file_flags, options.alignment]));
    out.extend(u64s([64, options.tensor_count_hint]));
    out.extend([0; 28]);
    let (mut entries, mut checksums) = (Vec::new(), Vec::new());
    for draft in drafts {
        pad(&mut out, 8);
        let (descriptor, descriptor_offset) = (draft.descriptor(), out.len());
        out.extend(&descriptor);
        checksums.push(crc32c(&descriptor));
        let mut data_offset = None;
        for buffer in &draft.buffers {
            pad(&mut out, options.alignment as usize);
            data_offset.get_or_insert(out.len());
            out.extend(buffer);
            checksums.push(crc32c(buffer));
        }
        entries.push(Entry {
            name: draft.name,
            descriptor_offset: descriptor_offset as u64,
            descriptor_length: descriptor.len() as u32,
            data_offset: data_offset.unwrap_or(0) as u64,
            data_length: data_offset.map_or(0, |start| out.len() - start) as u64,
        });
    }
    if options.record_checksums {
        let values = checksums.iter().map(|&crc| Value::Unsigned(crc.into())).collect();
        options.metadata.push(("hurray_wire.crc32c", Value::Array(3, values)));
    }
    let (mut kv_offset, mut kv) = (0, Vec::new());
    if !options.metadata.is_empty() {
        pad(&mut out, 8);
        kv_offset = out.len() as u64;
        kv = encode_metadata(&options.metadata);
        out.extend(&kv);
    }
    if options.file_flags & file_flag::SORTED_INDEX != 0 {
        entries.sort_by_key(|entry| entry.name);
    }
    let mut index = u64s([entries.len() as u64]);
    for entry in &entries {
        index.extend((entry.name.len() as u16).to_le_bytes());
        index.extend(entry.name.as_bytes());
        index.extend(entry.descriptor_offset.to_le_bytes());
        index.extend(entry.descriptor_length.to_le_bytes());
        index.extend(u64s([entry.data_offset, entry.data_length]));
        index.extend([0; 4]);
    }
    pad(&mut out, 8);
    let index_offset = out.len() as u64;
    out.extend(&index);
    let with_crc = options.file_flags & file_flag::HAS_INDEX_CRC32C != 0;
    out.extend(u64s([index_offset, index.len() as u64, kv_offset]));
    out.extend(u32s([kv.len() as u32, if with_crc { crc32c(&index) } else { 0 }, 0]));
    out.extend(b"HRRY");
    out
}

fn encode_stream(drafts: &[Draft]) -> Vec<u8> {
    drafts.iter().flat_map(|draft| std::iter::once(draft.descriptor()).chain(draft.buffers.iter().cloned())).flatten().collect()
}

fn encode_case(name: &str) -> Option<Vec<u8>> {
    let options = FileOptions::default();
    let with_metadata = file_flag::HAS_KV_METADATA | file_flag::HAS_INDEX_CRC32C;
    Some(match name {
        "spec_example" => encode_file(&[worked_example()], options),
        "multi" => {
            let mut drafts = multi_layers();
            drafts.push(seq_lens());
            let metadata = multi_metadata();
            encode_file(&drafts, FileOptions { file_flags: with_metadata, metadata, record_checksums: true, ..options })
        }
        "empty_batch" => encode_file(&[empty_batch()], FileOptions { file_flags: 0, tensor_count_hint: 1, ..options }),
        "int8_page_slot" => encode_file(&[int8_page_slot()], options),
        "unflagged_metadata" => {
            let file_flags = file_flag::SORTED_INDEX | file_flag::HAS_INDEX_CRC32C;
            let metadata = vec![("producer", Value::Text("foreign")), ("tensor_count", Value::Signed(2))];
            let drafts = [worked_example(), Draft::flat("bytes", 0x11, 5, vec![1, 2, 3, 4, 5])];
            encode_file(&drafts, FileOptions { file_flags, alignment: 8192, metadata, ..options })
        }
        "stream" => encode_stream(&[worked_example(), empty_batch()]),
        "group_stream" => {
            let metadata = encode_metadata(&multi_metadata());
            let mut members = vec![Draft::flat("", 0x11, metadata.len(), metadata), seq_lens()];
            members.extend(multi_layers());
            members.insert(0, Draft::group(members.len()));
            encode_stream(&members)
        }
        _ => return None,
    })
}

// ---- commands -------------------------------------------------------------------------------------------------------

#[derive(Clone, Copy)]
enum Form {
    File,
    Stream,
    Descriptor,
}

fn decode(data: &[u8], form: Form) -> Outcome<Json> {
    Ok(match form {
        Form::File => json_of_input(&decode_file(data)?),
        Form::Stream => json_of_input(&decode_stream(data)?),
        Form::Descriptor => object! { "form": "descriptor", "descriptor": &decode_descriptor(data)? },
    })
}

fn check(form: Form) -> io::Result<ExitCode> {
    let mut out = io::stdout().lock();
    for path in io::stdin().lock().lines() {
        let path = path?;
        match fs::read(&path) {
            Err(error) => writeln!(out, "refused: {error}")?,
            Ok(data) => match decode(&data, form) {
                Ok(_) => writeln!(out, "ok")?,
                Err(Refusal::Unsupported { .. }) => writeln!(out, "unsupported")?,
                Err(refusal) => writeln!(out, "refused: {refusal}")?,
            },
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn dump(path: &str, form: Form) -> io::Result<ExitCode> {
    let data = fs::read(path)?;
    Ok(match decode(&data, form) {
        Ok(document) => {
            println!("{document}");
            ExitCode::SUCCESS
        }
        Err(refusal) => {
            eprintln!("{path}: {refusal}");
            match refusal {
                Refusal::Broken { .. } => ExitCode::FAILURE,
                Refusal::Unsupported { .. } => {
                    println!("\"unsupported\"");
                    ExitCode::from(3)
                }
            }
        }
    })
}

fn cuts(path: &str, form: Form) -> io::Result<ExitCode> {
    let data = fs::read(path)?;
    let accepted: Vec<u64> =
        (0..=data.len()).filter(|&size| decode(&data[..size], form).is_ok()).map(|size| size as u64).collect();
    println!("{}", Json::from(accepted));
    Ok(ExitCode::SUCCESS)
}

/// Runs a command on one path after the other, up to the first that fails.
fn for_each(paths: &[&str], form: Form, command: fn(&str, Form) -> io::Result<ExitCode>) -> io::Result<ExitCode> {
    for path in paths {
        let status = command(path, form)?;
        if status != ExitCode::SUCCESS {
            return Ok(status);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn run(arguments: &[&str]) -> io::Result<ExitCode> {
    let (form, paths) = match arguments {
        [_, "--stream", paths @ ..] => (Form::Stream, paths),
        [_, "--descriptor", paths @ ..] => (Form::Descriptor, paths),
        _ => (Form::File, arguments.get(1..).unwrap_or_default()),
    };
    match arguments {
        ["write", case, out] => match encode_case(case) {
            Some(bytes) => fs::write(out, bytes).map(|()| ExitCode::SUCCESS),
            None => {
                eprintln!("there is no case named {case}");
                Ok(ExitCode::from(2))
            }
        },
        ["check", ..] if paths.is_empty() => check(form),
        ["dump", ..] if !paths.is_empty() => for_each(paths, form, dump),
        ["cuts", ..] if !paths.is_empty() => for_each(paths, form, cuts),
        _ => {
            eprintln!("usage: hurray write CASE OUT | dump [FORM] FILE... | check [FORM] | cuts [FORM] FILE...");
            eprintln!("FORM is --stream or --descriptor; otherwise inputs are files");
            Ok(ExitCode::from(2))
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    run(&arguments).unwrap_or_else(|error| {
        eprintln!("{}: {error}", arguments.last().unwrap_or(&"hurray"));
        ExitCode::FAILURE
    })
}

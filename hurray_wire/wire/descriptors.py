"""Tensor descriptors: bytes to objects and back (spec/descriptor.md).

The bytes are judged in the order in which they stand. The header tells the length; the rest is read within exactly that
many bytes, and a descriptor of a minor version we know must end where its last section ends.
"""

from __future__ import annotations

from typing import Any

from ..errors import HurrayError, InvalidDescriptorError, LimitError, TruncatedError, UnsupportedError
from ..limits import MAX_RANK, Limits
from ..model import descriptor as m
from ..model import sections
from ..model.element_types import PRIVATE_TAGS as PRIVATE_TYPE_TAGS
from ..model.element_types import ElementType, from_tag
from ..model.layouts import Layout, UnknownLayout
from ..model.quantization import Quantization
from . import structs
from .doorway import Cursor, Record, build, located, size_of
from .layouts import decode_layout, encode_layout, is_known, word_of
from .quantization import decode_quantization, encode_quantization

__all__ = ["HEADER_BYTES", "decode_descriptor", "descriptor_length", "encode_descriptor"]

VERSION_MAJOR = 1
HEADER_BYTES = size_of(structs.DESCRIPTOR_HEADER)

QUANTIZATION, SHARD, EXTENSION_TYPE, STATISTICS, COMPOSITE_MEMBER = (1 << bit for bit in range(5))
ALL_FLAGS = QUANTIZATION | SHARD | EXTENSION_TYPE | STATISTICS | COMPOSITE_MEMBER


def descriptor_length(head: Any, *, base: int = 0, limits: Limits | None = None) -> int:
    """The whole length of the descriptor whose first 20 bytes are given: what a stream must have to go on."""
    view = memoryview(head)
    length: int = _take_header(Cursor(view, area="descriptor", base=base), limits or Limits()).descriptor_length
    return length


def decode_descriptor(
    buffer: Any, *, permissive: bool = False, base: int = 0, limits: Limits | None = None
) -> m.TensorDescriptor:
    """The descriptor held by exactly the bytes of ``buffer``, of which nothing is kept.

    ``base`` is where the buffer starts in its file, for the offsets of errors. ``permissive`` keeps a descriptor with
    an unknown layout tag whole; otherwise that is UnsupportedError.
    """
    data = memoryview(buffer).cast("B")
    cursor = Cursor(data, area="descriptor", base=base)
    header = _take_header(cursor, limits or Limits())
    if header.descriptor_length != len(data):
        kind: type[HurrayError] = TruncatedError if header.descriptor_length > len(data) else InvalidDescriptorError
        raise kind(
            f"descriptor_length is {header.descriptor_length}, but there are {len(data)} bytes",
            rule="descriptor.length",
            offset=base + 6,
            declared=header.descriptor_length,
            found=len(data),
        )
    shape = tuple(cursor.take(structs.u64_array(header.rank), "the shape").numbers)
    byte_offset = cursor.value(structs.U64, "byte_offset")
    with located(base):
        if not is_known(header.layout_tag) and permissive:
            return _decode_unknown(header, shape, byte_offset, cursor)
        layout = decode_layout(header.layout_tag, header.rank, cursor)
        return _decode_rest(header, shape, byte_offset, layout, cursor)


def encode_descriptor(descriptor: m.TensorDescriptor) -> bytes:
    """The descriptor's bytes."""
    d = descriptor
    layout = d.layout
    parts: list[tuple[int, bytes]] = []
    if d.quantization is not None:
        encoded = encode_quantization(d.quantization) + bytes(d.quantization_padding)
        parts.append((QUANTIZATION, build(structs.U32, {"value": len(encoded)}) + encoded))
    if d.shard is not None:
        fields = {"parent_shape": d.shard.parent_shape, "shard_offset": d.shard.shard_offset}
        parts.append((SHARD, build(structs.shard(d.rank), fields)))
    if d.statistics is not None:
        parts.append((STATISTICS, _encode_statistics(d.statistics)))
    if d.extension_type is not None:
        parts.append((EXTENSION_TYPE, _encode_extension_type(d.extension_type)))
    if d.composite_member is not None:
        role = sections.CompositeMember.ROLES[d.composite_member.role]
        parts.append((COMPOSITE_MEMBER, build(structs.COMPOSITE_MEMBER, {"role": role})))
    body = [
        build(structs.u64_array(d.rank), {"numbers": d.shape}),
        build(structs.U64, {"value": d.byte_offset}),
        encode_layout(layout),
    ]
    flags = sum(flag for flag, _ in parts)
    if isinstance(layout, UnknownLayout):
        flags = layout.flags
    else:
        body.append(build(structs.U8, {"value": len(d.buffers)}))
        body.extend(_encode_handle(handle) for handle in d.buffers)
        body.extend(section for _, section in parts)
        body.append(d.unknown_tail)
    header = {
        "version_major": VERSION_MAJOR,
        "version_minor": d.version_minor,
        "descriptor_length": HEADER_BYTES + sum(map(len, body)),
        "flags": flags,
        "type_tag": d.element_type.tag,
        "layout_tag": layout.tag,
        "rank": d.rank,
    }
    return b"".join([build(structs.DESCRIPTOR_HEADER, header), *body])


def _take_header(cursor: Cursor, limits: Limits) -> Record:
    header = cursor.take(structs.DESCRIPTOR_HEADER, "the descriptor")
    with located(cursor.base):
        if header.version_major != VERSION_MAJOR:
            kind: type[HurrayError] = UnsupportedError if header.version_major else InvalidDescriptorError
            raise kind(
                f"descriptor version {header.version_major}.{header.version_minor} is not {VERSION_MAJOR}.x",
                rule="descriptor.version-major",
                declared=VERSION_MAJOR,
                found=header.version_major,
            )
        if header.descriptor_length < HEADER_BYTES:
            raise InvalidDescriptorError(
                f"descriptor_length {header.descriptor_length} is below {HEADER_BYTES}",
                rule="descriptor.length",
                declared=HEADER_BYTES,
                found=header.descriptor_length,
            )
        if header.descriptor_length > limits.max_descriptor_bytes:
            raise LimitError(
                f"descriptor_length {header.descriptor_length} is above the limit of {limits.max_descriptor_bytes}",
                rule="limit.descriptor-bytes",
                declared=limits.max_descriptor_bytes,
                found=header.descriptor_length,
            )
        if header.flags & ~ALL_FLAGS:
            raise InvalidDescriptorError(
                f"descriptor flags 0x{header.flags:08X} hold unknown bits",
                rule="descriptor.flags",
                declared=ALL_FLAGS,
                found=header.flags,
            )
        if header.rank > MAX_RANK:
            raise InvalidDescriptorError(
                f"rank {header.rank} is above {MAX_RANK}",
                rule="descriptor.rank",
                declared=MAX_RANK,
                found=header.rank,
            )
    return header


def _decode_unknown(header: Record, shape: tuple[int, ...], byte_offset: int, cursor: Cursor) -> m.TensorDescriptor:
    tag = header.type_tag
    # a private type's width would lie in the part that cannot be read; one byte stands in for it
    element_type = sections.ExtensionType(bit_width=8).element_type(tag) if tag in PRIVATE_TYPE_TAGS else from_tag(tag)
    raw = cursor.take_bytes(cursor.remaining, "the unknown layout's bytes")
    layout = UnknownLayout(header.layout_tag, raw, header.flags)
    return m.TensorDescriptor(element_type, shape, layout, byte_offset=byte_offset, version_minor=header.version_minor)


def _decode_rest(
    header: Record, shape: tuple[int, ...], byte_offset: int, layout: Layout, cursor: Cursor
) -> m.TensorDescriptor:
    """What follows the layout fields: buffer handles and the sections that the flags announce."""
    count = cursor.value(structs.U8, "buffer_count")
    buffers = tuple(_decode_handle(cursor, k) for k in range(count))
    flags = header.flags
    quantization, padding = _decode_quantization(cursor) if flags & QUANTIZATION else (None, 0)
    shard = None
    if flags & SHARD:
        start = cursor.offset
        record = cursor.take(structs.shard(header.rank), "the shard section")
        with located(start):
            shard = sections.Shard(tuple(record.parent_shape), tuple(record.shard_offset))
    statistics = _decode_statistics(cursor) if flags & STATISTICS else None
    extension_type = _decode_extension_type(cursor) if flags & EXTENSION_TYPE else None
    member = _decode_member(cursor) if flags & COMPOSITE_MEMBER else None
    end = cursor.at
    tail = cursor.take_bytes(cursor.remaining, "the tail of a newer minor version")
    made = m.TensorDescriptor(
        _element_type(header.type_tag, extension_type),
        shape,
        layout,
        buffers,
        byte_offset,
        quantization,
        shard,
        statistics,
        extension_type,
        member,
        version_minor=header.version_minor,
        unknown_tail=tail if header.version_minor else b"",
        quantization_padding=padding,
    )
    if tail and not header.version_minor:
        raise InvalidDescriptorError(
            f"{len(tail)} bytes follow the last section of the descriptor",
            rule="descriptor.length",
            offset=cursor.base + end,
            declared=header.descriptor_length,
            found=end,
        )
    return made


def _element_type(tag: int, extension_type: sections.ExtensionType | None) -> ElementType:
    if tag not in PRIVATE_TYPE_TAGS:
        return from_tag(tag)
    if extension_type is None:
        raise InvalidDescriptorError(
            f"element type 0x{tag:02X} is private, but there is no extension type section",
            rule="extension-type.presence",
            found=tag,
        )
    return extension_type.element_type(tag)


def _decode_handle(cursor: Cursor, number: int) -> sections.BufferHandle:
    with located(cursor.offset):
        record = cursor.take(structs.BUFFER_HANDLE, f"buffer handle {number}")
        return sections.BufferHandle(
            record.byte_size,
            record.alignment,
            _word_or_private(sections.DEVICES, record.device_tag, "device", "buffer.device"),
            word_of(sections.SYNC_MODES, record.sync_mode, "sync_mode", "buffer.sync-mode"),
            _word_or_private(sections.MEMORY_CLASSES, record.memory_class, "memory_class", "buffer.memory-class"),
        )


def _encode_handle(handle: sections.BufferHandle) -> bytes:
    device, memory_class = handle.device, handle.memory_class
    return build(
        structs.BUFFER_HANDLE,
        {
            "byte_size": handle.byte_size,
            "alignment": handle.alignment,
            "device_tag": device if isinstance(device, int) else sections.DEVICES[device],
            "sync_mode": sections.SYNC_MODES[handle.sync_mode],
            "memory_class": memory_class if isinstance(memory_class, int) else sections.MEMORY_CLASSES[memory_class],
        },
    )


def _word_or_private(words: dict[str, int], value: int, what: str, rule: str) -> str | int:
    return value if value in sections.PRIVATE else word_of(words, value, what, rule)


def _decode_quantization(cursor: Cursor) -> tuple[Quantization, int]:
    """The scheme, and how many bytes of padding follow it in its section."""
    length = cursor.value(structs.U32, "quantization_length")
    start = cursor.offset
    scheme = decode_quantization(cursor.view(length, "the quantization section"), base=start)
    return scheme, length - len(encode_quantization(scheme))


def _decode_statistics(cursor: Cursor) -> sections.Statistics:
    start = cursor.offset
    record = cursor.take(structs.STATISTICS, "the statistics section")
    groups = sections.Statistics.GROUPS
    with located(start):
        if record.computed_mask >> len(groups):
            raise InvalidDescriptorError(
                f"computed_mask 0x{record.computed_mask:X} holds unknown bits",
                rule="statistics.mask",
                found=record.computed_mask,
            )
        fields: dict[str, Any] = {
            name: record[name] for bit, group in enumerate(groups) if record.computed_mask >> bit & 1 for name in group
        }
        for name in ("has_nan", "has_inf"):
            if name in fields:
                fields[name] = _flag(fields[name], name, "statistics.value")
        return sections.Statistics(**fields)


def _encode_statistics(statistics: sections.Statistics) -> bytes:
    names = [name for group in sections.Statistics.GROUPS for name in group]
    fields = {name: 0 if (value := getattr(statistics, name)) is None else value for name in names}
    return build(structs.STATISTICS, {"computed_mask": statistics.computed_mask, **fields})


_EXTENSION_FLAGS = ("is_float", "is_signed", "has_nan", "has_inf")
_EXTENSION_NUMBERS = (
    "bit_width",
    "packing_factor",
    "sign_bits",
    "exponent_bits",
    "mantissa_bits",
    "exponent_bias",
)


def _decode_extension_type(cursor: Cursor) -> sections.ExtensionType:
    start = cursor.offset
    record = cursor.take(structs.EXTENSION_TYPE, "the extension type section")
    with located(start):
        flags = {name: _flag(record[name], name, "extension-type.flag") for name in _EXTENSION_FLAGS}
        return sections.ExtensionType(**{name: record[name] for name in _EXTENSION_NUMBERS}, **flags)


def _encode_extension_type(extension: sections.ExtensionType) -> bytes:
    return build(
        structs.EXTENSION_TYPE,
        {name: int(getattr(extension, name)) for name in (*_EXTENSION_FLAGS, *_EXTENSION_NUMBERS)},
    )


def _decode_member(cursor: Cursor) -> sections.CompositeMember:
    with located(cursor.offset):
        record = cursor.take(structs.COMPOSITE_MEMBER, "the composite member section")
        roles = sections.CompositeMember.ROLES
        return sections.CompositeMember(word_of(roles, record.role, "composite member role", "composite-member.role"))


def _flag(value: int, what: str, rule: str) -> bool:
    if value > 1:
        raise InvalidDescriptorError(f"{what} is {value}, not 0 or 1", rule=rule, found=value)
    return bool(value)


m._encode = encode_descriptor
m._decode = decode_descriptor

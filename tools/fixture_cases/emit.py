"""Hurray bytes, field by field: struct packing and nothing else.

An ``Out`` is a run of bytes under construction that remembers the name, place and struct code of every number in it.
``changes`` maps names of fields to other values than the case's own: that is how a case breaks a rule, and everything
that is computed later (lengths, offsets, checksums) follows the change unless it is changed itself.

Names: a descriptor's fields have the names of the specification (``rank``, ``shape[0]``, ``page_size``,
``buffer_handles[1].alignment``, ``quantization.axis``); within a file or stream they start with ``tensors[i].``, beside
``header.``, ``index[i].``, ``metadata[i].`` and ``trailer.``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from plain_decoder import crc32c

ROW_MAJOR = 0x01
COMPOSITE = 0x0B
NO_HINT = (1 << 64) - 1
CRC_KEY = "hurray_wire.crc32c"
SEAL_KEY = "hurray_wire.metadata_crc32c"
STRING, I64, U64, F64, BOOL, BYTES, ARRAY = range(1, 8)
_CODES = {I64: "q", U64: "Q", F64: "d", BOOL: "B"}


class Field(NamedTuple):
    """One number, or with code "raw" some bytes."""

    name: str
    code: str
    value: Any


class Place(NamedTuple):
    """Where a field came to stand."""

    name: str
    offset: int
    size: int
    code: str


class Out:
    """Bytes under construction."""

    def __init__(self, changes: Mapping[str, Any] | None = None) -> None:
        self.data = bytearray()
        self.places: list[Place] = []
        self.changes = dict(changes or {})
        self._unused = set(self.changes)

    def put(self, name: str, code: str, value: Any) -> None:
        if name in self.changes:
            value = self.changes[name]
            self._unused.discard(name)
        raw = bytes(value) if code == "raw" else struct.pack("<" + code, value)
        self.places.append(Place(name, len(self.data), len(raw), code))
        self.data += raw

    def put_all(self, prefix: str, fields: Sequence[Field]) -> None:
        for field in fields:
            self.put(prefix + field.name, field.code, field.value)

    def pad(self, alignment: int) -> None:
        self.data += bytes(-len(self.data) % alignment)

    def finish(self) -> bytes:
        if self._unused:
            raise KeyError(f"no such fields: {sorted(self._unused)}")
        return bytes(self.data)


@dataclass(frozen=True)
class Descriptor:
    """A descriptor, in the numbers of the wire.

    ``handles`` are byte sizes, or tuples (byte_size, alignment, device_tag, sync_mode, memory_class) from the left.
    ``quantization`` is its section without the length; ``tail`` is what a newer minor version appends.
    """

    type_tag: int
    shape: tuple[int, ...]
    handles: tuple[int | tuple[int, ...], ...] = ()
    layout_tag: int = ROW_MAJOR
    layout: tuple[Field, ...] = ()
    byte_offset: int = 0
    quantization: tuple[Field, ...] | None = None
    shard: tuple[Sequence[int], Sequence[int]] | None = None
    statistics: tuple[Field, ...] | None = None
    extension_type: tuple[Field, ...] | None = None
    member: int | None = None
    minor: int = 0
    tail: bytes = b""


def emit_descriptor(out: Out, d: Descriptor, prefix: str = "") -> tuple[int, int]:
    """Append a descriptor; returns its offset and length."""
    start = len(out.data)
    flags = sum(
        bit
        for bit, section in (
            (1, d.quantization),
            (2, d.shard),
            (4, d.extension_type),
            (8, d.statistics),
            (16, d.member),
        )
        if section is not None
    )
    out.put(prefix + "magic", "raw", b"HRRY")
    out.put(prefix + "version_major", "B", 1)
    out.put(prefix + "version_minor", "B", d.minor)
    length_at = len(out.data)
    out.put(prefix + "descriptor_length", "I", 0)
    out.put(prefix + "flags", "I", flags)
    out.put(prefix + "type_tag", "B", d.type_tag)
    out.put(prefix + "layout_tag", "B", d.layout_tag)
    out.put(prefix + "rank", "I", len(d.shape))
    for k, size in enumerate(d.shape):
        out.put(f"{prefix}shape[{k}]", "Q", size)
    out.put(prefix + "byte_offset", "Q", d.byte_offset)
    out.put_all(prefix, d.layout)
    out.put(prefix + "buffer_count", "B", len(d.handles))
    for k, handle in enumerate(d.handles):
        _emit_handle(out, f"{prefix}buffer_handles[{k}].", handle)
    if d.quantization is not None:
        length = sum(len(f.value) if f.code == "raw" else struct.calcsize("<" + f.code) for f in d.quantization)
        out.put(prefix + "quantization.quantization_length", "I", length)
        out.put_all(prefix + "quantization.", d.quantization)
    if d.shard is not None:
        for name, numbers in zip(("parent_shape", "shard_offset"), d.shard, strict=True):
            for k, number in enumerate(numbers):
                out.put(f"{prefix}shard.{name}[{k}]", "Q", number)
    for name, section in (("statistics.", d.statistics), ("extension_type.", d.extension_type)):
        if section is not None:
            out.put_all(prefix + name, section)
    if d.member is not None:
        out.put(prefix + "composite_member.role", "B", d.member)
        out.put(prefix + "composite_member.reserved", "raw", bytes(15))
    out.data += d.tail
    if prefix + "descriptor_length" not in out.changes:
        struct.pack_into("<I", out.data, length_at, len(out.data) - start)
    return start, len(out.data) - start


def _emit_handle(out: Out, prefix: str, handle: int | tuple[int, ...]) -> None:
    given = handle if isinstance(handle, tuple) else (handle,)
    size, alignment, device, sync, memory = (*given, *(0, 64, 0, 0, 0)[len(given) :])
    out.put(prefix + "byte_size", "Q", size)
    out.put(prefix + "alignment", "I", alignment)
    out.put(prefix + "device_tag", "B", device)
    out.put(prefix + "sync_mode", "B", sync)
    out.put(prefix + "memory_class", "B", memory)
    out.put(prefix + "reserved", "raw", bytes(1))


@dataclass(frozen=True)
class Content:
    """A tensor with what its buffers hold. On a stream the name is only for us."""

    name: str
    descriptor: Descriptor
    buffers: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class File:
    """A container file. The defaults are what our own writer does without checksums and metadata.

    ``metadata`` are (key, value_tag, value), where an array's value is (element_tag, list). ``checksums`` appends
    ``hurray_wire.crc32c``, and ``seal`` with it ``hurray_wire.metadata_crc32c``. ``flagged`` False leaves
    HAS_KV_METADATA unset; ``pad_heads`` pads after a composite head as if a buffer followed; ``gap`` puts so many
    further zeros before the index, ``lead`` so many before the first descriptor; ``hidden`` are tensors that the
    index keeps quiet about.
    """

    tensors: tuple[Content, ...] = ()
    metadata: tuple[tuple[str, int, Any], ...] | None = None
    alignment: int = 4096
    checksums: bool = False
    seal: bool = True
    flagged: bool = True
    sorted_index: bool = False
    index_crc: bool = True
    pad_heads: bool = False
    minor: int = 0
    hint: int = NO_HINT
    lead: int = 0
    gap: int = 0
    hidden: tuple[int, ...] = ()


def emit_file(out: Out, file: File) -> None:
    """Append a container file; ``out`` is empty before."""
    has_metadata = file.metadata is not None or file.checksums
    out.put("header.magic", "raw", b"HRRYFILE")
    out.put("header.container_major", "B", 1)
    out.put("header.container_minor", "B", file.minor)
    out.put("header.reserved", "raw", bytes(2))
    out.put("header.file_flags", "I", (has_metadata and file.flagged) + 2 * file.sorted_index + 4 * file.index_crc)
    out.put("header.data_buffer_alignment", "I", file.alignment)
    out.put("header.first_descriptor_offset", "Q", 64 + file.lead)
    out.put("header.tensor_count_hint", "Q", file.hint)
    out.put("header.reserved_end", "raw", bytes(28))
    out.data += bytes(file.lead)
    crcs: list[int] = []
    entries = [_emit_content(out, k, content, file, crcs) for k, content in enumerate(file.tensors)]
    out.pad(8)
    kv_offset, kv_length = 0, 0
    if has_metadata:
        kv_offset = len(out.data)
        metadata = list(file.metadata or ())
        if file.checksums:
            metadata.append((CRC_KEY, ARRAY, (U64, crcs)))
            if file.seal:
                metadata.append((SEAL_KEY, U64, None))
        _emit_metadata(out, metadata)
        kv_length = len(out.data) - kv_offset
        out.pad(8)
    out.data += bytes(file.gap)
    index_offset = len(out.data)
    _emit_index(out, [(k, *entry) for k, entry in enumerate(entries) if k not in file.hidden], file.sorted_index)
    index = bytes(out.data[index_offset:])
    out.put("trailer.index_offset", "Q", index_offset)
    out.put("trailer.index_length", "Q", len(index))
    out.put("trailer.kv_offset", "Q", kv_offset)
    out.put("trailer.kv_length", "I", kv_length)
    out.put("trailer.index_crc32c", "I", crc32c(index) if file.index_crc else 0)
    out.put("trailer.reserved", "raw", bytes(4))
    out.put("trailer.magic", "raw", b"HRRY")


def _emit_content(out: Out, number: int, content: Content, file: File, crcs: list[int]) -> tuple[str, list[int]]:
    """One tensor of a file; returns its name and what the index says of it."""
    out.pad(8)
    offset, length = emit_descriptor(out, content.descriptor, f"tensors[{number}].")
    crcs.append(crc32c(bytes(out.data[offset:])))
    data_offset = data_end = len(out.data)
    if content.descriptor.layout_tag == COMPOSITE and file.pad_heads:
        out.pad(file.alignment)
        data_offset = data_end = len(out.data)
    for k, buffer in enumerate(content.buffers):
        out.pad(file.alignment)
        if k == 0:
            data_offset = len(out.data)
        start = len(out.data)
        out.put(f"tensors[{number}].buffers[{k}]", "raw", buffer)
        crcs.append(crc32c(bytes(out.data[start:])))
        data_end = len(out.data)
    return content.name, [offset, length, data_offset, data_end - data_offset]


def _emit_index(out: Out, entries: list[tuple[int, str, list[int]]], sorted_index: bool) -> None:
    if sorted_index:
        entries = sorted(entries, key=lambda entry: entry[1].encode())
    out.put("index.count", "Q", len(entries))
    for number, name, places in entries:
        prefix = f"index[{number}]."
        _put_text(out, prefix, "name", "H", name)
        for field, code, value in zip(
            ("descriptor_offset", "descriptor_length", "data_offset", "data_length"), "QIQQ", places, strict=True
        ):
            out.put(prefix + field, code, value)
        out.put(prefix + "flags", "I", 0)


def _emit_metadata(out: Out, metadata: Sequence[tuple[str, int, Any]], prefix: str = "metadata") -> None:
    start = len(out.data)
    out.put(f"{prefix}.count", "I", len(metadata))
    for number, (key, tag, value) in enumerate(metadata):
        entry = f"{prefix}[{number}]."
        if value is None:  # the seal: a checksum of all that stands before it
            value = crc32c(bytes(out.data[start:]))
        _put_text(out, entry, "key", "H", key)
        out.put(entry + "value_tag", "B", tag)
        if tag == ARRAY:
            element_tag, elements = value
            out.put(entry + "element_tag", "B", element_tag)
            out.put(entry + "count", "I", len(elements))
            for k, element in enumerate(elements):
                _put_value(out, f"{entry}value[{k}]", element_tag, element)
        else:
            _put_value(out, entry + "value", tag, value)


def _put_value(out: Out, name: str, tag: int, value: Any) -> None:
    if tag in (STRING, BYTES):
        _put_text(out, "", name, "I", value)
    else:
        out.put(name, _CODES[tag], value)


def _put_text(out: Out, prefix: str, name: str, code: str, text: str | bytes) -> None:
    """A length and that many bytes; a change of the bytes changes the length with them."""
    raw = out.changes.get(prefix + name, text)
    raw = raw.encode() if isinstance(raw, str) else raw
    out.put(f"{prefix}{name}_length", code, len(raw))
    out.put(prefix + name, "raw", raw)


def emit_metadata_section(metadata: Sequence[tuple[str, int, Any]]) -> bytes:
    """A key-value section alone, as the first member of a snapshot on a stream holds it."""
    out = Out()
    _emit_metadata(out, metadata)
    return out.finish()


def emit_stream(out: Out, contents: Sequence[Content]) -> None:
    """Append a stream: each descriptor, then its buffers."""
    for number, content in enumerate(contents):
        emit_descriptor(out, content.descriptor, f"tensors[{number}].")
        for k, buffer in enumerate(content.buffers):
            out.put(f"tensors[{number}].buffers[{k}]", "raw", buffer)

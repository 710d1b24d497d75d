"""The compressed form, from stored and run-length blocks alone: nothing here compresses, and any zstd inflates it.

Frames, blocks, seek table and XXH64 are put together from their specifications with struct packing. Fields have names,
as everything that ``emit`` makes: ``frames[i].magic``, ``.descriptor``, ``.window``, ``.content_size``,
``.blocks[k].header``, ``.blocks[k].content``, ``.checksum``; ``table.magic``, ``table.frame_size``,
``table[i].compressed_size``, ``.decompressed_size``, ``.checksum``; ``footer.number_of_frames``, ``.descriptor``,
``.magic``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from . import pieces as p
from .emit import File, Out, Place, emit_file

FRAME_MAGIC = bytes.fromhex("28b52ffd")
TABLE_MAGIC = bytes.fromhex("5e2a4d18")
FOOTER_MAGIC = bytes.fromhex("b1ea928f")
BLOCK_MAX = 128 << 10
RUN = 16  # shorter runs of a byte are stored as they are

_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_MASK = (1 << 64) - 1


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _round(accumulator: int, lane: int) -> int:
    return _rotated((accumulator + lane * _P2) & _MASK, 31) * _P1 & _MASK


def xxh64(data: bytes) -> int:
    """XXH64 with seed 0."""
    at = 0
    if len(data) >= 32:
        lanes = [(_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK]
        while at + 32 <= len(data):
            words = struct.unpack_from("<4Q", data, at)
            lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
            at += 32
        value = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            value = ((value ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        value = _P5
    value = (value + len(data)) & _MASK
    while at + 8 <= len(data):
        value ^= _round(0, struct.unpack_from("<Q", data, at)[0])
        value = (_rotated(value, 27) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= len(data):
        value ^= struct.unpack_from("<I", data, at)[0] * _P1 & _MASK
        value = (_rotated(value, 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        value ^= byte * _P5 & _MASK
        value = _rotated(value, 11) * _P1 & _MASK
    value ^= value >> 33
    value = value * _P2 & _MASK
    value ^= value >> 29
    value = value * _P3 & _MASK
    return value ^ (value >> 32)


@dataclass(frozen=True)
class Compressed:
    """A file in the compressed form.

    Frames end where ``file`` has the start or end of a buffer, the metadata or the index, and within a page pool
    after every ``pages`` pages, and at ``more_cuts``; or, if ``step`` is given, after so many bytes whatever stands
    there. ``table`` False leaves the seek table out, ``table_checksums``, ``frame_checksums``, ``content_sizes``
    False what their names say (a frame that does not tell its size has a window of ``window`` instead). ``wide``
    tells sizes in 8 bytes. ``empty`` puts an empty frame before frame 1, ``skippable`` a skippable frame with such
    content. ``planes`` splits page pools into byte planes.
    """

    file: File
    pages: int = 2
    step: int = 0
    more_cuts: tuple[int, ...] = ()
    planes: bool = False
    table: bool = True
    table_checksums: bool = True
    frame_checksums: bool = True
    content_sizes: bool = True
    window: int = 0
    wide: bool = False
    empty: bool = False
    skippable: bytes | None = None

    def inflated(self) -> bytes:
        """The file, with its planes joined and its own magic."""
        out = Out()
        emit_file(out, self.file)
        return out.finish()


def emit_compressed(out: Out, form: Compressed) -> None:
    """Append the compressed form of a file; ``out`` is empty before. Changes of names are about frames and table."""
    plain = Out()
    emit_file(plain, form.file)
    data = bytes(plain.data)
    cuts, pools = _cuts(plain.places, data, form)
    rows: list[tuple[int, int, int]] = []
    for start, end in pairwise(cuts):
        content = data[start:end]
        if form.planes:
            content = _split(content, start, pools)
            if start == 0:
                content = b"HRRYPLNS" + content[8:]
        if len(rows) == 1 and form.empty:
            rows.append(_emit_frame(out, len(rows), b"", form))
        if len(rows) == 1 and form.skippable is not None:
            rows.append(_emit_skippable(out, len(rows), form.skippable))
        rows.append(_emit_frame(out, len(rows), content, form))
    if form.table:
        _emit_table(out, rows, form)


def _cuts(places: list[Place], data: bytes, form: Compressed) -> tuple[list[int], Mapping[int, tuple[int, int]]]:
    """Where frames start and end, and for each page pool its start: (its end, bytes of an element in planes)."""
    if form.step:
        return [*range(0, len(data), form.step), len(data)], {}
    cuts = {0, len(data), *form.more_cuts}
    pools: dict[int, tuple[int, int]] = {}
    for place in places:
        if place.name in ("metadata.count", "index.count"):
            cuts.add(place.offset)
        if ".buffers[" in place.name:
            cuts |= {place.offset, place.offset + place.size}
    for number, content in enumerate(form.file.tensors):
        if content.descriptor.layout_tag != 0x0A:
            continue
        pool = next(place for place in places if place.name == f"tensors[{number}].buffers[0]")
        bits = p.BITS[content.descriptor.type_tag]
        page_size = next(field.value for field in content.descriptor.layout if field.name == "page_size")
        page = page_size * content.descriptor.shape[1] * content.descriptor.shape[2] * bits // 8
        cuts |= set(range(pool.offset, pool.offset + pool.size, max(page, 1) * form.pages))
        if bits in (16, 32, 64):
            pools[pool.offset] = (pool.offset + pool.size, bits // 8)
    return sorted(cuts), pools


def _split(content: bytes, start: int, pools: Mapping[int, tuple[int, int]]) -> bytes:
    """The content of a frame in byte planes, if it lies in a pool that is split."""
    for first, (end, width) in pools.items():
        if first <= start < end:
            count = len(content) // width
            whole = content[: count * width]
            return b"".join(whole[k::width] for k in range(width)) + content[count * width :]
    return content


def _emit_frame(out: Out, number: int, content: bytes, form: Compressed) -> tuple[int, int, int]:
    """One frame; returns its size, that of its content, and the checksum of that."""
    prefix, start = f"frames[{number}].", len(out.data)
    size, checksum = len(content), xxh64(content) & 0xFFFFFFFF
    flag, code, stored = next(
        row for limit, row in (
            (256, (0, "B", size)), (65536 + 256, (1, "H", size - 256)), (1 << 32, (2, "I", size)),
        ) if size < limit
    )  # fmt: skip
    if form.wide:
        flag, code, stored = 3, "Q", size
    out.put(prefix + "magic", "raw", FRAME_MAGIC)
    single = form.content_sizes and not form.window
    out.put(
        prefix + "descriptor", "B", (flag << 6 if form.content_sizes else 0) | single << 5 | form.frame_checksums << 2
    )
    if not single:
        out.put(prefix + "window", "B", form.window or 0x38)  # 2^17 bytes
    if form.content_sizes and (single or flag):
        out.put(prefix + "content_size", code, stored)
    blocks = list(_blocks(content)) or [(0, b"", 0)]
    for k, (kind, held, count) in enumerate(blocks):
        last = k + 1 == len(blocks)
        out.put(f"{prefix}blocks[{k}].header", "raw", struct.pack("<I", last | kind << 1 | count << 3)[:3])
        out.put(f"{prefix}blocks[{k}].content", "raw", held)
    if form.frame_checksums:
        out.put(prefix + "checksum", "I", checksum)
    return len(out.data) - start, size, checksum


def _blocks(content: bytes) -> Any:
    """Runs of one byte as run-length blocks, all else stored: (block type, what is stored, how many bytes it makes)."""
    at = held = 0
    while at < len(content):
        run = at + 1
        while run < len(content) and content[run] == content[at] and run - at < BLOCK_MAX:
            run += 1
        if run - at >= RUN:
            if held < at:
                yield 0, content[held:at], at - held
            yield 1, content[at : at + 1], run - at
            held = run
        elif run - held >= BLOCK_MAX - RUN:
            yield 0, content[held:run], run - held
            held = run
        at = run
    if held < len(content):
        yield 0, content[held:], len(content) - held


def _emit_skippable(out: Out, number: int, content: bytes) -> tuple[int, int, int]:
    start = len(out.data)
    out.put(f"frames[{number}].magic", "raw", bytes.fromhex("502a4d18"))
    out.put(f"frames[{number}].size", "I", len(content))
    out.put(f"frames[{number}].content", "raw", content)
    return len(out.data) - start, 0, xxh64(b"") & 0xFFFFFFFF


def _emit_table(out: Out, rows: list[tuple[int, int, int]], form: Compressed) -> None:
    width = 12 if form.table_checksums else 8
    out.put("table.magic", "raw", TABLE_MAGIC)
    out.put("table.frame_size", "I", len(rows) * width + 9)
    for number, (compressed, inflated, checksum) in enumerate(rows):
        out.put(f"table[{number}].compressed_size", "I", compressed)
        out.put(f"table[{number}].decompressed_size", "I", inflated)
        if form.table_checksums:
            out.put(f"table[{number}].checksum", "I", checksum)
    out.put("footer.number_of_frames", "I", len(rows))
    out.put("footer.descriptor", "B", 0x80 * form.table_checksums)
    out.put("footer.magic", "raw", FOOTER_MAGIC)

"""Hostile files that are put together here: too many tensors, too far apart, too much out of too little."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from fixtures.corpus import tool

from hurray_wire.wire.checksum import crc32c


def many_tensors(count: int) -> bytes:
    """A file of this many tensors, each a group of nothing, whose names are numbers."""
    emit, contents = tool("fixture_cases.emit"), tool("fixture_cases.contents")
    out = emit.Out()
    emit.emit_descriptor(out, contents.nothing("x").descriptor)
    one = out.finish()
    step = len(one) + -len(one) % 8
    header = struct.pack("<8sBB2xIIQQ28x", b"HRRYFILE", 1, 0, 4, 4096, 64, (1 << 64) - 1)
    body = (one + bytes(step - len(one))) * count
    entries = []
    for number in range(count):
        name, offset = b"%07d" % number, 64 + number * step
        entries.append(struct.pack("<H7sQIQQI", len(name), name, offset, len(one), offset + len(one), 0, 0))
    index = struct.pack("<Q", count) + b"".join(entries)
    trailer = struct.pack("<QQQII4x4s", 64 + len(body), len(index), 0, 0, crc32c(index), b"HRRY")
    return header + body + index + trailer


def sparse_pool(path: Path, *, page_bytes: int, pages: list[tuple[int, bytes]], num_pages: int) -> None:
    """A file with one uint8 block-paged tensor whose pool is mostly hole: only these pages have bytes.

    One sequence names the pages in the order given, all of them full. Raises OSError where the file system cannot.
    """
    emit, p = tool("fixture_cases.emit"), tool("fixture_cases.pieces")
    table = struct.pack(f"<{len(pages)}Q", *(number for number, _ in pages))
    pointers = struct.pack("<2Q", 0, len(pages))
    sizes = (page_bytes * num_pages, len(table), len(pointers))
    descriptor = emit.Descriptor(
        p.U8, (len(pages), 1, page_bytes), sizes, **p.block_paged(1, num_pages, 1, wide=1)
    )  # fmt: skip
    out = emit.Out()
    emit.emit_descriptor(out, descriptor)
    raw = out.finish()
    places = [4096]
    for size in sizes[:2]:
        places.append((places[-1] + size + 4095) // 4096 * 4096)
    index_at = (places[2] + sizes[2] + 7) // 8 * 8
    index = struct.pack("<QH3sQIQQI", 1, 3, b"key", 64, len(raw), 4096, places[2] + sizes[2] - 4096, 0)
    trailer = struct.pack("<QQQII4x4s", index_at, len(index), 0, 0, crc32c(index), b"HRRY")
    header = struct.pack("<8sBB2xIIQQ28x", b"HRRYFILE", 1, 0, 4, 4096, 64, 1)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.ftruncate(fd, index_at + len(index) + len(trailer))
        for at, piece in (
            (0, header), (64, raw), (places[1], table), (places[2], pointers), (index_at, index + trailer),
            *((4096 + number * page_bytes, page) for number, page in pages),
        ):  # fmt: skip
            os.pwrite(fd, piece, at)
    finally:
        os.close(fd)

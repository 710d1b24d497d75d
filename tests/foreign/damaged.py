"""Small valid inputs for every section that the foreign readers know, and damaged copies of them.

Everything here is packed by hand from the specification, by none of the code that is tested.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any


def words(code: str, *values: float) -> bytes:
    return struct.pack(f"<{len(values)}{code}", *values)


def handle(size: int) -> bytes:
    return struct.pack("<QI4x", size, 64)


def descriptor(
    shape: Sequence[int],
    layout_tag: int,
    *,
    type_tag: int = 0x11,
    flags: int = 0,
    layout: bytes = b"",
    buffers: Sequence[bytes] = (),
    sections: bytes = b"",
    byte_offset: int = 0,
) -> bytes:
    body = struct.pack("<IBBI", flags, type_tag, layout_tag, len(shape)) + words("Q", *shape, byte_offset) + layout
    body += bytes([len(buffers)]) + b"".join(handle(len(buffer)) for buffer in buffers) + sections
    return b"HRRY\x01\x00" + words("I", 10 + len(body)) + body


def tensor(shape: Sequence[int], layout_tag: int = 0x01, **fields: Any) -> bytes:
    """A descriptor with its buffers behind it, as they come on a stream."""
    return descriptor(shape, layout_tag, **fields) + b"".join(fields.get("buffers", ()))


def quantization(*parts: bytes) -> bytes:
    payload = b"".join(parts)
    return words("I", len(payload)) + payload


def shard(parent: Sequence[int], offset: Sequence[int]) -> bytes:
    return words("Q", *parent, *offset)


def head(shape: Sequence[int], rule: int, operation: int, members: int, **fields: Any) -> bytes:
    return descriptor(shape, 0x0B, layout=struct.pack("<BB2xI", rule, operation, members), **fields)


def part(shape: Sequence[int], parent: Sequence[int], offset: Sequence[int], role: int | None = None) -> bytes:
    """A member of a partition, or with a role of an overlay, of uint8 ones."""
    member = b"" if role is None else bytes([role]) + bytes(15)
    flags = 2 if role is None else 2 | 16
    size = shape[0] * shape[1]
    return tensor(shape, flags=flags, sections=shard(parent, offset) + member, buffers=[b"\x01" * size])


STATISTICS = struct.pack("<IIQ6d4B4x", 0x3F, 0, 5, 0.5, -1, 1, 1, 0, 0.1, 2, 4, 1, 0)


def sections() -> dict[str, bytes]:
    """Streams of one tensor or composite each, which together have every section and every scheme."""
    no_zero_points = 0xFFFFFFFF
    return {
        "scalar": tensor([], type_tag=0x46, buffers=[bytes(range(16))]),
        "byte_offset": tensor([3], type_tag=0x49, byte_offset=1, buffers=[b"\xff\x21\x03\xff"]),
        "six_bit": tensor([5], type_tag=0x44, buffers=[b"\xff\xff\xff\x3f\x00\x00"]),
        "dynamic": tensor([2**64 - 1], buffers=[b"\x01\x02\x03"]),
        "column_major": tensor([2, 3], 0x02, buffers=[bytes(range(6))]),
        "per_tensor": tensor(
            [2, 3],
            type_tag=0x10,
            flags=1,
            sections=quantization(struct.pack("<BBHfi4x", 1, 1, 0, 0.5, 3)),
            buffers=[bytes(6)],
        ),
        "per_channel": tensor(
            [2, 3],
            flags=1,
            sections=quantization(struct.pack("<BBHIIIB3x", 2, 1, 0, 1, 1, 2, 3)),
            buffers=[bytes(6), bytes(12), bytes(12)],
        ),
        "per_block_in_one_buffer": tensor(
            [3, 5],
            type_tag=0x48,
            flags=1,
            sections=quantization(struct.pack("<BBHIIIIB3x", 3, 1, 0, 1, 4, 1, 1, 1), bytes(4)),
            buffers=[bytes(8), bytes(6 * 2 + 6 * 4)],
        ),
        "nf4": tensor(
            [10, 3],
            type_tag=0x49,
            flags=1,
            sections=quantization(struct.pack("<BBHIII", 4, 1, 0, 0, 8, 1)),
            buffers=[bytes(15), bytes(24)],
        ),
        "mxfp": tensor(
            [32, 2],
            type_tag=0x44,
            flags=1,
            sections=quantization(struct.pack("<BBHIII", 5, 1, 0, 0, 16, 1)),
            buffers=[bytes(48), b"\x01\x02\x7f\xfe"],
        ),
        "statistics": tensor([2, 3], flags=8, sections=STATISTICS, buffers=[bytes(6)]),
        "three_sections": tensor(
            [2, 3],
            flags=1 | 2 | 8,
            sections=quantization(struct.pack("<BBHIIIB3x", 2, 1, 1, 0, 1, no_zero_points, 3))
            + shard([4, 3], [2, 0])
            + STATISTICS,
            buffers=[bytes(6), bytes(8)],
        ),
        "private_float": tensor(
            [3],
            type_tag=0xF3,
            flags=4,
            sections=struct.pack("<I6B2xI2B2x", 12, 1, 1, 1, 1, 5, 6, 15, 1, 1),
            buffers=[bytes(6)],
        ),
        "private_integer": tensor(
            [9],
            type_tag=0xFE,
            flags=4,
            sections=struct.pack("<I6B2xI2B2x", 2, 4, 0, 1, 0, 0, 0, 0, 0, 0),
            buffers=[b"\xff\x07\x03"],
        ),
        "paged_bool": tensor(
            [3, 1, 5],
            0x0A,
            type_tag=0x20,
            layout=struct.pack("<IQIIBIB6x", 3, 1, 0, 1, 0, 0, 0),
            buffers=[b"\xff\x7f", words("I", 0), words("I", 0, 1)],
        ),
        "paged_page_slots": tensor(
            [3, 1, 2],
            0x0A,
            type_tag=0x10,
            flags=1,
            layout=struct.pack("<IQIIBIB6x", 2, 2, 0, 2, 2, 0xFFFFFFFF, 1),
            sections=quantization(struct.pack("<BBHIIIIB3x", 3, 1, 1, 0, 2, 3, no_zero_points, 2)),
            buffers=[bytes(8), words("Q", 1, 0), words("Q", 0, 1, 2), bytes(8)],
        ),
        "partition": head([4, 3], 1, 0, 3)
        + part([2, 3], [4, 3], [0, 0])
        + part([2, 2], [4, 3], [2, 0])
        + part([2, 1], [4, 3], [2, 2]),
        "overlay": head([2, 2], 2, 2, 2) + part([2, 2], [2, 2], [0, 0], 1) + part([1, 2], [2, 2], [1, 0], 0),
        "nested": head([], 3, 0, 2)
        + head([2, 2], 1, 0, 2)
        + part([1, 2], [2, 2], [0, 0])
        + head([1, 2], 1, 0, 1, flags=2, sections=shard([2, 2], [1, 0]))
        + part([1, 2], [1, 2], [0, 0])
        + tensor([1], buffers=[b"\x01"]),
        "eight_deep": head([], 3, 0, 1) * 8 + tensor([1], buffers=[b"\x01"]),
    }


def damaged(data: bytes, places: Sequence[range]) -> Iterator[bytes]:
    """Copies of ``data`` with one byte changed, at each place, in two or three ways."""
    for place in places:
        for at in place:
            for value in sorted({0x00, (data[at] + 1) % 256, 0xFF} - {data[at]}):
                yield data[:at] + bytes([value]) + data[at + 1 :]

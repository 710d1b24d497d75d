"""Tensors that hold something: what the files and streams of the corpus are made of.

Buffers hold a pattern in which neighbours differ in every bit position, so that an element read from the wrong place,
or in the wrong width, shows. What has a meaning (indices, tables, scales) is written by hand.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from . import descriptors as d
from . import pieces as p
from .emit import Content, Descriptor


def noise(seed: int, count: int, bits: int) -> list[int]:
    """``count`` numbers of ``bits`` bits (at most 128), by multiplication with two odd constants."""
    mask = (1 << bits) - 1
    return [
        (((k + 1) * 0x9E3779B97F4A7C15F39CC0605CEDC835 + seed * 0xC2B2AE3D27D4EB4F) >> 61) & mask for k in range(count)
    ]


def pack(numbers: Sequence[int], bits: int) -> bytes:
    """Numbers packed from the lowest bit up, unused bits at the end zero."""
    size = p.packed_size(bits, len(numbers))
    if bits % 8 == 0:
        return b"".join(number.to_bytes(bits // 8, "little") for number in numbers)
    total = 0
    for k, number in enumerate(numbers):
        total |= number << k * bits
    return total.to_bytes(size, "little")


def pattern(type_tag: int, count: int, seed: int = 0) -> bytes:
    """A buffer of ``count`` elements of noise; of float8_e8m0 none that is invalid as data."""
    bits = p.BITS[type_tag]
    numbers = noise(seed, count, bits)
    if type_tag == p.E8M0:
        numbers = [number % 254 + 1 for number in numbers]
    return pack(numbers, bits)


def u32s(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def u64s(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def i32s(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


def f32s(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def f16s(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}e", *numbers)


def bf16s(*numbers: float) -> bytes:
    """bfloat16: the upper half of float32; the numbers given lose nothing by it."""
    return b"".join(struct.pack("<f", number)[2:] for number in numbers)


def dense(name: str, descriptor: Descriptor, seed: int = 0, more: Sequence[bytes] = ()) -> Content:
    """A dense tensor whose buffer 0 is full of noise, and the parameter buffers given."""
    first = descriptor.handles[0]
    size = first[0] if isinstance(first, tuple) else first
    bits = p.BITS[descriptor.type_tag]
    count = size * 8 // bits // (4 if bits == 6 else 1) * (4 if bits == 6 else 1)
    elements = 1
    for dim in descriptor.shape:
        elements *= dim
    if bits < 8 and descriptor.layout_tag in (0x01, 0x02) and p.packed_size(bits, elements) == size:
        count = elements  # so that the bits that no element uses are zero
    data = pattern(descriptor.type_tag, count, seed)
    return Content(name, descriptor, (data + bytes(size - len(data)), *more))


def small(name: str, *values: int, type_tag: int = p.U8) -> Content:
    """A row-major vector of these bit patterns."""
    data = pack(values, p.BITS[type_tag])
    return Content(name, Descriptor(type_tag, (len(values),), (len(data),)), (data,))


def empty(name: str, *shape: int) -> Content:
    """A tensor without elements, whose only buffer has no bytes."""
    return Content(name, Descriptor(p.F32, shape, ((0, 64),)), (b"",))


def nothing(name: str) -> Content:
    """A group without members: a tensor that takes no byte but its descriptor."""
    return Content(name, Descriptor(p.U8, (), **p.composite(p.GROUP, 0)))


def seq_lens(*lengths: int, wide: bool = False) -> Content:
    """The tensor that says how long the sequences are."""
    return small("seq_lens", *lengths, type_tag=p.U64 if wide else p.U32)


def paged(
    name: str,
    type_tag: int,
    heads: int,
    dim: int,
    *,
    page_size: int,
    num_pages: int,
    tables: Sequence[Sequence[int]],
    tokens: int,
    wide: bool = False,
    role: int = p.KEY,
    layer: int = 0,
    seed: int = 0,
    pool: bytes | None = None,
    parameters: Sequence[bytes] = (),
    slack: tuple[int, int, int] = (0, 0, 0),
    **sections: Any,
) -> Content:
    """A block-paged tensor with noise in its pages; ``tables`` lists the pages of each sequence."""
    if pool is None:
        pool = pattern(type_tag, num_pages * page_size * heads * dim, seed)
    words = u64s if wide else u32s
    ends = [0]
    for table in tables:
        ends.append(ends[-1] + len(table))
    buffers = [pool, words(*(page for table in tables for page in table)), words(*ends)]
    buffers = [buffer + bytes([0xEE]) * extra for buffer, extra in zip(buffers, slack, strict=True)]
    buffers += parameters
    layout = p.block_paged(page_size, num_pages, len(tables), role=role, layer=layer, wide=int(wide))
    descriptor = Descriptor(type_tag, (tokens, heads, dim), tuple(map(len, buffers)), **layout, **sections)
    return Content(name, descriptor, tuple(buffers))


def worked_example(name: str = "layers.3.key") -> Content:
    """The worked example with element i of the pool holding the bits 0x3C00 + i."""
    pool = struct.pack("<320H", *(0x3C00 + k for k in range(320)))
    return Content(name, d.WORKED_EXAMPLE, (pool, u32s(0, 1, 0), u32s(0, 2, 3)))


# 3 stored rows [0, 11, 0, 0], [0, 0, 0, 0], [12, 0, 13, 14], in four ways
SPARSE = (
    Content(
        "coo",
        Descriptor(p.U8, (3, 4), (4, 64), **p.coo(4, is_sorted=1)),
        (bytes([11, 12, 13, 14]), u64s(0, 1, 2, 0, 2, 2, 2, 3)),
    ),
    Content(
        "coo.unsorted",
        Descriptor(p.U8, (3, 4), (4, 64), **p.coo(4)),
        (bytes([14, 11, 13, 12]), u64s(2, 3, 0, 1, 2, 2, 2, 0)),
    ),
    Content(
        "csr",
        Descriptor(p.U8, (3, 4), (4, 32, 32), **p.csr(4)),
        (bytes([11, 12, 13, 14]), u64s(1, 0, 2, 3), u64s(0, 1, 1, 4)),
    ),
    Content(
        "csc",
        Descriptor(p.U8, (3, 4), (4, 32, 40), **p.csc(4)),
        (bytes([12, 11, 13, 14]), u64s(2, 0, 2, 2), u64s(0, 1, 2, 3, 4)),
    ),
    # (1, 0, 0) 21, (0, 0, 1) 22, (0, 2, 1) 23, (1, 1, 3) 24: level 0 is dimension 2, then 0, then 1
    Content(
        "csf",
        Descriptor(p.U8, (2, 3, 4), (4, 16, 24, 32, 24, 32, 32), **p.csf(4, 2, 0, 1)),
        (
            bytes([21, 22, 23, 24]),
            u64s(0, 3), u64s(0, 1, 3),
            u64s(0, 1, 2, 3), u64s(1, 0, 1),
            u64s(0, 1, 3, 4), u64s(0, 0, 2, 1),
        ),
    ),
    Content(
        "coo.packed",
        Descriptor(p.U4, (9,), (2, 24), **p.coo(3, is_sorted=1)),
        (bytes([0xA9, 0x05]), u64s(1, 4, 8)),
    ),
    Content(
        "csr.none",
        Descriptor(p.F32, (2, 5), ((0, 64), (0, 64), 24), **p.csr(0)),
        (b"", b"", u64s(0, 0, 0)),
    ),
)  # fmt: skip

QUANTIZED = (
    dense("per_tensor", Descriptor(p.I8, (4, 6), (24,), quantization=p.per_tensor(0.5, -3)), 1),
    dense("per_tensor.packed", Descriptor(p.U4, (5,), (3,), quantization=p.per_tensor(-1.5, 8)), 2),
    dense("per_channel", d.Q_PER_CHANNEL, 3, (f32s(1, 0.5, 0.25, 3, -2, 1e-40), i32s(0, 1, -1, 100, -128, 7))),
    dense(
        "per_channel.one_buffer",
        Descriptor(p.I16, (3, 4), (24, 24), quantization=p.per_channel(0, 1, 1)),
        4,
        (f32s(0.1, 0.2, 0.3) + i32s(-7, 0, 32767),),
    ),
    dense("per_block", d.Q_PER_BLOCK, 5, (
        f16s(*(0.25 + k / 8 for k in range(16))), i32s(*(k % 8 - 4 for k in range(16))),
    )),
    dense(
        "per_block.bfloat16",
        Descriptor(p.U8, (10, 3), (30, 18), quantization=p.per_block(0, 4, 1, scale_type=p.BF16)),
        6,
        (bf16s(*(0.5 * (k + 1) for k in range(9))),),
    ),
    dense("nf4", d.Q_NF4, 7, (f32s(3.5, 0.001),)),
    dense("mxfp4", d.Q_MXFP, 8, (bytes([127, 130, 120, 1]),)),
    dense("mxfp6", Descriptor(p.E3M2, (32, 4), (96, 8), quantization=p.mxfp(0, 16, 1)), 9, (bytes(range(124, 132)),)),
    dense("mxfp8", Descriptor(p.E4M3, (2, 16), (32, 2), quantization=p.mxfp(1, 16, 1)), 10, (bytes([127, 126]),)),
    dense("mxint8", Descriptor(p.I8, (2, 16), (32, 2), quantization=p.mxfp(1, 16, 1)), 11, (bytes([121, 128]),)),
)  # fmt: skip

QUANTIZED_PADDED = dense(
    "padded", Descriptor(p.U4, (5,), (3,), quantization=p.padded(p.per_tensor(-1.5, 8))), 2
)  # fmt: skip

_QUANTIZED_BATCH: dict[str, Any] = {
    "heads": 2, "dim": 4, "page_size": 4, "num_pages": 4, "tables": [[2, 0], [2, 3]], "tokens": 13,
}  # fmt: skip
QUANTIZED_PAGED = (
    paged("per_tensor", p.I8, quantization=p.per_tensor(0.125, 4), layer=0, seed=1, **_QUANTIZED_BATCH),
    paged("per_head", p.U8, quantization=p.per_channel(1, 3, 4), layer=1, seed=2,
          parameters=(f32s(0.5, -2.0), i32s(128, 3)), **_QUANTIZED_BATCH),
    paged("per_dim", p.I8, quantization=p.per_channel(2, 3), layer=2, seed=3,
          parameters=(f32s(1, 0.1, 0.01, 0.001),), **_QUANTIZED_BATCH),
    paged("per_slot", p.I8, quantization=p.per_block(0, 4, 3), layer=3, seed=4,
          parameters=(f32s(*(0.01 * (k + 1) for k in range(16))),), **_QUANTIZED_BATCH),
    paged("per_slot.asymmetric", p.U8, quantization=p.per_block(0, 4, 3, 4, scale_type=p.F16), layer=4, seed=5,
          parameters=(f16s(*(0.25 * (k + 1) for k in range(16))), i32s(*(k * 9 for k in range(16)))),
          **_QUANTIZED_BATCH),
    paged("per_slot.one_buffer", p.I4, quantization=p.per_block(0, 4, 3, 3, scale_type=p.BF16), layer=5, seed=6,
          parameters=(bf16s(*(2.0 ** (k - 8) for k in range(16))) + i32s(*(k % 5 - 2 for k in range(16))),),
          **_QUANTIZED_BATCH),
)  # fmt: skip
QUANTIZED_PAGED_LENGTHS = (8, 5)


def partition(prefix: str = "") -> tuple[Content, ...]:
    """A [4, 6] tensor in three boxes, one of them column-major."""
    head = Content(f"{prefix}whole", Descriptor(p.U8, (4, 6), **p.composite(p.PARTITION, 3)))
    boxes: tuple[tuple[str, tuple[int, int], tuple[int, int], dict[str, Any]], ...] = (
        ("left", (4, 2), (0, 0), {}),
        ("top", (1, 4), (0, 2), {}),
        ("bottom", (3, 4), (1, 2), p.column_major()),
    )
    return head, *(
        dense(f"{prefix}{name}", Descriptor(p.U8, shape, (shape[0] * shape[1],), shard=((4, 6), at), **layout), k)
        for k, (name, shape, at, layout) in enumerate(boxes)
    )


def overlay(combine: int, prefix: str = "") -> tuple[Content, ...]:
    """A [3, 4] base and two corrections that meet in one element."""
    head = Content(f"{prefix}whole", Descriptor(p.I16, (3, 4), **p.composite(p.OVERLAY, 3, combine=combine)))
    boxes = (("base", (3, 4), (0, 0), 1), ("first", (2, 2), (0, 0), 0), ("second", (2, 3), (1, 1), 0))
    return head, *(
        Content(
            f"{prefix}{name}",
            Descriptor(p.I16, shape, (2 * shape[0] * shape[1],), shard=((3, 4), at), member=role),
            (struct.pack(f"<{shape[0] * shape[1]}h", *(100 * k + j for j in range(shape[0] * shape[1]))),),
        )
        for k, (name, shape, at, role) in enumerate(boxes)
    )


def nested() -> tuple[Content, ...]:
    """A partition into two halves, of which the second is a partition again."""
    head = Content("whole", Descriptor(p.U8, (4, 4), **p.composite(p.PARTITION, 2)))
    left = dense("left", Descriptor(p.U8, (4, 2), (8,), shard=((4, 4), (0, 0))), 1)
    right = Content("right", Descriptor(p.U8, (4, 2), shard=((4, 4), (0, 2)), **p.composite(p.PARTITION, 2)))
    halves = [dense(f"right.{k}", Descriptor(p.U8, (2, 2), (4,), shard=((4, 2), (2 * k, 0))), 2 + k) for k in range(2)]
    return head, left, right, *halves


def group(members: Sequence[Content]) -> tuple[Content, ...]:
    """A group of these tensors (composites among them are counted with their members)."""
    count = _roots(members)
    head = replace(nothing("group"), descriptor=Descriptor(p.U8, (), **p.composite(p.GROUP, count)))
    return head, *members


def _roots(contents: Sequence[Content]) -> int:
    """How many of these tensors are members of none of the others."""
    count, waiting = 0, 0
    for content in contents:
        count += not waiting
        waiting -= bool(waiting)
        if content.descriptor.layout_tag == 0x0B:
            waiting += next(f.value for f in content.descriptor.layout if f.name == "member_count")
    return count


def with_name(content: Content, name: str) -> Content:
    return replace(content, name=name)

"""What the accepted files hold: the logical elements, and the real numbers that quantized ones stand for.

Raw elements come from the plain decoder. Real numbers are worked out here with ``struct`` and Python's own floats,
whose 53 bits hold every product of two float32 exactly; a result is rounded to float32 once.

Elements are digested as bytes: each as ceil(bits / 8) little-endian bytes with zeros above its bits, in row-major
order of the coordinates. Real numbers are digested as little-endian float32, every NaN as 0x7FC00000.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import plain_decoder as plain

Json = dict[str, Any]

DENSE = (plain.ROW_MAJOR, plain.COLUMN_MAJOR, plain.STRIDED, plain.TILED, plain.MORTON, plain.HILBERT)
SPARSE = (plain.COO, plain.CSR, plain.CSC, plain.CSF)
SHOWN = 16  # elements that are listed beside their digest

NF4_LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip

# type name: (exponent bits, mantissa bits, what the highest exponent means)
MINIFLOATS = {
    "float8_e4m3": (4, 3, "one NaN"),
    "float8_e5m2": (5, 2, "ieee"),
    "float6_e2m3": (2, 3, "finite"),
    "float6_e3m2": (3, 2, "finite"),
    "float4_e2m1": (2, 1, "finite"),
}


def of_tensors(tensors: Sequence[Json], seq_lens: Sequence[int] | None = None) -> list[Json | None]:
    """For each tensor of a decoded file or stream what it holds, or None where nothing can be said."""
    recorded = [t for t in tensors if t.get("name") == "seq_lens"]
    if seq_lens is None and recorded:
        seq_lens = plain.dense_elements(recorded[0]["descriptor"], recorded[0]["buffers"])
    by_name = {t["name"]: t for t in tensors if "name" in t}
    held = [_of_tensor(t, seq_lens, by_name) for t in tensors]
    for at, tensor in enumerate(tensors):
        if tensor["descriptor"]["layout_tag"] == plain.COMPOSITE:
            elements = _assembled(tensors, at)[0]
            held[at] = None if elements is None else _digest(elements, plain.storage_bits(tensor["descriptor"]))
    return held


def _assembled(tensors: Sequence[Json], at: int) -> tuple[list[int] | None, int]:
    """The elements of the tensor at ``at``, those of a composite put together, and the place behind its last member.

    None for groups, for private rules, and for what holds anything but dense members with plain numbers.
    """
    d = tensors[at]["descriptor"]
    if d["layout_tag"] != plain.COMPOSITE:
        dense = d["layout_tag"] in DENSE and not d["quantization"] and plain.DYNAMIC not in d["shape"]
        return (plain.dense_elements(d, tensors[at]["buffers"]) if dense else None), at + 1
    rule, combine, shape = d["layout"]["composition_rule"], d["layout"]["combine_op"], d["shape"]
    whole: list[int] | None = [0] * plain.product(shape) if rule in (1, 2) else None
    following = at + 1
    for number in range(d["layout"]["member_count"]):
        member = tensors[following]["descriptor"]
        elements, following = _assembled(tensors, following)
        if whole is None or elements is None:
            whole = None
            continue
        for element, inner in zip(elements, plain.coordinates(member["shape"]), strict=True):
            place = 0
            for dim, offset, i in zip(shape, member["shard"]["shard_offset"], inner, strict=True):
                place = place * dim + offset + i
            if number and combine == 2:  # sums of integers, which wrap
                element += whole[place]
            whole[place] = element & ((1 << plain.storage_bits(d)) - 1)
    return whole, following


def _of_tensor(tensor: Json, seq_lens: Sequence[int] | None, by_name: dict[str, Json]) -> Json | None:
    d, buffers = tensor["descriptor"], tensor["buffers"]
    if plain.DYNAMIC in d["shape"]:
        return None
    if d["layout_tag"] == plain.BLOCK_PAGED:
        lengths = plain.known_lengths(d, buffers) if seq_lens is None else list(seq_lens)
        if lengths is None:
            return None
        scale = by_name.get(f"{tensor.get('name')}.scale")
        return _of_pages(d, buffers, lengths, scale)
    if d["layout_tag"] in DENSE:
        elements = plain.dense_elements(d, buffers)
    elif d["layout_tag"] in SPARSE:
        elements = plain.sparse_elements(d, buffers)
    else:
        return None
    held = _digest(elements, plain.storage_bits(d))
    if d["quantization"] and d["layout_tag"] in DENSE:
        held["real_sha256"] = _real_digest(_dequantize_dense(d, buffers, elements))
    return held


def _digest(elements: Sequence[int], bits: int) -> Json:
    width = (bits + 7) // 8
    raw = b"".join(element.to_bytes(width, "little") for element in elements)
    first = [f"{element:0{(bits + 3) // 4}x}" for element in elements[:SHOWN]]
    return {"count": len(elements), "first": first, "sha256": hashlib.sha256(raw).hexdigest()}


def _of_pages(d: Json, buffers: Sequence[bytes], lengths: Sequence[int], scale: Json | None) -> Json:
    sequences = []
    for s, raw in enumerate(plain.gather(d, buffers, lengths)):
        sequence: Json = {"tokens": lengths[s], "sha256": hashlib.sha256(raw).hexdigest()}
        if d["quantization"]:
            sequence["real_sha256"] = _real_digest(_dequantize_sequence(d, buffers, s, lengths[s], raw))
        elif scale is not None:
            sequence["real_sha256"] = _real_digest(_scale_sequence(d, raw, scale))
        sequences.append(sequence)
    return {"seq_lens": list(lengths), "sequences": sequences}


# ---- real numbers ---------------------------------------------------------------------------------------------------


def _real_digest(numbers: Sequence[float]) -> str:
    raw = b"".join(b"\0\0\xc0\x7f" if math.isnan(number) else _float32_bytes(number) for number in numbers)
    return hashlib.sha256(raw).hexdigest()


def _float32_bytes(number: float) -> bytes:
    try:
        return struct.pack("<f", number)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, number))


def _float32(number: float) -> float:
    return float(struct.unpack("<f", _float32_bytes(number))[0])


def value_of(type_name: str, bits: int) -> float:
    """The number that the bits of an integer or of a small float stand for."""
    if type_name in MINIFLOATS:
        exponent_bits, mantissa_bits, top = MINIFLOATS[type_name]
        sign = -1.0 if bits >> (exponent_bits + mantissa_bits) else 1.0
        exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1)
        mantissa = bits & ((1 << mantissa_bits) - 1)
        bias = (1 << (exponent_bits - 1)) - 1
        highest = exponent == (1 << exponent_bits) - 1
        if highest and top == "ieee":
            return math.nan if mantissa else sign * math.inf
        if highest and top == "one NaN" and mantissa == (1 << mantissa_bits) - 1:
            return math.nan
        if exponent == 0:
            return sign * math.ldexp(mantissa, 1 - bias - mantissa_bits)
        return sign * math.ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)
    width = next(width for name, width in plain.TYPES.values() if name == type_name)
    return float(bits - (1 << width) if type_name.startswith("int") and bits >> (width - 1) else bits)


def _scale_value(type_tag: int, bits: int) -> float:
    """A scale, widened."""
    if type_tag == 0x01:
        return float(struct.unpack("<e", bits.to_bytes(2, "little"))[0])
    if type_tag == 0x02:
        bits <<= 16
    return float(struct.unpack("<f", bits.to_bytes(4, "little"))[0])


def _parameters(d: Json, buffers: Sequence[bytes], count: int) -> tuple[list[float], list[int]]:
    """``count`` scales and as many zero points."""
    q = d["quantization"]
    tag = q.get("scale_type_tag", 0x03)
    width = plain.TYPES[tag][1]
    raw = buffers[q["scale_buffer_index"]]
    scales = [_scale_value(tag, plain.element_bits(raw, k, width)) for k in range(count)]
    index = q.get("zero_point_buffer_index", plain.NO_BUFFER)
    if index == plain.NO_BUFFER:
        return scales, [0] * count
    start = count * width // 8 if index == q["scale_buffer_index"] else 0
    return scales, list(struct.unpack_from(f"<{count}i", buffers[index], start))


def _inline_scale(q: Json) -> float:
    return float(struct.unpack(">f", bytes.fromhex(q["scale"]))[0])


def _dequantize_dense(d: Json, buffers: Sequence[bytes], elements: Sequence[int]) -> list[float]:
    q, shape, name = d["quantization"], d["shape"], plain.TYPES[d["type_tag"]][0]
    tag = q["scheme_tag"]
    if tag == 1:
        scale = _inline_scale(q)
        return [scale * (value_of(name, element) - q["zero_point"]) for element in elements]
    axis: int = q["axis"]
    size: int = q.get("block_size", 1)
    blocks: int = -(-shape[axis] // size)
    others = [dim for k, dim in enumerate(shape) if k != axis]

    def parameter(at: Sequence[int]) -> int:
        if tag == 2:
            return at[axis]
        line = 0
        for dim, i in zip(others, (i for k, i in enumerate(at) if k != axis), strict=True):
            line = line * dim + i
        return line * blocks + at[axis] // size

    numbers = [parameter(at) for at in plain.coordinates(shape)]
    count = max(numbers) + 1
    if tag == 5:
        exponents = [plain.element_bits(buffers[q["scale_buffer_index"]], k, 8) for k in range(count)]
        return [
            value_of(name, element) * math.ldexp(1.0, exponents[k] - 127)
            for element, k in zip(elements, numbers, strict=True)
        ]
    scales, zeros = _parameters(d, buffers, count)
    real: Callable[[int, int], float]
    if tag == 4:
        real = lambda element, k: scales[k] * _float32(NF4_LEVELS[element])  # noqa: E731
    else:
        real = lambda element, k: scales[k] * (value_of(name, element) - zeros[k])  # noqa: E731
    return [real(element, k) for element, k in zip(elements, numbers, strict=True)]


def _dequantize_sequence(d: Json, buffers: Sequence[bytes], s: int, length: int, raw: bytes) -> list[float]:
    """One gathered sequence; ``raw`` has one byte an element, as every storage type of the schemes used here."""
    q, name = d["quantization"], plain.TYPES[d["type_tag"]][0]
    _, heads, dim = d["shape"]
    page_size, num_pages = d["layout"]["page_size"], d["layout"]["num_pages"]
    table, pointers = plain.paged_indices(d, buffers)
    tag = q["scheme_tag"]
    if tag == 1:
        scales, zeros = [_inline_scale(q)], [q["zero_point"]]
    else:
        scales, zeros = _parameters(d, buffers, num_pages * page_size if tag == 3 else d["shape"][q["axis"]])
    real = []
    for k, (t, h, j) in enumerate(plain.coordinates([length, heads, dim])):
        if tag == 1:
            number = 0
        elif tag == 2:
            number = (h, j)[q["axis"] - 1]
        else:
            number = table[pointers[s] + t // page_size] * page_size + t % page_size
        real.append(scales[number] * (value_of(name, raw[k]) - zeros[number]))
    return real


def _scale_sequence(d: Json, raw: bytes, scale: Json) -> list[float]:
    """One gathered sequence times the scales of a companion tensor, [] or [num_heads]."""
    name = plain.TYPES[d["type_tag"]][0]
    _, heads, dim = d["shape"]
    scales = struct.unpack(f"<{len(scale['buffers'][0]) // 4}f", scale["buffers"][0])
    return [value_of(name, raw[k]) * scales[k // dim % heads % len(scales)] for k in range(len(raw))]

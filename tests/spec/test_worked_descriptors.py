"""Worked examples of descriptors, layouts and quantization are what the page says, to the library and to its judge.

The form that every example has, whatever it is of, is asked here too.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from spec_examples import EXAMPLES, UNDECODED, changed, constants, found_by, of_kind, said_by
from spec_numbers import leaves, numbers, plain
from spec_pages import Example, all_sections, example, fence, read_as, section

import hurray_wire as hw
from hurray_wire.addressing import element_offset
from hurray_wire.annotate import annotate


@pytest.mark.parametrize("one", EXAMPLES, ids=lambda e: e.name)
def test_every_line_stands_where_it_says_and_holds_what_it_says(one: Example) -> None:
    at = 0
    for line in one.fields:
        assert line.offset == at
        if line.name is not None:
            assert read_as(line.raw, line.value) == line.value, line.name
        at += len(line.raw)


def test_names_of_examples_are_unique() -> None:
    names = [one.name for one in EXAMPLES]
    assert sorted(set(names)) == sorted(names)


@of_kind("descriptor")
def test_a_descriptor_is_decoded_as_the_page_says(one: Example) -> None:
    descriptor = hw.TensorDescriptor.decode(one.raw)
    ours = found_by(leaves(numbers(descriptor)))
    theirs = found_by(leaves(plain.decode_descriptor(one.raw)))
    for name, values in said_by(one).items():
        assert theirs[name] == values, name
        assert ours[name] == values, name


@of_kind("descriptor")
def test_a_descriptor_encodes_to_the_bytes_of_the_page(one: Example) -> None:
    assert hw.TensorDescriptor.decode(one.raw).encode() == one.raw
    assert plain.decode_descriptor(one.raw)["descriptor_length"] == len(one.raw)


@pytest.mark.parametrize(("one", "at"), constants("descriptor", "reserved"))
def test_reserved_bytes_of_a_descriptor_are_zero(one: Example, at: int) -> None:
    with pytest.raises(hw.InvalidDescriptorError) as caught:
        hw.TensorDescriptor.decode(changed(one.raw, at))
    assert caught.value.rule in ("descriptor.reserved", "quantization.reserved")
    with pytest.raises(plain.Refused):
        plain.decode_descriptor(changed(one.raw, at))


@pytest.mark.parametrize(("one", "at"), constants("descriptor", "magic")[:2])
def test_a_descriptor_starts_with_its_magic(one: Example, at: int) -> None:
    with pytest.raises(hw.InvalidDescriptorError) as caught:
        hw.TensorDescriptor.decode(changed(one.raw, at))
    assert caught.value.rule == "descriptor.magic"


@of_kind("descriptor")
def test_a_descriptor_cut_anywhere_is_truncated(one: Example) -> None:
    for end in range(len(one.raw)):
        with pytest.raises(hw.TruncatedError) as caught:
            hw.TensorDescriptor.decode(one.raw[:end])
        assert caught.value.rule == ("descriptor.truncated" if end < 20 else "descriptor.length")


@pytest.mark.parametrize("one", [e for e in EXAMPLES if e.kind in ("descriptor", "file")], ids=lambda e: e.name)
def test_annotating_an_example_finds_the_fields_of_the_page(one: Example) -> None:
    rows = {row.offset: row for row in annotate(one.raw)}
    assert [row.offset + row.size for row in rows.values()] == [*list(rows)[1:], len(one.raw)]
    for line in one.fields:
        if line.name is None:
            continue
        row, name = rows[line.offset], line.name.rpartition(".")[2]
        assert row.size == len(line.raw), name
        if name not in UNDECODED and name not in ("key", "value", "name"):  # which it calls by longer words
            assert (row.field or row.part) == name
        if row.value is not None and not isinstance(row.value, bytes):
            assert row.value == line.value, name


def positions() -> list[Any]:
    return [
        pytest.param(words, [[int(word) for word in line.split()] for line in lines], id=words)
        for part in all_sections()
        for language, words, lines in part.fences
        if language == "positions"
    ]


@pytest.mark.parametrize(("name", "grid"), positions())
def test_elements_lie_at_the_positions_of_the_page(name: str, grid: list[list[int]]) -> None:
    descriptor = hw.TensorDescriptor.decode(example(name).raw)
    buffer = bytes(range(descriptor.buffers[0].byte_size))  # element at byte n is n
    expected = [[descriptor.byte_offset + position for position in row] for row in grid]
    decoded = plain.decode_descriptor(example(name).raw)
    assert plain.dense_elements(decoded, [buffer]) == [value for row in expected for value in row]
    assert hw.Tensor(name, descriptor, [buffer]).numpy().tolist() == expected


def test_neighbours_on_the_hilbert_curve_touch() -> None:
    grid = next(value for name, value in (param.values for param in positions()) if name == "hilbert")
    places = {grid[i][j]: (i, j) for i in range(4) for j in range(4)}
    assert sorted(places) == list(range(16))
    assert all(abs(places[n][0] - places[n + 1][0]) + abs(places[n][1] - places[n + 1][1]) == 1 for n in range(15))


@pytest.mark.parametrize("name", ["csr", "csf"])
def test_sparse_elements_are_those_of_the_page(name: str) -> None:
    told = json.loads("\n".join(fence("json", f"elements {name}")))
    values, *indices = told["buffers"]
    buffers = [bytes(values), *(struct.pack(f"<{len(words)}Q", *words) for words in indices)]
    decoded = plain.decode_descriptor(example(name).raw)
    assert plain.sparse_elements(decoded, buffers) == np.array(told["dense"]).reshape(-1).tolist()
    tensor = hw.Tensor(name, hw.TensorDescriptor.decode(example(name).raw), buffers)
    assert tensor.sparse().to_dense().tolist() == told["dense"]


def packed_rows() -> list[dict[str, str]]:
    return next(table for table in section("descriptor.md", "packing").tables() if "elements" in table[0])


@pytest.mark.parametrize("row", packed_rows(), ids=lambda row: row["type"])
def test_packed_elements_are_those_of_the_page(row: dict[str, str]) -> None:
    elements = [int(word) for word in row["elements"].removeprefix("bits ").split(",")]
    raw = bytes.fromhex(row["bytes"].strip("`"))
    element_type = getattr(hw, {"bool": "bool_"}.get(row["type"], row["type"]))
    bits = [value % (1 << element_type.bits) for value in elements]
    assert [plain.element_bits(raw, k, element_type.bits) for k in range(len(bits))] == bits
    descriptor = hw.TensorDescriptor.build(element_type, (len(bits),), hw.RowMajorLayout(), (len(raw),))
    held = hw.Tensor(None, descriptor, [raw]).numpy()
    if row["elements"].startswith("bits"):
        assert held.view(np.uint8).tolist() == bits
    else:
        assert held.astype(np.int64).tolist() == elements


def test_the_lookup_table_of_the_worked_example_holds() -> None:
    descriptor = plain.decode_descriptor(example("worked-example").raw)
    table = [line.value for line in example("block-table").fields]
    seq_ptr = [line.value for line in example("seq-ptr").fields]
    (rows,) = [table for table in section("block-paged.md", "worked-example").tables() if "flat" in table[0]]
    for row in rows:
        s, t, h, d = (int(row[name]) for name in ("sequence", "token", "head", "dimension"))
        flat = int(row["flat"])
        assert flat == ((int(row["page"]) * 4 + int(row["slot"])) * 2 + h) * 8 + d
        assert plain.element_offset(descriptor, table, seq_ptr, s, t, h, d) == flat
        sizes = {"page_size": 4, "num_pages": 5, "num_heads": 2, "head_dim": 8}
        assert element_offset(s, t, h, d, block_table=table, seq_ptr=seq_ptr, **sizes) == flat


def test_page_slots_carry_their_own_scales() -> None:
    (rows,) = section("block-paged.md", "quantized-example").tables()
    pool = np.full(24, 10, np.int8)
    buffers = [
        pool,
        struct.pack("<3Q", 2, 0, 2),
        struct.pack("<3Q", 0, 2, 3),
        np.array([0.5, 1, 2, 4, 0.25, 8], "<f2"),
        struct.pack("<6i", 0, 1, 2, 3, -4, 5),
    ]
    descriptor = hw.TensorDescriptor.decode(example("quantized-paged").raw)
    tensor = hw.PagedTensor(None, descriptor, buffers, recorded_seq_lens=lambda: np.array([3, 2]))
    real = tensor.gather(dequantize=True).values
    for row in rows:
        told = float(row["stored 10 is really"])
        assert told == float(row["scale"]) * (10 - int(row["zero point"]))
        assert real[int(row["sequence"]), int(row["token"])].tolist() == [[told] * 4]


def dequantized(name: str, buffers: list[Any]) -> Any:
    descriptor = hw.TensorDescriptor.decode(example(name).raw)
    return hw.Tensor(None, descriptor, buffers).numpy(dequantize=True)


def test_per_tensor_affine_gives_the_numbers_of_the_page() -> None:
    (rows,) = [table for table in section("quantization.md", "per-tensor-affine").tables() if "real" in table[0]]
    stored = [int(row["stored"]) for row in rows]
    assert dequantized("per-tensor-affine", [bytes(stored)]).tolist() == [float(row["real"]) for row in rows]


def test_blocks_are_numbered_as_the_page_says() -> None:
    (rows,) = [table for table in section("quantization.md", "per-block-affine").tables() if "element" in table[0]]
    real = dequantized("per-block-affine", [bytes([1] * 15), np.arange(10, dtype="<f4")])
    for row in rows:
        i, j = json.loads(row["element"].replace("(", "[").replace(")", "]"))
        assert real[i, j] == float(row["scale"])


def test_nf4_levels_are_those_of_the_page() -> None:
    (rows,) = [table for table in section("quantization.md", "nf4").tables() if "level" in table[0]]
    levels = {int(row["q"]): float(row["level"]) for row in rows}
    descriptor = hw.TensorDescriptor.build(hw.uint4, (16,), hw.RowMajorLayout(), (8, 4), quantization=hw.Nf4(0, 16, 1))
    codes = bytes(low | (low + 1) << 4 for low in range(0, 16, 2))
    real = hw.Tensor(None, descriptor, [codes, struct.pack("<f", 1)]).numpy(dequantize=True)
    assert real.tolist() == [np.float32(levels[q]) for q in range(16)]

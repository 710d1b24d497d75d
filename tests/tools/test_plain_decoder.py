"""The plain decoder against values derived by hand, and against files that the Rust implementation wrote.

The plain decoder judges everything else, so nothing here may come from the library, and nothing from the decoder
itself: each expected value is written out or follows from a formula stated beside it.
"""

from __future__ import annotations

import importlib.util
import json
import struct
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from foreign.damaged import part
from requirements import reference

ROOT = Path(__file__).resolve().parents[2]


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("plain_decoder", ROOT / "tools" / "plain_decoder.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


plain = _load()

# The worked example: layer 3, key, 2 sequences, 4 tokens a page, 5 pages, 2 heads, 8 dimensions, float16.
WORKED_EXAMPLE = bytes.fromhex(
    "48525259 01 00 85000000 00000000 01 0a 03000000"
    "0900000000000000 0200000000000000 0800000000000000 0000000000000000"
    "04000000 0500000000000000 00000000 02000000 00 03000000 00 000000000000"
    "03 8002000000000000 40000000 00 00 00 00"
    "   0c00000000000000 40000000 00 00 00 00"
    "   0c00000000000000 40000000 00 00 00 00"
)
POOL = struct.pack("<320H", *(0x3C00 + i for i in range(320)))
BLOCK_TABLE = struct.pack("<3I", 0, 1, 0)
SEQ_PTR = struct.pack("<3I", 0, 2, 3)
BUFFERS = [POOL, BLOCK_TABLE, SEQ_PTR]


def handle(size: int) -> bytes:
    return struct.pack("<QI4x", size, 64)


def descriptor(
    *, shape: list[int], layout_tag: int, layout: bytes = b"", sizes: list[int], type_tag: int = 0x11
) -> bytes:
    body = struct.pack("<I", 0) + bytes([type_tag, layout_tag]) + struct.pack("<I", len(shape))
    body += b"".join(struct.pack("<Q", size) for size in shape) + struct.pack("<Q", 0) + layout
    body += bytes([len(sizes)]) + b"".join(handle(size) for size in sizes)
    return b"HRRY\x01\x00" + struct.pack("<I", 10 + len(body)) + body


def test_crc32c_has_the_check_value_of_its_definition() -> None:
    assert plain.crc32c(b"123456789") == 0xE3069283
    assert plain.crc32c(b"") == 0


def test_worked_example_decodes_to_its_fields() -> None:
    d = plain.decode_descriptor(WORKED_EXAMPLE)
    assert (d["type_tag"], d["layout_tag"], d["shape"], d["byte_offset"]) == (1, 10, [9, 2, 8], 0)
    assert d["layout"] == {
        "page_size": 4,
        "num_pages": 5,
        "paged_axis": 0,
        "num_seqs": 2,
        "kv_role": 0,
        "layer_index": 3,
        "block_table_index_type": 0,
    }
    assert [h["byte_size"] for h in d["buffer_handles"]] == [640, 12, 12]


def test_paged_element_is_where_the_formula_puts_it() -> None:
    d = plain.decode_descriptor(WORKED_EXAMPLE)
    # sequence 0, token 4: block_table[0 + 1] = page 1, slot 0: ((1*4 + 0)*2 + 0)*8 + 0
    assert plain.element_offset(d, [0, 1, 0], [0, 2, 3], 0, 4, 0, 0) == 64
    # sequence 1, token 2, head 1, dimension 7: page 0, slot 2: ((0*4 + 2)*2 + 1)*8 + 7
    assert plain.element_offset(d, [0, 1, 0], [0, 2, 3], 1, 2, 1, 7) == 47


def test_gather_gives_each_sequence_its_tokens() -> None:
    d = plain.decode_descriptor(WORKED_EXAMPLE)
    first, second = plain.gather(d, BUFFERS, [6, 3])
    # 16 elements a token. Sequence 0 lies in pages 0 and 1, which follow each other; sequence 1 is page 0 again.
    assert first == POOL[: 6 * 32]
    assert second == POOL[: 3 * 32]
    with pytest.raises(plain.Refused, match="pages of sequence 1"):
        plain.gather(d, BUFFERS, [4, 5])
    with pytest.raises(plain.Refused, match="add up"):
        plain.gather(d, BUFFERS, [6, 2])


def test_stream_ends_only_between_tensors() -> None:
    stream = WORKED_EXAMPLE + POOL + BLOCK_TABLE + SEQ_PTR
    assert [b["size"] for b in plain.dump(plain.decode_stream(stream))["tensors"][0]["buffers"]] == [640, 12, 12]
    assert plain.decode_stream(b"")["tensors"] == []
    for cut in range(1, len(stream)):
        with pytest.raises(plain.Refused):
            plain.decode_stream(stream[:cut])


@pytest.mark.parametrize(
    ("offset", "replacement", "rule"),
    [
        (0, b"HRRX", "starts with HRRY"),
        (4, b"\x02", "version_major"),
        (6, b"\x13\0\0\0", "at least 20"),
        (6, b"\x84\0\0\0", "ends inside a field"),
        (10, b"\x20", "flag bits"),
        (14, b"\x47", "element types"),
        (15, b"\x0c", "layout_tag"),
        (16, b"\x41", "rank is at most 64"),
        (44, b"\x01", "byte_offset is 0"),
        (52, b"\0\0\0\0", "page_size"),
        (64, b"\x01", "paged_axis"),
        (72, b"\x03", "kv_role"),
        (77, b"\x02", "block_table_index_type"),
        (83, b"\x01", "reserved"),
        (84, b"\x02", "descriptor_length equals"),
        (85, b"\x7f\x02", "page_pool buffer"),
        (93, b"\x60", "power of two"),
        (97, b"\x09", "device_tag"),
        (98, b"\x01", "producer-synced"),
        (99, b"\x03", "peer memory"),
    ],
)
def test_broken_field_of_the_worked_example_is_refused(offset: int, replacement: bytes, rule: str) -> None:
    broken = WORKED_EXAMPLE[:offset] + replacement + WORKED_EXAMPLE[offset + len(replacement) :]
    with pytest.raises(plain.Refused, match=rule):
        plain.decode_descriptor(broken)


@pytest.mark.parametrize(
    ("block_table", "seq_ptr", "rule"),
    [
        ([0, 5, 0], [0, 2, 3], "below num_pages"),
        ([0, 1, 0], [1, 2, 3], "starts with 0"),
        ([0, 1, 0], [0, 4, 3], "never decreases"),
        ([0, 1, 0], [0, 1, 2], "ends with the length"),
    ],
)
def test_broken_index_buffer_is_refused(block_table: list[int], seq_ptr: list[int], rule: str) -> None:
    stream = WORKED_EXAMPLE + POOL + struct.pack("<3I", *block_table) + struct.pack("<3I", *seq_ptr)
    with pytest.raises(plain.Refused, match=rule):
        plain.decode_stream(stream)


def file_of(
    *tensors: tuple[bytes, bytes, bytes], flags: int = 0, gap: int = 0, kv: tuple[int, int] = (0, 0), first: int = 64
) -> bytes:
    """A file of (name, descriptor, data), with ``gap`` needless bytes behind each tensor's data."""
    out, index = bytearray(64), struct.pack("<Q", len(tensors))
    for name, encoded, data in tensors:
        start = len(out)
        out += encoded
        out += bytes(-len(out) % 4096)
        index += struct.pack("<H", len(name)) + name
        index += struct.pack("<QIQQI", start, len(encoded), len(out), len(data), 0)
        out += data
        out += bytes(-len(out) % 8 + gap)
    out[:64] = b"HRRYFILE\x01\0\0\0" + struct.pack("<IIQQ28x", flags, 4096, first, len(tensors))
    return bytes(out + index + struct.pack("<QQQII4x", len(out), len(index), *kv, 0) + b"HRRY")


def test_container_gives_names_and_buffers() -> None:
    encoded = descriptor(shape=[3], layout_tag=1, sizes=[3])
    file = plain.decode_file(file_of((b"a", encoded, b"abc"), (b"b", encoded, b"def")))
    assert [(t["name"], t["buffers"]) for t in file["tensors"]] == [("a", [b"abc"]), ("b", [b"def"])]
    assert plain.decode_file(file_of())["tensors"] == []


ENCODED = descriptor(shape=[3], layout_tag=1, sizes=[3])


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (file_of((b"a", ENCODED, b"abc"), gap=8), "no hole"),
        (file_of((b"a", ENCODED, b"abc"), (b"a", ENCODED, b"abc")), "unique"),
        (file_of((b"", ENCODED, b"abc")), "not empty"),
        (file_of((b"\xff", ENCODED, b"abc")), "UTF-8"),
        (file_of((b"b", ENCODED, b"abc"), (b"a", ENCODED, b"abc"), flags=2), "sorted by name"),
        (file_of((b"a", ENCODED, b"abc"), flags=4), "CRC-32C of the index"),
        (file_of((b"a", ENCODED, b"abc"), flags=1), "HAS_KV_METADATA"),
        (file_of((b"a", ENCODED, b"abc"), flags=8), "file flag bits"),
        (file_of((b"a", ENCODED, b"abc"), kv=(64, 0)), "both 0 or both not"),
        (file_of((b"a", ENCODED, b"abc"), kv=(64, 8)), "value_tag|field|overlap|entries"),
        (file_of((b"a", ENCODED, b"abc"), first=72), "first_descriptor_offset"),
        (file_of((b"a", ENCODED, b"abcd")), "data_length"),
        (file_of((b"a", ENCODED, b"abc"))[:-1], "ends with HRRY"),
        (b"HRRYFILE", "inside a field"),
    ],
)
def test_broken_container_is_refused(data: bytes, rule: str) -> None:
    with pytest.raises(plain.Refused, match=rule):
        plain.decode_file(data)


def test_padding_of_a_file_is_zero() -> None:
    good = file_of((b"a", ENCODED, b"abc"))
    for at in (64 + len(ENCODED), 4095, 4099):
        with pytest.raises(plain.Refused, match="padding is zero"):
            plain.decode_file(good[:at] + b"\x01" + good[at + 1 :])


def file_of_metadata(*entries: tuple[bytes, int]) -> bytes:
    """A file without tensors, with metadata that are all u64."""
    kv = struct.pack("<I", len(entries))
    kv += b"".join(struct.pack("<H", len(key)) + key + struct.pack("<BQ", 3, value) for key, value in entries)
    out = b"HRRYFILE\x01\0\0\0" + struct.pack("<IIQQ28x", 1, 4096, 64, 0) + kv + bytes(-len(kv) % 8)
    return out + bytes(8) + struct.pack("<QQQII4x", len(out), 8, 64, len(kv), 0) + b"HRRY"


def test_metadata_checksum_is_that_of_what_stands_before_it() -> None:
    key = b"hurray_wire.metadata_crc32c"
    before = struct.pack("<IH", 2, 1) + b"n" + struct.pack("<BQ", 3, 7)
    crc = plain.crc32c(before)
    assert len(plain.decode_file(file_of_metadata((b"n", 7), (key, crc)))["kv_metadata"]) == 2
    for wrong in (crc ^ 1, crc + (1 << 32)):
        with pytest.raises(plain.Refused, match="checksum of the metadata"):
            plain.decode_file(file_of_metadata((b"n", 7), (key, wrong)))
    with pytest.raises(plain.Refused, match="checksum of the metadata"):
        plain.decode_file(file_of_metadata((b"n", 6), (key, crc)))
    # only the last entry is one
    assert len(plain.decode_file(file_of_metadata((key, crc ^ 1), (b"n", 7)))["kv_metadata"]) == 2


@pytest.mark.parametrize("rule", [1, 2])
def test_members_of_a_partition_or_overlay_have_its_type(rule: int) -> None:
    layout = struct.pack("<BB2xI", rule, rule - 1, 1)
    head = descriptor(shape=[2], layout_tag=0x0B, layout=layout, sizes=[], type_tag=0x10)
    member = part([1, 2], [1, 2], [0, 0], None if rule == 1 else 1)  # of uint8
    with pytest.raises(plain.Refused, match="head's element type"):
        plain.decode_stream(head + member)


def test_unused_bits_behind_packed_elements_are_zero() -> None:
    encoded = descriptor(shape=[10], layout_tag=1, sizes=[2], type_tag=0x20)
    assert len(plain.decode_stream(encoded + b"\xff\x03")["tensors"]) == 1
    with pytest.raises(plain.Refused, match="unused bits"):
        plain.decode_stream(encoded + b"\xff\x07")
    assert len(plain.decode_stream(encoded + b"\xff\x07", verify=False)["tensors"]) == 1


def test_morton_interleaves_while_a_dimension_has_bits() -> None:
    # shape [4, 2], bits [2, 1]: position = i0 | j0 << 1 | i1 << 2, where i1 i0 are the bits of i and j0 that of j.
    bytes_ = descriptor(shape=[4, 2], layout_tag=5, layout=struct.pack("<2I", 2, 1), sizes=[8])
    d = plain.decode_descriptor(bytes_)
    assert plain.dense_elements(d, [bytes(range(8))]) == [0, 2, 1, 3, 4, 6, 5, 7]


def hilbert_path(order: int, rank: int) -> list[tuple[int, ...]]:
    path: list[tuple[int, ...]] = [()] * (1 << order * rank)
    for at in plain.coordinates([1 << order] * rank):
        path[plain.hilbert_position(at, order)] = at
    return path


def test_hilbert_two_by_two_is_a_u() -> None:
    # No rotation at order 1: x1 ^= x0, then position = x0 << 1 | x1. (0,0) 0, (0,1) 1, (1,1) 2, (1,0) 3.
    assert hilbert_path(1, 2) == [(0, 0), (0, 1), (1, 1), (1, 0)]


def test_hilbert_four_by_four_is_the_one_curve_that_fits() -> None:
    # The quadrants follow the U above. A quadrant is itself a U, entered at a corner and left at a neighbouring one,
    # and only one of the two possible ends touches the next quadrant; the last ends where the whole is symmetric.
    assert hilbert_path(2, 2) == [
        *[(0, 0), (1, 0), (1, 1), (0, 1)],
        *[(0, 2), (0, 3), (1, 3), (1, 2)],
        *[(2, 2), (2, 3), (3, 3), (3, 2)],
        *[(3, 1), (2, 1), (2, 0), (3, 0)],
    ]


@pytest.mark.parametrize(("order", "rank"), [(3, 2), (1, 3), (2, 3), (1, 4)])
def test_hilbert_neighbours_in_memory_are_neighbours_in_space(order: int, rank: int) -> None:
    path = hilbert_path(order, rank)
    assert len(set(path)) == 1 << order * rank
    for a, b in pairwise(path):
        assert sum(abs(x - y) for x, y in zip(a, b, strict=True)) == 1


def test_tiled_element_is_tile_number_times_tile_size_plus_inner_position() -> None:
    # shape [3, 4] in tiles of [2, 2]: a 2x2 grid whose lower tiles are half empty; 4 elements a tile, all row-major.
    layout = struct.pack("<2Q", 2, 2) + bytes([1, 1, 0, 0])
    d = plain.decode_descriptor(descriptor(shape=[3, 4], layout_tag=4, layout=layout, sizes=[16]))
    assert plain.dense_elements(d, [bytes(range(16))]) == [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13]
    with pytest.raises(plain.Refused, match="holds what the layout needs"):
        plain.decode_descriptor(descriptor(shape=[3, 4], layout_tag=4, layout=layout, sizes=[15]))


def test_dense_orders_and_strides() -> None:
    column = plain.decode_descriptor(descriptor(shape=[2, 3], layout_tag=2, sizes=[6]))
    assert plain.dense_elements(column, [bytes(range(6))]) == [0, 2, 4, 1, 3, 5]
    strides = struct.pack("<2q", 0, 2)  # both rows are the same one, every other element
    broadcast = plain.decode_descriptor(descriptor(shape=[2, 3], layout_tag=3, layout=strides, sizes=[5]))
    assert plain.dense_elements(broadcast, [bytes(range(5))]) == [0, 2, 4, 0, 2, 4]
    negative = struct.pack("<2q", 3, -1)
    with pytest.raises(plain.Refused, match="inside buffer 0"):
        plain.decode_descriptor(descriptor(shape=[2, 3], layout_tag=3, layout=negative, sizes=[6]))


def test_six_bit_elements_lie_four_in_three_bytes() -> None:
    # 1, 2, 3, 63 from bit 0 up: 63<<18 | 3<<12 | 2<<6 | 1 = 0xFC3081
    assert [plain.element_bits(bytes([0x81, 0x30, 0xFC]), i, 6) for i in range(4)] == [1, 2, 3, 63]


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def test_sparse_layouts_name_their_elements() -> None:
    nnz = struct.pack("<Q", 2)
    # [[0, 7, 0], [9, 0, 0]]
    coo = plain.decode_descriptor(
        descriptor(shape=[2, 3], layout_tag=6, layout=nnz + b"\x01" + bytes(7), sizes=[2, 32])
    )
    assert plain.sparse_elements(coo, [b"\x07\x09", words(0, 1, 1, 0)]) == [0, 7, 0, 9, 0, 0]
    csr = plain.decode_descriptor(descriptor(shape=[2, 3], layout_tag=7, layout=nnz + bytes(8), sizes=[2, 16, 24]))
    assert plain.sparse_elements(csr, [b"\x07\x09", words(1, 0), words(0, 1, 2)]) == [0, 7, 0, 9, 0, 0]
    csc = plain.decode_descriptor(descriptor(shape=[2, 3], layout_tag=8, layout=nnz + bytes(8), sizes=[2, 16, 32]))
    assert plain.sparse_elements(csc, [b"\x09\x07", words(1, 0), words(0, 1, 2, 2)]) == [0, 7, 0, 9, 0, 0]
    # shape [1, 2, 3], the same matrix under one more level
    csf_layout = nnz + struct.pack("<3I", 0, 1, 2) + bytes(8)
    csf = plain.decode_descriptor(
        descriptor(shape=[1, 2, 3], layout_tag=9, layout=csf_layout, sizes=[2, 16, 8, 16, 16, 24, 16])
    )
    tree = [b"\x07\x09", words(0, 1), words(0), words(0, 2), words(0, 1), words(0, 1, 2), words(1, 0)]
    assert plain.sparse_elements(csf, tree) == [0, 7, 0, 9, 0, 0]


def test_conformance_corpus_decodes_as_its_manifest_says() -> None:
    conformance = reference() / "conformance"
    manifest = json.loads((conformance / "manifest.json").read_text())
    assert len(manifest["descriptors"]) == 11
    for case in manifest["descriptors"]:
        d = plain.decode_descriptor((conformance / case["file"]).read_bytes())
        expect = case["expect"]
        assert d["type_tag"] == expect["element_type_tag"]
        assert plain.TYPES[d["type_tag"]][0] == expect["element_type"]
        assert d["layout_tag"] == expect["layout_tag"]
        assert (d["shape"], d["byte_offset"]) == (expect["shape"], expect["byte_offset"])
        assert [h["byte_size"] for h in d["buffer_handles"]] == expect["buffer_byte_sizes"]
        assert (d["quantization"] is not None) == expect["has_quantization"]
        assert (d["shard"] is not None) == expect["has_shard"]
    for case in manifest["files"]:
        file = plain.decode_file((conformance / case["file"]).read_bytes())
        assert [t["name"] for t in file["tensors"]] == [t["name"] for t in case["tensors"]]
        assert [sum(map(len, t["buffers"])) for t in file["tensors"]] == [t["data_bytes"] for t in case["tensors"]]
        found = [(e["key"], e["value"]) for e in file["kv_metadata"]]
        stated = [(e["key"], e["value_int"] if e["value_string"] is None else e["value_string"]) for e in case["kv"]]
        assert found == stated


def test_rust_paged_file_holds_its_stated_formula() -> None:
    file = plain.decode_file((reference() / "paged" / "paged_multi.hrry").read_bytes())
    assert file["header"]["file_flags"] & 1 == 0
    assert [e["kind"] for e in file["kv_metadata"]] == ["string", "i64", "u64", "f64", "bool", "bytes", "array"]
    tensors = {t["name"]: t for t in file["tensors"]}
    assert list(tensors) == [f"layers.{i}.{role}" for i in (2, 1, 0) for role in ("value", "key")] + ["seq_lens"]
    lengths = list(struct.unpack("<3I", tensors["seq_lens"]["buffers"][0]))
    assert lengths == [48, 0, 32]
    for layer in range(3):
        for role, add in (("key", 0), ("value", 31)):
            t = tensors[f"layers.{layer}.{role}"]
            bits = [((i * 2654435761 + layer * 97 + add) >> 7) & 0xFFFF for i in range(8 * 16 * 4 * 32)]
            pool = struct.pack(f"<{len(bits)}H", *bits)
            assert t["buffers"][0] == pool
            page = 16 * 4 * 32 * 2
            pages = [pool[p * page : (p + 1) * page] for p in (7, 2, 5, 7, 0)]
            assert plain.gather(t["descriptor"], t["buffers"], lengths) == [
                b"".join(pages[:3]),
                b"",
                b"".join(pages[3:]),
            ]


def test_rust_worked_example_and_stream_decode() -> None:
    paged = reference() / "paged"
    assert (paged / "paged_spec_example.desc").read_bytes() == WORKED_EXAMPLE
    file = plain.decode_file((paged / "paged_spec_example.hrry").read_bytes())
    assert file["kv_metadata"] is None
    assert [t["name"] for t in file["tensors"]] == ["layers.3.key"]
    assert file["tensors"][0]["buffers"] == BUFFERS
    stream = plain.decode_stream((paged / "paged.stream").read_bytes())
    assert [t["descriptor"]["shape"] for t in stream["tensors"]] == [[9, 2, 8], [0, 2, 8]]
    quantized = plain.decode_descriptor((paged / "paged_int8_pba.desc").read_bytes())["quantization"]
    assert (quantized["scheme_tag"], quantized["axis"], quantized["block_size"]) == (3, 0, 4)


def test_command_prints_one_json_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_bytes(WORKED_EXAMPLE)
    bad.write_bytes(WORKED_EXAMPLE[:-1])
    assert plain.main(["--descriptor", str(good)]) == 0
    assert json.loads(capsys.readouterr().out)["descriptor"]["layout"]["page_size"] == 4
    assert plain.main(["--descriptor", str(bad)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1


def test_decoder_imports_nothing_of_the_library() -> None:
    source = (ROOT / "tools" / "plain_decoder.py").read_text()
    imported = {line.split()[1].split(".")[0] for line in source.splitlines() if line.startswith(("import ", "from "))}
    assert imported <= set(sys.stdlib_module_names)

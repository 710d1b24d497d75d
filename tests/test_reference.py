"""Files that the Rust implementation of the format wrote: all are read right, and ours are the same bytes.

They lie in a folder beside this project and are no part of it. What they must hold is told by their own manifest, by
the formulas that their README gives, and by the plain decoder, which shares no code with us.
"""

from __future__ import annotations

import io
import json
import struct
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.corpus import tool
from fixtures.dumping import of_descriptor, of_tensor
from requirements import require

import hurray_wire as hw

REFERENCE = Path(__file__).resolve().parents[2] / "shared" / "reference"

DESCRIPTORS = (
    "bool_packed_10", "composite_head_partition", "csr_f32_3x3", "empty_f32_0x4", "morton_f32_4x4",
    "quant_per_block_int4_128x128", "row_major_f16_2x2", "row_major_f32_3x4", "row_major_int8_5", "sharded_f32_8x4",
    "strided_f32_3x4",
)  # fmt: skip
PAGED = ("paged_spec_example.desc", "paged_int8_pba.desc")
FILES = ("conformance/files/basic.hrry", "paged/paged_spec_example.hrry", "paged/paged_multi.hrry")
every_file = pytest.mark.parametrize("name", FILES)


def read(name: str) -> bytes:
    require(REFERENCE.is_dir(), "the files of the Rust implementation are not beside this project")
    return (REFERENCE / name).read_bytes()


@cache
def manifest() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(read("conformance/manifest.json"))
    return found


def bare(name: str) -> str:
    return f"paged/{name}" if name in PAGED else f"conformance/descriptors/{name}.bin"


@pytest.mark.parametrize("name", [*DESCRIPTORS, *PAGED])
def test_a_descriptor_reads_right_and_encodes_to_the_same_bytes(name: str) -> None:
    data = read(bare(name))
    descriptor = hw.TensorDescriptor.decode(data)
    assert descriptor.encode() == data
    assert of_descriptor(descriptor) == tool("plain_decoder").dump(tool("plain_decoder").decode_descriptor(data))


@pytest.mark.parametrize("name", DESCRIPTORS)
def test_a_descriptor_is_what_the_manifest_expects(name: str) -> None:
    expect = next(e["expect"] for e in manifest()["descriptors"] if Path(e["file"]).stem == name)
    descriptor = hw.TensorDescriptor.decode(read(bare(name)))
    assert {
        "version_major": 1,
        "version_minor": descriptor.version_minor,
        "element_type_tag": descriptor.element_type.tag,
        "element_type": descriptor.element_type.name,
        "shape": list(descriptor.shape),
        "byte_offset": descriptor.byte_offset,
        "layout_tag": descriptor.layout.tag,
        "buffer_byte_sizes": [handle.byte_size for handle in descriptor.buffers],
        "has_quantization": descriptor.quantization is not None,
        "has_shard": descriptor.shard is not None,
    } == expect


def test_no_conformance_vector_is_left_out() -> None:
    assert sorted(Path(e["file"]).stem for e in manifest()["descriptors"]) == sorted(DESCRIPTORS)
    assert [e["file"] for e in manifest()["files"]] == ["files/basic.hrry"]


@every_file
@pytest.mark.parametrize("mmap", [True, False], ids=["mapped", "read"])
def test_a_file_reads_as_the_plain_decoder_reads_it_and_verifies(name: str, mmap: bool) -> None:
    plain = tool("plain_decoder")
    dump = plain.dump(plain.decode_file(read(name)))
    with hw.open(REFERENCE / name, mmap=mmap) as file:
        assert [{"name": key, **of_tensor(tensor)} for key, tensor in file.items()] == dump["tensors"]
        report = file.verify()
    assert (report.tensors, report.checksums) == (len(dump["tensors"]), 0)


def test_the_basic_file_is_what_the_manifest_expects() -> None:
    (expect,) = manifest()["files"]
    with hw.open(read("conformance/files/basic.hrry")) as file:
        assert file.metadata == {
            entry["key"]: entry[f"value_{entry['kind'].replace('int64', 'int')}"] for entry in expect["kv"]
        }
        assert list(file.names) == [tensor["name"] for tensor in expect["tensors"]]
        for tensor in expect["tensors"]:
            found = file[tensor["name"]]
            assert found.descriptor.element_type.name == tensor["element_type"]
            assert list(found.shape) == tensor["shape"]
            assert found.numpy().nbytes == tensor["data_bytes"]


def test_the_worked_example_is_gathered_by_its_formula() -> None:
    """Element i of the pool has the bits 0x3C00 + i; sequence 0 has pages 0 and 1, sequence 1 page 0."""
    with hw.open(read("paged/paged_spec_example.hrry"), seq_lens=[6, 3]) as file:
        assert file.names == ("layers.3.key",)
        assert file.metadata == {}
        tensor = file["layers.3.key"]
        assert isinstance(tensor, hw.PagedTensor)
        pool = (0x3C00 + np.arange(320)).astype(np.uint16).reshape(5, 4, 2, 8)
        assert np.array_equal(tensor.page_pool.view(np.uint16), pool)
        values, mask = tensor.gather()
        assert mask.sum(axis=1).tolist() == [6, 3]
        bits = values.view(np.uint16)
        assert np.array_equal(bits[0], pool[[0, 1]].reshape(8, 2, 8)[:6])
        assert np.array_equal(bits[1, :3], pool[0, :3])
        assert not bits[1, 3:].any()


def test_lengths_of_the_worked_example_are_not_guessed() -> None:
    with hw.open(read("paged/paged_spec_example.hrry")) as file, pytest.raises(hw.IncompatibleError, match="seq_lens="):
        file["layers.3.key"].gather()  # type: ignore[attr-defined]


def expected_pool(layer: int, role: str) -> Any:
    index = np.arange(8 * 16 * 4 * 32, dtype=np.uint64)
    numbers = index * 2654435761 + layer * 97 + (0 if role == "key" else 31)
    return (numbers >> np.uint64(7)).astype(np.uint16).reshape(8, 16, 4, 32)


def test_the_larger_file_holds_what_its_formulas_say() -> None:
    with hw.load_snapshot(read("paged/paged_multi.hrry")) as snapshot:
        assert snapshot.layers == (0, 1, 2)
        assert snapshot.seq_lens.tolist() == [48, 0, 32]
        written = [f"{layer} {role}" for layer in (2, 1, 0) for role in ("value", "key")]
        assert [f"{t.layout.layer_index} {t.layout.kv_role}" for t in snapshot.file.paged] == written
        for layer in snapshot.layers:
            gathered = snapshot.gather(layer)
            assert gathered["mask"].sum(axis=1).tolist() == [48, 0, 32]
            for role, name in (("key", "keys"), ("value", "values")):
                tensor = getattr(snapshot[layer], role)
                pool = expected_pool(layer or 0, role)
                assert tensor.block_table.tolist() == [7, 2, 5, 7, 0]
                assert tensor.seq_ptr.tolist() == [0, 3, 3, 5]
                assert tensor.layout.block_table_index_type == "uint64"
                assert np.array_equal(tensor.page_pool.view(np.uint16), pool)
                bits = gathered[name].view(np.uint16)
                assert np.array_equal(bits[0], pool[[7, 2, 5]].reshape(48, 4, 32))
                assert np.array_equal(bits[2, :32], pool[[7, 0]].reshape(32, 4, 32))
                assert not bits[1].any()
                assert not bits[2, 32:].any()


def test_the_larger_file_has_a_metadata_value_of_every_kind() -> None:
    plain = tool("plain_decoder")
    document = plain.decode_file(read("paged/paged_multi.hrry"))
    kinds = {entry["kind"] for entry in document["kv_metadata"]}
    assert kinds == {"string", "i64", "u64", "f64", "bool", "bytes", "array"}
    with hw.open(read("paged/paged_multi.hrry")) as file:
        metadata = file.metadata
    for entry in document["kv_metadata"]:
        value = metadata[entry["key"]]
        match entry["kind"]:
            case "f64":
                assert struct.pack(">d", value).hex() == entry["value"]
            case "bytes":
                assert value.hex() == entry["value"]
            case "array":
                assert [_plain(element) for element in value] == entry["value"]
            case _:
                assert value == entry["value"]


def _plain(element: Any) -> Any:
    if isinstance(element, bytes):
        return element.hex()
    return struct.pack(">d", element).hex() if isinstance(element, float) else element


def test_the_stream_holds_the_worked_example_and_an_empty_batch() -> None:
    data = read("paged/paged.stream")
    plain = tool("plain_decoder")
    first, second = hw.StreamReader(io.BytesIO(data))
    assert [of_tensor(first), of_tensor(second)] == plain.dump(plain.decode_stream(data))["tensors"]
    assert first.descriptor == hw.TensorDescriptor.decode(read("paged/paged_spec_example.desc"))
    assert isinstance(second, hw.PagedTensor)
    assert (second.layout.page_size, second.layout.num_pages, second.layout.num_seqs) == (16, 0, 0)
    assert (second.layout.kv_role, second.layout.layer_index) == ("value", None)
    values, mask = second.gather()
    assert (values.shape, mask.shape) == ((0, 0, 2, 8), (0, 0))
    out = io.BytesIO()
    with hw.StreamWriter(out) as writer:
        for tensor in (first, second):
            writer.add(tensor.descriptor, tensor.buffers)
    assert out.getvalue() == data


def rewritten(name: str, **options: Any) -> bytes:
    """The file written again by us, tensor by tensor."""
    out = io.BytesIO()
    with hw.open(read(name)) as file, hw.create(out, checksums=False, metadata=file.metadata, **options) as writer:
        for key, tensor in file.items():
            writer.add(key, tensor.descriptor, tensor.buffers)
    return out.getvalue()


def test_our_writer_gives_the_bytes_of_theirs() -> None:
    assert rewritten("paged/paged_spec_example.hrry") == read("paged/paged_spec_example.hrry")


def test_our_writer_gives_the_bytes_of_theirs_from_arrays() -> None:
    """Not only from buffers that were read: from the values themselves."""
    pool = (0x3C00 + np.arange(320)).astype("<u2").view("<f2").reshape(5, 4, 2, 8)
    layout = hw.BlockPagedLayout(4, 5, 0, 2, "key", 3)
    descriptor = hw.TensorDescriptor.build(hw.float16, (9, 2, 8), layout, (640, 12, 12))
    out = io.BytesIO()
    with hw.create(out, checksums=False) as writer:
        writer.add("layers.3.key", descriptor, [pool, np.array([0, 1, 0], "<u4"), np.array([0, 2, 3], "<u4")])
    assert out.getvalue() == read("paged/paged_spec_example.hrry")


@pytest.mark.parametrize(
    ("name", "options"),
    [("conformance/files/basic.hrry", {}), ("paged/paged_multi.hrry", {"alignment": 65536, "sorted_index": True})],
    ids=["basic", "multi"],
)
def test_with_metadata_only_the_flag_that_tells_of_it_differs(name: str, options: dict[str, Any]) -> None:
    """Their writer streams, so it leaves HAS_KV_METADATA unset; ours knows that metadata will follow."""
    ours, theirs = rewritten(name, **options), read(name)
    assert theirs[12] & 1 == 0
    assert ours[12] == theirs[12] | 1
    assert ours[:12] + theirs[12:13] + ours[13:] == theirs

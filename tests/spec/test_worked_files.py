"""Worked examples of files, streams and compressed files are what the page says, to the library and to others."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
import pyzstd
import zstandard
from spec_examples import changed, constants, found_by, of_kind, said_by
from spec_numbers import leaves, numbers, plain
from spec_pages import Example, example, section

import hurray_wire as hw
from hurray_wire.limits import Limits
from hurray_wire.wire import container, seektable
from hurray_wire.wire.checksum import crc32c
from hurray_wire.wire.index import decode_index, encode_index
from hurray_wire.wire.metadata import decode_metadata, encode_metadata


@pytest.mark.parametrize(("one", "at"), constants("file", "reserved") + constants("file", "magic"))
def test_constants_of_a_file_do_not_change(one: Example, at: int) -> None:
    with pytest.raises(hw.HurrayError) as caught, hw.open(changed(one.raw, at)) as file:
        file.verify()
    area = "container" if at < 64 else "trailer" if at >= len(one.raw) - 40 else "descriptor"
    assert caught.value.rule in (f"{area}.reserved", f"{area}.magic")
    with pytest.raises(plain.Refused):
        plain.decode_file(changed(one.raw, at))


@of_kind("file")
def test_padding_of_a_file_is_zero(one: Example) -> None:
    for line in one.fields:
        if line.name == "padding":
            with hw.open(changed(one.raw, line.offset)) as file, pytest.raises(hw.InvalidFileError) as caught:
                file.verify()
            assert caught.value.rule == "verify.padding"


@of_kind("file")
def test_a_file_is_decoded_as_the_page_says(one: Example) -> None:
    theirs = plain.decode_file(one.raw)
    theirs["tensors"] = [tensor["descriptor"] for tensor in theirs["tensors"]]
    order = ("header", "tensors", "kv_metadata", "index", "trailer")
    found = found_by(pair for part in order for pair in leaves(_wire_form(theirs[part])))
    ours = found_by(pair for part in order for pair in leaves(_our_form(one.raw)[part]))
    for name, values in said_by(one).items():
        assert found[name] == values, name
        assert ours[name] == values, name


@of_kind("stream")
def test_a_stream_is_decoded_as_the_page_says(one: Example) -> None:
    theirs = plain.decode_stream(one.raw)["tensors"]
    ours = list(hw.StreamReader(io.BytesIO(one.raw)))
    found = found_by(pair for tensor in theirs for pair in leaves(tensor["descriptor"]))
    found_ours = found_by(pair for tensor in ours for pair in leaves(numbers(tensor.descriptor)))
    section_raw = theirs[1]["buffers"][0]  # the first member of a snapshot's group
    found["key"] = [entry["key"] for entry in plain._metadata(section_raw, 0, len(section_raw))]
    found_ours["key"] = list(decode_metadata(memoryview(section_raw)))
    for name, values in said_by(one).items():
        assert found[name] == values, name
        assert found_ours[name] == values, name
    assert [[bytes(buffer) for buffer in tensor.buffers] for tensor in ours] == [t["buffers"] for t in theirs]


@of_kind("stream")
def test_a_stream_is_written_as_the_page_says(one: Example) -> None:
    out = io.BytesIO()
    with hw.StreamWriter(out) as writer:
        for tensor in hw.StreamReader(io.BytesIO(one.raw)):
            writer.add(tensor.descriptor, list(tensor.buffers))
    assert out.getvalue() == one.raw


@of_kind("stream")
def test_a_snapshot_is_received_from_the_stream_of_the_page(one: Example) -> None:
    with hw.receive_snapshot(io.BytesIO(one.raw)) as snapshot:
        assert snapshot.seq_lens.tolist() == [3]
        assert snapshot.gather(0)["keys"].tolist() == [[[[1, 2]], [[3, 4]], [[5, 6]]]]
        assert snapshot[0].key.name == "layers.0.key"


@of_kind("stream")
def test_a_stream_that_is_cut_anywhere_within_its_group_is_refused(one: Example) -> None:
    for end in range(1, len(one.raw)):
        decoder = hw.StreamDecoder()
        decoder.feed(one.raw[:end])
        with pytest.raises(hw.StreamError):
            decoder.close()


@of_kind("file")
def test_a_file_opens_and_verifies(one: Example) -> None:
    with hw.open(one.raw) as file:
        report = file.verify()
        assert report.tensors == len(file.names)
        assert report.checksums == report.tensors + report.buffers


def _wire_form(part: Any) -> Any:
    """Metadata as the page writes it: truth values as numbers, byte strings as lists, f64 as a number."""
    if isinstance(part, list):
        return [_wire_form(item) for item in part]
    if not isinstance(part, dict):
        return part
    if part.get("kind") == "f64":
        return part | {"value": struct.unpack(">d", bytes.fromhex(part["value"]))[0]}
    if part.get("kind") == "bytes":
        return part | {"value": list(bytes.fromhex(part["value"]))}
    return {key: int(value) if isinstance(value, bool) else _wire_form(value) for key, value in part.items()}


def _our_form(raw: bytes) -> dict[str, Any]:
    view = memoryview(raw)
    header = container.decode_header(view[: container.HEADER_BYTES])
    trailer = container.decode_trailer(
        view[-container.TRAILER_BYTES :], file_size=len(raw), header=header, limits=Limits()
    )
    index_raw = view[trailer.index_offset : trailer.index_offset + trailer.index_length]
    index = decode_index(index_raw, header=header, trailer=trailer, file_size=len(raw), limits=Limits())
    section_raw = view[trailer.kv_offset : trailer.kv_offset + trailer.kv_length]
    metadata = decode_metadata(section_raw)
    assert container.encode_header(header) == raw[: container.HEADER_BYTES]
    assert container.encode_trailer(trailer) == raw[-container.TRAILER_BYTES :]
    assert encode_index(index, sorted_index=header.sorted_index) == index_raw
    return {
        "header": {
            "container_major": 1,
            "container_minor": header.container_minor,
            "file_flags": header.has_kv_metadata | header.sorted_index << 1 | header.has_index_crc32c << 2,
            "data_buffer_alignment": header.data_buffer_alignment,
            "first_descriptor_offset": header.first_descriptor_offset,
            "tensor_count_hint": header.tensor_count_hint,
        },
        "tensors": [
            numbers(hw.TensorDescriptor.decode(view[e.descriptor_offset : e.descriptor_offset + e.descriptor_length]))
            for e in index
        ],
        "kv_metadata": [
            {"key": key, "value": list(value) if isinstance(value, bytes) else value} for key, value in metadata.items()
        ],
        "index": [
            {
                "name": e.name,
                "descriptor_offset": e.descriptor_offset,
                "data_offset": e.data_offset,
                "data_length": e.data_length,
                "flags": 0,
            }
            for e in index
        ],
        "trailer": {name: getattr(trailer, name) for name in container.Trailer.__slots__},
    }


def inflated(raw: bytes) -> bytes:
    return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(raw), read_across_frames=True).read()


def seek_table(raw: bytes) -> Any:
    footer = seektable.decode_seek_footer(
        memoryview(raw)[-seektable.FOOTER_BYTES :], file_size=len(raw), limits=Limits()
    )
    return seektable.decode_seek_table(memoryview(raw)[-footer.table_bytes :], footer, file_size=len(raw))


@pytest.mark.parametrize("name", ["two-frames", "byte-planes"])
def test_the_seek_table_of_the_page_lists_its_frames(name: str) -> None:
    one = example(name)
    said = said_by(one)
    table = seek_table(one.raw)
    assert table.compressed_sizes.tolist() == said["compressed_size"]
    assert table.decompressed_sizes.tolist() == said["decompressed_size"]
    assert table.checksums.tolist() == said["checksum"]
    at = 0
    for compressed, decompressed in zip(said["compressed_size"], said["decompressed_size"], strict=True):
        frame = one.raw[at : at + compressed]
        assert zstandard.frame_content_size(frame) == decompressed
        assert len(zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)) == decompressed
        at += compressed
    columns = (said["compressed_size"], said["decompressed_size"], said["checksum"])
    assert seektable.encode_seek_table(*columns) == one.raw[at:]


def test_any_tool_inflates_the_frames_of_the_page() -> None:
    assert inflated(example("two-frames").raw) == b"pages" + bytes(300)
    with pyzstd.SeekableZstdFile(io.BytesIO(example("two-frames").raw)) as file:
        file.seek(3)
        assert file.read(4) == b"es" + bytes(2)


def test_a_file_with_byte_planes_is_read_as_the_page_says() -> None:
    with hw.open(example("byte-planes").raw) as file:
        file.verify()
        tensor = file["layers.0.key"]
        bits = tensor.ragged().view(np.uint16)
    assert bits.tolist() == [[[0x3C00, 0x3C01]], [[0x3C02, 0x3C03]], [[0x4000, 0x4001]]]


def test_a_writer_cuts_frames_as_the_page_does() -> None:
    """Levels compress differently from a page made by hand; where frames begin and end is the same."""
    with hw.open(example("byte-planes").raw) as file:
        tensor = file["layers.0.key"]
        out = io.BytesIO()
        with hw.create(out, zstd=1, planes=True, checksums=False) as writer:
            writer.add(tensor.name, tensor.descriptor, list(tensor.buffers))
    assert (
        seek_table(out.getvalue()).decompressed_sizes.tolist() == said_by(example("byte-planes"))["decompressed_size"]
    )
    assert inflated(out.getvalue()) == inflated(example("byte-planes").raw)


def test_byte_planes_stand_where_the_page_says() -> None:
    flat = bytearray(inflated(example("byte-planes").raw))
    assert flat[:8] == b"HRRYPLNS"
    flat[:8] = b"HRRYFILE"
    split = bytes(flat[4096:4112])
    n, w = 8, 2
    for e in range(n):
        for k in range(w):
            flat[4096 + e * w + k] = split[k * n + e]
    (tensor,) = plain.decode_file(bytes(flat))["tensors"]
    assert struct.unpack("<8H", tensor["buffers"][0]) == (0x3C00, 0x3C01, 0x3C02, 0x3C03, 0x4000, 0x4001, 0, 0)


def test_metadata_of_every_kind_encodes_to_the_bytes_of_the_page() -> None:
    raw = example("small-file").raw
    trailer = plain.decode_file(raw)["trailer"]
    section_raw = raw[trailer["kv_offset"] : trailer["kv_offset"] + trailer["kv_length"]]
    metadata = decode_metadata(memoryview(section_raw))
    # an array says its kind, as a list of integers does not
    metadata["hurray_wire.crc32c"] = np.array(metadata["hurray_wire.crc32c"], "<u8")
    del metadata["hurray_wire.metadata_crc32c"]
    assert encode_metadata(metadata, seal=True) == section_raw


def test_crc32c_has_its_check_value() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert "0xE3069283" in "\n".join(section("container.md", "trailer").lines)

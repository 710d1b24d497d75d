"""Annotation: every byte of a file told once, the same as the decoders read it, up to the fault of a damaged one."""

import json

import numpy as np
import pytest
from cli_cases import ROOT, cache, finished, one_error, packed, unpack, write_safetensors

import hurray_wire as hw
from hurray_wire.annotate import annotate

# The worked example of the format: layer 3, keys, 2 sequences, 5 pages of 4, 2 heads of 8 float16.
WORKED = bytes.fromhex(
    "48525259 01 00 85000000 00000000 01 0a 03000000"
    "0900000000000000 0200000000000000 0800000000000000 0000000000000000"
    "04000000 0500000000000000 00000000 02000000 00 03000000 00 000000000000"
    "03 8002000000000000 40000000 00 00 00 00"
    "   0c00000000000000 40000000 00 00 00 00"
    "   0c00000000000000 40000000 00 00 00 00"
)


def test_each_field_of_the_worked_descriptor_is_told_with_its_place_and_value():
    rows = [(row.offset, row.size, row.part, row.field, row.value, row.words) for row in annotate(WORKED)]
    handles = [
        row
        for number, size in enumerate((640, 12, 12))
        for at in [85 + 16 * number]
        for row in (
            (at, 8, f"buffer handle {number}", "byte_size", size, ""),
            (at + 8, 4, f"buffer handle {number}", "alignment", 64, ""),
            (at + 12, 1, f"buffer handle {number}", "device_tag", 0, "cpu"),
            (at + 13, 1, f"buffer handle {number}", "sync_mode", 0, "producer_synced"),
            (at + 14, 1, f"buffer handle {number}", "memory_class", 0, "standard"),
            (at + 15, 1, f"buffer handle {number}", "reserved", None, ""),
        )
    ]
    assert rows == [
        (0, 4, "descriptor", "magic", "HRRY", ""),
        (4, 1, "descriptor", "version_major", 1, ""),
        (5, 1, "descriptor", "version_minor", 0, ""),
        (6, 4, "descriptor", "descriptor_length", 133, ""),
        (10, 4, "descriptor", "flags", 0, "0x00000000"),
        (14, 1, "descriptor", "type_tag", 1, "float16"),
        (15, 1, "descriptor", "layout_tag", 10, "block_paged"),
        (16, 4, "descriptor", "rank", 3, ""),
        (20, 24, "shape", "", [9, 2, 8], ""),
        (44, 8, "byte_offset", "", 0, ""),
        (52, 4, "block-paged fields", "page_size", 4, ""),
        (56, 8, "block-paged fields", "num_pages", 5, ""),
        (64, 4, "block-paged fields", "paged_axis", 0, ""),
        (68, 4, "block-paged fields", "num_seqs", 2, ""),
        (72, 1, "block-paged fields", "kv_role", 0, "key"),
        (73, 4, "block-paged fields", "layer_index", 3, ""),
        (77, 1, "block-paged fields", "block_table_index_type", 0, "uint32"),
        (78, 6, "block-paged fields", "reserved", None, ""),
        (84, 1, "buffer_count", "", 3, ""),
        *handles,
    ]
    assert b"".join(row.data for row in annotate(WORKED)) == WORKED


def files(folder):
    """Files with much in them: metadata of every kind, quantization, other layouts, sorted index, no metadata."""
    packed(folder, "--meta", "k=v", "--model-id", "m").rename(folder / "snapshot")
    packed(folder, "--zstd", "--planes").rename(folder / "compressed")
    with hw.create(folder / "nothing", checksums=False):
        pass
    metadata = {"s": "text", "i": -1, "u": 1 << 63, "f": 0.5, "b": True, "y": b"\xff", "l": ["a", ""], "n": [1, 2]}
    with hw.create(folder / "sorted", sorted_index=True, alignment=65536, metadata=metadata) as writer:
        scheme = hw.PerChannelAffine.asymmetric(axis=1, scale_buffer_index=1, zero_point_buffer_index=2)
        sizes = [6, 12, 12]
        descriptor = hw.TensorDescriptor.build(hw.int8, (2, 3), hw.RowMajorLayout(), sizes, quantization=scheme)
        writer.add("z", descriptor, [bytes(size) for size in sizes])
        tiled = hw.TiledLayout((2, 2), "row_major", "row_major")
        writer.add("a", hw.TensorDescriptor.build(hw.int8, (4, 4), tiled, [16]), [bytes(16)])
        coo = hw.CooLayout(1, True)
        writer.add("m", hw.TensorDescriptor.build(hw.int8, (2, 3), coo, [1, 16]), [bytes(1), bytes(16)])
    return ["snapshot", "nothing", "sorted", "compressed"]


def test_every_byte_of_a_file_is_told_once_and_as_it_is(tmp_path):
    for name in files(tmp_path):
        path = tmp_path / name
        whole = finished_bytes(path)
        end = 0
        for row in annotate(path):
            assert (row.offset, row.size > 0) == (end, True), (name, row)
            if row.data is not None:
                assert row.data == whole[row.offset : row.offset + row.size], (name, row)
            elif row.part == "padding":
                assert not any(whole[row.offset : row.offset + row.size])
            end += row.size
        assert end == len(whole), name


def finished_bytes(path):
    """The bytes of the file within, for a compressed one: put together from what hw.open tells of it."""
    data = path.read_bytes()
    if not data.startswith(b"\x28\xb5\x2f\xfd"):
        return data
    return packed(path.parent).read_bytes()


def test_buffers_are_told_by_name_and_not_by_content(tmp_path):
    path = packed(tmp_path, layers=(0,))
    buffers = [(row.part, row.field, row.size) for row in annotate(path) if row.part.startswith("data of")]
    assert buffers[:4] == [
        ("data of 'seq_lens'", "data", 8),
        ("data of 'layers.0.key'", "page_pool", 4 * 4 * 2 * 3 * 2),
        ("data of 'layers.0.key'", "block_table", 20),
        ("data of 'layers.0.key'", "seq_ptr", 12),
    ]


def test_one_tensor_is_told_alone(tmp_path):
    path = packed(tmp_path, layers=(0,))
    rows = list(annotate(path, tensor="layers.0.value"))
    assert (rows[0].field, rows[0].value) == ("magic", "HRRY")
    assert {row.part for row in rows if row.data is None} >= {"padding", "data of 'layers.0.value'"}
    assert [row.value for row in rows if row.field == "kv_role"] == [1]
    assert sum(row.size for row in rows) == rows[-1].offset + rows[-1].size - rows[0].offset
    with pytest.raises(hw.IncompatibleError, match="there is no tensor 'nope'"):
        list(annotate(path, tensor="nope"))


def test_a_stream_is_told_tensor_by_tensor(tmp_path):
    code, stream, _ = finished("pack", write_safetensors(tmp_path / "d", cache((0,))), "-o", "-", "--quiet")
    assert code == 0
    rows = list(annotate(stream))
    assert sum(row.size for row in rows) == len(stream)
    assert [row.offset for row in rows] == [0, *np.cumsum([row.size for row in rows])[:-1].tolist()]
    assert sum(row.field == "magic" for row in rows) == 5  # the group, its metadata, lengths, keys, values
    with pytest.raises(hw.TruncatedError):
        list(annotate(stream[:-1]))
    with pytest.raises(hw.IncompatibleError):
        list(annotate(stream, tensor="layers.0.key"))


def told(data):
    """The rows up to a fault, and the fault."""
    rows = []
    try:
        rows.extend(annotate(data))
    except hw.HurrayError as error:
        return rows, error
    return rows, None


def test_a_damaged_descriptor_is_told_up_to_its_fault():
    damaged = bytearray(WORKED)
    damaged[72] = 9  # kv_role
    rows, error = told(bytes(damaged))
    assert error.rule == "block-paged.kv-role"
    assert (rows[-1].field, rows[-2].field) == ("reserved", "block_table_index_type")
    rows, error = told(WORKED[:50])
    assert isinstance(error, hw.TruncatedError)


def test_a_damaged_file_is_told_up_to_its_fault(tmp_path):
    data = bytearray(packed(tmp_path, layers=(0,)).read_bytes())
    rows, error = told(bytes(data[:-1]))
    assert isinstance(error, hw.InvalidFileError)
    assert [row.offset for row in rows] == [0, 8, 9, 10, 12, 16, 20, 28, 36]
    index = int.from_bytes(data[-40:-32], "little")
    data[index + 20] ^= 1
    rows, error = told(bytes(data))
    assert error.rule == "index.crc"
    assert {row.part for row in rows} == {"file", "trailer"}
    data[index + 20] ^= 1
    data[64 + 14] = 0  # the type tag of the first descriptor
    rows, error = told(bytes(data))
    assert error.rule == "element-type.tag"
    assert rows[-1].part == "buffer handle 0"


def test_the_command_shows_offset_bytes_field_and_value(tmp_path, capsys):
    (tmp_path / "d").write_bytes(WORKED)
    assert unpack("--annotate", tmp_path / "d") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["0", "48", "52", "52", "59", "descriptor:", "magic", "'HRRY'"]
    assert lines[8].split("  ")[-1].strip() == "[9, 2, 8]"
    assert lines[14].split()[-2:] == ["0", "key"]


def test_the_command_takes_its_arguments_in_any_order(tmp_path, capsys):
    path = packed(tmp_path, layers=(0,))
    outputs = []
    for arguments in (("--annotate", path), (path, "--annotate"), ("--annotate=layers.0.key", path)):
        assert unpack(*arguments) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert unpack(path, "--annotate", "layers.0.key") == 0
    assert capsys.readouterr().out == outputs[2]
    assert len(outputs[2].splitlines()) < len(outputs[0].splitlines()) / 2


def test_the_command_gives_json_to_programs(tmp_path, capsys):
    (tmp_path / "d").write_bytes(WORKED)
    assert unpack(tmp_path / "d", "--annotate", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["annotate"]
    assert rows[6] == {
        "offset": 15,
        "size": 1,
        "part": "descriptor",
        "field": "layout_tag",
        "data": "0a",
        "value": 10,
        "words": "block_paged",
    }


def test_the_command_shows_what_it_can_of_a_damaged_file(tmp_path, capsys):
    (tmp_path / "d").write_bytes(packed(tmp_path).read_bytes()[:-1])
    assert unpack(tmp_path / "d", "--annotate") == 1
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 9
    assert captured.err.startswith(f"hurray-unpack: error: {tmp_path / 'd'}: the file ends in ")
    assert unpack(tmp_path / "d", "--annotate", "nope") == 1
    one_error(capsys, "hurray-unpack")


def test_files_of_another_implementation_are_told_whole():
    reference = ROOT.parent / "shared" / "reference"
    if not reference.is_dir():
        pytest.skip("the reference files are not there")
    for path in [
        *reference.glob("conformance/descriptors/*.bin"),
        *reference.glob("*/*.hrry"),
        *reference.glob("*/*/*.hrry"),
    ]:
        rows = list(annotate(path))
        assert sum(row.size for row in rows) == path.stat().st_size, path.name


def test_padding_within_a_quantization_section_is_told():
    scheme = hw.PerTensorAffine(0.5, 3)
    encoded = hw.TensorDescriptor.build(hw.int8, (2,), hw.RowMajorLayout(), [2], quantization=scheme).encode()
    padded = bytearray(encoded + bytes(8))
    padded[6:10] = (len(encoded) + 8).to_bytes(4, "little")
    at = encoded.index((16).to_bytes(4, "little"), 50)  # quantization_length: header 4, scale, zero point, reserved
    padded[at : at + 4] = (24).to_bytes(4, "little")
    rows = list(annotate(bytes(padded)))
    assert b"".join(row.data for row in rows) == padded
    assert (rows[-1].offset, rows[-1].size, rows[-1].part) == (at + 20, 8, "rest of quantization section")

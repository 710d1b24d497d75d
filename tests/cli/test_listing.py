"""hurray-unpack without more: what is in a file, for people and for programs."""

import json
import re
import sys

import numpy as np
import pytest
from cli_cases import DIM, HEADS, cache, finished, one_error, pack, packed, unpack, write_safetensors

import hurray_wire as hw


def listed(capsys, *arguments):
    assert unpack(*arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def rows_of(text):
    """The cells of the table's rows."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]


def test_tensors_are_listed_with_type_shape_layout_pages_and_bytes(tmp_path, capsys):
    path = packed(tmp_path, "--model-id", "m", layers=(0, 2))
    text = listed(capsys, path)
    lines = text.splitlines()
    assert lines[0].startswith(f"{path}: 5 tensors, ")
    assert lines[1] == "snapshot of 2 layers (0,2), 2 sequences, 17 tokens"
    assert lines[2] == "lengths 6, 11"
    assert "  model.id = m" in lines
    pages = 4 * 4 * HEADS * DIM * 2
    tables = (5 + 3) * 4
    assert rows_of(text) == [
        ["seq_lens", "uint32", "2", "row_major", "", "8 B"],
        ["layers.0.key", "bfloat16", "17x2x3", "block_paged, key 0", "4 x 4", f"{pages + tables} B"],
        ["layers.0.value", "bfloat16", "17x2x3", "block_paged, value 0", "4 x 4", f"{pages + tables} B"],
        ["layers.2.key", "bfloat16", "17x2x3", "block_paged, key 2", "4 x 4", f"{pages + tables} B"],
        ["layers.2.value", "bfloat16", "17x2x3", "block_paged, value 2", "4 x 4", f"{pages + tables} B"],
    ]


def test_programs_get_json(tmp_path, capsys):
    path = packed(tmp_path, "--meta", "k=v", layers=(1,))
    facts = json.loads(listed(capsys, path, "--json"))
    assert (facts["file"], facts["bytes"], facts["compression"]) == (str(path), path.stat().st_size, None)
    assert facts["snapshot"] == {"layers": [1], "num_seqs": 2, "total_tokens": 17, "seq_lens": [6, 11]}
    assert facts["metadata"]["k"] == "v"
    assert [tensor["name"] for tensor in facts["tensors"]] == ["seq_lens", "layers.1.key", "layers.1.value"]
    assert facts["tensors"][1] == {
        "name": "layers.1.key",
        "dtype": "bfloat16",
        "shape": [17, HEADS, DIM],
        "layout": "block_paged",
        "bytes": 4 * 4 * HEADS * DIM * 2 + 5 * 4 + 3 * 4,
        "layer_index": 1,
        "kv_role": "key",
        "page_size": 4,
        "num_pages": 4,
        "num_seqs": 2,
        "block_table_index_type": "uint32",
    }


def test_every_kind_of_metadata_has_a_form_in_json(tmp_path, capsys):
    metadata = {"b": b"\x00\xff", "n": float("nan"), "i": -(1 << 63), "u": (1 << 64) - 1, "l": [True, False], "s": "ß"}
    with hw.create(tmp_path / "f", checksums=False, metadata=metadata):
        pass
    found = json.loads(listed(capsys, tmp_path / "f", "--json"))["metadata"]
    assert found == {**metadata, "b": {"base64": "AP8="}, "n": "nan"}


def test_compression_is_told(tmp_path, capsys):
    path = packed(tmp_path, "--zstd", "--planes")
    assert "seekable zstd with byte planes, " in listed(capsys, path)
    facts = json.loads(listed(capsys, path, "--json"))["compression"]
    assert (facts["seekable"], facts["planes"]) == (True, True)
    assert facts["compressed_bytes"] == path.stat().st_size


def test_lengths_that_are_not_known_are_said_to_be_so(tmp_path, capsys):
    layout = hw.BlockPagedLayout(2, 2, 0, 2, "key", 0)
    buffers = [np.zeros(4, np.float32), np.array([0, 1], np.uint32), np.array([0, 1, 2], np.uint32)]
    with hw.create(tmp_path / "f") as writer:
        sizes = [buffer.nbytes for buffer in buffers]
        writer.add("k", hw.TensorDescriptor.build(hw.float32, (3, 1, 1), layout, sizes), buffers)
    assert "lengths are not recorded (--seq-lens gives them)" in listed(capsys, tmp_path / "f")
    assert json.loads(listed(capsys, tmp_path / "f", "--json"))["snapshot"]["seq_lens"] is None
    assert "lengths 2, 1\n" in listed(capsys, tmp_path / "f", "--seq-lens", "2,1")


@pytest.mark.parametrize(
    ("lengths", "words"), [("3", "1 lengths for 2 sequences"), ("7,13", "sequence 1 has length 13, but its 3 pages")]
)
def test_lengths_that_do_not_fit_are_said_to_be_so(lengths, words, tmp_path, capsys):
    path = packed(tmp_path)
    for options in ([], ["--json"], ["-o", tmp_path / "o.npz"]):
        assert unpack(path, "--seq-lens", lengths, *options) == 1
        assert words in one_error(capsys, "hurray-unpack")


def test_a_file_without_a_snapshot_is_listed(tmp_path, capsys):
    with hw.create(tmp_path / "f") as writer:
        writer.add("w", hw.TensorDescriptor.build(hw.int8, (), hw.RowMajorLayout(), [1]), [b"\x07"])
    text = listed(capsys, tmp_path / "f")
    assert "snapshot of" not in text
    assert rows_of(text) == [["w", "int8", "scalar", "row_major", "", "1 B"]]
    assert json.loads(listed(capsys, tmp_path / "f", "--json"))["snapshot"] is None


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("\x1b[8mhidden", "\\x1b[8mhidden"),
        ("a\nb\r\0c", "a\\nb\\r\\x00c"),
        ("[bold]x[/bold]:smile:", "[bold]x[/bold]:smile:"),
        ("\u202etxt", "\\u202etxt"),
    ],
)
def test_names_and_metadata_cannot_play_with_the_terminal(name, shown, tmp_path, capsys):
    with hw.create(tmp_path / "f", metadata={name: name}) as writer:
        writer.add(name, hw.TensorDescriptor.build(hw.int8, (1,), hw.RowMajorLayout(), [1]), [b"\0"])
    text = listed(capsys, tmp_path / "f")
    assert f"  {shown} = {shown}\n" in text
    assert rows_of(text)[0][0] == shown


@pytest.mark.parametrize("columns", ["20", "80", "150", "no terminal"])
def test_long_names_are_folded_and_never_cut(columns, tmp_path, capsys, monkeypatch):
    name = "".join(chr(ord("a") + place % 26) for place in range(700))
    with hw.create(tmp_path / "f") as writer:
        writer.add(name, hw.TensorDescriptor.build(hw.int8, (1,), hw.RowMajorLayout(), [1]), [b"\0"])
    if columns != "no terminal":
        monkeypatch.setenv("COLUMNS", columns)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    text = re.sub(r"\x1b\[[0-9;]*m", "", listed(capsys, tmp_path / "f"))
    table = [line for line in text.splitlines() if line.startswith("│")]
    assert max(map(len, table)) <= {"20": 80, "80": 80, "150": 150, "no terminal": 200}[columns]
    assert "".join(row[0] for row in rows_of(text)) == name


def test_a_file_of_very_many_tensors_is_listed_without_a_table(tmp_path, capsys):
    descriptor = hw.TensorDescriptor.build(hw.int8, (1,), hw.RowMajorLayout(), [1])
    with hw.create(tmp_path / "f", checksums=False, durable=False) as writer:
        for number in range(2001):
            writer.add(f"t{number}", descriptor, [b"\0"])
    lines = listed(capsys, tmp_path / "f").splitlines()
    assert len(lines) == 1 + 2001
    assert lines[-1] == "t2000  int8  1  row_major    1 B"


def test_tensors_of_an_unknown_layout_are_listed(tmp_path, capsys):
    plain = hw.TensorDescriptor.build(hw.int8, (1,), hw.RowMajorLayout(), [1])
    with hw.create(tmp_path / "f", checksums=False) as writer:
        writer.add("t", plain, [b"\0"])
    data = bytearray((tmp_path / "f").read_bytes())
    assert data[64 + 15] == 1
    data[64 + 15] = 0x7A  # the layout tag, of the reserved range
    (tmp_path / "f").write_bytes(data)
    (row,) = rows_of(listed(capsys, tmp_path / "f"))
    assert row[:3] == ["t", "int8", "1"]


def test_a_stream_is_listed_like_a_file(tmp_path, capsys):
    source = write_safetensors(tmp_path / "d", cache())
    code, stream, _ = finished("pack", source, "-o", "-", "--quiet")
    assert code == 0
    (tmp_path / "s").write_bytes(stream)
    assert pack(source, "-o", tmp_path / "f", "--quiet") == 0
    assert rows_of(listed(capsys, tmp_path / "s")) == rows_of(listed(capsys, tmp_path / "f"))


def test_two_tensors_for_one_place_are_refused(tmp_path, capsys):
    layout = hw.BlockPagedLayout(1, 0, 0, 0, "key", 0)
    descriptor = hw.TensorDescriptor.build(hw.int8, (0, 1, 1), layout, [0, 0, 4])
    with hw.create(tmp_path / "f") as writer:
        writer.add("a", descriptor, [b"", b"", bytes(4)])
        writer.add("b", descriptor, [b"", b"", bytes(4)])
    assert unpack(tmp_path / "f") == 1
    assert "both hold the key of layer 0" in one_error(capsys, "hurray-unpack")

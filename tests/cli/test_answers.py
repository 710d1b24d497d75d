"""hurray-unpack --verify, --expect and --diff: the answers, and the exit code for each."""

import json

import numpy as np
import pytest
from cli_cases import cache, one_error, pack, packed, unpack, write_safetensors

import hurray_wire as hw


@pytest.fixture
def path(tmp_path):
    return packed(tmp_path, "--model-id", "m", "--meta", "list=a,b", "--meta", "odd=x=y")


# --verify


def test_a_whole_file_is_code_0_and_says_what_was_looked_at(path, capsys):
    assert unpack(path, "--verify") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{path}: whole (7 tensors, 19 buffers, 26 checksums, ")
    assert unpack(path, "--verify", "--json") == 0
    assert json.loads(capsys.readouterr().out)["verify"]["checksums"] == 26


@pytest.mark.parametrize("name", ["seq_lens", "layers.0.key", "layers.1.value", "layers.2.value"])
def test_one_flipped_byte_is_code_1_and_names_the_tensor(name, path, capsys):
    data = bytearray(path.read_bytes())
    index = data.rindex(name.encode())
    offset = int.from_bytes(data[index + len(name) + 12 : index + len(name) + 20], "little")
    data[offset] ^= 1
    path.write_bytes(data)
    assert unpack(path, "--verify") == 1
    assert f"buffer 0 of {name!r} has CRC-32C" in one_error(capsys, "hurray-unpack")


# --expect


@pytest.mark.parametrize(
    "demand",
    [
        "model.id=m",
        "dtype=bfloat16",
        "page_size=4,num_heads=2,head_dim=3",
        "num_layers=3,num_seqs=2,total_tokens=17,num_pages=4",
        "hurray_wire.snapshot=1",
        "list=a,b,model.id=m",
        "model.id=m,odd=x=y",
    ],
)
def test_what_is_as_demanded_is_code_0(demand, path, capsys):
    assert unpack(path, "--expect", demand) == 0
    assert capsys.readouterr() == (f"{path}: as expected\n", "")


@pytest.mark.parametrize(
    ("demand", "words"),
    [
        ("model.id=other", "model.id is m, not other"),
        ("model.revision=r", "model.revision is not r: it is not recorded"),
        ("dtype=float16", "dtype of layers.0.key is bfloat16, not float16"),
        ("page_size=16", "page_size of layers.0.key is 4, not 16"),
        ("page_size=four", "page_size of layers.0.key is 4, not four"),
        ("num_layers=4", "num_layers is 3, not 4"),
        ("hurray_wire.snapshot=2", "hurray_wire.snapshot is 1, not 2"),
        ("model.id=,dtype=int8", "model.id is m, not ; dtype of layers.0.key is bfloat16, not int8"),
    ],
)
def test_what_is_not_as_demanded_is_code_3_and_one_line(demand, words, path, capsys):
    assert unpack(path, "--expect", demand) == 3
    assert one_error(capsys, "hurray-unpack") == f"{path}: {words}"


def test_nothing_is_written_where_something_is_not_as_demanded(path, tmp_path, capsys):
    assert unpack(path, "--expect", "page_size=4", "--expect", "model.id=x", "-o", tmp_path / "o.npz") == 3
    assert not (tmp_path / "o.npz").exists()


def test_demands_are_of_every_tensor(tmp_path, capsys):
    arrays = cache((0,))
    arrays["layers.0.value"] = arrays["layers.0.value"].astype(np.float16)
    source = write_safetensors(tmp_path / "d", arrays)
    assert pack(source, "-o", tmp_path / "o") == 0
    capsys.readouterr()
    assert unpack(tmp_path / "o", "--expect", "dtype=bfloat16") == 3
    assert "dtype of layers.0.value is float16" in one_error(capsys, "hurray-unpack")


def test_metadata_of_every_kind_is_compared_by_value(tmp_path):
    metadata = {"t": True, "f": 0.5, "i": -7, "s": "1.0"}
    with hw.create(tmp_path / "f", metadata=metadata):
        pass
    assert unpack(tmp_path / "f", "--expect", "t=true,f=5e-1,i=-7,s=1.0") == 0
    for demand in ("t=1", "f=x", "i=7", "s=1"):
        assert unpack(tmp_path / "f", "--expect", demand) == 3


def test_a_demand_of_tensors_that_are_not_there_is_not_met(tmp_path, capsys):
    with hw.create(tmp_path / "f"):
        pass
    assert unpack(tmp_path / "f", "--expect", "page_size=16") == 3
    assert "page_size is not 16: there is no block-paged tensor" in one_error(capsys, "hurray-unpack")


# --diff


def test_the_same_content_in_other_pages_is_code_0(path, tmp_path, capsys):
    arrays = cache()
    order = [3, 6, 0, 2, 1, 4, 5]  # new place of each page
    for name, array in arrays.items():
        if array.ndim == 4:
            moved = np.full_like(array, 7)
            moved[order] = array
            arrays[name] = moved
    tables = arrays["block_tables"]
    arrays["block_tables"] = np.where(tables < 0, 2**31 - 1, np.array(order)[tables]).astype(np.int32)
    other = tmp_path / "other.hrry"
    assert pack(write_safetensors(tmp_path / "d", arrays), "-o", other, "--keep-pool", "--quiet", "--zstd") == 0
    assert unpack(path, "--diff", other) == 0
    assert capsys.readouterr() == (f"{path} and {other}: the sequences hold the same\n", "")


def test_the_first_difference_is_named_and_code_3(path, tmp_path, capsys):
    arrays = cache()
    arrays["layers.2.key"][5, 0] = 0
    arrays["layers.1.value"][6, 2, 1, 0] = 0x4000  # sequence 1, token 6
    arrays["layers.1.value"][1, 2] = 0
    other = tmp_path / "other.hrry"
    assert pack(write_safetensors(tmp_path / "d", arrays), "-o", other, "--quiet") == 0
    assert unpack(path, "--diff", other) == 3
    captured = capsys.readouterr()
    assert f"{path} and {other}: layer 1, value, sequence 1, token 6, head 1, dim 0: value: " in captured.out
    assert captured.out.endswith(" here, 2 there\n")
    assert captured.err == ""
    assert unpack(path, "--diff", other, "--json") == 3
    found = json.loads(capsys.readouterr().out)["diff"]
    assert {key: found[key] for key in ("what", "layer", "role", "seq", "token", "head", "dim")} == {
        "what": "value",
        "layer": 1,
        "role": "value",
        "seq": 1,
        "token": 6,
        "head": 1,
        "dim": 0,
    }


def test_nothing_is_written_after_a_difference(path, tmp_path):
    other = tmp_path / "other.hrry"
    assert pack(tmp_path / "source.safetensors", "-o", other, "--layers", "0") == 0
    assert unpack(path, "--diff", other, "-o", tmp_path / "o.npz") == 3
    assert not (tmp_path / "o.npz").exists()
    assert unpack(path, "--diff", path, "-o", tmp_path / "o.npz") == 0
    assert (tmp_path / "o.npz").exists()


def test_a_fault_of_the_other_file_names_that_file(path, tmp_path, capsys):
    (tmp_path / "broken").write_bytes(path.read_bytes()[:-1])
    assert unpack(path, "--diff", tmp_path / "broken") == 1
    assert one_error(capsys, "hurray-unpack").startswith(f"{tmp_path / 'broken'}: ")


def test_questions_may_be_asked_together(path, tmp_path, capsys):
    answers = ["--expect", "page_size=4", "--verify", "--diff", path, "-o", tmp_path / "o.npz"]
    assert unpack(path, *answers) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert unpack(path, *answers, "--json") == 0
    assert json.loads(capsys.readouterr().out).keys() == {"expect", "verify", "diff", "output"}

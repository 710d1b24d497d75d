"""Standard streams that are closed, endless, or neither: one line where there is a place for it, never a traceback."""

import io
import os
import struct
import subprocess

import pytest
from cli_cases import cache, finished, packed, write_safetensors

import hurray_wire as hw
from hurray_wire.cli import spooling
from hurray_wire.cli.console import CliError

CLOSED = "error: a standard stream that is needed here is closed\n"


@pytest.fixture
def dump(tmp_path):
    return write_safetensors(tmp_path / "dump", cache())


@pytest.mark.parametrize(
    ("arguments", "closed"),
    [(["FILE"], (1,)), (["FILE", "--json"], (0, 1)), (["FILE", "--annotate"], (1,)), (["--help"], (1,))],
)
def test_an_answer_that_cannot_be_given_is_one_line(arguments, closed, tmp_path):
    path = packed(tmp_path)
    arguments = [path if argument == "FILE" else argument for argument in arguments]
    code, _, err = finished("unpack", *arguments, closed=closed)
    assert (code, err.decode()) == (1, f"hurray-unpack: {CLOSED}")


def test_a_stream_that_cannot_be_written_is_one_line(dump):
    code, _, err = finished("pack", dump, "-o", "-", "--quiet", closed=[1])
    assert (code, err.decode()) == (1, f"hurray-pack: {CLOSED}")


@pytest.mark.parametrize(("command", "rest"), [("unpack", ["-"]), ("unpack", ["-", "--annotate"]), ("pack", ["-"])])
def test_an_input_that_cannot_be_read_is_one_line(command, rest, tmp_path):
    output = ["-o", tmp_path / "o"] if command == "pack" else []
    code, out, err = finished(command, *rest, *output, closed=[0])
    assert (code, out, err.decode()) == (1, b"", f"hurray-{command}: {CLOSED}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("closed", [(0, 1, 2), (1, 2), (1,)])
def test_what_is_not_needed_may_be_closed(closed, dump, tmp_path):
    """The output is right, too, though it may be opened under the number of a stream that is closed."""
    code, out, err = finished("pack", dump, "-o", tmp_path / "o", "--quiet", closed=closed)
    assert (code, out, err) == (0, b"", b"")
    with hw.load_snapshot(tmp_path / "o") as snapshot:
        snapshot.verify()


def test_an_error_that_nobody_can_be_told_of_is_told_by_the_code(tmp_path):
    path = packed(tmp_path)
    assert finished("unpack", path, "--expect", "page_size=5", closed=[2]) == (3, b"", b"")
    assert finished("unpack", tmp_path / "nowhere", closed=[0, 1, 2]) == (1, b"", b"")
    code, out, err = finished("unpack", path, closed=[2])
    assert (code, err) == (0, b"")
    assert out.startswith(os.fsencode(path))


def endless(command, start, *rest):
    """What the command says of an input that starts so and goes on with zeros for ever."""
    read, write = os.pipe()
    with subprocess.Popen(["sh", "-c", "cat - /dev/zero"], stdin=read, stdout=subprocess.PIPE) as source:
        os.close(read)
        os.write(write, start)
        os.close(write)
        code, out, err = finished(command, "-", *rest, stdin=source.stdout)
        source.stdout.close()
    assert (code, out) == (1, b"")
    (line,) = err.decode().splitlines()
    return line.removeprefix(f"hurray-{command}: error: standard input: ")


zero = pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs /dev/zero")


@zero
@pytest.mark.parametrize("rest", [[], ["--annotate"]])
def test_a_file_without_end_is_refused_by_its_start(rest):
    assert "rule container.version-major" in endless("unpack", b"HRRYFILE", *rest)
    assert endless("unpack", b"", *rest) == "not a Hurray file: it starts with 00 00 00 00 00 00 00 00"


@zero
@pytest.mark.parametrize("start", [b"", struct.pack("<Q", 100_000_001) + b"{"])
def test_a_dump_without_end_is_refused_by_its_start(start, tmp_path):
    line = endless("pack", start, "-o", str(tmp_path / "o"))
    assert line.startswith("not a .safetensors file, an .npz file or a folder of .npy files: it starts with ")
    assert list(tmp_path.iterdir()) == []


def test_there_is_a_bound_on_what_comes_through_a_pipe(tmp_path, monkeypatch):
    path = packed(tmp_path)
    data = path.read_bytes()
    monkeypatch.setattr(spooling, "_PIECE_BYTES", 1000)
    monkeypatch.setattr(spooling, "_MOST_BYTES", len(data))
    for memory in (len(data), 10):
        monkeypatch.setattr(spooling, "_IN_MEMORY_BYTES", memory)
        with path.open("rb") as pipe:
            head = spooling.read_head(pipe, 64)
            assert head == data[:64]
            with spooling.spooled(head, pipe, "x") as whole:
                assert bytes(whole) == data
                with hw.open(whole) as file:
                    file.verify()
    monkeypatch.setattr(spooling, "_MOST_BYTES", len(data) - 1)
    with path.open("rb") as pipe, pytest.raises(CliError, match=r"x gives more than .*; write that to a file first"):
        spooling.copy_bounded(pipe.read(9), pipe, io.BytesIO(), "x")

"""How the commands behave towards terminals, pipes and people: exit codes, one-line errors, no tracebacks."""

import errno
import os
import pty
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from cli_cases import ROOT, cache, finished, one_error, pack, packed, process, unpack, write_safetensors

import hurray_wire as hw
from hurray_wire.cli import console
from hurray_wire.cli.console import printable


@pytest.fixture
def dump(tmp_path):
    return write_safetensors(tmp_path / "dump", cache())


# Usage


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing argument 'DUMP'."),
        (["DUMP"], "Missing option '-o'"),
        (["DUMP", "-o", "o", "--layout", "nope"], "'nope' is not one of 'split-nhd'"),
        (["DUMP", "-o", "o", "--layers", "3-1"], "the range '3-1' runs backwards"),
        (["DUMP", "-o", "o", "--layers", "a"], "'a' is not a number or a range like 0-3"),
        (["DUMP", "-o", "o", "--layers", "-1"], "'-1' is not a number or a range"),
        (["DUMP", "-o", "o", "--seqs", ""], "'' is not a number"),
        (["DUMP", "-o", "o", "--seqs", "\u0661"], "is not a number"),
        (["DUMP", "-o", "o", "--meta", "a"], "'a' is not key=value"),
        (["DUMP", "-o", "o", "--meta", "=a"], "'=a' is not key=value"),
        (["DUMP", "-o", "o", "--meta", "a=1", "--meta", "a=2"], "'a' is given twice"),
        (["DUMP", "-o", "o", "--meta", "tp.rank=one"], "tp.rank is an integer from 0, not 'one'"),
        (["DUMP", "-o", "o", "--meta", "first_token=-1"], "first_token is an integer from 0, not '-1'"),
        (["DUMP", "-o", "o", "--meta", "pp.size="], "pp.size is an integer from 0, not ''"),
        (["DUMP", "-o", "o", "--meta", "model.id=a", "--model-id", "b"], "model.id is given twice"),
        (["DUMP", "-o", "o", "--meta", "model.revision=a", "--model-revision", ""], "model.revision is given twice"),
        (["DUMP", "-o", "o", "--alignment", "4095"], "'4095' is not one of"),
        (["DUMP", "-o", "o", "--page-size", "0"], "0 is not in the range"),
        (["DUMP", "-o", "o", "--zstd=99"], "-7 to 22, and not 0"),
        (["DUMP", "-o", "o", "--zstd=x"], "Invalid value for '--zstd'"),
        (["DUMP", "-o", "o", "--zstd", "3"], "write --zstd=3"),
        (["--zstd", "-1", "DUMP", "-o", "o"], "write --zstd=-1"),
        (["DUMP", "-o", "o", "--left-padded"], "add --layout dense-thd"),
        (["DUMP", "-o", "o", "--layout", "dense-thd", "--form", "batch"], "--form is not for dense-thd"),
        (["DUMP", "-o", ""], "the output has no name"),
        (["DUMP", "-o", "o", "--quantize", "int4"], "'int4' is not 'int8'"),
        (["DUMP", "-o", "o", "--planes"], "--planes is a way to compress: add --zstd"),
        (["DUMP", "-o", "-", "--zstd"], "pipe it through zstd, and through zstd -d at the other end"),
        (["DUMP", "-o", "o.safetensors"], "o.safetensors ends in .safetensors as files of arrays do"),
        (["DUMP", "-o", "o.hrry.npz"], "ends in .npz as files of arrays do; a snapshot ends in .hrry or .hrry.zst"),
        (["DUMP", "-o", "O.NPY"], "O.NPY ends in .npy as files of arrays do"),
        (["nowhere", "-o", "o.npz"], "o.npz ends in .npz as files of arrays do"),
        (["DUMP", "-o", "DUMP"], "itself, and a dump is not replaced by its snapshot"),
        (["DUMP", "-o", "o", "--nope"], "No such option"),
        (["DUMP", "more", "-o", "o"], "unexpected extra argument"),
    ],
)
def test_pack_used_wrongly_is_code_2(arguments, words, dump, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert pack(*(dump if argument == "DUMP" else argument for argument in arguments)) == 2
    assert words in one_error(capsys, "hurray-pack")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dump"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "missing argument 'FILE'"),
        (["--annotate"], "missing argument 'FILE'"),
        (["FILE", "-o", "out"], "neither .npz nor .safetensors nor a folder"),
        (["FILE", "-o", ""], "neither .npz nor .safetensors nor a folder"),
        (["FILE", "-o", "-"], "neither .npz nor .safetensors nor a folder"),
        (["FILE", "--as", "ragged"], "--as is about the arrays that -o writes"),
        (["FILE", "--layers", "0"], "--layers is about the arrays that -o writes"),
        (["FILE", "--dequantize", "--verify"], "--dequantize is about the arrays"),
        (["FILE", "-o", "o.npz", "--as", "padded", "--layout", "split-hnd"], "--layout is about pages"),
        (["FILE", "-o", "o.npz", "--as", "nope"], "'nope' is not one of"),
        (["FILE", "--expect", "page_size"], "--expect: 'page_size' is not key=value"),
        (["FILE", "--expect", ""], "--expect: '' is not key=value"),
        (["FILE", "--seq-lens", "1,x"], "Invalid value for '--seq-lens': '1,x' is not numbers"),
        (["-", "--annotate", "--verify"], "--annotate reads standard input to its end"),
    ],
)
def test_unpack_used_wrongly_is_code_2(arguments, words, tmp_path, capsys, monkeypatch):
    path = packed(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert unpack(*(path if argument == "FILE" else argument for argument in arguments)) == 2
    assert words in one_error(capsys, "hurray-unpack")


@pytest.mark.parametrize(("run", "option"), [(pack, "--planes"), (unpack, "--annotate")])
def test_help_tells_every_option(run, option, capsys):
    assert run("--help") == 0
    captured = capsys.readouterr()
    assert option in captured.out
    assert "layers.N.key" in captured.out
    assert captured.err == ""


@pytest.mark.parametrize(("run", "program"), [(pack, "hurray-pack"), (unpack, "hurray-unpack")])
def test_the_version_is_that_of_the_library(run, program, capsys):
    assert run("--version") == 0
    assert capsys.readouterr() == (f"{program} {hw.__version__}\n", "")


# Errors


@pytest.mark.parametrize("run", [(pack, "-o", "o"), (unpack,)])
def test_what_the_system_refuses_is_one_line(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command, *options = run
    program = "hurray-pack" if command is pack else "hurray-unpack"
    assert command(tmp_path / "nowhere", *options) == 1
    assert one_error(capsys, program) == f"{tmp_path / 'nowhere'}: No such file or directory"


def test_an_output_in_a_missing_folder_is_one_line(dump, tmp_path, capsys):
    assert pack(dump, "-o", tmp_path / "no" / "where") == 1
    assert "No such file or directory" in one_error(capsys, "hurray-pack")
    assert unpack(packed(tmp_path), "-o", tmp_path / "no" / "where.npz") == 1
    assert "No such file or directory" in one_error(capsys, "hurray-unpack")


def test_a_folder_is_no_file(tmp_path, capsys):
    assert unpack(tmp_path) == 1
    assert one_error(capsys, "hurray-unpack") == f"{tmp_path}: Is a directory"


def test_a_folder_that_is_not_there_is_no_output(dump, tmp_path, capsys):
    assert pack(dump, "-o", f"{tmp_path}/new/") == 1
    assert one_error(capsys, "hurray-pack") == f"{tmp_path}/new/: Is a directory"
    assert not (tmp_path / "new").exists()


REFUSED = "No space left on device"


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ((errno.ENOSPC, REFUSED), "out"),
        ((errno.ENOSPC, REFUSED, "/d/.out.0123456789ab.tmp"), "out"),
        ((errno.ENOSPC, REFUSED, "/d/.out.0123456789ab.tmp/layers.0.key.npy"), "out"),
        ((errno.ENOSPC, REFUSED, ".out.0123456789ab.tmp"), "out"),
        ((errno.ENOSPC, REFUSED, "/proc/self/fd/7"), "out"),
        ((errno.ENOSPC, REFUSED, "/d/.other.tmp"), "/d/.other.tmp"),
        ((errno.ENOSPC, REFUSED, "in"), "in"),
        ((errno.EIO, "https://host/file: it hung up"), None),
        (("no number",), None),
    ],
)
def test_what_the_system_refuses_is_told_of_the_file_that_people_know(told, named):
    with pytest.raises(OSError, match=r".") as caught, console.blamed("out"):
        raise OSError(*told)
    assert caught.value.filename == named


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_device_is_no_folder(tmp_path, capsys):
    assert unpack(packed(tmp_path), "-o", "/dev/full/") == 1
    assert one_error(capsys, "hurray-unpack") == "/dev/full/: Not a directory"


@pytest.mark.parametrize("content", ["file", "pipe", "device"])
@pytest.mark.parametrize(
    "command", [("pack", "-o", "o"), ("unpack",), ("unpack", "--verify"), ("unpack", "--annotate")]
)
def test_an_input_of_no_bytes_is_said_to_be_empty(command, content, tmp_path, capsys):
    file = os.devnull if content == "device" else tmp_path / "empty"
    program, *rest = command
    if content == "pipe":
        read, write = os.pipe()
        os.close(write)
        code, out, err = finished(program, "-", *rest, stdin=read, cwd=tmp_path)
        os.close(read)
        file = "standard input"
    else:
        (tmp_path / "empty").write_bytes(b"")
        code, out, err = finished(program, file, *rest, cwd=tmp_path)
    assert (code, out, err.decode()) == (1, b"", f"hurray-{program}: error: {file} is empty\n")
    assert not (tmp_path / "o").exists()


def test_an_empty_file_to_compare_with_is_named(tmp_path, capsys):
    path = packed(tmp_path)
    (tmp_path / "empty").write_bytes(b"")
    assert unpack(path, "--diff", tmp_path / "empty") == 1
    assert one_error(capsys, "hurray-unpack") == f"{tmp_path / 'empty'} is empty"


def test_control_characters_in_errors_are_escaped(tmp_path, capsys):
    assert unpack(tmp_path / "a\nb\x1b[31m") == 1
    assert one_error(capsys, "hurray-unpack") == f"{tmp_path}/a\\nb\\x1b[31m: No such file or directory"


def test_a_nul_in_a_path_is_one_line(capsys):
    assert unpack("a\0b") == 2
    assert "a\\x00b" in one_error(capsys, "hurray-unpack")
    assert pack("a\0b", "-o", "o") == 2
    assert "a\\x00b" in one_error(capsys, "hurray-pack")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("layers.0.key β 键", "layers.0.key β 键"),
        ("\x1b[2J\r\n\t\x07\x00", "\\x1b[2J\\r\\n\\t\\x07\\x00"),
        ("\u202egnp.\u200b", "\\u202egnp.\\u200b"),
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),
        ("a\u2028b\udcff", "a\\u2028b\\udcff"),
    ],
)
def test_text_is_shown_whole_with_what_would_not_show_escaped(text, shown):
    assert printable(text) == shown


# Terminals and pipes


@pytest.mark.parametrize("arguments", [("unpack", "FILE"), ("unpack", "--annotate", "FILE")])
def test_a_closed_pipe_ends_quietly(arguments, tmp_path):
    path = packed(tmp_path)
    read, write = os.pipe()
    os.close(read)
    command, *rest = [path if argument == "FILE" else argument for argument in arguments]
    code, _, err = finished(command, *rest, stdout=write)
    os.close(write)
    assert (code, err) == (141, b"")


def test_a_stream_whose_reader_leaves_ends_quietly(dump):
    read, write = os.pipe()
    os.close(read)
    code, _, err = finished("pack", dump, "-o", "-", "--quiet", stdout=write)
    os.close(write)
    assert (code, err) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_standard_output_that_is_full_is_one_line(tmp_path):
    path = packed(tmp_path)
    with open("/dev/full", "wb") as full:
        code, _, err = finished("unpack", path, stdout=full)
    assert (code, err) == (1, b"hurray-unpack: error: standard output: No space left on device\n")
    dump = write_safetensors(tmp_path / "dump", cache())
    with open("/dev/full", "wb") as full:
        code, _, err = finished("pack", dump, "-o", "-", stdout=full)
    assert (code, err) == (1, b"hurray-pack: error: standard output: No space left on device\n")


def test_a_terminal_that_knows_only_ascii_gets_escapes(tmp_path):
    path = packed(tmp_path, "--meta", "wer=\u00e4\u952e")
    code, out, err = finished("unpack", path, env={"PYTHONIOENCODING": "ascii"})
    assert (code, err) == (0, b"")
    assert rb"wer = \xe4\u952e" in out
    assert b"| layers.0.key " in out
    code, _, err = finished("unpack", tmp_path / "\u00e4", env={"PYTHONIOENCODING": "ascii"})
    assert code == 1
    assert err.endswith(rb"\xe4: No such file or directory" + b"\n")


def test_a_file_name_that_is_not_utf8_is_shown_escaped(tmp_path):
    packed(tmp_path).rename(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.hrry"))
    code, out, err = finished("unpack", os.fsdecode(os.fsencode(tmp_path) + b"/\xff.hrry"))
    assert (code, err) == (0, b"")
    assert out.startswith(os.fsencode(tmp_path) + rb"/\udcff.hrry: 7 tensors")


@pytest.mark.parametrize("target", ["-", "/dev/stdout"])
def test_nothing_binary_goes_to_a_terminal(target, dump):
    master, slave = pty.openpty()
    code, _, err = finished("pack", dump, "-o", target, "--quiet", stdout=slave)
    os.close(slave)
    os.close(master)
    assert (code, err) == (
        2,
        b"hurray-pack: error: the output is a terminal; name a file, or pipe it into something\n",
    )


def test_a_progress_bar_is_only_for_terminals(tmp_path):
    """Neither a log nor a short work gets one: standard error of a short work on a terminal is empty as well."""
    path = packed(tmp_path)
    code, _, err = finished("unpack", path, "--verify")
    assert (code, err) == (0, b"")
    master, slave = pty.openpty()
    code, _, _ = finished("unpack", path, "--verify", stderr=slave)
    os.close(slave)
    try:
        shown = os.read(master, 1 << 16)
    except OSError:  # how Linux says that the other side is closed and had nothing to say
        shown = b""
    os.close(master)
    assert code == 0
    assert b"verifying" not in shown


def test_a_long_work_shows_a_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(console, "_PATIENCE", -1.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with console.progress_bar("packing") as progress:
        progress(1 << 20, 4 << 20)
        progress(4 << 20, 4 << 20)
    assert "packing" in capsys.readouterr().err


# Streams


def test_a_stream_goes_from_one_command_to_the_other(dump, tmp_path):
    path = packed(tmp_path)
    with process("pack", dump, "-o", "-", "--quiet", stdout=subprocess.PIPE) as sender:
        code, out, err = finished("unpack", "-", "--diff", path, stdin=sender.stdout)
    assert (code, err, sender.returncode) == (0, b"", 0)
    assert out == f"standard input and {path}: the sequences hold the same\n".encode()


def test_the_summary_of_a_stream_goes_to_standard_error(dump):
    code, out, err = finished("pack", dump, "-o", "-")
    assert code == 0
    assert out.startswith(b"HRRY\x01")
    assert err == b"hurray-pack: 3 layers (0-2), 2 sequences, 17 tokens\n"


def test_a_file_on_standard_output_is_followed_by_nothing(dump, tmp_path):
    code, out, err = finished("pack", dump, "-o", "/dev/stdout")
    assert (code, err) == (0, b"hurray-pack: 3 layers (0-2), 2 sequences, 17 tokens\n")
    assert out == packed(tmp_path).read_bytes()


def test_a_stream_cut_anywhere_is_one_line(dump, tmp_path, capsys):
    _, stream, _ = finished("pack", dump, "-o", "-", "--quiet")
    file = tmp_path / "cut"
    for length in (0, 3, 8, 64, *range(100, len(stream), 199), len(stream) - 1):
        file.write_bytes(stream[:length])
        assert unpack(file) == 1, length
        one_error(capsys, "hurray-unpack")
    file.write_bytes(stream)
    assert unpack(file) == 0


@pytest.mark.parametrize("options", [[], ["--zstd"], ["--zstd", "--planes"]])
def test_a_whole_file_comes_through_a_pipe(options, tmp_path):
    path = packed(tmp_path, *options)
    with path.open("rb") as file:
        code, out, err = finished("unpack", "-", "--verify", "--expect", "page_size=4", stdin=file)
    assert (code, err) == (0, b"")
    assert out.startswith(b"standard input: as expected\nstandard input: whole (7 tensors")


def test_a_dump_comes_from_standard_input(dump, tmp_path):
    with open(dump, "rb") as source:
        code, _, err = finished("pack", "-", "-o", tmp_path / "o", "--quiet", stdin=source)
    assert (code, err) == (0, b"")
    assert (tmp_path / "o").read_bytes() == packed(tmp_path).read_bytes()
    code, _, err = finished("pack", "-", "-o", tmp_path / "o", stdin=subprocess.DEVNULL)
    assert (code, err) == (1, b"hurray-pack: error: standard input is empty\n")


def test_a_dump_comes_through_a_named_pipe(dump, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with process("pack", tmp_path / "pipe", "-o", tmp_path / "o", "--quiet") as running:
        (tmp_path / "pipe").write_bytes(Path(dump).read_bytes())
    assert running.returncode == 0
    assert (tmp_path / "o").read_bytes() == packed(tmp_path).read_bytes()


def test_bytes_behind_a_snapshot_on_a_stream_are_refused(dump, tmp_path, capsys):
    _, stream, _ = finished("pack", dump, "-o", "-", "--quiet")
    file = tmp_path / "stream"
    for rest in (stream, b"\0"):
        file.write_bytes(stream + rest)
        with file.open("rb") as source:
            code, out, err = finished("unpack", "-", "--verify", stdin=source)
        assert (code, out) == (1, b"")
        assert err == b"hurray-unpack: error: bytes follow the snapshot on standard input\n"
        assert unpack(file, "--verify") == 1
        assert one_error(capsys, "hurray-unpack") == f"bytes follow the snapshot on {file}"
    whole = packed(tmp_path).read_bytes()
    for rest in (whole, b"junk"):
        file.write_bytes(whole + rest)
        with file.open("rb") as source:
            code, out, err = finished("unpack", "-", stdin=source)
        assert (code, out) == (1, b"")
        assert err.startswith(b"hurray-unpack: error: standard input: ")


@pytest.mark.parametrize("rest", [["--annotate"], ["--annotate", "layers.0.key"]])
def test_a_file_is_annotated_through_a_pipe(rest, tmp_path, capsys):
    path = packed(tmp_path)
    assert unpack(path, *rest) == 0
    expected = capsys.readouterr().out.encode()
    os.mkfifo(tmp_path / "pipe")
    with process("unpack", tmp_path / "pipe", *rest, stdout=subprocess.PIPE) as running:
        (tmp_path / "pipe").write_bytes(path.read_bytes())
        assert running.stdout.read() == expected
    assert unpack(tmp_path / "pipe", *rest, "--verify") == 2
    assert f"--annotate reads {tmp_path / 'pipe'} to its end" in one_error(capsys, "hurray-unpack")


def test_a_url_is_opened_like_a_file(tmp_path, capsys):
    fsspec = pytest.importorskip("fsspec")
    path = packed(tmp_path)
    url = "memory://hurray-cli/cache.hrry"
    fsspec.filesystem("memory").pipe_file("/hurray-cli/cache.hrry", path.read_bytes())
    try:
        assert unpack(url, "--verify", "--diff", path) == 0
        assert f"{url} and {path}: the sequences hold the same" in capsys.readouterr().out
        assert unpack(path, "--diff", path.as_uri()) == 0
        capsys.readouterr()
        assert unpack(url) == 0
        assert capsys.readouterr().out.startswith(f"{url}: 7 tensors\n")
    finally:
        fsspec.filesystem("memory").rm("/hurray-cli", recursive=True)
    assert unpack(url) == 1
    assert "cache.hrry" in one_error(capsys, "hurray-unpack")


def test_a_dump_is_recognised(dump, tmp_path, capsys):
    archive = tmp_path / "d.npz"
    np.savez(archive, a=np.zeros(1))
    for path, kind in ((dump, "a .safetensors"), (archive, "an .npz")):
        expected = f"not a Hurray file but, as it seems, {kind} file; hurray-pack packs it"
        assert unpack(path) == 1
        assert one_error(capsys, "hurray-unpack") == f"{path}: {expected}"
        with open(path, "rb") as source:
            code, _, err = finished("unpack", "-", stdin=source)
        assert (code, err) == (1, f"hurray-unpack: error: standard input: {expected}\n".encode())


def test_a_file_of_something_else_is_one_line(tmp_path, capsys):
    file = tmp_path / "f"
    file.write_bytes(b"\x89PNG\r\n\x1a\n and so on")
    assert unpack(file) == 1
    assert one_error(capsys, "hurray-unpack") == f"{file}: not a Hurray file: it starts with 89 50 4e 47 0d 0a 1a 0a"


def test_garbage_on_standard_input_is_refused_at_once():
    """At once: it is not read to an end that may never come."""
    with process("unpack", "-", stdin=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        running.stdin.write(b"garbage " * 16)
        running.stdin.flush()
        assert running.wait(timeout=60) == 1
        assert running.stderr.read() == (
            b"hurray-unpack: error: standard input: not a Hurray file: it starts with 67 61 72 62 61 67 65 20\n"
        )


def test_both_commands_are_installed_by_their_names():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"hurray-pack": "hurray_wire.cli.pack:main", "hurray-unpack": "hurray_wire.cli.unpack:main"}


def test_main_returns_and_leaves_the_process_as_it_was(tmp_path, capsys):
    before = signal.getsignal(signal.SIGTERM), sys.stdout.errors
    assert unpack(packed(tmp_path)) == 0
    assert unpack(tmp_path / "nowhere") == 1
    assert (signal.getsignal(signal.SIGTERM), sys.stdout.errors) == before
    assert np.array_equal(hw.load_snapshot(packed(tmp_path)).seq_lens, [6, 11])

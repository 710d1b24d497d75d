"""What a command leaves behind: the whole new file or the whole old one, whatever happens to it on the way."""

import os
import signal
import stat
import struct
import subprocess
import sys

import numpy as np
import pytest
from cli_cases import (
    ROOT,
    cache,
    finished,
    one_error,
    pack,
    packed,
    process,
    unpack,
    write_npz,
    write_safetensors,
)

import hurray_wire as hw
from hurray_wire.cli import folders
from hurray_wire.cli.folders import clear_abandoned, working_folder

OLD = b"what was there before"
# the start of a .safetensors file with a header of 64 MiB: as far as it is told, a dump
ENDLESS = struct.pack("<Q", 1 << 26) + b"{" + b" " * (1 << 22)


@pytest.fixture
def folder(tmp_path):
    """A folder with a dump and an old file; whatever else is in it after the test was left behind."""
    write_safetensors(tmp_path / "dump", cache())
    (tmp_path / "out").write_bytes(OLD)
    return tmp_path


def left(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_dump_is_not_replaced_by_its_snapshot_by_whatever_name(folder, capsys):
    before = (folder / "dump").read_bytes()
    (folder / "link").symlink_to("dump")
    (folder / "hard").hardlink_to(folder / "dump")
    for source, target in (("dump", "dump"), ("dump", "link"), ("link", "dump"), ("hard", "dump"), ("dump", "hard")):
        assert pack(folder / source, "-o", folder / target) == 2
        words = one_error(capsys, "hurray-pack")
        assert words == f"the output is {folder / source} itself, and a dump is not replaced by its snapshot"
    for source, target in (("-", folder / "dump"), (folder / "dump", "-"), ("-", "-")):
        with (folder / "dump").open("rb") as file, (folder / "dump").open("ab") as out:
            code, _, err = finished("pack", source, "-o", target, stdin=file, stdout=out)
        assert code == 2
        assert err.endswith(b"itself, and a dump is not replaced by its snapshot\n")
    assert (folder / "dump").read_bytes() == before
    assert left(folder) == ["dump", "hard", "link", "out"]


def test_the_file_that_is_unpacked_may_be_replaced(folder):
    path = folder / "both.npz"
    packed(folder).rename(path)
    assert unpack(path, "-o", path) == 0
    assert pack(path, "-o", folder / "again") == 0
    assert unpack(folder / "again", "--verify") == 0
    assert left(folder) == ["again", "both.npz", "dump", "out", "source.safetensors"]


def test_a_symbolic_link_is_followed_and_kept(folder):
    (folder / "link").symlink_to("out")
    assert pack(folder / "dump", "-o", folder / "link") == 0
    assert (folder / "link").is_symlink()
    assert hw.load_snapshot(folder / "out").layers == (0, 1, 2)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_new_files_have_the_mode_of_the_umask(mask, mode, folder):
    before = os.umask(mask)
    try:
        assert pack(folder / "dump", "-o", folder / "new.hrry") == 0
        for target in ("a.npz", "a.safetensors", "arrays/"):
            assert unpack(folder / "new.hrry", "-o", f"{folder}/{target}") == 0
    finally:
        os.umask(before)
    for target in ("new.hrry", "a.npz", "a.safetensors", "arrays/seq_lens.npy"):
        assert stat.S_IMODE((folder / target).stat().st_mode) == mode, target
    assert stat.S_IMODE((folder / "arrays").stat().st_mode) == 0o777 & ~mask


def test_bad_data_leaves_the_old_file(folder, capsys):
    arrays = cache()
    arrays["block_tables"][0, 0] = 99
    write_safetensors(folder / "dump", arrays)
    assert pack(folder / "dump", "-o", folder / "out") == 1
    assert "names page 99" in one_error(capsys, "hurray-pack")
    assert (folder / "out").read_bytes() == OLD
    assert left(folder) == ["dump", "out"]


@pytest.mark.parametrize("target", ["out.npz", "out.safetensors", "out/"])
def test_a_fault_while_arrays_are_written_leaves_no_output(target, folder, capsys):
    path = packed(folder, "--zstd")
    data = bytearray(path.read_bytes())
    with hw.open(path) as file:
        frames = file.compression.frames
    assert frames > 20
    data[len(data) // 2] ^= 0xFF  # some frame in the middle of the file, hence of some array
    path.write_bytes(data)
    (folder / "out").unlink()
    assert unpack(path, "-o", f"{folder}/{target}") == 1
    assert one_error(capsys, "hurray-unpack").startswith(f"{path}: ")
    assert left(folder) == ["cache.hrry", "dump", "source.safetensors"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_killed_pack_leaves_the_old_file_and_nothing_else(number, folder):
    # a dump on a pipe that never ends: the command is at work for certain when the signal comes
    with process(
        "pack",
        "-",
        "-o",
        folder / "out",
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"TMPDIR": str(folder)},
    ) as running:
        running.stdin.write(ENDLESS)  # more than a pipe holds: returns when the command reads
        running.stdin.flush()
        running.send_signal(number)
        code = running.wait(timeout=60)
        err = running.stderr.read()
        running.stdin.close()
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    assert err == b""
    assert (folder / "out").read_bytes() == OLD
    others = [name for name in left(folder) if name not in ("dump", "out")]
    assert others == [] or (number == signal.SIGKILL and all(name.startswith("hurray-pack-") for name in others))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_is_ignored_stays_ignored(number, folder):
    """As under nohup: the command works on, and ends by itself."""
    with process(
        "pack",
        "-",
        "-o",
        folder / "out",
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        ignored=[number],
    ) as running:
        running.stdin.write(ENDLESS)
        running.stdin.flush()
        running.send_signal(number)
        err = running.communicate(timeout=60)[1]
    assert running.returncode == 1
    assert err.startswith(b"hurray-pack: error: standard input: not a .safetensors file")
    assert (folder / "out").read_bytes() == OLD


# Fills a folder, says that it does, and waits for its end.
FILLING = """
import sys
from pathlib import Path
from hurray_wire.cli.folders import working_folder

with working_folder(Path(sys.argv[1])) as beside:
    (beside / "a.npy").write_bytes(b"half of it")
    print(beside.name, flush=True)
    sys.stdin.read()
"""


def test_a_folder_that_a_killed_run_has_left_is_removed_by_the_next_run_alone(folder):
    path = packed(folder)
    (folder / ".arrays.0123456789.tmp").mkdir()  # not a name of ours
    (folder / ".other.0123456789ab.tmp").mkdir()  # of another output
    there = left(folder)
    with subprocess.Popen(
        [sys.executable, "-c", FILLING, folder / "arrays"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as filling:
        half = filling.stdout.readline().decode().strip()
        assert unpack(path, "-o", f"{folder}/arrays/") == 0
        assert (folder / half / "a.npy").read_bytes() == b"half of it"  # somebody is at work there
        filling.kill()
        filling.wait()
    assert left(folder) == sorted([*there, half, "arrays"])
    (folder / "arrays").rename(folder / "first")
    assert unpack(path, "-o", f"{folder}/arrays/") == 0
    assert left(folder) == sorted([*there, "first", "arrays"])


def test_a_folder_that_is_taken_for_abandoned_before_it_is_locked_is_made_again(folder, monkeypatch):
    """Whoever removes one does so between its making and its locking here, which in two processes takes bad luck."""
    real, taken = folders._open, []

    def late(beside):
        descriptor = real(beside)
        if not taken:
            taken.append(beside)
            clear_abandoned(folder / "arrays")
        return descriptor

    monkeypatch.setattr(folders, "_open", late)
    with working_folder(folder / "arrays") as beside:
        assert beside != taken[0]
        assert left(folder) == sorted([beside.name, "dump", "out"])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_pack_that_is_killed_while_it_writes_leaves_nothing(number, folder):
    """The output is on a file system where writing is slow: a pipe that nobody empties."""
    os.mkfifo(folder / "pipe")
    big = {**cache(()), "block_tables": np.arange(600, dtype=np.int32).reshape(2, 300)}
    big["seq_lens"] = np.array([1200, 1200], np.int32)
    big |= {f"layers.0.{role}": np.zeros((600, 4, 8, 16), np.float16) for role in ("key", "value")}
    source = write_npz(folder / "big.npz", big)
    running = process("pack", source, "-o", folder / "pipe", stderr=subprocess.PIPE)
    with (folder / "pipe").open("rb") as pipe:
        assert pipe.read(8) == b"HRRYFILE"
        running.send_signal(number)
        assert running.wait(timeout=60) == (-number if number == signal.SIGKILL else 128 + number)
        assert running.stderr.read() == b""
        running.stderr.close()
    assert stat.S_ISFIFO((folder / "pipe").stat().st_mode)
    assert left(folder) == ["big.npz", "dump", "out", "pipe"]


def test_a_pipe_is_written_to_and_kept(folder):
    os.mkfifo(folder / "pipe")
    running = process("pack", folder / "dump", "-o", folder / "pipe", "--quiet")
    assert unpack(folder / "pipe", "--diff", packed(folder)) == 0
    assert running.wait(timeout=60) == 0
    assert stat.S_ISFIFO((folder / "pipe").stat().st_mode)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_device_is_one_line(folder, capsys):
    assert pack(folder / "dump", "-o", "/dev/full") == 1
    assert one_error(capsys, "hurray-pack") == "/dev/full: No space left on device"
    assert os.path.exists("/dev/full")


def test_a_folder_that_is_not_empty_is_refused(folder, capsys):
    path = packed(folder)
    (folder / "arrays").mkdir()
    assert unpack(path, "-o", folder / "arrays") == 0
    before = sorted((folder / "arrays").iterdir())
    capsys.readouterr()
    assert unpack(path, "-o", folder / "arrays", "--as", "ragged") == 1
    assert "the folder is not empty" in one_error(capsys, "hurray-unpack")
    assert sorted((folder / "arrays").iterdir()) == before


@pytest.mark.parametrize("options", [[], ["--zstd=3", "--planes"]])
def test_bytes_do_not_depend_on_the_process(options, folder):
    """Sets and dictionaries iterate in other orders under another hash seed."""
    assert pack(folder / "dump", "-o", folder / "here", "--quiet", *options) == 0
    environment = {"PYTHONHASHSEED": "4242"}
    code, _, err = finished("pack", folder / "dump", "-o", folder / "there", "--quiet", *options, env=environment)
    assert (code, err) == (0, b"")
    assert (folder / "here").read_bytes() == (folder / "there").read_bytes()


def test_arrays_do_not_depend_on_the_process(folder):
    path = packed(folder)
    for kind in ("npz", "safetensors"):
        assert unpack(path, "-o", folder / f"here.{kind}") == 0
        code, _, err = finished("unpack", path, "-o", folder / f"there.{kind}", env={"PYTHONHASHSEED": "4242"})
        assert (code, err) == (0, b"")
        assert (folder / f"here.{kind}").read_bytes() == (folder / f"there.{kind}").read_bytes()

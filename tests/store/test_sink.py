"""A path appears whole or not at all, with the mode it should have, where it should be."""

import os
import signal
import stat
import subprocess
import sys
import threading

import pytest

from hurray_wire.store import sink as sinks
from hurray_wire.store.sink import open_sink


@pytest.fixture(params=["unnamed", "named"])
def path(request, tmp_path, monkeypatch):
    """A path in a folder of its own, written by either way of keeping it out of sight until it is whole."""
    if request.param == "named":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    return tmp_path / "out"


def write(path, data=b"new", *, commit=True, durable=False):
    sink = open_sink(path)
    sink.write(data)
    if commit:
        sink.commit(durable=durable)
    else:
        sink.abort()


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_appears_with_commit_and_not_before(path, durable):
    sink = open_sink(path)
    sink.write(b"new")
    assert not path.exists()
    sink.commit(durable=durable)
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == ["out"]


def test_an_abort_leaves_the_old_file_and_no_litter(path):
    path.write_bytes(b"old")
    write(path, commit=False)
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == ["out"]


def test_a_failed_commit_leaves_the_old_file_and_no_litter(path, monkeypatch):
    path.write_bytes(b"old")
    sink = open_sink(path)
    sink.write(b"new")

    def refuse(*_):
        raise OSError("no")

    monkeypatch.setattr(sinks.os, "replace", refuse)
    with pytest.raises(OSError, match="no"):
        sink.commit(durable=False)
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == ["out"]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_mode_of_the_umask(path, umask):
    before = os.umask(umask)
    try:
        write(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_a_replaced_file_keeps_its_mode(path):
    path.write_bytes(b"old")
    path.chmod(0o600)
    write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_symbolic_link_is_followed_and_kept(path):
    target = path.parent / "elsewhere"
    target.mkdir()
    (target / "file").write_bytes(b"old")
    path.symlink_to("elsewhere/file")
    write(path)
    assert path.is_symlink()
    assert (target / "file").read_bytes() == b"new"
    assert os.listdir(target) == ["file"]


def test_a_link_to_nothing_makes_its_target(path):
    path.symlink_to("later")
    write(path)
    assert path.is_symlink()
    assert (path.parent / "later").read_bytes() == b"new"


def test_a_pipe_is_written_to_and_never_removed(path):
    os.mkfifo(path)
    got = []

    def read():
        with open(path, "rb") as pipe:
            got.append(pipe.read())

    reader = threading.Thread(target=read)
    reader.start()
    write(path, b"through")
    reader.join()
    assert got == [b"through"]
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_device_survives_an_abort():
    write("/dev/null", commit=False)
    write("/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_name_of_255_bytes_is_possible(path):
    long = path.parent / ("x" * 255)
    write(long)
    assert long.read_bytes() == b"new"


def test_a_missing_folder_is_the_systems_own_error(path):
    with pytest.raises(FileNotFoundError):
        open_sink(path / "none" / "out")
    with pytest.raises(IsADirectoryError):
        open_sink(path.parent)


class Slow:
    """Takes at most three bytes at a time, as a pipe may."""

    def __init__(self):
        self.taken = b""

    def write(self, view):
        self.taken += bytes(view[:3])
        return min(3, len(view))


class Silent(Slow):
    def write(self, view):
        self.taken += bytes(view)


@pytest.mark.parametrize("kind", [Slow, Silent])
def test_an_object_is_written_to_the_end_however_little_it_takes(kind):
    target = kind()
    write(target, b"a longer piece of text")
    assert target.taken == b"a longer piece of text"


def test_what_is_neither_path_nor_writable_is_a_type_error():
    with pytest.raises(TypeError):
        open_sink(7)


KILLED = """
import sys, time
from hurray_wire.store.sink import open_sink
sink = open_sink(sys.argv[1])
sink.write(b"half of the new file")
print("written", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="files without a name are Linux's")
def test_a_killed_writer_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(b"old")
    process = subprocess.Popen([sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE)
    with process:
        assert process.stdout.readline() == b"written\n"
        process.send_signal(signal.SIGKILL)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out"]

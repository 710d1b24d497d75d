"""A writer that is killed, fails, or is pointed at what is no file: the old file or the new one, nothing else."""

from __future__ import annotations

import io
import os
import signal
import stat
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.corpus import entry

import hurray_wire as hw

from .programs import start

OLD = entry("accepted/one-tensor.hrry").data
VECTOR = hw.TensorDescriptor(hw.uint8, (1 << 20,), hw.RowMajorLayout(), (hw.BufferHandle(1 << 20),))

# Writes half of a buffer, says so, and waits for its end.
KILLED = """
import sys
import hurray_wire as hw

class Half:
    nbytes = 1 << 20
    def chunks(self):
        yield bytes(1 << 19)
        print("half", flush=True)
        sys.stdin.read()
        yield bytes(1 << 19)

descriptor = hw.TensorDescriptor(hw.uint8, (1 << 20,), hw.RowMajorLayout(), (hw.BufferHandle(1 << 20),))
with hw.create(sys.argv[1], durable=False, zstd=1 if sys.argv[2] == "zstd" else None) as writer:
    writer.add("whole", descriptor, [bytes(1 << 20)])
    writer.add("half", descriptor, [Half()])
"""


@pytest.mark.parametrize("form", ["plain", "zstd"])
@pytest.mark.parametrize("old", [True, False], ids=["over an old file", "a new file"])
def test_a_killed_writer_leaves_what_was_there(tmp_path: Path, old: bool, form: str) -> None:
    path = tmp_path / "cache.hrry"
    if old:
        path.write_bytes(OLD)
    process = start("-c", KILLED, str(path), form)
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert [p.name for p in tmp_path.iterdir()] == (["cache.hrry"] if old else [])
    if old:
        assert path.read_bytes() == OLD


def test_a_writer_that_is_interrupted_between_tensors_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "cache.hrry"
    path.write_bytes(OLD)

    def interrupted() -> None:
        with hw.create(path, durable=False) as writer:
            writer.add("t", VECTOR, [bytes(1 << 20)])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == OLD
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache.hrry"
    path.write_bytes(OLD)
    real, written = os.write, 0

    def write(fd: int, data: Any) -> int:
        nonlocal written
        written += len(data)
        if written > 1 << 19:
            raise OSError(28, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="No space left"), hw.create(path, durable=False) as writer:
        writer.add("t", VECTOR, [bytes(1 << 20)])
    monkeypatch.undo()
    assert path.read_bytes() == OLD
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path: Path) -> None:
    """Whoever opens the path while it is written sees the old file, and keeps seeing it once it is opened."""
    path = tmp_path / "cache.hrry"
    path.write_bytes(OLD)
    with hw.create(path, durable=False) as writer:
        writer.add("t", VECTOR, [bytes(1 << 20)])
        assert path.read_bytes() == OLD
        reader = hw.open(path)
    assert hw.open(path)["t"].shape == (1 << 20,)
    assert reader["t"].numpy().tolist() == [10, 20, 30, 40]
    reader.close()


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o000])
def test_a_snapshot_has_the_mode_that_the_umask_gives(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        save(tmp_path / "cache.hrry")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "cache.hrry").stat().st_mode) == 0o666 & ~mask


def test_a_symbolic_link_is_followed_and_stays_one(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    target, link = tmp_path / "data" / "cache.hrry", tmp_path / "link.hrry"
    target.write_bytes(OLD)
    link.symlink_to(target)
    save(link)
    assert link.is_symlink()
    assert hw.load_snapshot(target).layers == (0,)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["cache.hrry", "data", "link.hrry"]


def test_a_pipe_takes_a_file_and_stays_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    taken: list[bytes] = []
    reader = threading.Thread(target=lambda: taken.append(path.read_bytes()))
    reader.start()
    save(path)
    reader.join()
    assert stat.S_ISFIFO(path.stat().st_mode)
    with hw.load_snapshot(taken[0]) as snapshot:
        snapshot.file.verify()


def test_a_pipe_survives_a_writer_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = threading.Thread(target=path.read_bytes)
    reader.start()
    with pytest.raises(hw.BufferSizeError), hw.create(path) as writer:
        writer.add("t", VECTOR, [bytes(7)])
    reader.join()
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_device_survives_a_writer_whether_it_fails_or_not() -> None:
    save("/dev/null")
    with pytest.raises(hw.BufferSizeError), hw.create("/dev/null") as writer:
        writer.add("t", VECTOR, [bytes(7)])
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_an_object_is_only_ever_written_to() -> None:
    class WriteOnly:
        def __init__(self) -> None:
            self.held = bytearray()

        def write(self, piece: Any) -> int:
            taken = bytes(piece[:1000])  # as a socket does, it takes what it likes
            self.held += taken
            return len(taken)

    out, whole = WriteOnly(), io.BytesIO()
    save(out)
    save(whole)
    assert bytes(out.held) == whole.getvalue()


def save(target: Any) -> None:
    pool = np.arange(4 * 2 * 1 * 4, dtype=np.float32).reshape(4, 2, 1, 4)
    hw.save_snapshot(target, [(pool, pool + 1)], seq_lens=[3, 4], block_tables=[[0, 1], [2, 3]], durable=False)

"""A process may fork while another of its threads reads or writes: the child hangs on nothing it inherited."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hurray_wire as hw
from hurray_wire.store import sink as sinks
from hurray_wire.store.frame_cache import FrameCache
from hurray_wire.store.source import FileSource, ObjectSource

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def in_child(action: Callable[[], object]) -> object:
    """What ``action`` answers, or what it raises by its name, in a child that is forked here and now."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fork beside threads, of which Python and JAX warn, is what this is about
        pid = os.fork()
    if pid == 0:
        signal.alarm(30)  # a child that hangs is killed, and answers nothing
        try:
            answer = str(action())
        except BaseException as error:
            answer = type(error).__name__
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(pid, 0)
    return answer


@contextlib.contextmanager
def busy(work: Callable[[Callable[[], None]], object]) -> Iterator[None]:
    """Another thread is in the middle of ``work``, where this calls what it is given, while the block runs."""
    arrived, leave = threading.Event(), threading.Event()

    def stop() -> None:
        arrived.set()
        leave.wait(60)

    thread = threading.Thread(target=work, args=(stop,))
    thread.start()
    try:
        assert arrived.wait(60)
        yield
    finally:
        leave.set()
        thread.join()


def test_a_frame_that_a_thread_of_the_parent_inflates_is_inflated_anew():
    cache = FrameCache(100)
    frame = np.arange(3, dtype=np.uint8)

    def slow(stop: Callable[[], None]) -> None:
        cache.get(0, lambda _: (stop(), frame)[1])

    with busy(slow):
        assert in_child(lambda: cache.get(0, lambda _: frame).tolist()) == "[0, 1, 2]"
    assert cache.made == 1


@pytest.mark.parametrize("kind", [FrameCache, FileSource, ObjectSource, hw.File])
def test_a_lock_that_a_thread_of_the_parent_holds_is_free_in_the_child(kind, tmp_path):
    data = cache_bytes()
    (tmp_path / "cache").write_bytes(data)
    made: dict[Any, Callable[[], tuple[Any, Callable[[], object]]]] = {
        FrameCache: lambda: (owner := FrameCache(9), lambda: owner.get(1, lambda _: np.zeros(1, np.uint8))),
        FileSource: lambda: (owner := FileSource(os.open(tmp_path / "cache", os.O_RDONLY), 9), owner.close),
        ObjectSource: lambda: (owner := ObjectSource(io.BytesIO(data)), lambda: bytes(owner.view(0, 8))),
        hw.File: lambda: (owner := hw.open(data), lambda: owner["layers.0.key"].gather().values.sum()),
    }
    owner, use = made[kind]()

    def hold(stop: Callable[[], None]) -> None:
        with owner._lock:
            stop()

    with busy(hold):
        answer = in_child(use)
    assert answer == str(use() if kind is not FrameCache else [0])


class Wrapped(io.BufferedReader):
    """A file of another kind, such as those that decompress, whose bytes are not those of the system's file."""


@pytest.mark.parametrize("zstd", [None, 1])
@pytest.mark.parametrize("kind", [io.FileIO, open, Wrapped])
def test_a_file_object_has_one_position_for_parent_and_child_which_spoils_nothing(kind, zstd, tmp_path):
    path = tmp_path / "cache"
    path.write_bytes(cache_bytes(zstd=zstd))
    file = {
        io.FileIO: lambda: io.FileIO(path),
        open: lambda: path.open("rb"),
        Wrapped: lambda: Wrapped(io.FileIO(path)),
    }
    with file[kind]() as opened, hw.open(opened) as cache:
        at = opened.tell()

        def child() -> float:
            answer = cache["layers.0.key"].gather().values.sum()
            assert os.lseek(opened.fileno(), 0, os.SEEK_CUR) == position
            return answer

        position = os.lseek(opened.fileno(), 0, os.SEEK_CUR)
        expected = "InvalidFileError" if kind is Wrapped else str(cache_sum())
        assert at == opened.tell()
        assert in_child(child) == expected
        assert str(cache["layers.0.key"].gather().values.sum()) == str(cache_sum())


def cache_sum() -> Any:
    with hw.open(cache_bytes()) as cache:
        return cache["layers.0.key"].gather().values.sum()


def test_a_child_that_goes_on_writing_spoils_nothing_either(tmp_path):
    path = tmp_path / "cache"
    descriptor = hw.TensorDescriptor.build(hw.uint8, (4,), hw.RowMajorLayout(), (4,))
    with hw.create(path) as writer:
        writer.add("a", descriptor, [b"abcd"])
        assert in_child(lambda: writer.add("b", descriptor, [b"efgh"])) == "InvalidFileError"
        assert in_child(writer.close) == "InvalidFileError"
        writer.add("c", descriptor, [b"ijkl"])
    with hw.open(path) as file:
        file.verify()
        assert file.names == ("a", "c")
    assert os.listdir(tmp_path) == ["cache"]


def cache_bytes(**options: Any) -> bytes:
    out = io.BytesIO()
    pool = np.arange(3 * 4 * 2 * 8, dtype=np.float32).reshape(3, 4, 2, 8)
    hw.save_snapshot(out, [(pool, pool)], block_tables=[[0, 2], [1]], seq_lens=[7, 2], **options)
    return out.getvalue()


class Gate(io.BytesIO):
    """A file that stops a thread in the middle of a read."""

    stop: Callable[[], None] | None = None

    def read(self, size: int | None = -1) -> bytes:
        stop, self.stop = self.stop, None
        if stop is not None:
            stop()
        return super().read(size)


@pytest.mark.parametrize("planes", [False, True])
def test_a_child_gathers_from_a_compressed_object_that_a_thread_of_the_parent_is_reading(planes):
    file = Gate(cache_bytes(zstd=1, planes=planes))
    with hw.open(file) as opened:
        tensor = opened["layers.0.key"]

        def read(stop: Callable[[], None]) -> None:
            file.stop = stop
            tensor.gather()

        with busy(read):
            answer = in_child(lambda: tensor.gather([1]).values.sum())
        assert answer == str(np.float32(sum(range(64, 96))))  # both slots of sequence 1 on page 1, 16 numbers each


@pytest.mark.parametrize("unnamed", [True, False])
def test_a_child_that_unwinds_leaves_the_file_of_its_parent_alone(unnamed, tmp_path, monkeypatch):
    if not unnamed:
        monkeypatch.delattr(sinks.os, "O_TMPFILE", raising=False)
    path = tmp_path / "cache"
    writer = hw.create(path, metadata={"a": 1})
    assert in_child(writer.abort) == "None"
    writer.close()
    with hw.open(path) as file:
        assert file.metadata["a"] == 1
    assert os.listdir(tmp_path) == ["cache"]


def test_a_child_neither_finishes_nor_waits_for_frames_that_its_parent_compresses(tmp_path):
    writer = hw.create(tmp_path / "cache", zstd=1)
    descriptor = hw.TensorDescriptor(
        element_type=hw.uint8, shape=(1 << 20,), layout=hw.RowMajorLayout(), buffers=(hw.BufferHandle(1 << 20),)
    )
    writer.add("a", descriptor, [np.zeros(1 << 20, np.uint8)])
    assert in_child(writer.close) == "InvalidFileError"
    assert in_child(writer.abort) == "None"
    writer.close()
    with hw.open(tmp_path / "cache") as file:
        assert file["a"].numpy().sum() == 0

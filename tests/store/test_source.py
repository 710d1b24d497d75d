"""Sources: the same bytes whatever holds them, short reads continued, early ends noticed, views that stay."""

import ctypes
import io
import os
import sys

import numpy as np
import pytest

import hurray_wire as hw
from hurray_wire.store.source import BytesSource, FileSource, MappedSource, ObjectSource, open_source, runs

DATA = bytes(range(256)) * 40


class OneByteAtATime(io.BytesIO):
    def read(self, size=-1):
        return super().read(min(size, 1))


class EndsEarly(io.BytesIO):
    """Says that it is as long as DATA, but gives only the first half."""

    def read(self, size=-1):
        left = len(DATA) // 2 - self.tell()
        return super().read(max(0, min(size, left)))


@pytest.fixture(params=["mapped", "file", "bytes", "object", "one byte"])
def source(request, tmp_path):
    path = tmp_path / "data"
    path.write_bytes(DATA)
    made = {
        "mapped": lambda: open_source(path),
        "file": lambda: open_source(path, use_mmap=False),
        "bytes": lambda: open_source(memoryview(DATA)),
        "object": lambda: open_source(io.BytesIO(DATA)),
        "one byte": lambda: open_source(OneByteAtATime(DATA)),
    }[request.param]()
    yield made
    made.close()


def test_every_source_gives_the_same_read_only_bytes(source):
    assert source.size == len(DATA)
    for offset, length in ((0, 0), (0, 5), (7, 300), (len(DATA), 0), (len(DATA) - 1, 1), (0, len(DATA))):
        view = source.view(offset, length)
        assert bytes(view) == DATA[offset : offset + length]
        assert view.readonly


@pytest.mark.parametrize(("offset", "length"), [(len(DATA), 1), (0, len(DATA) + 1), (2**64, 1), (-1, 1), (1, 2**64)])
def test_a_range_past_the_end_is_truncated_before_anything_is_read(source, offset, length):
    with pytest.raises(hw.TruncatedError) as caught:
        source.view(offset, length)
    assert caught.value.rule == "file.truncated"


def test_rows_are_read_in_the_order_asked_for(source):
    rows = np.array([3, 4, 5, 0, 9, 9, 8])
    out = np.empty((len(rows), 100), dtype=np.uint8)
    source.read_rows(50, 100, rows, out)
    assert out.tobytes() == b"".join(DATA[50 + r * 100 : 150 + r * 100] for r in rows)


def test_closing_twice_is_fine_and_views_stay(source):
    view = source.view(3, 4)
    source.close()
    source.close()
    assert bytes(view) == DATA[3:7]
    with pytest.raises(ValueError, match="closed"):
        source.view(0, 1)


def test_runs_are_the_longest_stretches_of_following_rows():
    assert runs(np.array([3, 4, 5, 0, 9, 9, 8])) == [(0, 3), (3, 4), (4, 5), (5, 6), (6, 7)]
    assert runs(np.array([], dtype=np.int64)) == []


def test_what_lends_borrows_and_what_reads_copies(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(DATA)
    held = bytearray(DATA)
    assert np.shares_memory(np.frombuffer(BytesSource(held).view(0, 9), np.uint8), np.frombuffer(held, np.uint8))
    with open(path, "rb") as file:
        kinds = [
            MappedSource(file.fileno(), len(DATA)),
            FileSource(os.dup(file.fileno()), len(DATA)),
            ObjectSource(file),
        ]
        assert [kind.lends for kind in kinds] == [True, False, False]


def test_an_object_that_ends_early_is_truncated():
    with pytest.raises(hw.TruncatedError, match="became shorter"):
        open_source(EndsEarly(DATA)).view(0, len(DATA))


def test_a_file_that_shrinks_while_it_is_read_is_truncated(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(DATA)
    source = open_source(path, use_mmap=False)
    os.truncate(path, 100)
    with pytest.raises(hw.TruncatedError):
        source.view(0, 200)
    source.close()


def test_a_pipe_is_refused_without_waiting_for_its_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(hw.InvalidFileError, match="StreamReader"):
        open_source(tmp_path / "pipe")


def test_an_object_that_cannot_seek_is_refused():
    class Pipe(io.RawIOBase):
        def readable(self):
            return True

    with pytest.raises(hw.InvalidFileError) as caught:
        open_source(Pipe())
    assert caught.value.rule == "file.seekable"


def test_a_folder_and_a_missing_file_are_the_systems_own_errors(tmp_path):
    with pytest.raises(IsADirectoryError):
        open_source(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_source(tmp_path / "none")
    with pytest.raises(TypeError):
        open_source(7)


def test_an_empty_file_is_a_source_of_nothing(tmp_path):
    (tmp_path / "empty").touch()
    assert open_source(tmp_path / "empty").size == 0
    with pytest.raises(hw.TruncatedError):
        hw.open(tmp_path / "empty")


@pytest.mark.skipif(sys.platform != "linux", reason="private mappings without reservation are Linux's")
def test_writing_through_a_mapping_changes_neither_the_file_nor_its_arrays_flags(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(DATA)
    array = np.frombuffer(open_source(path).view(0, len(DATA)), np.uint8)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    ctypes.memmove(array.ctypes.data, b"\xff", 1)  # as a library would that knows no read-only arrays
    assert array[0] == 0xFF
    assert path.read_bytes() == DATA

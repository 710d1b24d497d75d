"""Sources that give less than asked, files that are closed too early or twice, arrays that outlive them."""

from __future__ import annotations

import gc
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.corpus import Entry, entry
from fixtures.dumping import of_tensor

import hurray_wire as hw

from .programs import run

FILES = [
    entry(f"accepted/{name}")
    for name in ("snapshot.hrry", "metadata-every-kind.hrry", "composite-partition.hrry", "compressed-planes.hrry.zst")
]


class Dribble(io.BytesIO):
    """A seekable object whose ``read`` gives at most so many bytes at once."""

    at_most = 1

    def read(self, size: int | None = -1) -> bytes:
        return super().read(self.at_most if size is None or size < 0 else min(size, self.at_most))


class Spurts(Dribble):
    at_most = 1000


@pytest.mark.parametrize("kind", [Dribble, Spurts])
@pytest.mark.parametrize("entry", FILES, ids=str)
def test_short_reads_are_continued(entry: Entry, kind: type[Dribble]) -> None:
    with hw.open(kind(entry.data)) as file:
        assert [{"name": name, **of_tensor(file[name])} for name in file] == entry.dump["tensors"]
        file.verify()


def test_an_object_that_ends_before_its_size_is_truncated() -> None:
    class Liar(io.BytesIO):
        def seek(self, offset: int, whence: int = 0) -> int:
            return super().seek(offset, whence) + (8192 if whence == 2 else 0)

    with pytest.raises(hw.TruncatedError):
        hw.open(Liar(entry("accepted/one-tensor.hrry").data))


@pytest.mark.parametrize("size", [-1, 1 << 63, 1 << 70])
def test_an_object_of_no_possible_size_is_refused(size: int) -> None:
    class Liar(io.BytesIO):
        def seek(self, offset: int, whence: int = 0) -> int:
            return size if whence == 2 else super().seek(offset, whence)

    with pytest.raises(hw.InvalidFileError) as caught:
        hw.open(Liar(entry("accepted/one-tensor.hrry").data))
    assert caught.value.rule == "file.object"


def test_an_object_whose_seek_answers_nothing_is_asked_where_it_is() -> None:
    class Silent(io.BytesIO):
        def seek(self, offset: int, whence: int = 0) -> None:  # type: ignore[override]
            super().seek(offset, whence)

    with hw.open(Silent(entry("accepted/one-tensor.hrry").data)) as file:
        assert len(file) == 1


def test_text_is_told_as_such() -> None:
    with pytest.raises(TypeError, match="binary mode"):
        hw.open(io.StringIO("HRRYFILE" * 100))


def test_an_object_that_has_nothing_yet_is_not_taken_for_one_that_ended() -> None:
    class Later(io.BytesIO):
        def read(self, size: int | None = -1) -> None:  # type: ignore[override]
            return None

    with pytest.raises(BlockingIOError):
        hw.open(Later(entry("accepted/one-tensor.hrry").data))


@pytest.mark.parametrize("mmap", [True, False], ids=["mapped", "read"])
@pytest.mark.parametrize("entry", FILES, ids=str)
def test_closing_twice_is_fine_and_a_closed_file_refuses(entry: Entry, mmap: bool) -> None:
    file = hw.open(entry.path, mmap=mmap)
    with file:
        file.close()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.verify()


@pytest.mark.parametrize("mmap", [True, False], ids=["mapped", "read"])
def test_arrays_outlive_the_file_they_came_from(tmp_path: Path, mmap: bool) -> None:
    """In a process of its own: a mapping that went away under them would kill it."""
    path = tmp_path / "cache.hrry"
    path.write_bytes(entry("accepted/snapshot.hrry").data)
    program = """
import gc, sys
import numpy as np
import hurray_wire as hw
file = hw.open(sys.argv[1], mmap=sys.argv[2] == "True")
tensor = file["layers.0.key"]
held = [tensor.page_pool, tensor.block_table, tensor.seq_ptr, tensor.seq_lens, tensor.buffers[0]]
held.append(file["seq_lens"].numpy())
before = [array.tobytes() for array in held]
file.close()
del file, tensor
gc.collect()
assert [array.tobytes() for array in held] == before
print(len(held))
"""
    assert run(program, str(path), str(mmap)).strip() == "6"


def test_arrays_of_a_file_cannot_be_written_to() -> None:
    """Writing to a page of a read-only map would end the process."""
    for mmap in (True, False):
        with hw.open(entry("accepted/snapshot.hrry").path, mmap=mmap) as file:
            tensor = file["layers.0.key"]
            assert isinstance(tensor, hw.PagedTensor)
            lent = [tensor.page_pool, tensor.block_table, tensor.seq_ptr, tensor.seq_lens, tensor.buffers[0]]
            lent += [file["seq_lens"].numpy(), tensor.page_pool[:1], tensor.buffers[1]]
            for array in lent:
                assert not array.flags.writeable
                with pytest.raises(ValueError, match="read-only"):
                    array[...] = 0
            taken = [tensor.gather().values, tensor.ragged()]
            assert all(array.flags.writeable and not np.shares_memory(array, tensor.page_pool) for array in taken)


def test_a_closed_file_lets_go_of_its_path(tmp_path: Path) -> None:
    """Descriptors of the process do not grow with files that were opened and closed, or refused."""
    good, bad = tmp_path / "good.hrry", tmp_path / "bad.hrry"
    good.write_bytes(entry("accepted/one-tensor.hrry").data)
    bad.write_bytes(entry("refused/index.crc.hrry").data)

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    gc.collect()
    before = descriptors()
    for mmap in (True, False) * 20:
        hw.open(good, mmap=mmap).close()
        with pytest.raises(hw.ChecksumError):
            hw.open(bad, mmap=mmap)
    gc.collect()
    assert descriptors() <= before


def test_saving_over_the_file_that_the_arrays_are_mapped_from_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / "cache.hrry"
    path.write_bytes(entry("accepted/snapshot.hrry").data)
    with hw.load_snapshot(path) as snapshot:
        expected = snapshot.gather(0)
        key, value = snapshot[0].key, snapshot[0].value
        assert key is not None
        assert value is not None
        hw.save_snapshot(
            path, [(key.page_pool, value.page_pool)], seq_lens=key.seq_lens,
            block_table=key.block_table, seq_ptr=key.seq_ptr,
        )  # fmt: skip
        assert key.page_pool.tobytes() != bytes(key.page_pool.nbytes)
    with hw.load_snapshot(path) as snapshot:
        snapshot.file.verify()
        found: dict[str, Any] = snapshot.gather(0)
    assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)
    assert np.count_nonzero(found["mask"]) == 25

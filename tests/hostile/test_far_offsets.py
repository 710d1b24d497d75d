"""Offsets beyond 31, 32 and 40 bits: sparse files that open, gather and refuse like any other."""

from __future__ import annotations

from pathlib import Path

import pytest
from requirements import require

import hurray_wire as hw

from .building import sparse_pool

PAGE = 1 << 20
SIZES = {"2 GiB": 1 << 31, "4 GiB": 1 << 32, "1.5 TiB": 3 << 39}


def build(path: Path, size: int) -> list[tuple[int, bytes]]:
    """A file whose pool passes ``size`` in the middle of a page; returns the pages that are not holes."""
    number = (size - 4096) // PAGE
    pages = [
        (number, bytes([1]) * PAGE),  # the page in which the boundary lies
        (0, bytes([2]) * PAGE),
        (number + 1, bytes([3]) * PAGE),
        (number - 1, bytes([4]) * PAGE),
    ]
    try:
        sparse_pool(path, page_bytes=PAGE, pages=pages, num_pages=number + 2)
        sparse = path.stat().st_blocks * 512 < 64 << 20
    except OSError:
        sparse = False
    require(sparse, f"the file system of {path.parent} does not hold a sparse file of {size} bytes")
    return pages


@pytest.mark.parametrize("mmap", [True, False], ids=["mapped", "read"])
@pytest.mark.parametrize("name", SIZES)
def test_a_pool_across_the_boundary_is_gathered(name: str, mmap: bool, tmp_path: Path) -> None:
    path = tmp_path / "cache.hrry"
    pages = build(path, SIZES[name])
    with hw.open(path, mmap=mmap) as file:
        tensor = file["key"]
        assert isinstance(tensor, hw.PagedTensor)
        assert tensor.block_table.tolist() == [number for number, _ in pages]
        values = tensor.gather().values
        assert values.shape == (1, 4, 1, PAGE)
        assert [values[0, t, 0].tobytes() for t in range(4)] == [page for _, page in pages]
        assert tensor.ragged().tobytes() == b"".join(page for _, page in pages)


@pytest.mark.parametrize("name", SIZES)
def test_the_pool_of_a_mapped_file_is_a_view_however_large(name: str, tmp_path: Path) -> None:
    path = tmp_path / "cache.hrry"
    pages = build(path, SIZES[name])
    with hw.open(path) as file:
        pool = file["key"].page_pool  # type: ignore[attr-defined]
        assert pool.nbytes > SIZES[name] - 4096
        for number, page in pages:
            assert pool[number].tobytes() == page
        assert not pool[1].any()


def test_a_file_cut_at_the_boundary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cache.hrry"
    build(path, 1 << 32)
    for size in ((1 << 32) - 1, 1 << 32, (1 << 31) + 7):
        with path.open("r+b") as file:
            file.truncate(size)
        with pytest.raises(hw.InvalidFileError):
            hw.open(path)

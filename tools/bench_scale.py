"""What does not grow with the size of a snapshot, shown on snapshots larger than this machine's memory.

Each function returns rows (name, ratio, detail): a file of more than a terabyte against one of a gigabyte, a hundred
thousand tensors against a thousand, and a cache half as large again as memory against the memory that packing it takes.
The large files are all hole, and take no room on the disk. Run alone, it prints the rows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from bench_files import Row, row

import hurray_wire as hw

GIB = 1 << 30
PAGE = (16, 8, 128)  # of float16: 32 KiB
LAYERS = 4
ZEROS = np.zeros(GIB, dtype=np.uint8)


class Hole:
    """A buffer of so many GiB of zeros."""

    def __init__(self, gib: int) -> None:
        self.nbytes = gib * GIB
        self._gib = gib

    def chunks(self) -> Iterator[Any]:
        for _ in range(self._gib):
            yield ZEROS


class Skipping:
    """A file that leaves a hole where it is to write a gibibyte of zeros."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb")

    def write(self, data: memoryview) -> None:
        if len(data) == GIB:
            self.file.seek(GIB, os.SEEK_CUR)
        else:
            self.file.write(data)


def far(path: Path, gib: int) -> Path:
    """A snapshot of one sequence on the last pages of a pool of so many GiB."""
    num_pages = gib * GIB // (2 * int(np.prod(PAGE)))
    layout = hw.BlockPagedLayout(PAGE[0], num_pages, 0, 1, layer_index=0)
    table, pointers = np.arange(num_pages - 8, num_pages, dtype=np.uint32), np.array([0, 8], np.uint32)
    shape = (8 * PAGE[0], *PAGE[1:])
    descriptor = hw.TensorDescriptor.build(hw.float16, shape, layout, (gib * GIB, table.nbytes, pointers.nbytes))
    target = Skipping(path)
    with target.file, hw.create(target, checksums=False) as writer:
        writer.add("layers.0.key", descriptor, [Hole(gib), table, pointers])
    return path


def distance(folder: Path) -> list[Row]:
    def use(path: Path) -> None:
        with hw.load_snapshot(path) as snapshot:
            snapshot.gather(0)

    large, small = far(folder / "large.hrry", 1200), far(folder / "small.hrry", 1)
    return [row("open, check and gather 1.2 TiB / 1 GiB", lambda: use(large), lambda: use(small), pairs=11)]


def count(folder: Path) -> list[Row]:
    descriptor = hw.TensorDescriptor.build(hw.uint8, (16,), hw.RowMajorLayout(), (16,))
    times = []
    for number in (1_000, 100_000):
        path = folder / "many.hrry"
        with hw.create(path, durable=False) as writer:
            for name in range(number):
                writer.add(f"layers.{name}.key", descriptor, [bytes(16)])
        best = min(_seconds(path) for _ in range(5))
        times.append(best / number)
    detail = f"{times[1] * 1e5 * 1e3:.0f} ms for all, {times[1] * 1e6:.2f} us against {times[0] * 1e6:.2f} us"
    return [("time per tensor to open 100,000 / 1,000", times[0] / times[1], detail)]


def _seconds(path: Path) -> float:
    start = time.perf_counter()
    hw.open(path).close()
    return time.perf_counter() - start


def packing(folder: Path) -> list[Row]:
    rows = []
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for form in ("as it is", "scrubbed, compacted and compressed"):
        command = [sys.executable, __file__, "--pack", str(folder), form]
        done = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        source, added, seconds = int(done[0]), int(done[1]), float(done[2])
        detail = f"{source / GIB:.0f} GiB on a machine of {memory / GIB:.0f}, {added / 2**20:.0f} MiB, {seconds:.0f} s"
        rows.append((f"cache mapped from a file / memory to pack it, {form}", source / max(added, 1), detail))
    return rows


def pack_larger_than_memory(folder: Path, form: str) -> None:
    """Prints the bytes of the cache, those of private memory that packing added at most, and the seconds."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    page_bytes = 2 * int(np.prod(PAGE))
    num_pages = memory * 3 // 2 // (2 * LAYERS) // page_bytes
    before, most = private_bytes(), 0
    pools = []
    for name in range(2 * LAYERS):
        path = folder / f"{name}.bin"
        with path.open("wb") as file:
            file.truncate(num_pages * page_bytes)
        pools.append(np.memmap(path, dtype=np.float16, mode="r").reshape(-1, *PAGE))

    class Counting:
        def write(self, data: memoryview) -> None:
            nonlocal most
            most = max(most, private_bytes())

    table = np.arange(num_pages // 4 * 4).reshape(4, -1)
    lens = np.full(4, table.shape[1] * PAGE[0] - 3)
    options: dict[str, Any] = {"compact": False, "scrub": False} if form == "as it is" else {"zstd": True}
    start = time.perf_counter()
    hw.save_snapshot(
        Counting(), list(zip(pools[::2], pools[1::2], strict=True)), block_tables=table, seq_lens=lens, **options
    )
    print(sum(pool.nbytes for pool in pools), most - before, time.perf_counter() - start)


def private_bytes() -> int:
    """Bytes of memory that is this process's own; pages of mapped files are the system's, and taken back at need."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    raise LookupError("RssAnon")


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return [row for group in (distance, count, packing) for row in group(folder)]


def main(argv: list[str]) -> int:
    if argv[:1] == ["--pack"]:
        pack_larger_than_memory(Path(argv[1]), argv[2])
        return 0
    for name, ratio, detail in rows():
        print(f"{ratio:9.2f}  {name}  ({detail})", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

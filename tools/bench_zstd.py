"""What compression saves and costs, as ratios (spec/compressed.md).

Each function returns rows (name, ratio, detail). Sizes are those of the real cache that is given, the two layers of it
in ``fixtures/`` by default. Times are of a large batch of 32 sequences, keys and values of one layer, whose every
number is drawn at random from the same layer and role of the cache: as frequent as there, and nothing repeats. A ratio
of times is the other's over ours, the median of runs in pairs; above 1.0 is a gain. One thread is had by confining the
process to one CPU. Run alone, it prints the rows; the first argument is another safetensors file of pools
``layers.N.key/.value``, ``block_tables`` and ``seq_lens``.
"""

from __future__ import annotations

import io
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import zstandard
from numpy.typing import NDArray
from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hurray_wire as hw
from hurray_wire.store.compressed_sink import FRAME_BYTES
from hurray_wire.wire import planes

Row: TypeAlias = tuple[str, float, str]

CACHE = Path(__file__).resolve().parent.parent / "fixtures" / "smollm2_layers_0_1.safetensors"
SEQS, PAGES_EACH = 32, 256
PAIRS = 5
FORMS = (("plain frames", False), ("planes", True))


class Cache:
    """A cache as it was dumped, and the batch in it."""

    def __init__(self, path: Path = CACHE) -> None:
        arrays = load_file(path)
        self.layers = {
            int(found[1]): (arrays[name], arrays[f"layers.{found[1]}.value"])
            for name in arrays
            if (found := re.fullmatch(r"layers\.(\d+)\.key", name))
        }
        self.tables, self.lens = arrays["block_tables"], arrays["seq_lens"]

    def save(self, target: Any, **options: Any) -> None:
        hw.save_snapshot(target, self.layers, block_tables=self.tables, seq_lens=self.lens, **options)

    def full_pages(self) -> list[NDArray[Any]]:
        """The pages that hold tokens in every slot, of keys and of values of the layer in the middle: [n, *page]."""
        pair = list(self.layers.values())[len(self.layers) // 2]
        size = pair[0].shape[1]
        used = sorted({int(page) for row, n in zip(self.tables, self.lens, strict=True) for page in row[: n // size]})
        return [pool[used] for pool in pair]


class Batch:
    """32 sequences of 256 pages each, keys and values of one layer."""

    def __init__(self, cache: Cache) -> None:
        rng = np.random.default_rng(0)
        count = SEQS * PAGES_EACH
        self.pools = []
        for pages in cache.full_pages():
            drawn = rng.integers(0, pages.size, (count, *pages.shape[1:]), dtype=np.uint32)
            self.pools.append(pages.view(np.uint16).reshape(-1)[drawn].view(pages.dtype))
        self.tables = np.arange(count).reshape(SEQS, PAGES_EACH)
        self.lens = np.full(SEQS, PAGES_EACH * self.pools[0].shape[1])
        self.nbytes = 2 * self.pools[0].nbytes

    def save(self, target: Any, **options: Any) -> None:
        batch = {"block_tables": self.tables, "seq_lens": self.lens}
        hw.save_snapshot(target, [tuple(self.pools)], **batch, durable=False, **options)


@contextmanager
def one_cpu() -> Any:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def timed(action: Callable[[], Any], *, alone: bool = False) -> float:
    """Seconds of one run, on all CPUs or on one."""
    if alone:
        with one_cpu():
            return timed(action)
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def paired(first: Callable[[], float], second: Callable[[], float]) -> tuple[float, float, float]:
    """Median of the ratios second / first over paired runs, and the medians of both."""
    first(), second()
    pairs = [(first(), second()) for _ in range(PAIRS)]
    return (
        statistics.median(b / a for a, b in pairs),
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
    )


def sizes(cache: Cache) -> list[Row]:
    """The real cache, scrubbed and compacted, and the batch in which nothing repeats; at the default level."""
    rows = []
    batch = Batch(cache)
    kinds = (
        (f"real cache of {len(cache.layers)} layers", cache.save),
        ("batch without repeats", partial(batch.save, compact=False, scrub=False)),
    )
    for what, save in kinds:
        for form, split in FORMS:
            out = io.BytesIO()
            save(out, zstd=True, planes=split)
            with hw.open(out.getvalue()) as file:
                payload = file.verify().payload_bytes
            stored = len(out.getvalue())
            rows.append((f"payload / file, {what}, {form}", payload / stored, f"{payload} against {stored} bytes"))
    return rows


def bare(batch: Batch, *, threads: int) -> None:
    """The frames of the batch compressed by so many threads, each with its own, and thrown away."""

    def work(first: int) -> None:
        context = zstandard.ZstdCompressor(level=1, write_checksum=True)
        for frame in frames[first::threads]:
            context.compress(frame)

    data = [pool.view(np.uint8).reshape(-1) for pool in batch.pools]
    frames = [pool[start : start + FRAME_BYTES] for pool in data for start in range(0, len(pool), FRAME_BYTES)]
    workers = [threading.Thread(target=work, args=(first,)) for first in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def writing(batch: Batch, folder: Path) -> list[Row]:
    """All cores against one, and what there is to be gained: zstd alone, on the same frames."""
    cores = len(os.sched_getaffinity(0))
    ratio, ours, other = paired(
        partial(timed, partial(bare, batch, threads=cores)), partial(timed, partial(bare, batch, threads=1))
    )
    speed = f"{batch.nbytes / ours / 1e6:.0f} MB/s against {batch.nbytes / other / 1e6:.0f} MB/s"
    rows = [("zstd alone on all cores / on one, nothing else done", ratio, speed)]
    path = folder / "batch.zst"
    for form, split in FORMS:
        save = partial(batch.save, path, zstd=True, planes=split)

        def anew(save: Callable[[], Any] = save, **options: Any) -> float:
            path.unlink(missing_ok=True)  # giving back the pages of an old file costs a quarter of the time on its own
            return timed(save, **options)

        ratio, ours, other = paired(anew, partial(anew, alone=True))
        speed = f"{batch.nbytes / ours / 1e6:.0f} MB/s against {batch.nbytes / other / 1e6:.0f} MB/s"
        rows.append((f"write on all cores / on one, {form}", ratio, speed))
    return rows


def reading(batch: Batch, folder: Path) -> list[Row]:
    """A whole snapshot on all cores against one, and one sequence of 32 against all."""
    rows = []
    for form, split in FORMS:
        path = folder / "batch.zst"
        batch.save(path, zstd=True, planes=split)

        def read(path: Path = path, **options: Any) -> int:
            with hw.load_snapshot(path) as snapshot:
                snapshot.gather(0, **options)
                found = snapshot.file.compression
                return 0 if found is None else found.inflated

        def verify(path: Path = path) -> None:
            with hw.open(path) as file:
                file.verify()

        for what, action in (("read all", read), ("verify", verify)):
            ratio, ours, other = paired(partial(timed, action), partial(timed, action, alone=True))
            speed = f"{batch.nbytes / ours / 1e6:.0f} MB/s against {batch.nbytes / other / 1e6:.0f} MB/s"
            rows.append((f"{what} on all cores / on one, {form}", ratio, speed))
        one = partial(read, seqs=[SEQS // 2])
        ratio, ours, other = paired(partial(timed, one), partial(timed, read))
        counts = f"{one()} frames against {read()}, {ours * 1e3:.1f} ms against {other * 1e3:.1f} ms"
        rows.append((f"read one sequence of {SEQS} / all, {form}", ratio, counts))
    return rows


def plane_step() -> list[Row]:
    """Splitting and merging one mebibyte, in GB/s on one core."""
    rows = []
    data = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)
    for size in (2, 4, 8):
        for word, step in (("split", planes.split), ("merge", planes.merge)):
            seconds = statistics.median(timed(partial(step, data, size)) for _ in range(101))
            rows.append((f"GB/s to {word} planes of {size}-byte elements", data.nbytes / seconds / 1e9, "one core"))
    return rows


def resident(field: str) -> int:
    """KiB of memory that this process holds ("VmRSS") or has held at most ("VmHWM")."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise LookupError(field)


def packing_memory(path: Path, folder: Path, split: bool) -> int:
    """KiB by which packing raises the memory of this process, which is to hold nothing but the input."""
    batch = Batch(Cache(path))
    Path("/proc/self/clear_refs").write_text("5")  # the most that was held is forgotten
    before = resident("VmRSS")
    batch.save(folder / "packed", zstd=True, planes=split)
    return resident("VmHWM") - before


def memory(path: Path, folder: Path) -> list[Row]:
    """How far packing raises the memory of a process that holds its input, of the 64 MiB it may."""
    rows = []
    for form, _ in FORMS:
        command = [sys.executable, __file__, "--memory", str(path), str(folder), form]
        kib = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        rows.append((f"64 MiB / memory while packing, {form}", 65536 / kib, f"{kib / 1024:.1f} MiB"))
    return rows


def rows(path: Path = CACHE) -> Iterator[Row]:
    """All rows, one after another as they are measured."""
    cache = Cache(path)
    batch = Batch(cache)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield from sizes(cache)
        yield from plane_step()
        yield from writing(batch, folder)
        yield from reading(batch, folder)
        yield from memory(path, folder)


def main(argv: list[str]) -> int:
    if argv[:1] == ["--memory"]:
        print(packing_memory(Path(argv[1]), Path(argv[2]), dict(FORMS)[argv[3]]))
        return 0
    for what, ratio, detail in rows(Path(argv[0]) if argv else CACHE):
        print(f"{ratio:7.2f}  {what}  ({detail})", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

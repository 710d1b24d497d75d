"""How fast snapshots are written, opened and read, as ratios against what else one could do on the same machine.

Each function returns rows (name, ratio, detail); a ratio is the time of the other over our time, the median of runs in
pairs, so 2.0 means twice as fast and below 1.0 is a loss. Files go to a folder of their own under the temporary folder
(``TMPDIR`` chooses the disk). Run alone, it prints the rows.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hurray_wire as hw

HAVE_HDF5 = importlib.util.find_spec("h5py") is not None
if HAVE_HDF5:
    import h5py

Row: TypeAlias = tuple[str, float, str]

CACHE_BYTES = 1 << 30
PAGE = (16, 8, 128)
LAYERS, SEQS = 4, 32
PAIRS = 5


class Cache:
    """A bfloat16 cache of 4 layers, 1 GiB in all, whose every page belongs to one of 32 sequences."""

    def __init__(self) -> None:
        page_bytes = 2 * int(np.prod(PAGE))
        self.num_pages = CACHE_BYTES // (2 * LAYERS) // page_bytes
        rng = np.random.default_rng(0)
        noise = rng.integers(0, 2**16, (64, *PAGE), np.uint16)
        self.layers = [tuple(self._pool(noise) for _ in range(2)) for _ in range(LAYERS)]
        self.tables = rng.permutation(self.num_pages).reshape(SEQS, -1)
        self.lens = np.full(SEQS, self.tables.shape[1] * PAGE[0])

    def _pool(self, noise: NDArray[np.uint16]) -> NDArray[Any]:
        pool = np.empty((self.num_pages, *PAGE), np.uint16)
        for start in range(0, self.num_pages, len(noise)):
            pool[start : start + len(noise)] = noise[: self.num_pages - start]
        return pool.view(ml_dtypes.bfloat16)

    def pools(self) -> dict[str, NDArray[Any]]:
        roles = ("key", "value")
        return {f"layers.{i}.{r}": p for i, pair in enumerate(self.layers) for r, p in zip(roles, pair, strict=True)}

    def save(self, path: Path, **options: Any) -> None:
        hw.save_snapshot(path, self.layers, block_tables=self.tables, seq_lens=self.lens, **options)

    def save_raw(self, path: Path, *, durable: bool) -> None:
        """One write for each buffer, then what any careful writer does: sync and rename."""
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb", buffering=0) as file:
            for pool in self.pools().values():
                view, done = memoryview(pool.view(np.uint8).reshape(-1)), 0
                while done < len(view):
                    done += file.write(view[done:])
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            folder = os.open(path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)


def paired(ours: Callable[[], Any], other: Callable[[], Any], pairs: int = PAIRS) -> tuple[float, float, float]:
    """Median of the ratios other / ours over paired runs, and the two median times in seconds."""
    times: list[tuple[float, float]] = []
    for number in range(pairs + 1):
        both = [0.0, 0.0]
        for which in (0, 1) if number % 2 else (1, 0):
            start = time.perf_counter()
            (ours, other)[which]()
            both[which] = time.perf_counter() - start
        if number:  # the first pair warms up
            times.append((both[0], both[1]))
    return (
        statistics.median(other / ours for ours, other in times),
        statistics.median(ours for ours, _ in times),
        statistics.median(other for _, other in times),
    )


def row(name: str, ours: Callable[[], Any], other: Callable[[], Any], *, unit: float = 1e3, pairs: int = PAIRS) -> Row:
    ratio, mine, theirs = paired(ours, other, pairs)
    word = {1e3: "ms", 1e6: "us"}[unit]
    return name, ratio, f"{mine * unit:.1f} {word} against {theirs * unit:.1f} {word}"


def packing(folder: Path) -> list[Row]:
    """Writing 1 GiB: against the plainest possible writer, and against other formats."""
    cache = Cache()
    ours, other = folder / "ours.hrry", folder / "other"
    as_it_is = partial(cache.save, ours, compact=False, scrub=False)
    rows = [
        row("pack the pool as it is / raw write, both synced", as_it_is, partial(cache.save_raw, other, durable=True)),
        row(
            "pack the pool as it is / raw write, neither synced",
            partial(as_it_is, durable=False),
            partial(cache.save_raw, other, durable=False),
        ),
        row(
            "pack compacted and scrubbed / raw write, neither synced",
            partial(cache.save, ours, durable=False),
            partial(cache.save_raw, other, durable=False),
        ),
        row(
            "pack the pool as it is / safetensors, neither synced",
            partial(as_it_is, durable=False),
            partial(save_file, cache.pools(), other),
        ),
    ]
    bits = {name: pool.view(np.uint16) for name, pool in cache.pools().items()}
    rows.append(
        row(
            "pack the pool as it is / numpy.savez, neither synced",
            partial(as_it_is, durable=False),
            partial(np.savez, folder / "other.npz", **bits),
            pairs=2,
        )
    )
    if HAVE_HDF5:
        rows.append(
            row(
                "pack the pool as it is / HDF5, neither synced",
                partial(as_it_is, durable=False),
                partial(_save_hdf5, folder / "other.h5", bits),
            )
        )
    return rows


def opening(folder: Path) -> list[Row]:
    """Opening files of many tensors: header, trailer and index against the header of safetensors."""
    rows = []
    for count in (160, 10_000):
        ours, other = folder / "many.hrry", folder / "many.safetensors"
        descriptor = hw.TensorDescriptor.build(hw.uint8, (16,), hw.RowMajorLayout(), (16,))
        with hw.create(ours, durable=False) as writer:
            for number in range(count):
                writer.add(f"layers.{number}.key", descriptor, [bytes(16)])
        save_file({f"layers.{number}.key": np.zeros(16, np.uint8) for number in range(count)}, other)
        rows.append(
            row(
                f"open {count:,} tensors / safetensors",
                lambda ours=ours: hw.open(ours).names,
                lambda other=other: safe_open(other, "np").keys(),
                pairs=11,
            )
        )
    return rows


def reading(folder: Path) -> list[Row]:
    """From a path to the first sequence, and all of a file, from the system's cache."""
    cache = Cache()
    ours, other = folder / "ours.hrry", folder / "other.safetensors"
    cache.save(ours, durable=False, checksums=False)
    save_file(cache.pools(), other)
    table, length, width = cache.tables[3], int(cache.lens[3]), PAGE[0]

    def first_sequence() -> Any:
        with hw.load_snapshot(ours) as snapshot:
            return snapshot.gather(1, seqs=[3])

    def first_sequence_of_safetensors() -> Any:
        tokens = np.arange(length)
        with safe_open(other, "np") as file:
            return [
                file.get_tensor(f"layers.1.{role}")[table[tokens // width], tokens % width] for role in ("key", "value")
            ]

    def everything() -> Any:
        with hw.load_snapshot(ours) as snapshot:
            for layer in snapshot.layers:
                snapshot.gather(layer)

    def everything_raw() -> None:
        with ours.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            for _ in range(2 * LAYERS):
                out = np.empty(size // (2 * LAYERS), np.uint8)
                file.readinto(out)

    return [
        row(
            "open and gather one sequence / safetensors and the formula", first_sequence, first_sequence_of_safetensors
        ),
        row("gather every layer of 1 GiB / read the file into arrays", everything, everything_raw),
    ]


def small(folder: Path) -> list[Row]:
    """What a gather of one token's page costs over the copy itself; the ratio here is 100 us over that."""
    pool = np.zeros((64, *PAGE), np.float16)
    path = folder / "small.hrry"
    hw.save_snapshot(path, [(pool, pool)], block_tables=[[5]], seq_lens=[16], durable=False)
    with hw.load_snapshot(path) as snapshot:
        tensor = snapshot[0].key
        out = np.empty((1, 16, *PAGE[1:]), np.float16)
        page = pool[5].copy()
        tensor.gather(seqs=[0], out=out)
        runs = 2000
        start = time.perf_counter()
        for _ in range(runs):
            tensor.gather(seqs=[0], out=out)
        mine = (time.perf_counter() - start) / runs
        start = time.perf_counter()
        for _ in range(runs):
            np.copyto(out[0], page)
        copy = (time.perf_counter() - start) / runs
    over = (mine - copy) * 1e6
    return [
        ("100 us / gather of 1 sequence x 1 page over its copy", 100 / over, f"{over:.1f} us over {copy * 1e6:.1f} us")
    ]


STREAMED = 2 << 30
_SEND = """
import sys, numpy as np, hurray_wire as hw
each = 256 << 20
data = np.ones(each, np.uint8)
descriptor = hw.TensorDescriptor.build(hw.uint8, (each,), hw.RowMajorLayout(), (each,))
with hw.StreamWriter(open(1, "wb", buffering=0, closefd=False)) as writer:
    for _ in range(int(sys.argv[1]) // each):
        writer.add(descriptor, [data])
"""
_RECEIVE = """
import sys, time, hurray_wire as hw

def peak():  # of this process's own memory; getrusage would tell that of whoever started it
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

before = peak()
largest, taken, start = 0, 0, None
for tensor in hw.StreamReader(open(0, "rb", buffering=0)):
    if start is None:
        start = time.perf_counter()
    else:
        taken += tensor.descriptor.buffers[0].byte_size
    largest = max(largest, tensor.descriptor.buffers[0].byte_size)
    del tensor
spent = time.perf_counter() - start
grown = (peak() - before) * 1024
print(taken / spent, grown / largest)
"""


def streaming(folder: Path) -> list[Row]:
    """2 GiB through a pipe between two processes, against the same pipe with ``cat`` as the receiver."""
    speeds: list[tuple[float, float, float]] = []
    for _ in range(3):
        ours, grown = _through_pipe(["-c", _RECEIVE])
        plain = _cat_speed()
        speeds.append((ours / plain, grown, ours))
    ratio = statistics.median(speed for speed, _, _ in speeds)
    grown = max(grown for _, grown, _ in speeds)
    rate = statistics.median(rate for _, _, rate in speeds)
    return [
        ("receive 2 GiB through a pipe / cat of it", ratio, f"{rate / 1e9:.2f} GB/s"),
        ("1.1 / peak memory of the receiver in largest tensors", 1.1 / grown, f"{grown:.3f} of the largest tensor"),
    ]


def _through_pipe(receiver: list[str]) -> tuple[float, float]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    sender = subprocess.Popen([sys.executable, "-c", _SEND, str(STREAMED)], stdout=subprocess.PIPE, env=environment)
    done = subprocess.run(
        [sys.executable, *receiver], stdin=sender.stdout, capture_output=True, env=environment, check=True
    )
    sender.wait()
    speed, grown = map(float, done.stdout.split())
    return speed, grown


def _cat_speed() -> float:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    start = time.perf_counter()
    sender = subprocess.Popen([sys.executable, "-c", _SEND, "0"], stdout=subprocess.PIPE, env=environment)
    subprocess.run(["cat"], stdin=sender.stdout, stdout=subprocess.DEVNULL, check=True)
    starting = time.perf_counter() - start
    start = time.perf_counter()
    sender = subprocess.Popen([sys.executable, "-c", _SEND, str(STREAMED)], stdout=subprocess.PIPE, env=environment)
    subprocess.run(["cat"], stdin=sender.stdout, stdout=subprocess.DEVNULL, check=True)
    return STREAMED / (time.perf_counter() - start - starting)


def _save_hdf5(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)


GROUPS: dict[str, Callable[[Path], list[Row]]] = {
    "pack": packing,
    "open": opening,
    "read": reading,
    "small": small,
    "stream": streaming,
}


def rows(only: set[str] | None = None) -> list[Row]:
    """All rows, or those of some groups, in a folder that is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="hurray_wire_bench."))
    try:
        return [row for name, group in GROUPS.items() if only is None or name in only for row in group(folder)]
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    for name, ratio, detail in rows(set(sys.argv[1:]) or None):
        print(f"{ratio:8.2f}  {name}  ({detail})")

"""Packing takes memory for what is under way, and none for the cache: one larger than memory can be packed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hostile.programs import run

MIB = 1 << 20
POOL = 160 * MIB  # each of the two, mapped from a file that is all hole
ROOM = 64  # MiB of private memory that packing may add to what the process had

PROGRAM = """
import os, resource, sys
import numpy as np
import hurray_wire as hw

folder, pool_bytes, room = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
options = eval(sys.argv[4])
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # each thread has a stack, whatever the machine

class Counting:
    count = 0
    def write(self, data):
        self.count += memoryview(data).nbytes

def pack(pool, table):
    out = Counting()
    lens = np.full(len(table), table.shape[1] * 16 - 3)
    hw.save_snapshot(out, [(pool, pool[::-1])], block_tables=table, seq_lens=lens, **options)
    return out.count

def private_bytes():
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmData"))

pack(np.zeros((64, 16, 8, 64), np.float16), np.arange(64).reshape(2, -1))  # what is imported and begun only once
path = os.path.join(folder, "pool")
with open(path, "wb") as file:
    file.truncate(pool_bytes)
pool = np.memmap(path, dtype=np.float16, mode="r").reshape(-1, 16, 8, 64)
resource.setrlimit(resource.RLIMIT_DATA, (private_bytes() + (room << 20),) * 2)
try:
    np.ones(pool_bytes, np.uint8)  # the bound holds
except MemoryError:
    print(pack(pool, np.arange(len(pool)).reshape(4, -1)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds the private memory of a process")
@pytest.mark.parametrize(
    "options",
    [
        {"compact": False, "scrub": False},
        {},
        {"deduplicate": True},
        {"zstd": 1},
        {"zstd": 1, "planes": True},
        {"quantize": "int8"},
        {"page_size": 16, "layout": "split-nhd", "zstd": 1, "compact": False},
    ],
    ids=str,
)
def test_a_cache_is_packed_in_less_memory_than_it_has(options: dict[str, object], tmp_path: Path) -> None:
    written = int(run(PROGRAM, str(tmp_path), str(POOL), str(ROOM), repr(options)))
    if not options.keys() & {"deduplicate", "zstd", "quantize"}:
        assert written > 2 * POOL
    else:
        assert written > 0

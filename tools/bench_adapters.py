"""Engine layouts: a pool into a snapshot and out again, against one memcpy of the same bytes.

Each row is (name, ratio, detail), the ratio that of the memcpy's time over ours. Run alone, it prints the rows.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench_gather import Row, compare

import hurray_wire as hw
from hurray_wire import adapters
from hurray_wire.adapters import LayerSpec, PoolSpec

PAGES, PAGE, HEADS, DIM = 2048, 16, 8, 128
LAYERS = 1


class Nowhere(io.RawIOBase):
    """Takes everything and keeps nothing, so that only the making of the bytes is measured."""

    def writable(self) -> bool:
        return True

    def write(self, view: Any) -> int:
        return memoryview(view).nbytes


def rows() -> list[Row]:
    """Every layout of keys and values, 64 MiB each: saved, and restored into pages all over the pools."""
    spec = PoolSpec(HEADS, DIM, np.dtype(ml_dtypes.bfloat16))
    order = np.random.default_rng(0).permutation(PAGES)
    # memory that was never written is one page of zeros, read from the cache: everything is written once
    plain = np.ones(2 * PAGES * PAGE * HEADS * DIM * 2, np.uint8)
    copy = plain.copy()
    found: list[Row] = []
    for name in _layouts():
        adapter = adapters.get(name)
        cache = adapter.allocate(
            [LayerSpec(k, {"key": spec, "value": spec}) for k in range(LAYERS)], num_pages=PAGES, page_size=PAGE
        )
        for layer in adapter.views(cache, page_size=PAGE, num_heads=HEADS, head_dim=DIM):
            for pool in layer.pools.values():
                pool[...] = 1
        save = partial(
            hw.save_snapshot,
            layers=cache,
            layout=name,
            page_size=PAGE,
            num_heads=HEADS,
            head_dim=DIM,
            block_tables=[order],
            seq_lens=[PAGES * PAGE],
            checksums=False,
        )
        written = io.BytesIO()
        save(written)
        with hw.load_snapshot(written.getvalue()) as snapshot:
            restore = partial(snapshot.export, layout=name, out=cache, page_ids=order)
            memcpy = partial(np.copyto, copy, plain)
            found.append(compare(f"save from {name} | memcpy", partial(save, Nowhere()), memcpy, pairs=5))
            found.append(compare(f"restore into pages of {name} | memcpy", restore, memcpy, pairs=5))
    return found


def _layouts() -> Iterator[str]:
    for name in adapters.names():
        if name not in ("dense-thd", "mla"):
            yield name


if __name__ == "__main__":
    for row_name, ratio, row_detail in rows():
        print(f"{ratio:7.2f} x  {row_name:<50}  {row_detail}", flush=True)

"""Our gather against torch's ``index_select`` of whole pages, on the CPU. Run alone, it prints the row."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_gather import Batch, Row, compare

if importlib.util.find_spec("torch") is not None:
    import torch


def rows() -> list[Row]:
    """A batch of pages into a given output; torch has as many threads as we do."""
    batch = Batch()
    pool = torch.from_numpy(batch.pool.view("int16")).view(torch.bfloat16)
    pages = torch.from_numpy(batch.tables.reshape(-1))
    out = torch.empty((len(pages), *pool.shape[1:]), dtype=pool.dtype)
    return [
        compare(
            "gather into out | torch.index_select of the pages into out",
            batch.gather,
            lambda: torch.index_select(pool, 0, pages, out=out),
        )
    ]


if __name__ == "__main__":
    for name, ratio, detail in rows():
        print(f"{ratio:7.2f} x  {name}  {detail}")

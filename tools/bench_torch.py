"""Our gather against torch's ``index_select`` of whole pages, on the CPU. Run alone, it prints one row as JSON.

After an operation the threads of torch (OpenMP) go on spinning for some milliseconds, in case there is more to do, and
take a core from whoever comes next, which here is always the other one of a pair. So the two are measured twice, each
time in a process of their own: with threads that wait without spinning, and as they come.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_gather import Batch, Row, compare

if importlib.util.find_spec("torch") is not None:
    import torch


def rows() -> list[Row]:
    """A batch of pages into a given output; torch has as many threads as we do."""
    return [
        _measured("gather into out | torch.index_select of the pages into out", OMP_WAIT_POLICY="PASSIVE"),
        _measured("the same, while the threads of torch spin after each turn"),
    ]


def _measured(name: str, **environment: str) -> Row:
    done = subprocess.run(
        [sys.executable, __file__], env={**os.environ, **environment}, check=True, capture_output=True, text=True
    )
    ratio, detail = json.loads(done.stdout)
    return name, ratio, detail


def main() -> int:
    batch = Batch()
    pool = torch.from_numpy(batch.pool.view("int16")).view(torch.bfloat16)
    pages = torch.from_numpy(batch.tables.reshape(-1))
    out = torch.empty((len(pages), *pool.shape[1:]), dtype=pool.dtype)
    _, ratio, detail = compare("", batch.gather, lambda: torch.index_select(pool, 0, pages, out=out))
    print(json.dumps([ratio, detail]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

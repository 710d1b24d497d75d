"""The benchmark: one command, a table of ratios.

    python tools/bench.py [GROUP ...] [--json FILE] [--plot FILE.png]

A ratio is the time of the other over our time, the median of runs in pairs on one machine in one minute: 2.0 is
twice as fast, and a number below 1.0 is a loss, which is printed like any other. Groups: gather, overhead, jax, torch,
pack, open, read, small, stream, scale, adapters, zstd. Those whose libraries are not installed are left out and said
to be.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent))

import bench_adapters
import bench_files
import bench_gather
import bench_scale
import bench_torch
import bench_zstd


class Row(NamedTuple):
    """One comparison."""

    group: str
    name: str
    ratio: float
    detail: str


GROUPS: dict[str, Callable[[], Iterable[tuple[str, float, str]]]] = {
    "gather": bench_gather.gather_rows,
    "overhead": bench_gather.overhead_rows,
    "jax": bench_gather.jax_rows,
    "torch": bench_torch.rows,
    **{name: (lambda name=name: bench_files.rows({name})) for name in bench_files.GROUPS},
    "scale": bench_scale.rows,
    "adapters": bench_adapters.rows,
    "zstd": bench_zstd.rows,
}
NEEDS = {"jax": "jax", "torch": "torch"}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Ratios against what else one could do.")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; all by default")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the rows, and what they were measured on, here"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the ratios into this PNG (needs matplotlib)")
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.groups if name not in GROUPS]
    if unknown:
        parser.error(f"no group is called {unknown[0]!r}")
    console = Console()
    rows: list[Row] = []
    for group in arguments.groups or GROUPS:
        needed = NEEDS.get(group)
        if needed is not None and importlib.util.find_spec(needed) is None:
            console.print(f"[dim]{group}: left out, {needed} is not installed[/]")
            continue
        begin = time.perf_counter()
        found = [Row(group, *row) for row in GROUPS[group]()]
        rows += found
        console.print(as_table(group, found, time.perf_counter() - begin))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"machine": machine(), "rows": [row._asdict() for row in rows]}, indent=1))
    if arguments.plot is not None:
        plot(rows, arguments.plot)
    return 0


def as_table(group: str, rows: Iterable[Row], seconds: float) -> Table:
    table = Table("ratio", "ours against the other", "times", title=f"{group} ({seconds:.0f} s)", title_justify="left")
    for row in rows:
        style = "bold" if row.ratio >= 1 else "red"
        table.add_row(f"{row.ratio:.2f}", row.name, row.detail, style=style)
    return table


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    model = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    return {
        "processor": model,
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "load_before": os.getloadavg()[0],
    }


def plot(rows: list[Row], path: Path) -> None:
    """A bar for each row that compares times or sizes; the line at 1 is the other's."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [row for row in rows if not row.name.startswith(("GB/s", "64 MiB"))][::-1]
    figure, axes = pyplot.subplots(figsize=(10, 0.28 * len(shown) + 1))
    colours = ["#2c6e49" if row.ratio >= 1 else "#b23a48" for row in shown]
    names = [f"{row.group}: {row.name}" for row in shown]
    axes.barh(names, [row.ratio for row in shown], color=colours)
    axes.margins(y=0.01)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("the other / ours (log scale; right of the line we are faster, or smaller)")
    axes.tick_params(axis="y", labelsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110, bbox_inches="tight")


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


if __name__ == "__main__":
    sys.exit(main())

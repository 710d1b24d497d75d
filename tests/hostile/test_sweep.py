"""No integer in a file leads us to an error that is not ours, or to much memory; with assertions, and without."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .programs import output, start

RUNS = [(mode, kinds) for mode in ("", "-O") for kinds in ("descriptor file compressed", "stream")]
LEAST = {"descriptor file compressed": (25_000, 3_500), "stream": (2_500, 300)}
MIB = 1 << 20


@pytest.fixture(scope="module")
def reports() -> dict[tuple[str, str], dict[str, Any]]:
    """What each run of the sweep printed. The runs go side by side."""
    running = {run: start(*run[0].split(), "tests/hostile/sweep.py", *run[1].split()) for run in RUNS}
    return {run: json.loads(output(process)) for run, process in running.items()}


@pytest.mark.parametrize("run", RUNS, ids=lambda run: " ".join(run).strip())
def test_only_our_errors_come_out(run: tuple[str, str], reports: dict[tuple[str, str], dict[str, Any]]) -> None:
    report = reports[run]
    assert report["strangers"] == []
    assert report["optimized"] == (run[0] == "-O")
    least_tried, least_valid = LEAST[run[1]]
    assert report["tried"] >= least_tried
    assert report["valid"] >= least_valid  # a sweep in which nothing stays valid looks at nothing but the first check


@pytest.mark.parametrize("run", RUNS, ids=lambda run: " ".join(run).strip())
def test_memory_grows_by_less_than_64_mib(run: tuple[str, str], reports: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert reports[run]["grown"] < 64 * MIB


def test_assertions_make_no_difference(reports: dict[tuple[str, str], dict[str, Any]]) -> None:
    for kinds in LEAST:
        assert reports["", kinds]["valid"] == reports["-O", kinds]["valid"]

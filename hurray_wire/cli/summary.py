"""What ``hurray-pack`` says of a snapshot that it has written: a line or two for people, or JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hurray_wire as hw

from .choices import listed
from .console import counted, is_standard_output, note, print_json, readable_size, say

__all__ = ["Packed", "report"]


@dataclass(frozen=True, slots=True)
class Packed:
    """What was packed: indices of layers, tokens of each sequence, and the pages of a pool as it was before.

    ``num_pages`` is None where there were no pages. ``seconds`` is how long writing took.
    """

    layers: Sequence[int | None]
    seq_lens: Sequence[int]
    num_pages: int | None
    seconds: float


def report(name: str, output: str, packed: Packed, *, as_json: bool) -> None:
    """Say what the program ``name`` has written; on standard error where the output has the bytes."""
    apart = is_standard_output(output)
    summary = _summary(output, packed)
    if apart:
        note(name, json.dumps(summary) if as_json else _batch_words(summary))
        return
    if as_json:
        print_json(summary)
        return
    say(f"{output}: {_batch_words(summary)}")
    size = summary["bytes"]
    if size is not None:
        speed = size / 1e6 / max(summary["seconds"], 1e-9)
        there = "" if summary["pages_in_pool"] is None else f" of {summary['pages_in_pool']}"
        pages = "" if summary["pages_written"] is None else f"{summary['pages_written']}{there} pages a layer, "
        say(f"{pages}{readable_size(size)}, {speed:.0f} MB/s")


def _summary(output: str, packed: Packed) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "output": output,
        "layers": list(packed.layers),
        "sequences": len(packed.seq_lens),
        "tokens": sum(packed.seq_lens),
        "pages_in_pool": packed.num_pages,
        "pages_written": None,
        "bytes": None,
        "seconds": round(packed.seconds, 6),
    }
    if output != "-" and Path(output).is_file():
        summary["bytes"] = Path(output).stat().st_size
        with hw.load_snapshot(output) as snapshot:
            first = next(snapshot.tensors, None)
            summary["pages_written"] = None if first is None else first.layout.num_pages
    return summary


def _batch_words(summary: dict[str, Any]) -> str:
    layers = [layer for layer in summary["layers"] if layer is not None]
    words = f"{counted(len(layers), 'layer')} ({listed(layers)})" if layers else "a cache of no layer"
    return f"{words}, {counted(summary['sequences'], 'sequence')}, {counted(summary['tokens'], 'token')}"

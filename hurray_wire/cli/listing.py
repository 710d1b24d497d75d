"""What is in a file: as tables for people, or as one JSON document for programs. Payload is not read."""

from __future__ import annotations

import base64
import dataclasses
import math
from typing import Any

from rich.table import Table
from rich.text import Text

import hurray_wire as hw

from ..model.shape import DYNAMIC
from ..snapshot import Holder
from .choices import listed
from .console import counted, print_table, printable, readable_size, say

__all__ = ["as_json", "listing", "print_listing", "snapshot_facts", "tensor_facts"]

_LENGTHS_SHOWN = 16
_VALUES_SHOWN = 8
_TABLE_ROWS = 2000  # rich takes half a millisecond a row; more rows than this nobody reads, but programs may
_NAME_WIDTH = 120  # longer names are folded, never cut


def tensor_facts(tensor: hw.Tensor) -> dict[str, Any]:
    """What a descriptor tells, in the words of the format."""
    d = tensor.descriptor
    facts: dict[str, Any] = {
        "name": tensor.name,
        "dtype": d.element_type.name,
        "shape": ["dynamic" if dim == DYNAMIC else dim for dim in d.shape],
        "layout": d.layout.name,
        "bytes": sum(handle.byte_size for handle in d.buffers),
    }
    if d.quantization is not None:
        facts["quantization"] = d.quantization.name
    if isinstance(tensor, hw.PagedTensor):
        layout = tensor.layout
        facts |= {
            "layer_index": layout.layer_index,
            "kv_role": layout.kv_role,
            "page_size": layout.page_size,
            "num_pages": layout.num_pages,
            "num_seqs": layout.num_seqs,
            "block_table_index_type": layout.block_table_index_type,
        }
    return facts


def snapshot_facts(snapshot: hw.Snapshot) -> dict[str, Any] | None:
    """Layers, sequences and lengths; None for a file without block-paged tensors.

    Lengths that are not known are None, and so is all about sequences where the tensors are not of one batch; lengths
    that do not fit the tensors are an IncompatibleError.
    """
    batches = {(tensor.layout.num_seqs, tensor.shape[0]) for tensor in snapshot.tensors}
    if not batches:
        return None
    num_seqs, total_tokens = batches.pop() if len(batches) == 1 else (None, None)
    lengths = None
    if num_seqs is not None:
        try:
            lengths = snapshot.seq_lens.tolist()
        except hw.IncompatibleError as error:
            if error.rule != "snapshot.seq-lens-unknown":
                raise
    return {
        "layers": list(snapshot.layers),
        "num_seqs": num_seqs,
        "total_tokens": total_tokens,
        "seq_lens": lengths,
    }


def as_json(value: Any) -> Any:
    """A metadata value as JSON has it: bytes in base64, numbers that JSON lacks as words."""
    if isinstance(value, dict):
        return {key: as_json(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [as_json(entry) for entry in value]
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def listing(snapshot: hw.Snapshot, name: str, size: int | None) -> dict[str, Any]:
    """All that is listed, for JSON."""
    file = snapshot.file
    return {
        "file": name,
        "bytes": size,
        "compression": _compression(file),
        "snapshot": snapshot_facts(snapshot),
        "tensors": [tensor_facts(file[tensor]) for tensor in file.names],
        "metadata": as_json(file.metadata),
    }


def print_listing(snapshot: hw.Snapshot, name: str, size: int | None) -> None:
    """The same for people."""
    file = snapshot.file
    facts = snapshot_facts(snapshot)
    tensors = [tensor_facts(file[tensor]) for tensor in file.names]
    title = f"{name}: {counted(len(tensors), 'tensor')}"
    say(title if size is None else f"{title}, {readable_size(size)}")
    compression = _compression(file)
    if compression is not None:
        form = "seekable zstd" if compression["seekable"] else "zstd"
        planes = " with byte planes" if compression["planes"] else ""
        frames = counted(compression["frames"], "frame")
        say(f"{form}{planes}, {readable_size(compression['inflated_bytes'])} inflated, {frames}")
    for line in () if facts is None else _snapshot_lines(facts):
        say(line)
    if file.metadata:
        say("metadata")
    for key, value in file.metadata.items():
        say(f"  {key} = {_metadata_words(value)}")
    if len(tensors) > _TABLE_ROWS:
        for facts in tensors:
            say("  ".join(_cells(facts)))
    elif tensors:
        print_table(_table(tensors))


def _compression(file: Holder) -> dict[str, Any] | None:
    """How the file is compressed. How many frames were inflated tells about this listing only, so it is left out."""
    if not isinstance(file, hw.File) or file.compression is None:
        return None
    facts = dataclasses.asdict(file.compression)
    del facts["inflated"]
    return facts


def _snapshot_lines(facts: dict[str, Any]) -> list[str]:
    layers = [layer for layer in facts["layers"] if layer is not None]
    without = " and tensors of no layer" if None in facts["layers"] else ""
    lengths = facts["seq_lens"]
    if facts["num_seqs"] is None:
        words = "the tensors are not of one batch"
    elif lengths is None:
        words = "lengths are not recorded (--seq-lens gives them)"
    else:
        shown = ", ".join(map(str, lengths[:_LENGTHS_SHOWN]))
        more = f" and {len(lengths) - _LENGTHS_SHOWN} more" if len(lengths) > _LENGTHS_SHOWN else ""
        words = f"lengths {shown}{more}" if lengths else "an empty batch"
    whose = f"{counted(len(layers), 'layer')} ({listed(layers)}){without}" if layers else "tensors of no layer"
    if facts["num_seqs"] is None:
        return [f"snapshot of {whose}", words]
    size = f"{counted(facts['num_seqs'], 'sequence')}, {counted(facts['total_tokens'], 'token')}"
    return [f"snapshot of {whose}, {size}", words]


def _table(tensors: list[dict[str, Any]]) -> Table:
    table = Table()
    table.add_column("name", overflow="fold", max_width=_NAME_WIDTH)
    for heading in ("type", "shape", "layout", "pages x size"):
        table.add_column(heading, overflow="fold")
    table.add_column("bytes", justify="right", no_wrap=True)
    for facts in tensors:
        table.add_row(*(Text(cell) for cell in _cells(facts)))
    return table


def _cells(facts: dict[str, Any]) -> list[str]:
    """One tensor: name, type, shape, layout, pages, bytes."""
    kind = facts["dtype"] + (f", {facts['quantization']}" if "quantization" in facts else "")
    shape = "x".join(map(str, facts["shape"])) or "scalar"
    layout, pages = facts["layout"], ""
    if "kv_role" in facts:
        layer = "" if facts["layer_index"] is None else f" {facts['layer_index']}"
        layout += f", {facts['kv_role']}{layer}"
        pages = f"{facts['num_pages']} x {facts['page_size']}"
    return [printable(facts["name"]), kind, shape, layout, pages, readable_size(facts["bytes"])]


def _metadata_words(value: Any) -> str:
    if isinstance(value, list) and len(value) > _VALUES_SHOWN:
        return f"{len(value)} values"
    if isinstance(value, bytes) and len(value) > _VALUES_SHOWN:
        return f"{len(value)} bytes"
    return value if isinstance(value, str) else repr(value)

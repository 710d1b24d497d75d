"""What is in a file: as tables for people, or as one JSON document for programs. Payload is not read."""

from __future__ import annotations

import base64
import math
from typing import Any

from rich.table import Table
from rich.text import Text

import hurray_wire as hw

from ..model.shape import DYNAMIC
from .choices import listed
from .console import plain_console, printable, readable_size

__all__ = ["as_json", "listing", "print_listing", "snapshot_facts", "tensor_facts"]

_LENGTHS_SHOWN = 16
_VALUES_SHOWN = 8


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
    """Layers, sequences and lengths; None for a file without block-paged tensors. Lengths may be unknown, then None."""
    tensors = list(snapshot.tensors)
    if not tensors:
        return None
    try:
        lengths = snapshot.seq_lens.tolist()
    except hw.IncompatibleError:
        lengths = None
    return {
        "layers": list(snapshot.layers),
        "num_seqs": tensors[0].layout.num_seqs,
        "total_tokens": tensors[0].shape[0],
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
        "snapshot": snapshot_facts(snapshot),
        "tensors": [tensor_facts(file[tensor]) for tensor in file.names],
        "metadata": as_json(file.metadata),
    }


def print_listing(snapshot: hw.Snapshot, name: str, size: int | None) -> None:
    """The same for people."""
    file = snapshot.file
    console = plain_console()
    facts = snapshot_facts(snapshot)
    tensors = [tensor_facts(file[tensor]) for tensor in file.names]
    title = f"{name}: {len(tensors)} tensors"
    console.print(Text(printable(title if size is None else f"{title}, {readable_size(size)}")))
    if facts is not None:
        for line in _snapshot_lines(facts):
            console.print(Text(printable(line)))
    if file.metadata:
        console.print(Text("metadata"))
    for key, value in file.metadata.items():
        console.print(Text(f"  {printable(key)} = {printable(_metadata_words(value))}"))
    if tensors:
        console.print(_table(tensors))


def _snapshot_lines(facts: dict[str, Any]) -> list[str]:
    layers = [layer for layer in facts["layers"] if layer is not None]
    without = " and tensors of no layer" if None in facts["layers"] else ""
    lengths = facts["seq_lens"]
    if lengths is None:
        words = "lengths are not recorded (--seq-lens gives them)"
    else:
        shown = ", ".join(map(str, lengths[:_LENGTHS_SHOWN]))
        more = f" and {len(lengths) - _LENGTHS_SHOWN} more" if len(lengths) > _LENGTHS_SHOWN else ""
        words = f"lengths {shown}{more}" if lengths else "an empty batch"
    size = f"{facts['num_seqs']} sequences, {facts['total_tokens']} tokens"
    return [f"snapshot of {len(layers)} layers ({listed(layers)}){without}, {size}", words]


def _table(tensors: list[dict[str, Any]]) -> Table:
    table = Table()
    table.add_column("name", overflow="fold")
    for heading in ("type", "shape", "layout", "pages"):
        table.add_column(heading, overflow="fold")
    table.add_column("bytes", justify="right", no_wrap=True)
    for facts in tensors:
        kind = facts["dtype"] + (f", {facts['quantization']}" if "quantization" in facts else "")
        shape = "x".join(map(str, facts["shape"])) or "scalar"
        layout, pages = facts["layout"], ""
        if "kv_role" in facts:
            layer = "" if facts["layer_index"] is None else f" {facts['layer_index']}"
            layout += f", {facts['kv_role']}{layer}"
            pages = f"{facts['num_pages']} of {facts['page_size']}"
        cells = (printable(facts["name"]), kind, shape, layout, pages, readable_size(facts["bytes"]))
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _metadata_words(value: Any) -> str:
    if isinstance(value, list) and len(value) > _VALUES_SHOWN:
        return f"{len(value)} values"
    if isinstance(value, bytes) and len(value) > _VALUES_SHOWN:
        return f"{len(value)} bytes"
    return value if isinstance(value, str) else repr(value)

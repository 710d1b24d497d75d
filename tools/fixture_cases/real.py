"""A slice of a real KV cache, and the snapshot of it.

The slice is a safetensors file of two layers; the snapshot holds what ``save_snapshot`` makes of it by default: only
pages that some sequence uses, in the order of their first use, slots past every length zero.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from . import contents as c
from . import pieces as p
from .cases import Case
from .emit import I64, STRING, Content, File

LAYERS = (0, 1)
SLICE = "smollm2_layers_0_1.safetensors"


def read_safetensors(data: bytes) -> dict[str, tuple[dict[str, Any], bytes]]:
    """Name to (header entry, bytes) of every tensor."""
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    base = 8 + length
    return {
        name: (entry, data[base + entry["data_offsets"][0] : base + entry["data_offsets"][1]])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def cut_slice(source: bytes) -> bytes:
    """The safetensors file that holds two layers of ``source``, and its tables."""
    tensors = read_safetensors(source)
    names = [f"layers.{layer}.{role}" for layer in LAYERS for role in ("key", "value")]
    names += ["block_tables", "seq_lens", "token_ids"]
    header: dict[str, Any] = {}
    payload = b""
    for name in names:
        entry, raw = tensors[name]
        span = [len(payload), len(payload) + len(raw)]
        header[name] = {"dtype": entry["dtype"], "shape": entry["shape"], "data_offsets": span}
        payload += raw
    words = json.dumps(header, separators=(",", ":")).encode()
    words += b" " * (-len(words) % 8)
    return struct.pack("<Q", len(words)) + words + payload


def cases(fixtures: Path) -> list[Case]:
    """The snapshot of the slice that lies in ``fixtures``."""
    tensors = read_safetensors((fixtures / SLICE).read_bytes())
    lengths = [n for (n,) in struct.iter_unpack("<i", tensors["seq_lens"][1])]
    num_pages, page_size, heads, dim = tensors["layers.0.key"][0]["shape"]
    width = tensors["block_tables"][0]["shape"][1]
    flat = [n for (n,) in struct.iter_unpack("<i", tensors["block_tables"][1])]
    tables = [flat[s * width :][: -(-length // page_size)] for s, length in enumerate(lengths)]
    order = list(dict.fromkeys(page for table in tables for page in table))
    if not all(0 <= page < num_pages for page in order):
        raise ValueError("the tables of the slice name pages that it has not")
    used = dict.fromkeys(order, 0)
    for table, length in zip(tables, lengths, strict=True):
        for k, page in enumerate(table):
            used[page] = max(used[page], min(length - k * page_size, page_size))

    def pool(raw: bytes) -> bytes:
        slot = heads * dim * 2
        pages = []
        for page in order:
            kept = raw[page * page_size * slot :][: used[page] * slot]
            pages.append(kept + bytes(page_size * slot - len(kept)))
        return b"".join(pages)

    def tensor(layer: int, number: int, role: str) -> Content:
        return c.paged(
            f"layers.{layer}.{role}", p.BF16, heads, dim, page_size=page_size, num_pages=len(order),
            tables=[[order.index(page) for page in table] for table in tables], tokens=sum(lengths),
            role=number, layer=layer, pool=pool(tensors[f"layers.{layer}.{role}"][1]),
        )  # fmt: skip

    contents = [tensor(layer, number, role) for layer in LAYERS for number, role in enumerate(("key", "value"))]
    metadata = (
        ("hurray_wire.snapshot", I64, 1),
        ("producer", STRING, "the fixtures of hurray_wire"),
        ("model.id", STRING, "HuggingFaceTB/SmolLM2-135M-Instruct"),
        ("source.layout", STRING, "split-nhd"),
    )
    file = File((c.seq_lens(*lengths), *contents), metadata=metadata, checksums=True)
    return [Case("smollm2-layers-0-1", "two layers of a real cache: three prompts with one system prompt", file)]

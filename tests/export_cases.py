"""A small batch with a distinct bit pattern for every element, and what its sequences hold, in plain Python."""

from __future__ import annotations

import io
from typing import Any

import ml_dtypes
import numpy as np

import hurray_wire as hw
from hurray_wire import adapters
from hurray_wire.adapters import LayerSpec, PoolSpec

PAGES, PAGE, HEADS, DIM, LAYERS = 7, 4, 2, 6, 2
TABLES = [[5, 2, -1], [5, 6, 1], [-7, 99, 2**31 - 1], [3, -1, -1]]
LENS = [6, 12, 0, 3]
ROLES = ("key", "value")
LAYOUTS = tuple(name for name in adapters.names() if name != "mla")
FORMS = tuple((name, form.name) for name in LAYOUTS for form in adapters.get(name).forms)


def numbered(*shape: int, start: int = 0, dtype: Any = ml_dtypes.bfloat16) -> np.ndarray:
    """Bit patterns ``start``, ``start + 193``, ..., among them NaNs of bfloat16."""
    bits = np.dtype(f"u{np.dtype(dtype).itemsize}")
    return (np.arange(np.prod(shape, dtype=int)) * 193 + start).astype(bits).reshape(shape).view(dtype)


def pool(layer: int, role: str, dtype: Any = ml_dtypes.bfloat16) -> np.ndarray:
    """[PAGES, PAGE, HEADS, DIM]; with two-byte types no pattern occurs twice in the whole cache."""
    return numbered(PAGES, PAGE, HEADS, DIM, start=1 + layer * 48 + ROLES.index(role) * 96, dtype=dtype)


def pairs(dtype: Any = ml_dtypes.bfloat16) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(pool(layer, "key", dtype), pool(layer, "value", dtype)) for layer in range(LAYERS)]


def tokens(pages: np.ndarray, seq: int, *, tables: Any = TABLES, lens: Any = LENS) -> list[bytes]:
    """The bytes of each token of a sequence."""
    size = pages.shape[1]
    return [pages[int(tables[seq][token // size]), token % size].tobytes() for token in range(lens[seq])]


def saved(layers: Any = None, **options: Any) -> bytes:
    out = io.BytesIO()
    hw.save_snapshot(
        out, pairs() if layers is None else layers, **({"block_tables": TABLES, "seq_lens": LENS} | options)
    )
    return out.getvalue()


def cache_in(layout: str, form: str, *, strided: bool = False) -> Any:
    """The batch as an engine of this layout holds it; ``strided`` puts a gap behind every element of the last axis."""
    adapter = adapters.get(layout)
    specs = [
        LayerSpec(layer, dict.fromkeys(ROLES, PoolSpec(HEADS, DIM, np.dtype(ml_dtypes.bfloat16))))
        for layer in range(LAYERS)
    ]
    arrays = adapter.allocate(specs, num_pages=PAGES, page_size=PAGE, form=form)
    if strided:
        arrays = _spread(arrays)
    for layer in adapter.views(arrays, page_size=PAGE, num_heads=HEADS, head_dim=DIM, form=form, writable=True):
        for role, view in layer.pools.items():
            view[...] = pool(layer.index or 0, role)
    return arrays


def _spread(arrays: Any) -> Any:
    if isinstance(arrays, list | tuple):
        return type(arrays)(_spread(array) for array in arrays)
    return np.zeros((*arrays.shape, 2), arrays.dtype)[..., 1]


def resaved(exported: hw.Exported, **options: Any) -> bytes:
    """An export, saved again as what it says it is."""
    out = io.BytesIO()
    hw.save_snapshot(out, exported.arrays, **{**exported.batch, **options})
    return out.getvalue()


def held(snapshot: hw.Snapshot, layer: int, role: str) -> list[list[bytes]]:
    """The bytes of each token of each sequence of a snapshot."""
    gathered = getattr(snapshot[layer], role).gather()
    return [
        [row[token].tobytes() for token in range(count)]
        for row, count in zip(gathered.values, gathered.mask.sum(1), strict=True)
    ]

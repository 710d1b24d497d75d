"""Engine layouts, one small module each: a cache as its engine holds it, as views ready for a snapshot, and back.

    intake.py     any array object -> a NumPy array over the same memory (integers.py: ids and lengths)
    base.py       the words in which a layout is stated
    axes.py       a string of axes -> views, and fresh arrays
    pool.py       the adapter that is nothing but its axes; the module of each layout of pages makes one
    dense_thd.py  a cache without pages: cut into pages, and joined again
    registry.py   the layouts by name; which of them a cache could be
    tables.py     block tables in every form -> page ids, seq_ptr, lengths
    copying.py    chosen pages of one pool to chosen places of another
    rows.py       chosen pages of a pool of any strides to where they are wanted in a row
    repaging.py   the same tokens in pages of another size
    heads.py      pools of n tensor-parallel ranks into those of m

Nothing here knows bytes or files.
"""

from __future__ import annotations

from .base import Form, LayerPools, LayerSpec, PoolSpec
from .copying import PageReader, PageSource, copy_pages, plan_copy
from .dense_thd import CutPages, DenseAdapter, DenseLayer, dense
from .heads import HeadMove, copy_heads, count_heads, head_moves, head_range, head_ranges, split_heads
from .intake import as_array
from .pool import PoolAdapter
from .registry import detect_layout, get, names, resolve, resolve_name
from .repaging import Repaging, plan_bytes, repage
from .tables import Tables, normalise

__all__ = [
    "CutPages",
    "DenseAdapter",
    "DenseLayer",
    "Form",
    "HeadMove",
    "LayerPools",
    "LayerSpec",
    "PageReader",
    "PageSource",
    "PoolAdapter",
    "PoolSpec",
    "Repaging",
    "Tables",
    "as_array",
    "copy_heads",
    "copy_pages",
    "count_heads",
    "dense",
    "detect_layout",
    "get",
    "head_moves",
    "head_range",
    "head_ranges",
    "names",
    "normalise",
    "plan_bytes",
    "plan_copy",
    "repage",
    "resolve",
    "resolve_name",
    "split_heads",
]

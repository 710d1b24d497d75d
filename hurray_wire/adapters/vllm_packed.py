"""``vllm-packed``: one array a layer, ``[num_pages, num_heads, page_size, key_dim + value_dim]``, the key first in
each row.

vLLM from about 0.26. In memory the tokens of a page usually come before its heads (form "nhd"), and neither half of a
row is contiguous; the order of axes is the same in both forms. Keys and values may differ in width: declare
``head_dim`` and ``value_head_dim`` then, since without them a row is halved.
"""

from __future__ import annotations

from .base import Form
from .pool import PoolAdapter

__all__ = ["ADAPTER"]

ADAPTER = PoolAdapter("vllm-packed", (Form("nhd", "PHSC", memory="PSHC"), Form("hnd", "PHSC")))

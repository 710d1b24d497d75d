"""``vllm-kv-first``: one array a layer, ``[2, num_pages, page_size, num_heads, head_dim]``, keys before values.

vLLM up to about 0.22. Its HND variant has the same order of axes over other strides, so views of both are made alike;
the form matters only to a fresh array.
"""

from __future__ import annotations

from .base import Form
from .pool import PoolAdapter

__all__ = ["ADAPTER"]

ADAPTER = PoolAdapter("vllm-kv-first", (Form("nhd", "RPSHD"), Form("hnd", "RPSHD", memory="RPHSD")))

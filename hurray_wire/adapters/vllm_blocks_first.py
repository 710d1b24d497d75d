"""``vllm-blocks-first``: one array a layer, ``[num_pages, 2, page_size, num_heads, head_dim]`` or, as form "hnd",
``[num_pages, 2, num_heads, page_size, head_dim]``; keys before values within a page.

vLLM about 0.23 to 0.25, and FlashInfer with one array of five axes. The two forms look alike, so a caller declares
page_size and num_heads, or names the form.
"""

from __future__ import annotations

from .base import Form
from .pool import PoolAdapter

__all__ = ["ADAPTER"]

ADAPTER = PoolAdapter("vllm-blocks-first", (Form("nhd", "PRSHD"), Form("hnd", "PRHSD")))

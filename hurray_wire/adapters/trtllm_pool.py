"""``trtllm-pool``: one array for all layers, ``[num_pages, num_layers, 2, num_heads, page_size, head_dim]``.

TensorRT-LLM's primary pool; keys before values within a block.
"""

from __future__ import annotations

from .base import Form
from .pool import PoolAdapter

__all__ = ["ADAPTER"]

ADAPTER = PoolAdapter("trtllm-pool", (Form("hnd", "PLRHSD"),))

"""``split-hnd``: keys and values each ``[num_pages, num_heads, page_size, head_dim]``, a pair a layer.

FlashInfer in HND. The tokens of one head lie together in a page.
"""

from __future__ import annotations

from .base import Form
from .pool import PoolAdapter

__all__ = ["ADAPTER"]

ADAPTER = PoolAdapter("split-hnd", (Form("hnd", "PHSD"),), roles=("key", "value", "fused"))

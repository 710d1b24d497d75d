"""``split-nhd``: keys and values each ``[num_pages, page_size, num_heads, head_dim]``, a pair a layer.

The order of FlashAttention, of a FlashInfer pair in NHD, and of the format itself: views are the arrays as they came.
"""

from __future__ import annotations

from .base import Form
from .pool import PoolAdapter

__all__ = ["ADAPTER"]

ADAPTER = PoolAdapter("split-nhd", (Form("nhd", "PSHD"),), roles=("key", "value", "fused"))

"""``jax-paged``: keys and values each ``[num_heads, num_pages, page_size, head_dim]``, heads first, a pair a layer.

The paged attention kernel of JAX (Pallas).
"""

from __future__ import annotations

from .base import Form
from .pool import PoolAdapter

__all__ = ["ADAPTER"]

ADAPTER = PoolAdapter("jax-paged", (Form("heads-first", "HPSD"),))

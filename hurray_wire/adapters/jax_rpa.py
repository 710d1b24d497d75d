"""``jax-rpa``: one array a layer, ``[num_pages, page_size, 2 * num_heads, head_dim]``.

Keys are in the even heads, values in the odd ones. The ragged paged attention kernel of JAX, as tpu-inference holds
its cache. Its tables may come flattened (see ``tables.from_flat``).
"""

from __future__ import annotations

from .base import Form
from .pool import PoolAdapter

__all__ = ["ADAPTER"]

ADAPTER = PoolAdapter("jax-rpa", (Form("interleaved", "PSID"),))

"""``sglang-slots``: keys and values each ``[token_slots, num_heads, head_dim]``, a pair a layer.

SGLang. Slot s is token s % page_size of page s // page_size, so the page size must be declared. Its pools have one
page more than they serve, page 0, which takes what padding tokens write; it is a page like any other here. Tables
name token slots (see ``tables.from_token_slots``). SGLang holds float8 as uint8: say so with ``dtype=``.
"""

from __future__ import annotations

from .base import Form
from .pool import PoolAdapter

__all__ = ["ADAPTER"]

ADAPTER = PoolAdapter("sglang-slots", (Form("slots", "THD"),))

"""``vllm-cross-layer``: one array for all layers, ``[num_pages, num_layers, 2, page_size, num_heads, head_dim]``.

vLLM with the blocks of all layers side by side, so that a block moves as one piece. Form "packed" is its relative
with key and value in one row, ``[num_pages, num_layers, num_heads, page_size, key_dim + value_dim]`` (see
``vllm_packed.py``).
"""

from __future__ import annotations

from .base import Form
from .pool import PoolAdapter

__all__ = ["ADAPTER"]

ADAPTER = PoolAdapter("vllm-cross-layer", (Form("pair", "PLRSHD"), Form("packed", "PLHSC", memory="PLSHC")))

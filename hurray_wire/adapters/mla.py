"""``mla``: multi-head latent attention, one array a layer with a row for each token, stored as fused with 1 head.

``[num_pages, page_size, width]`` (form "blocks": vLLM), ``[num_pages, 1, page_size, width]`` (form "hnd": FlashInfer)
or ``[token_slots, 1, width]`` (form "slots": SGLang, where the page size must be declared). The width, declared as
``head_dim``, is 576 for DeepSeek: 512 of latent, 64 of rotary key. Rows of bytes that mix types are no elements and
are refused.
"""

from __future__ import annotations

from .base import Form
from .pool import PoolAdapter

__all__ = ["ADAPTER"]

_RECORDS = {
    656: "fp8_ds_mla records (512 float8, 4 float32 scales, 64 bfloat16)",
    132: "indexer records (128 float8, a float32 scale)",
}

ADAPTER = PoolAdapter(
    "mla", (Form("blocks", "PSD"), Form("hnd", "P1SD"), Form("slots", "T1D")), roles=("fused",), records=_RECORDS
)

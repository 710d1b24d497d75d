"""The layouts by name, and which of them a cache could be.

A caller names the layout of a cache. A shape often fits several: at as many heads as tokens a page, two layouts can
have the same shape and strides. So ``detect_layout`` gives every candidate, and ``resolve`` refuses to choose between
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from numpy.typing import DTypeLike

from ..errors import BufferSizeError, IncompatibleError, UnsupportedError
from . import (
    jax_paged,
    jax_rpa,
    mla,
    sglang_slots,
    split_hnd,
    split_nhd,
    trtllm_pool,
    vllm_blocks_first,
    vllm_cross_layer,
    vllm_kv_first,
    vllm_packed,
)
from .base import Layers
from .dense_thd import dense
from .intake import as_array
from .pool import PoolAdapter

__all__ = ["detect_layout", "get", "names", "resolve", "resolve_name"]

_ADAPTERS: dict[str, PoolAdapter] = {
    module.ADAPTER.name: module.ADAPTER
    for module in (
        split_nhd,
        split_hnd,
        vllm_kv_first,
        vllm_blocks_first,
        vllm_packed,
        vllm_cross_layer,
        sglang_slots,
        mla,
        trtllm_pool,
        jax_paged,
        jax_rpa,
    )
}


def names() -> tuple[str, ...]:
    """The names of all layouts of pages; a cache without pages is "dense-thd" (``dense_thd.py``)."""
    return tuple(_ADAPTERS)


def get(name: str) -> PoolAdapter:
    """The adapter of this layout of pages, or IncompatibleError with the names there are."""
    if name == dense.name:
        raise IncompatibleError(
            f"{name} has no pages of its own: cut them first (see dense_thd.py)", rule="adapter.name", found=name
        )
    try:
        return _ADAPTERS[name]
    except KeyError:
        raise IncompatibleError(
            f"there is no layout {name!r}; there are {', '.join(names())} and {dense.name}",
            rule="adapter.name",
            found=name,
        ) from None


def detect_layout(
    layers: Layers,
    *,
    page_size: int | None = None,
    num_pages: int | None = None,
    num_heads: int | None = None,
    head_dim: int | None = None,
    value_head_dim: int | None = None,
    dtype: DTypeLike | None = None,
) -> tuple[str, ...]:
    """The name of every layout that a cache of these arrays could have, given what is known of its sizes.

    A name stands for a possibility only: data cannot tell tokens from heads. Sizes that are given rule layouts out. A
    layout is also a candidate if it would need more to be said (a page size, lengths, or which of its forms). A cache
    whose ``page_size`` or ``num_pages`` is given has pages, so it is not dense.
    """
    dense_too = page_size is num_pages is None
    candidates, _ = _candidates(
        layers, dtype, page_size, num_pages, num_heads, head_dim, value_head_dim, dense_too=dense_too
    )
    return candidates


def resolve(
    name: str,
    layers: Layers,
    *,
    page_size: int | None = None,
    num_pages: int | None = None,
    num_heads: int | None = None,
    head_dim: int | None = None,
    value_head_dim: int | None = None,
    dtype: DTypeLike | None = None,
) -> PoolAdapter:
    """The adapter of this name; for "auto", that of the one layout that these arrays can have.

    Raises IncompatibleError that lists the candidates if there are several, or says that there is none;
    UnsupportedError if the only ones are records that the format cannot hold.
    """
    if name == "auto":
        name = resolve_name(
            layers,
            page_size=page_size,
            num_pages=num_pages,
            num_heads=num_heads,
            head_dim=head_dim,
            value_head_dim=value_head_dim,
            dtype=dtype,
            dense_too=page_size is num_pages is None,
        )
    return get(name)


def resolve_name(
    layers: Layers,
    *,
    page_size: int | None = None,
    num_pages: int | None = None,
    num_heads: int | None = None,
    head_dim: int | None = None,
    value_head_dim: int | None = None,
    dtype: DTypeLike | None = None,
    dense_too: bool = True,
) -> str:
    """The name of the one layout that these arrays can have; that without pages only if ``dense_too``.

    Errors as for ``resolve`` of "auto".
    """
    candidates, opaque = _candidates(
        layers, dtype, page_size, num_pages, num_heads, head_dim, value_head_dim, dense_too=dense_too
    )
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise IncompatibleError(
            f"these arrays could be {', '.join(candidates)}; name the layout",
            rule="adapter.ambiguous",
            found=candidates,
        )
    if opaque is not None:
        raise opaque
    raise IncompatibleError(
        f"these arrays fit none of the layouts {', '.join(names())}", rule="adapter.no-layout", found=()
    )


def _candidates(
    layers: Layers,
    dtype: DTypeLike | None,
    page_size: int | None,
    num_pages: int | None,
    num_heads: int | None,
    head_dim: int | None,
    value_head_dim: int | None,
    *,
    dense_too: bool,
) -> tuple[tuple[str, ...], UnsupportedError | None]:
    """Every name, and a reason why the format cannot hold a layout that would have fitted.

    A layout fits if its gate lets the arrays in, or would if more were said.
    """
    borrowed = _borrow(layers, dtype)
    gates: dict[str, Callable[..., object]] = {
        name: partial(adapter.views, page_size=page_size, num_pages=num_pages) for name, adapter in _ADAPTERS.items()
    }
    if dense_too:
        gates[dense.name] = dense.views
    found = []
    opaque = None
    for name, views in gates.items():
        try:
            views(borrowed, num_heads=num_heads, head_dim=head_dim, value_head_dim=value_head_dim)
        except BufferSizeError:
            continue
        except UnsupportedError as error:
            opaque = error
            continue
        except IncompatibleError as error:
            if error.rule not in ("adapter.ambiguous", "adapter.undeclared"):
                raise
        found.append(name)
    return tuple(found), opaque


def _borrow(layers: Any, dtype: DTypeLike | None) -> Any:
    """The same nesting with NumPy arrays in it, so that each object is asked for its memory once."""
    if isinstance(layers, Mapping):
        return {key: _borrow(entry, dtype) for key, entry in layers.items()}
    if isinstance(layers, list | tuple):
        return [_borrow(entry, dtype) for entry in layers]
    return None if layers is None else as_array(layers, what="the cache", dtype=dtype)

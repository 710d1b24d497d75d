"""What of a dump is packed: views of its pools with the tables of the wanted sequences, or a cache without pages.

Nothing is copied but tables. Which arrays these are, ``naming.py`` tells; how they are written is the library's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hurray_wire as hw

from .. import adapters
from ..adapters import Tables
from ..snapshot import tensor_name
from .choices import Ranges, chosen
from .console import CliError
from .dump import Dump
from .formats import ELEMENT_TYPES
from .naming import CacheArrays, find_cache, find_tables, has_cache, has_tables, only_layers

__all__ = ["AUTO", "DENSE", "Batch", "read_batch"]

AUTO = "auto"
DENSE = adapters.dense.name

_SEQ_LENS = "seq_lens"
_DENSE_NAMES = adapters.PoolAdapter(DENSE, adapters.dense.forms)  # called like any that keep keys and values apart


@dataclass(frozen=True, slots=True)
class Batch:
    """The arrays of the wanted layers and sequences, as ``save_snapshot`` takes them.

    ``layers`` are by index and role, ``arguments`` what else belongs to them, ``seq_lens`` the tokens of each sequence,
    ``num_pages`` the pages in a pool (None where there are none yet), ``used`` the names of all arrays of the cache,
    ``layout`` what the dump has.
    """

    layers: dict[int | None, dict[str, Any]]
    arguments: dict[str, Any]
    seq_lens: NDArray[np.int64]
    num_pages: int | None
    used: set[str]
    layout: str


def read_batch(arrays: Dump, layers: Ranges | None, seqs: Ranges | None, options: Mapping[str, Any]) -> Batch:
    """The batch in a dump, of the wanted layers and sequences; ``options`` are those of the command."""
    declared = {
        "num_heads": options["num_heads"],
        "head_dim": options["head_dim"],
        "value_head_dim": options["value_head_dim"],
        "dtype": None if options["dtype"] is None else ELEMENT_TYPES[options["dtype"]],
    }
    page_size = options["page_size"] or _told_page_size(arrays)
    if options["layout"] == AUTO:
        layout, found = _detected(arrays, layers, page_size, declared)
    else:
        layout = options["layout"]
        found = find_cache(arrays, _DENSE_NAMES if layout == DENSE else adapters.get(layout), layers)
    if layout == DENSE:
        batch = _read_dense(arrays, found, seqs, options, declared)
    else:
        batch = _read_paged(arrays, found, adapters.get(layout), layers, seqs, options["form"], page_size, declared)
    _check_roles(arrays, batch.layers)
    return batch


def _detected(
    arrays: Dump, layers: Ranges | None, page_size: int | None, declared: dict[str, Any]
) -> tuple[str, CacheArrays]:
    """The one layout whose names and shapes the arrays have, and the arrays of the cache."""
    named = [*map(adapters.get, adapters.names()), *([] if has_tables(arrays) or page_size else [_DENSE_NAMES])]
    caches: dict[tuple[bool, ...], CacheArrays] = {}
    candidates = {}
    for adapter in named:
        if not has_cache(arrays, adapter):
            continue
        kind = (adapter.one_array, adapter.joined, adapter.roles == ("fused",))  # the same arrays, in the same nesting
        if kind not in caches:
            caches[kind] = find_cache(arrays, adapter, layers)
        if adapter.name in adapters.detect_layout(caches[kind].layers, page_size=page_size, **declared):
            candidates[adapter.name] = caches[kind]
    if len(candidates) == 1:
        return candidates.popitem()
    if candidates:
        raise CliError(f"{arrays.path}: the arrays could be {', '.join(candidates)}; name one with --layout")
    for found in caches.values():
        with suppress(hw.IncompatibleError):
            adapters.resolve_name(found.layers, page_size=page_size, **declared)  # has a word for opaque records
    raise CliError(f"{arrays.path}: the arrays have the names and shapes of no layout; --help tells their names")


def _read_paged(
    arrays: Dump,
    found: CacheArrays,
    adapter: adapters.PoolAdapter,
    layers: Ranges | None,
    seqs: Ranges | None,
    form: str | None,
    page_size: int | None,
    declared: dict[str, Any],
) -> Batch:
    try:
        pools = adapter.views(found.layers, page_size=page_size, form=form, **declared)
    except hw.IncompatibleError as error:
        if error.rule != "adapter.ambiguous":
            raise
        forms = " or ".join(f"--form {form}" for form in error.found)
        raise CliError(
            f"{arrays.path}: the arrays fit several forms of {adapter.name}; "
            f"say {forms}, or --page-size and --num-heads"
        ) from error
    pools = only_layers(pools, layers)
    num_pages, slots = next(iter(pools[0].pools.values())).shape[:2]
    given = find_tables(arrays)
    tables = adapters.normalise(page_size=slots, num_pages=num_pages, **given)
    if seqs is not None:
        tables = _select(tables, chosen(seqs, range(tables.num_seqs), "sequence"))
    return Batch(
        {pool.index: dict(pool.pools) for pool in pools},
        {
            "block_table": tables.block_table,
            "seq_ptr": tables.seq_ptr,
            "seq_lens": tables.seq_lens,
            "scales": found.scales or None,
        },
        tables.seq_lens,
        num_pages,
        found.used | set(given),
        adapter.name,
    )


def _read_dense(
    arrays: Dump, found: CacheArrays, seqs: Ranges | None, options: Mapping[str, Any], declared: dict[str, Any]
) -> Batch:
    if _SEQ_LENS not in arrays:
        raise CliError(f"{arrays.path}: there is no array {_SEQ_LENS!r}, the tokens of each sequence")
    cache = adapters.dense.views(
        found.layers, seq_lens=arrays[_SEQ_LENS], left_padded=options["left_padded"], **declared
    )
    lengths = np.array([len(view) for view in next(iter(cache[0].sequences.values()))], dtype=np.int64)
    wanted = list(range(len(lengths))) if seqs is None else chosen(seqs, range(len(lengths)), "sequence")
    return Batch(
        {
            layer.index: {role: [views[seq] for seq in wanted] for role, views in layer.sequences.items()}
            for layer in cache
        },
        {
            "layout": DENSE,
            "page_size": options["page_size"],
            "seq_lens": lengths[wanted],
            "scales": found.scales or None,
        },
        lengths[wanted],
        None,
        found.used | {_SEQ_LENS},
        DENSE,
    )


def _check_roles(arrays: Dump, layers: Mapping[int | None, Mapping[str, Any]]) -> None:
    """A layer that lacks what another has is a misspelt or forgotten array."""
    having: dict[str, int | None] = {}
    for index, roles in layers.items():
        for role in roles:
            having.setdefault(role, index)
    for index, roles in layers.items():
        for role, other in having.items():
            if role not in roles:
                raise CliError(
                    f"{arrays.path}: there is no {tensor_name(index, role)!r}, though there is "
                    f"{tensor_name(other, role)!r}; a layer has what the others have"
                )


def _told_page_size(arrays: Dump) -> int | None:
    """The page size that the dump tells in its own metadata, to be checked like one that the user tells."""
    told = arrays.metadata.get("page_size", "")
    return int(told) if re.fullmatch("[1-9][0-9]{0,9}", told) else None


def _select(tables: Tables, seqs: list[int]) -> Tables:
    """The tables of these sequences, in this order."""
    rows = [tables.block_table[tables.seq_ptr[seq] : tables.seq_ptr[seq + 1]] for seq in seqs]
    ptr = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return Tables(np.concatenate([tables.block_table[:0], *rows]), ptr, tables.seq_lens[seqs])

"""Names of arrays: which array of a dump is which part of a cache, and what the parts are called when they are written.

    layers.3.key, layers.3.value, layers.3.fused    a layer in a layout that keeps keys and values apart (or fused)
    layers.3                                        a layer in a layout that keeps both in one array
    kv_cache                                        all layers in one array
    layers.3.key.scale                              float32 scale of such a tensor, [] or [num_heads]
    block_tables, seq_lens, ...                     which pages belong to whom; see ``TABLE_FORMS``

A cache that belongs to no layer has ``key``, ``value``, ``fused`` or ``kv`` in place of the names with a layer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..adapters import LayerPools, PoolAdapter
from ..snapshot import tensor_name
from ..store.reader import SCALE_SUFFIX
from .choices import Ranges, chosen
from .console import CliError
from .dump import Dump

__all__ = ["CacheArrays", "array_name", "find_cache", "find_tables", "has_cache", "has_tables", "only_layers"]

TABLE_FORMS = (
    ("block_tables", "seq_lens"),
    ("block_table", "seq_ptr", "seq_lens"),
    ("block_table", "seq_ptr", "last_page_len"),
    ("token_slots", "seq_lens"),
)
ALL_LAYERS = "kv_cache"

_LAYER = r"layers\.(?P<layer>0|[1-9][0-9]{0,9})"
_ONE_ROLE = re.compile(rf"(?:{_LAYER}\.)?(?P<role>key|value|fused)")
_JOINED = re.compile(rf"{_LAYER}|kv")
_NAMES_SHOWN = 8


@dataclass
class CacheArrays:
    """The arrays of a cache in a dump: ``layers`` as an adapter takes them, ``scales`` by name, all names ``used``."""

    layers: Any
    scales: dict[str, NDArray[Any]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)


def array_name(adapter: PoolAdapter, index: int | None, role: str) -> str:
    """What the array that holds this layer and role is called, in this layout."""
    if adapter.one_array:
        return ALL_LAYERS
    if adapter.joined:
        return "kv" if index is None else f"layers.{index}"
    return tensor_name(index, role)


def has_cache(dump: Dump, adapter: PoolAdapter) -> bool:
    """Whether the dump has arrays with names of this layout."""
    if adapter.one_array:
        return ALL_LAYERS in dump
    return any(_is_of(name, adapter) for name in dump)


def has_tables(dump: Dump) -> bool:
    """Whether the dump has arrays that say which pages belong to whom, of whichever form."""
    return any(name in dump for form in TABLE_FORMS for name in form[:-1])


def find_cache(dump: Dump, adapter: PoolAdapter, wanted: Ranges | None) -> CacheArrays:
    """The arrays of the cache in ``dump``, of the ``wanted`` layers only where a layer has arrays of its own."""
    if adapter.one_array:
        found = CacheArrays(dump[ALL_LAYERS], used={ALL_LAYERS}) if ALL_LAYERS in dump else CacheArrays({})
    else:
        found = _find_layers(dump, adapter, wanted)
    if not found.used:
        example = array_name(adapter, 0, adapter.roles[0])
        raise CliError(
            f"{dump.path}: there is no array {example!r} as the layout {adapter.name} has it; there are {_shown(dump)}"
        )
    for name in dump:
        tensor = _ONE_ROLE.fullmatch(name.removesuffix(SCALE_SUFFIX))
        if name.endswith(SCALE_SUFFIX) and tensor is not None:
            found.used.add(name)
            if wanted is None or any(_index(tensor) in run for run in wanted):
                found.scales[tensor.group()] = _as_scale(dump, name)
    return found


def find_tables(dump: Dump) -> dict[str, NDArray[Any]]:
    """The arrays that say which pages belong to whom, in the one form that the dump has."""
    there = {name for form in TABLE_FORMS for name in form if name in dump}
    for form in TABLE_FORMS:
        if there == set(form):
            return {name: dump[name] for name in form}
    forms = ", or ".join(" with ".join((form[0], " and ".join(form[1:]))) for form in TABLE_FORMS)
    raise CliError(f"{dump.path}: the block tables come as {forms}; there are {_shown(dump)}")


def only_layers(pools: list[LayerPools], wanted: Ranges | None) -> list[LayerPools]:
    """The pools of the wanted layers, in the wanted order."""
    if wanted is None:
        return pools
    by_index = {pool.index: pool for pool in pools if pool.index is not None}
    return [by_index[index] for index in dict.fromkeys(chosen(wanted, by_index, "layer"))]


def _find_layers(dump: Dump, adapter: PoolAdapter, wanted: Ranges | None) -> CacheArrays:
    matches = {name: match for name in dump if (match := _is_of(name, adapter))}
    used = set(matches)
    if wanted is not None:
        there = {index for match in matches.values() if (index := _index(match)) is not None}
        numbers = set(chosen(wanted, there, "layer"))
        matches = {name: match for name, match in matches.items() if _index(match) in numbers}
    layers: dict[int | None, Any] = {}
    for name, match in sorted(matches.items(), key=lambda pair: -1 if (index := _index(pair[1])) is None else index):
        if adapter.joined or adapter.roles == ("fused",):
            layers[_index(match)] = dump[name]
        else:
            layers.setdefault(_index(match), {})[match["role"]] = dump[name]
    return CacheArrays(layers, used=used)


def _is_of(name: str, adapter: PoolAdapter) -> re.Match[str] | None:
    """The parts of the name of an array with a layer, or a role of one, in this layout."""
    match = (_JOINED if adapter.joined else _ONE_ROLE).fullmatch(name)
    return match if match is not None and (adapter.joined or match["role"] in adapter.roles) else None


def _index(match: re.Match[str]) -> int | None:
    layer = match["layer"]
    return None if layer is None else int(layer)


def _as_scale(dump: Dump, name: str) -> NDArray[np.float32]:
    array = dump[name]
    if array.dtype.kind in "bcmMSUTO" or array.dtype.type is np.void:  # ml_dtypes are void by kind, but not by type
        raise CliError(f"{dump.path}: {name} holds {array.dtype}, not real numbers")
    with np.errstate(over="ignore"):  # infinite then, which is refused as such
        return array.astype(np.float32)


def _shown(dump: Dump) -> str:
    names = list(dump)
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more if names else "no arrays"

"""What adapters share: the words in which a layout is stated, what comes out of one, and how layers are named.

An adapter turns a cache as its engine holds it into *views* of the caller's memory, ``[num_pages, page_size,
num_heads, head_dim]`` for each layer and role, and allocates arrays of the same layout to export into. How a layout's
axes become views is told in ``axes.py``; the adapter that most layouts are is in ``pool.py``.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import BufferSizeError, IncompatibleError, LimitError

__all__ = [
    "Declared",
    "Form",
    "LayerPools",
    "LayerSpec",
    "Layers",
    "PoolSpec",
    "by_index",
    "check_indices",
    "layer_name",
    "reshaped",
    "split_roles",
    "zeros",
]

MAX_LAYER_INDEX = 2**32 - 2  # 2^32 - 1 means "no layer" on the wire

Layers = Any
"""A cache as its engine holds it: a sequence or mapping (from layer index) of entries, or one array for all layers."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerPools:
    """The pools of one layer.

    ``pools`` maps "key", "value" or "fused" to ``[num_pages, page_size, num_heads, head_dim]``, a view of the
    caller's memory.
    """

    index: int | None
    pools: dict[str, NDArray[Any]]


class PoolSpec(NamedTuple):
    """What one pool holds, whatever its layout: ``num_heads``, ``head_dim`` and the NumPy type of an element."""

    num_heads: int
    head_dim: int
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What one layer holds: its index, and its pools by role."""

    index: int | None
    pools: Mapping[str, PoolSpec]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Sizes that the caller states and the arrays must have; None where nothing is stated.

    ``value_head_dim`` is for caches whose values are narrower or wider than their keys; it defaults to ``head_dim``.
    ``of_export`` says that the sizes are those of an export, and the arrays its destination; errors then say so.
    """

    page_size: int | None = None
    num_pages: int | None = None
    num_heads: int | None = None
    head_dim: int | None = None
    value_head_dim: int | None = None
    of_export: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None or field.name == "of_export":
                continue
            value, least = operator.index(value), 0 if field.name == "num_pages" else 1
            if value < least:
                raise IncompatibleError(f"{field.name} is {value}, below {least}", rule="adapter.declared", found=value)
            object.__setattr__(self, field.name, value)  # a NumPy integer would wrap in products

    @property
    def source(self) -> str:
        """Who wants these sizes, for errors."""
        return "the export has" if self.of_export else "the caller declared"

    def head_dim_of(self, role: str) -> int | None:
        if role == "value" and self.value_head_dim is not None:
            return self.value_head_dim
        return self.head_dim


@dataclass(frozen=True, slots=True)
class Form:
    """One order of axes: ``axes`` as the engine indexes them, slowest first.

    ``memory`` is the order in memory that a freshly allocated array gets, where engines keep it apart from the order
    of axes.
    """

    name: str
    axes: str
    memory: str = ""


def zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """A fresh array of zeros. Raises LimitError where there is no memory, or no such array in NumPy."""
    try:
        return np.zeros(shape, dtype)
    except (ValueError, OverflowError) as cause:
        raise _unaddressable(shape, dtype) from cause
    except MemoryError as cause:
        raise LimitError(f"there is no memory for shape {list(shape)} of {dtype}", rule="limit.memory") from cause


def reshaped(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The array in a shape of as many elements. Of no element a shape may still be too vast for NumPy: LimitError."""
    try:
        return array.reshape(shape)
    except (ValueError, OverflowError) as cause:
        raise _unaddressable(shape, array.dtype) from cause


def _unaddressable(shape: tuple[int, ...], dtype: np.dtype[Any]) -> LimitError:
    return LimitError(
        f"shape {list(shape)} of {dtype} is more than NumPy can address", rule="limit.addressable", found=shape
    )


def layer_name(index: int | None) -> str:
    return "the layer without index" if index is None else f"layer {index}"


def check_indices(name: str, indices: Sequence[int | None] | None, count: int) -> list[int | None]:
    """The indices of ``count`` layers as distinct numbers a descriptor can carry; None stands for no index."""
    if indices is None:
        return list(range(count))
    if len(indices) != count:
        raise IncompatibleError(
            f"{name}: {len(indices)} layer indices were given for {count} layers",
            rule="adapter.layer-index",
            declared=len(indices),
            found=count,
        )
    checked = [None if index is None else operator.index(index) for index in indices]
    seen: set[int | None] = set()
    for index in checked:
        if index is not None and not 0 <= index <= MAX_LAYER_INDEX:
            raise IncompatibleError(
                f"{name}: layer index {index} is not in 0..{MAX_LAYER_INDEX}", rule="adapter.layer-index", found=index
            )
        if index in seen:
            raise IncompatibleError(
                f"{name}: {layer_name(index)} is given twice", rule="adapter.layer-index", found=index
            )
        seen.add(index)
    return checked


def by_index(name: str, layers: Layers, indices: Sequence[int | None] | None) -> list[tuple[int | None, Any]]:
    """The entries of a cache that has one for each layer, with the indices of the layers."""
    keys: Sequence[Any] | None
    if isinstance(layers, Mapping):
        if indices is not None:
            raise IncompatibleError(
                f"{name}: layer_indices says again what the keys of a mapping say", rule="adapter.layer-index"
            )
        keys, entries = list(layers), list(layers.values())
        strange = [key for key in keys if not (key is None or hasattr(key, "__index__"))]
        if strange:
            raise IncompatibleError(
                f"{name}: {strange[0]!r} is not a layer index; a mapping of layers has whole numbers as its keys",
                rule="adapter.layer-index",
                found=strange[0],
            )
    elif isinstance(layers, Sequence) and not isinstance(layers, str | bytes):
        keys, entries = indices, list(layers)
    else:
        raise BufferSizeError(
            f"{name} takes a sequence with an entry a layer or a mapping from layer index, not a "
            f"{type(layers).__name__}",
            rule="adapter.layers",
            found=type(layers).__name__,
        )
    if not entries:
        raise IncompatibleError(f"{name}: there is no layer", rule="adapter.layers")
    return list(zip(check_indices(name, keys, len(entries)), entries, strict=True))


def split_roles(entry: Any, roles: Sequence[str], where: str) -> dict[str, Any]:
    """What a layer holds by role, from a pair (key, value) or a mapping from role; None is a role that is not there."""
    if isinstance(entry, Mapping):
        given = {role: array for role, array in entry.items() if array is not None}
    elif isinstance(entry, tuple | list) and len(entry) == 2:
        given = {role: array for role, array in zip(("key", "value"), entry, strict=True) if array is not None}
    else:
        raise BufferSizeError(
            f"{where} is a {type(entry).__name__}, not a pair (key, value) or a mapping from role",
            rule="adapter.roles",
            found=type(entry).__name__,
        )
    if not given or not set(given) <= set(roles):
        raise BufferSizeError(
            f"{where} has {' and '.join(map(repr, given)) or 'no array'}; the roles are {', '.join(roles)}",
            rule="adapter.roles",
            declared=roles,
            found=tuple(given),
        )
    return given

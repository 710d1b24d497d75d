"""Companion scales as a caller gives them, by the tensor they are for (spec/snapshot.md, scales).

How they are written is told in ``preparing.py``; how a reader finds them, in ``store/reader.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import BufferSizeError, IncompatibleError

__all__ = ["companion_scales"]

_FORMS = (
    "scales are a mapping from tensor name, or a sequence or mapping of layers with a pair (key, value) or a mapping "
    "from role for each"
)


def companion_scales(
    scales: Any, names: Mapping[tuple[int | None, str], str], heads: Mapping[str, int]
) -> dict[str, NDArray[np.float32]]:
    """The scales by tensor name, float32 of shape [] or [num_heads], each finite and above 0.

    ``names`` are those of the tensors that are written, by layer and role; ``heads`` how many heads each has. Raises
    BufferSizeError for a shape, IncompatibleError for all else (rule snapshot.scale).
    """
    if scales is None:
        return {}
    found: dict[str, NDArray[np.float32]] = {}
    for key, value in scales.items() if isinstance(scales, Mapping) else _by_layer(scales, names):
        if isinstance(key, str):
            named = [(key, value)]
        else:
            named = [(names.get((key, role), f"{role} of layer {key}"), scale) for role, scale in _by_role(value)]
        for name, scale in named:
            if name not in heads:
                raise IncompatibleError(f"a scale is given for {name!r}, which is not written", rule="snapshot.scale")
            found[name] = _checked(name, scale, heads[name])
    return found


def _checked(name: str, scale: Any, heads: int) -> NDArray[np.float32]:
    try:
        given = np.asarray(scale)
        with np.errstate(all="ignore"):  # what is no finite number above 0 is refused below
            array = given.astype("<f4", casting="same_kind" if given.dtype.kind == "c" else "unsafe")
    except (TypeError, ValueError) as cause:
        raise IncompatibleError(
            f"the scale of {name!r} is not a number, or one for each head: {cause}", rule="snapshot.scale"
        ) from cause
    if array.shape not in ((), (heads,)):
        raise BufferSizeError(
            f"the scale of {name!r} has shape {list(array.shape)}, not [] or [{heads}]",
            rule="snapshot.scale",
            declared=heads,
            found=array.shape,
        )
    bad = ~(np.isfinite(array) & (array > 0))
    if bad.any():
        wrong = float(given[bad].flat[0])
        raise IncompatibleError(
            f"the scale of {name!r} is {wrong}, not a finite float32 above 0", rule="snapshot.scale", found=wrong
        )
    return array


def _by_layer(scales: Any, names: Mapping[tuple[int | None, str], str]) -> list[tuple[int | None, Any]]:
    layers = list(dict.fromkeys(layer for layer, _ in names))
    if not _is_row(scales):
        raise IncompatibleError(f"{_FORMS}, not {scales!r}", rule="snapshot.scale", found=type(scales).__name__)
    if len(scales) != len(layers):
        raise IncompatibleError(
            f"{len(scales)} scales for {len(layers)} layers",
            rule="snapshot.scale",
            declared=len(layers),
            found=len(scales),
        )
    return list(zip(layers, scales, strict=True))


def _by_role(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if not _is_row(value):
        raise IncompatibleError(f"{_FORMS}, not {value!r}", rule="snapshot.scale", found=type(value).__name__)
    if len(value) != 2:
        raise IncompatibleError(
            f"{_FORMS}; {len(value)} scales are no such pair", rule="snapshot.scale", declared=2, found=len(value)
        )
    return [(role, scale) for role, scale in zip(("key", "value"), value, strict=True) if scale is not None]


def _is_row(value: Any) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, str | bytes) and getattr(value, "ndim", 1) > 0

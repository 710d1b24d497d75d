"""A string of axes, and what follows from it in both directions: views of an array, and the shape of a fresh one.

    P  pages                 L  layers in one array        1  an axis of length 1
    S  tokens of a page      R  keys, then values          C  head_dim of keys, then that of values, side by side
    H  heads                 T  P and S as one axis        I  2H: keys in even places, values in odd ones
    D  head_dim

Views are made of strides alone: nothing is copied, and what is assigned to a view lands in the array. Every size is
checked first, against its letter and against what the caller declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BufferSizeError, IncompatibleError, UnsupportedError
from .base import Declared, Form, PoolSpec, reshaped, zeros

__all__ = ["allocate", "cut"]

_NAMES = {
    "P": "num_pages",
    "S": "page_size",
    "H": "num_heads",
    "D": "head_dim",
    "L": "num_layers",
    "R": "keys and values",
    "T": "token slots",
    "1": "an axis of one",
    "C": "key dim + value dim",
    "I": "2 * num_heads",
}


def cut(
    array: NDArray[Any], form: Form, declared: Declared, where: str, role: str = "key"
) -> list[dict[str, NDArray[Any]]]:
    """The views in one array, ``[num_pages, page_size, num_heads, head_dim]``: a mapping by role for each layer in it.

    ``role`` is that of an array which holds one role, ``where`` names the array in errors. Raises BufferSizeError for
    axes that cannot be this form, UnsupportedError for rows with scales in them, IncompatibleError if the page size
    is not told, LimitError where NumPy has no array of the shape.
    """
    _check(array, form, declared, where, role)
    axes = form.axes
    if "T" in axes:
        at, page_size = axes.index("T"), declared.page_size
        assert page_size is not None
        # dividing one axis in two needs no copy, whatever its stride
        pages = array.shape[at] // page_size
        array = reshaped(array, (*array.shape[:at], pages, page_size, *array.shape[at + 1 :]))
        axes = axes.replace("T", "PS")
    if "1" in axes:
        array, axes = np.squeeze(array, axis=axes.index("1")), axes.replace("1", "")
    if "H" not in axes and "I" not in axes:
        array, axes = array[..., np.newaxis], axes + "H"
    if "L" not in axes:
        array, axes = array[np.newaxis], "L" + axes
    layers = np.moveaxis(array, axes.index("L"), 0)
    axes = axes.replace("L", "")
    return [_by_role(layer, axes, declared, role) for layer in layers]


def _by_role(array: NDArray[Any], axes: str, declared: Declared, role: str) -> dict[str, NDArray[Any]]:
    if "R" in axes:
        both = np.moveaxis(array, axes.index("R"), 0)
        parts, axes = {"key": both[0], "value": both[1]}, axes.replace("R", "")
    elif "C" in axes:
        both = np.moveaxis(array, axes.index("C"), -1)
        width = _key_width(both.shape[-1], declared)
        parts, axes = {"key": both[..., :width], "value": both[..., width:]}, axes.replace("C", "") + "D"
    elif "I" in axes:
        both = np.moveaxis(array, axes.index("I"), 0)
        parts, axes = {"key": both[0::2], "value": both[1::2]}, "H" + axes.replace("I", "")
    else:
        parts = {role: array}
    order = [axes.index(letter) for letter in "PSHD"]
    return {name: part.transpose(order) for name, part in parts.items()}


def _key_width(both: int, declared: Declared) -> int:
    """Elements of the key in a row that holds ``both``."""
    if declared.head_dim is not None:
        return declared.head_dim
    if declared.value_head_dim is not None:
        return both - declared.value_head_dim
    return both // 2


def _check(array: NDArray[Any], form: Form, declared: Declared, where: str, role: str) -> None:
    """Every axis has the length that its letter, and the caller, demand of it."""
    shape, said = array.shape, f"{where} of shape {list(array.shape)}"
    if len(shape) != len(form.axes):
        raise BufferSizeError(
            f"{said} has {len(shape)} axes, but this layout has {len(form.axes)}: {_words(form.axes)}",
            rule="adapter.rank",
            declared=len(form.axes),
            found=len(shape),
        )
    demanded = _demanded(form, declared, role)
    for at, (letter, size) in enumerate(zip(form.axes, shape, strict=True)):
        demand = demanded[letter]
        if demand is not None and size != demand:
            if letter in "DC":
                _check_inline_scales(array, size, demand, said)
            source = "this layout has" if letter in "R1" else declared.source
            advice = f"; page_size={size} exports such pages" if letter == "S" and size and declared.of_export else ""
            raise BufferSizeError(
                f"{said} has {size} on axis {at}, {_NAMES[letter]}, where {source} {demand}{advice}",
                rule="adapter.axis-size",
                declared=demand,
                found=size,
            )
        if letter == "S" and size == 0:
            raise BufferSizeError(f"{said} has pages of no token", rule="adapter.axis-size", declared=1, found=0)
        halved = letter == "I" or (letter == "C" and declared.head_dim is None and declared.value_head_dim is None)
        if halved and size % 2:
            raise BufferSizeError(
                f"{said} has {size} on axis {at}, {_NAMES[letter]}, which is odd", rule="adapter.axis-size", found=size
            )
        if letter == "C" and not 0 <= _key_width(size, declared) <= size:
            raise BufferSizeError(
                f"{said} has {size} on axis {at}, {_NAMES[letter]}, too few for a value_head_dim of "
                f"{declared.value_head_dim}",
                rule="adapter.axis-size",
                declared=declared.value_head_dim,
                found=size,
            )
    if "H" not in form.axes and "I" not in form.axes and declared.num_heads not in (None, 1):
        raise BufferSizeError(
            f"{said} has 1 head, where {declared.source} {declared.num_heads}",
            rule="adapter.axis-size",
            declared=declared.num_heads,
            found=1,
        )
    if "T" in form.axes:
        _check_slots(shape[form.axes.index("T")], declared, said)


def _demanded(form: Form, declared: Declared, role: str) -> dict[str, int | None]:
    """The length that each letter must have, None where any will do."""
    key_dim, value_dim = declared.head_dim_of("key"), declared.head_dim_of("value")
    joined = key_dim + value_dim if key_dim is not None and value_dim is not None else None
    head_dim = declared.head_dim_of(role)
    if "R" in form.axes:  # one axis serves both roles
        if joined is not None and key_dim != value_dim:
            raise BufferSizeError(
                f"{_words(form.axes)} has one head_dim, but {declared.source} {key_dim} for keys and {value_dim} for "
                "values",
                rule="adapter.declared",
                declared=(key_dim, value_dim),
            )
        head_dim = value_dim
    return {
        "P": declared.num_pages,
        "S": declared.page_size,
        "T": None,
        "H": declared.num_heads,
        "D": head_dim,
        "C": joined,
        "I": None if declared.num_heads is None else 2 * declared.num_heads,
        "R": 2,
        "1": 1,
        "L": None,
    }


def _check_slots(size: int, declared: Declared, said: str) -> None:
    if declared.page_size is None:
        raise IncompatibleError(f"{said} does not tell its page size; pass page_size=", rule="adapter.undeclared")
    if size % declared.page_size:
        raise BufferSizeError(
            f"{said} has {size} token slots, not a multiple of the declared page_size {declared.page_size}",
            rule="adapter.axis-size",
            declared=declared.page_size,
            found=size,
        )
    if declared.num_pages is not None and size != declared.num_pages * declared.page_size:
        raise BufferSizeError(
            f"{said} has {size // declared.page_size} pages of {declared.page_size}, where {declared.source} "
            f"{declared.num_pages}",
            rule="adapter.axis-size",
            declared=declared.num_pages,
            found=size // declared.page_size,
        )


def _check_inline_scales(array: NDArray[Any], size: int, demand: int, said: str) -> None:
    """Refuses rows of bytes that carry their scales within.

    They are a little longer than their elements (by a float16 or float32), or hold two elements a byte and a one-byte
    scale for every 16.
    """
    if array.dtype.itemsize == 1 and (size - demand in (2, 4) or size * 16 == demand * 9):
        raise UnsupportedError(
            f"{said} has rows of {size} bytes for {demand} declared elements: with scales inside the page it is an "
            "opaque record, which the format cannot describe; dequantize it, or pass values and scales apart",
            rule="adapter.opaque-record",
            declared=demand,
            found=size,
        )


def allocate(
    form: Form, pools: Mapping[str, PoolSpec], *, num_pages: int, page_size: int, num_layers: int = 1
) -> NDArray[Any]:
    """A fresh array of zeros of this form. ``pools`` are those that it is to hold, alike but for their head_dim.

    Raises LimitError where there is no memory for it, or no such array in NumPy.
    """
    one = next(iter(pools.values()))
    lengths = {
        "P": num_pages,
        "S": page_size,
        "T": num_pages * page_size,
        "H": one.num_heads,
        "D": one.head_dim,
        "L": num_layers,
        "C": sum(pool.head_dim for pool in pools.values()),
        "I": 2 * one.num_heads,
        "R": 2,
        "1": 1,
    }
    memory = form.memory or form.axes
    fresh = zeros(tuple(lengths[letter] for letter in memory), one.dtype)
    return fresh.transpose([memory.index(letter) for letter in form.axes])


def _words(axes: str) -> str:
    return "[" + ", ".join(_NAMES[letter] for letter in axes) + "]"

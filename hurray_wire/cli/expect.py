"""Demanded values: ``--expect model.id=X,dtype=bfloat16,page_size=16``.

A key is one of the facts below, which every block-paged tensor must have alike, or a metadata key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import hurray_wire as hw

__all__ = ["expected_values", "unmet"]

_SEPARATOR = re.compile(r",(?=[^,=]+=)")  # a comma within a value is no separator unless key=value follows it

TENSOR_FACTS: dict[str, Callable[[hw.PagedTensor], Any]] = {
    "dtype": lambda tensor: tensor.descriptor.element_type.name,
    "page_size": lambda tensor: tensor.layout.page_size,
    "num_pages": lambda tensor: tensor.layout.num_pages,
    "num_heads": lambda tensor: tensor.shape[1],
    "head_dim": lambda tensor: tensor.shape[2],
    "num_seqs": lambda tensor: tensor.layout.num_seqs,
    "total_tokens": lambda tensor: tensor.shape[0],
}


def expected_values(texts: tuple[str, ...]) -> list[tuple[str, str]]:
    """The key=value pairs of all texts; ValueError for a part that is none."""
    pairs = []
    for text in texts:
        for part in _SEPARATOR.split(text):
            key, sign, value = part.partition("=")
            if not key or not sign:
                raise ValueError(f"{part!r} is not key=value")
            pairs.append((key, value))
    return pairs


def unmet(snapshot: hw.Snapshot, pairs: list[tuple[str, str]]) -> list[str]:
    """A sentence for each demand that the snapshot does not meet."""
    return [words for key, value in pairs if (words := _fault(snapshot, snapshot.metadata, key, value)) is not None]


def _fault(snapshot: hw.Snapshot, metadata: Mapping[str, Any], key: str, value: str) -> str | None:
    if key == "num_layers":
        found = len([layer for layer in snapshot.layers if layer is not None])
        return None if _equal(found, value) else f"{key} is {found}, not {value}"
    if key in TENSOR_FACTS:
        there = False
        for tensor in snapshot.tensors:
            there = True
            found = TENSOR_FACTS[key](tensor)
            if not _equal(found, value):
                return f"{key} of {tensor.name} is {found}, not {value}"
        return None if there else f"{key} is not {value}: there is no block-paged tensor"
    if key not in metadata:
        return f"{key} is not {value}: it is not recorded"
    return None if _equal(metadata[key], value) else f"{key} is {metadata[key]}, not {value}"


def _equal(found: Any, value: str) -> bool:
    """A value from a file equals a word: numbers by value, booleans as true and false, the rest as text."""
    if isinstance(found, bool):
        return value.lower() == str(found).lower()
    if isinstance(found, int | float):
        try:
            return found == type(found)(value)
        except ValueError:
            return False
    return str(found) == value

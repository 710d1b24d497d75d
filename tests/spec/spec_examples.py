"""What the tests of worked examples share: which examples there are, and what a page says against what was decoded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest
from spec_pages import Example, examples

EXAMPLES = examples()


# Fields that are checked while they are read and then left out of what is decoded, and bytes that are payload.
UNDECODED = {"magic", "reserved", "padding", "data", "count", "length", "key_length", "name_length", "value_tag"}
UNDECODED |= {"element_tag", "version_major", "scheme_version", "descriptor_length", "quantization_length"}


def of_kind(kind: str) -> Any:
    return pytest.mark.parametrize("one", [e for e in EXAMPLES if e.kind == kind], ids=lambda e: e.name)


def said_by(one: Example) -> dict[str, list[Any]]:
    """What the page says, by field (the last word of a dotted name), in order."""
    said: dict[str, list[Any]] = defaultdict(list)
    for line in one.fields:
        if line.name is not None and (name := line.name.rpartition(".")[2]) not in UNDECODED:
            said[name].append(line.value)
    return said


def found_by(decoded: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = defaultdict(list)
    for name, value in decoded:
        found[name].append(value)
    return found


def constants(kind: str, name: str) -> list[Any]:
    """(example, offset of a byte that must not change) for every line that is said to hold a constant of this name."""
    return [
        pytest.param(one, line.offset + k, id=f"{one.name}-{line.offset + k}")
        for one in EXAMPLES
        if one.kind == kind
        for line in one.fields
        if line.name == name
        for k in (0, len(line.raw) - 1)
    ]


def changed(raw: bytes, at: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 0x20]) + raw[at + 1 :]

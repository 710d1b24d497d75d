"""Which batch a snapshot holds, as its metadata say it (spec/snapshot.md, identity).

:func:`identity_metadata` checks what a caller says and gives the metadata of a snapshot; a reader that asks for a share
of the heads trusts them. The metadata of files at large are left to ``wire/metadata.py``.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from ._version import __version__
from .errors import IncompatibleError, InvalidFileError

__all__ = ["SNAPSHOT_KEY", "SNAPSHOT_VERSION", "identity_metadata"]

SNAPSHOT_KEY = "hurray_wire.snapshot"
SNAPSHOT_VERSION = 1

_TEXT = {"model_id": "model.id", "model_revision": "model.revision", "engine": "engine"}
_NUMBERS = {
    "tp_rank": "tp.rank",
    "tp_size": "tp.size",
    "pp_rank": "pp.rank",
    "pp_size": "pp.size",
    "first_token": "first_token",
}
_KEYS = _TEXT | _NUMBERS
_LARGEST = (1 << 63) - 1  # an i64 in the file


def identity_metadata(given: Mapping[str, Any] | None, layout: str, identity: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a snapshot: our own keys, the ``identity`` by argument name, and the caller's own.

    Raises InvalidFileError for a key that starts with "hurray_wire.", TypeError for an unknown argument,
    IncompatibleError for an identity that cannot be (rule snapshot.identity).
    """
    given = dict(given or {})
    for key in given:
        if str(key).startswith("hurray_wire."):
            raise InvalidFileError(f"metadata key {key!r} is reserved", rule="snapshot.reserved-key", found=key)
    unknown = sorted(set(identity) - set(_KEYS))
    if unknown:
        raise TypeError(f"unexpected argument {unknown[0]!r}")
    named: dict[str, Any] = {}
    for name, value in identity.items():
        if value is None:
            continue
        if _KEYS[name] in given:
            raise _refusal(f"{_KEYS[name]!r} is in metadata and given as {name}= too; say it once", given[_KEYS[name]])
        named[_KEYS[name]] = value
    ours = {SNAPSHOT_KEY: SNAPSHOT_VERSION, "producer": f"hurray_wire {__version__}"}
    told = {**ours, **named, "source.layout": layout, **given}
    return {**told, **_checked(told)}


def _checked(told: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the identity, numbers as Python's own."""
    checked: dict[str, Any] = {}
    for key in _TEXT.values():
        if key in told:
            if not isinstance(told[key], str):
                raise _refusal(f"{key} is {told[key]!r}, not a string", told[key])
            checked[key] = told[key]
    for key in _NUMBERS.values():
        if key in told:
            checked[key] = _whole(key, told[key])
    for group in ("tp", "pp"):
        rank, size = checked.get(f"{group}.rank"), checked.get(f"{group}.size")
        if (rank is None) != (size is None):
            there, lacking = ("size", "rank") if rank is None else ("rank", "size")
            raise _refusal(f"{group}.{there} is given without {group}.{lacking}", size if rank is None else rank)
        if rank is not None and size is not None and rank >= size:
            raise _refusal(f"{group}.rank {rank} is not one of {size} ranks, 0 to {group}.size - 1", rank)
    return checked


def _whole(key: str, value: Any) -> int:
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not 0 <= number <= _LARGEST:
        raise _refusal(f"{key} is {value!r}, not a whole number from 0 to 2**63 - 1", value)
    return number


def _refusal(message: str, found: Any) -> IncompatibleError:
    return IncompatibleError(message, rule="snapshot.identity", found=found)

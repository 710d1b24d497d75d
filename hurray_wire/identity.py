"""Which batch a snapshot holds, as its metadata say it (spec/snapshot.md, identity).

:func:`identity_metadata` checks what a caller says and gives the metadata of a snapshot, :func:`renewed_metadata` those
of one that is written again; a reader that asks for a share of the heads trusts them. The metadata of files at large
are left to ``wire/metadata.py``.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from ._version import __version__
from .errors import IncompatibleError, InvalidFileError

__all__ = ["SNAPSHOT_KEY", "SNAPSHOT_VERSION", "identity_metadata", "renewed_metadata"]

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
_PAIRS = (("tp.rank", "tp.size"), ("pp.rank", "pp.size"))
_OURS = "hurray_wire."  # what begins so is written by whoever writes the file
_LARGEST = (1 << 63) - 1  # an i64 in the file


def identity_metadata(given: Mapping[str, Any] | None, layout: str, identity: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a snapshot: our own keys, the ``identity`` by argument name, and the caller's own.

    Raises InvalidFileError for a key that starts with "hurray_wire.", TypeError for an unknown argument,
    IncompatibleError for an identity that cannot be (rule snapshot.identity).
    """
    given = _unreserved(given)
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
    told = {**_written_by_us(), **named, "source.layout": layout, **given}
    return {**told, **_checked(told)}


def renewed_metadata(there: Mapping[str, Any], given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The metadata of a snapshot that is written again: those that are ``there``, with ``given`` in place of what it
    names, and in their order; who writes it is said anew.

    Whatever another writer has said stays as it is. What is given is held to the rules, and the other half of a pair
    (a rank and the number of ranks) with it. Raises as :func:`identity_metadata`.
    """
    given = _unreserved(given)
    own = {key: value for key, value in there.items() if key != "producer" and not key.startswith(_OURS)}
    told = {**_written_by_us(), **own, **given}
    concerned = set(given).union(*(pair for pair in _PAIRS if not set(pair).isdisjoint(given)))
    told |= _checked({key: value for key, value in told.items() if key in concerned})
    return {key: told[key] for key in there if key in told} | told


def _unreserved(given: Mapping[str, Any] | None) -> dict[str, Any]:
    for key in given or ():
        if str(key).startswith(_OURS):
            raise InvalidFileError(f"metadata key {key!r} is reserved", rule="snapshot.reserved-key", found=key)
    return dict(given or {})


def _written_by_us() -> dict[str, Any]:
    return {SNAPSHOT_KEY: SNAPSHOT_VERSION, "producer": f"hurray_wire {__version__}"}


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
    for ranks, sizes in _PAIRS:
        rank, size = checked.get(ranks), checked.get(sizes)
        if (rank is None) != (size is None):
            there, lacking = (sizes, ranks) if rank is None else (ranks, sizes)
            raise _refusal(f"{there} is given without {lacking}", size if rank is None else rank)
        if rank is not None and size is not None and rank >= size:
            raise _refusal(f"{ranks} {rank} is not one of {size} ranks, 0 to {sizes} - 1", rank)
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

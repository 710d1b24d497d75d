"""The values of options that are more than a word: numbers and ranges, ``key=value``; and choosing things by them.

The functions with a context and a parameter are click callbacks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

import click

from .console import CliError

__all__ = ["INTEGER_KEYS", "Ranges", "chosen", "lengths", "listed", "metadata_values", "ranges"]

Ranges = tuple[range, ...]

INTEGER_KEYS = ("tp.rank", "tp.size", "pp.rank", "pp.size", "first_token")

_RANGE = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?")
_INTEGER = re.compile("[0-9]{1,18}")  # what the format holds without doubt


def ranges(context: click.Context, option: click.Parameter, value: str | None) -> Ranges | None:
    """``0-3,7``: numbers and ranges, both ends included. Kept as ranges, however long they are."""
    if value is None:
        return None
    found = []
    for part in value.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise click.BadParameter(f"{part!r} is not a number or a range like 0-3", context, option)
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last < first:
            raise click.BadParameter(f"the range {part!r} runs backwards", context, option)
        found.append(range(first, last + 1))
    return tuple(found)


def metadata_values(context: click.Context, option: click.Parameter, values: Sequence[str]) -> dict[str, str | int]:
    """``key=value`` pairs, no key twice. A value may be empty and may hold more equals signs.

    It is text, but for the keys of the format's that are integers.
    """
    found: dict[str, str | int] = {}
    for pair in values:
        key, sign, value = pair.partition("=")
        if not key or not sign:
            raise click.BadParameter(f"{pair!r} is not key=value", context, option)
        if key in found:
            raise click.BadParameter(f"{key!r} is given twice", context, option)
        if key in INTEGER_KEYS:
            if not _INTEGER.fullmatch(value):
                raise click.BadParameter(f"{key} is an integer from 0, not {value!r}", context, option)
            found[key] = int(value)
        else:
            found[key] = value
    return found


def lengths(context: click.Context, option: click.Parameter, value: str | None) -> list[int] | None:
    """``48,0,32``: the tokens of each sequence; nothing at all for an empty batch."""
    if value is None:
        return None
    try:
        return [int(number) for number in value.split(",")] if value else []
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not numbers with commas between them", context, option) from error


def chosen(wanted: Ranges, there: Collection[int], what: str) -> list[int]:
    """The numbers in their order, each of which must be ``there``; the first that is not ends the command."""
    numbers = []
    for run in wanted:
        for number in run:
            if number not in there:
                raise CliError(f"there is no {what} {number}; there are {listed(there) or 'none'}")
            numbers.append(number)
    return numbers


def listed(numbers: Iterable[int]) -> str:
    """Numbers in ascending order, in the form in which they are chosen: ``0-3,7``."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)

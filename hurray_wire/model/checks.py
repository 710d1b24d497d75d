"""The checks that every model object makes of its numbers and words while it is made."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import SupportsIndex

from ..errors import InvalidDescriptorError

__all__ = ["U32_MAX", "U64_MAX", "check_int", "check_uint", "check_word"]

U32_MAX = (1 << 32) - 1
U64_MAX = (1 << 64) - 1


def check_uint(value: SupportsIndex, bits: int, what: str, rule: str) -> int:
    """The value as a Python integer, if it is an integer that fits ``bits`` unsigned bits."""
    return check_int(value, 0, (1 << bits) - 1, what, rule)


def check_int(value: SupportsIndex, low: int, high: int, what: str, rule: str) -> int:
    """The value as a Python integer, if it is an integer within ``low..high``."""
    try:
        number = operator.index(value)
    except TypeError as cause:
        raise InvalidDescriptorError(f"{what} is not an integer: {value!r}", rule=rule, found=value) from cause
    if not low <= number <= high:
        raise InvalidDescriptorError(
            f"{what} is {number}, outside {low}..{high}", rule=rule, declared=(low, high), found=number
        )
    return number


def check_word(word: object, words: Iterable[str], what: str, rule: str) -> None:
    """Raise InvalidDescriptorError unless ``word`` is one of ``words``."""
    if not isinstance(word, str) or word not in words:
        raise InvalidDescriptorError(f"{what} is {word!r}, not one of {', '.join(words)}", rule=rule, found=word)

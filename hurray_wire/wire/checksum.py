"""CRC-32C, the checksum of the index and of ``hurray_wire.crc32c`` (spec/container.md, spec/snapshot.md).

``combined`` joins the checksums of parts that were read side by side: appending n bytes multiplies the polynomial of
what stands before them by x^(8n), modulo that of the checksum. The library that computes checksums has no such call.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import crc32c as _crc32c

__all__ = ["combined", "crc32c"]

_POLYNOMIAL = 0x82F63B78  # of Castagnoli; bit 31 is the coefficient of x^0, as everywhere here
_ONE = 1 << 31


def crc32c(data: Any, value: int = 0) -> int:
    """CRC-32C of a contiguous buffer, continuing from ``value`` (the CRC of what came before)."""
    return _crc32c.crc32c(data, value)


def combined(first: int, second: int, size: int) -> int:
    """CRC-32C of two pieces, one behind the other, from those of each; ``size`` is the bytes of the second."""
    return _product(first, _power(8 * size)) ^ second


def _product(a: int, b: int) -> int:
    """The product of two polynomials, modulo that of the checksum."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


@lru_cache(maxsize=256)
def _power(exponent: int) -> int:
    """x to the power of ``exponent``."""
    if exponent == 0:
        return _ONE
    half = _power(exponent >> 1)
    square = _product(half, half)
    return square >> 1 ^ (_POLYNOMIAL if square & 1 else 0) if exponent & 1 else square

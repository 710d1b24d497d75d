"""CRC-32C, the checksum of the index and of ``hurray_wire.crc32c`` (spec/container.md, spec/snapshot.md)."""

from __future__ import annotations

from typing import Any

import crc32c as _crc32c

__all__ = ["crc32c"]


def crc32c(data: Any, value: int = 0) -> int:
    """CRC-32C of a contiguous buffer, continuing from ``value`` (the CRC of what came before)."""
    return _crc32c.crc32c(data, value)

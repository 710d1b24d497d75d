"""CRC-32C of pieces, and of what they make together; the right values are those of the plain decoder."""

from __future__ import annotations

import random

import pytest
from fixtures.corpus import tool

from hurray_wire.wire.checksum import combined, crc32c


def plain(data: bytes) -> int:
    value: int = tool("plain_decoder").crc32c(data)
    return value


@pytest.mark.parametrize(("data", "value"), [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA)])
def test_known_values(data: bytes, value: int) -> None:
    """The check value of the polynomial, and the one of RFC 3720 for 32 zeros."""
    assert crc32c(data) == plain(data) == value


@pytest.mark.parametrize("sizes", [(0, 0), (0, 5), (5, 0), (1, 1), (7, 4096), (4096, 4097), (3, 65_537)])
def test_pieces_are_combined(sizes: tuple[int, int]) -> None:
    first, second = (random.Random(size).randbytes(size) for size in sizes)
    assert combined(plain(first), plain(second), len(second)) == plain(first + second)


def test_many_pieces_are_combined_from_left_to_right() -> None:
    made = random.Random(0)
    pieces = [made.randbytes(made.randrange(2000)) for _ in range(50)]
    value = 0
    for piece in pieces:
        value = combined(value, crc32c(piece), len(piece))
    assert value == plain(b"".join(pieces))


def test_sizes_beyond_memory_are_combined() -> None:
    """Of zeros by doubling: what 2**40 of them make of a checksum is what 2**39 make of it, twice."""
    value = crc32c(b"hurray")
    zeros = {0: crc32c(b"\0")}
    for power in range(40):
        zeros[power + 1] = combined(zeros[power], zeros[power], 1 << power)
    half = combined(combined(value, zeros[39], 1 << 39), zeros[39], 1 << 39)
    assert combined(value, zeros[40], 1 << 40) == half
    assert zeros[16] == plain(bytes(1 << 16))

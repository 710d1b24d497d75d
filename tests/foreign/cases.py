"""What the cases of ``tools/foreign/README.md`` hold, from the formulas that stand there."""

from __future__ import annotations

import struct
from typing import Any

from .damaged import words

WORKED_POOL = words("H", *(0x3C00 + i for i in range(320)))
WORKED_EXAMPLE = [WORKED_POOL, words("I", 0, 1, 0), words("I", 0, 2, 3)]
EMPTY_BATCH = [b"", b"", words("Q", 0)]
INT8_PAGE_SLOT = [
    bytes((7 * i + 3) % 256 for i in range(320)),
    *WORKED_EXAMPLE[1:],
    words("H", *(0x3000 + 8 * j for j in range(20))),
    words("i", *(j - 10 for j in range(20))),
]
SEQ_LENS = [words("I", 10, 7, 0)]


def multi_layer(layer: int, role: int) -> list[bytes]:
    pool = words("H", *((2477 * i + 641 * layer + 97 * role) % 2**16 for i in range(192)))
    return [pool, words("Q", 3, 1, 4, 3, 5), words("Q", 0, 3, 5, 5)]


MULTI = [multi_layer(layer, role) for layer in (0, 1) for role in (0, 1)]
MULTI_NAMES = ["layers.0.key", "layers.0.value", "layers.1.key", "layers.1.value", "seq_lens"]
MULTI_METADATA = [
    ("hurray_wire.snapshot", "i64", 1),
    ("producer", "string", "foreign"),
    ("model.id", "string", "llama-β"),
    ("n", "i64", -7),
    ("u", "u64", 2**64 - 1),
    ("f", "f64", struct.pack(">d", 0.1).hex()),
    ("b", "bool", True),
    ("raw", "bytes", "00ff01"),
    ("arr", "array", ["a", ""]),
    ("ints", "array", [-1, 2]),
]

# The (page, slot) of every token, worked out from the tables by hand.
WORKED_TOKENS = [[(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)], [(0, 0), (0, 1), (0, 2)]]
MULTI_TOKENS = [
    [(3, 0), (3, 1), (3, 2), (3, 3), (1, 0), (1, 1), (1, 2), (1, 3), (4, 0), (4, 1)],
    [(3, 0), (3, 1), (3, 2), (3, 3), (5, 0), (5, 1), (5, 2)],
    [],
]


def sequence(pool: bytes, tokens: list[tuple[int, int]], row: int) -> bytes:
    """The bytes of a sequence of tokens, ``row`` bytes each, out of a pool with pages of 4 tokens."""
    return b"".join(pool[(page * 4 + slot) * row :][:row] for page, slot in tokens)


# case: names in write order (streams have none), and buffers without the metadata member of a group
EXPECTED: dict[str, tuple[list[str] | None, list[list[bytes]]]] = {
    "spec_example": (["layers.3.key"], [WORKED_EXAMPLE]),
    "multi": (MULTI_NAMES, [*MULTI, SEQ_LENS]),
    "empty_batch": (["empty"], [EMPTY_BATCH]),
    "int8_page_slot": (["cache"], [INT8_PAGE_SLOT]),
    "unflagged_metadata": (["layers.3.key", "bytes"], [WORKED_EXAMPLE, [bytes([1, 2, 3, 4, 5])]]),
    "stream": (None, [WORKED_EXAMPLE, EMPTY_BATCH]),
    "group_stream": (None, [[], SEQ_LENS, *MULTI]),
}

KINDS: dict[str, Any] = {"f64": lambda bits: struct.unpack(">d", bytes.fromhex(bits))[0], "bytes": bytes.fromhex}


def in_python(metadata: list[tuple[str, str, Any]]) -> dict[str, Any]:
    """Metadata as Python holds it."""
    return {key: KINDS.get(kind, lambda value: value)(value) for key, kind, value in metadata}

"""Examples of gathering in the padded form: some made by hand, and those that the seed document publishes.

The published ones are read where they stand, in the folder of seeds beside this project; they are no part of it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from requirements import require

SEEDS = Path(__file__).resolve().parents[2] / "shared" / "seeds"
PUBLISHED = 3

Example = dict[str, Any]

BY_HAND: list[Example] = [
    {  # the last page of a sequence is partly used; -1 beyond what it uses
        "k_pages": [[[[1.0]], [[2.0]]], [[[3.0]], [[4.0]]], [[[5.0]], [[6.0]]]],
        "v_pages": [[[[-1.0]], [[-2.0]]], [[[-3.0]], [[-4.0]]], [[[-5.0]], [[-6.0]]]],
        "block_tables": [[2, 0, -1], [1, -1, -1]],
        "seq_lens": [3, 2],
        "expected": {
            "keys": [[[[5.0]], [[6.0]], [[1.0]], [[0.0]], [[0.0]], [[0.0]]], [[[3.0]], [[4.0]], *[[[0.0]]] * 4]],
            "values": [[[[-5.0]], [[-6.0]], [[-1.0]], *[[[0.0]]] * 3], [[[-3.0]], [[-4.0]], *[[[0.0]]] * 4]],
            "mask": [[True, True, True, False, False, False], [True, True, False, False, False, False]],
        },
    },
    {  # pages of one token, one shared and one used twice; a sequence without tokens; 2^31 - 1 for no page
        "k_pages": [[[[1.0, 2.0], [3.0, 4.0]]], [[[5.0, 6.0], [7.0, 8.0]]]],
        "v_pages": [[[[0.5, 1.5], [2.5, 3.5]]], [[[-1.0, -2.0], [-3.0, -4.0]]]],
        "block_tables": [[1, 0], [1, 1], [2147483647, 2147483647]],
        "seq_lens": [2, 2, 0],
        "expected": {
            "keys": [
                [[[5.0, 6.0], [7.0, 8.0]], [[1.0, 2.0], [3.0, 4.0]]],
                [[[5.0, 6.0], [7.0, 8.0]], [[5.0, 6.0], [7.0, 8.0]]],
                [[[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]],
            ],
            "values": [
                [[[-1.0, -2.0], [-3.0, -4.0]], [[0.5, 1.5], [2.5, 3.5]]],
                [[[-1.0, -2.0], [-3.0, -4.0]], [[-1.0, -2.0], [-3.0, -4.0]]],
                [[[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]],
            ],
            "mask": [[True, True], [True, True], [False, False]],
        },
    },
]


def published(number: int) -> Example:
    """An example of the seed document, by its place there."""
    found = sorted(SEEDS.glob("002_*.txt"))
    require(found, "the document with the examples of gathering is not beside this project")
    text = found[0].read_text(encoding="utf-8")
    inputs = re.findall(r"^Input: (.+)$", text, re.MULTILINE)
    outputs = re.findall(r"^Output: (\{.+\})$", text, re.MULTILINE)
    pairs = list(dict.fromkeys(zip(inputs, outputs, strict=True)))  # the document prints itself twice
    assert len(pairs) == PUBLISHED
    given, output = pairs[number]
    arguments = dict(re.findall(r"(\w+) = (\[.*?\])(?=, \w+ = |$)", given))
    return {**{name: json.loads(value) for name, value in arguments.items()}, "expected": json.loads(output)}

"""What the seed documents show, run as they show it, and once more in our own words.

The documents lie in the folder of seeds beside this project and are no part of it.
"""

from __future__ import annotations

import ast
import contextlib
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gather_kv_examples import PUBLISHED, published
from requirements import require

import hurray_wire as hw

SEEDS = Path(__file__).resolve().parents[2] / "shared" / "seeds"
BLOCK_PAGED = SEEDS / "000_471e709c608662f0.txt"
PYTHON_EXAMPLES = 5


def python_blocks(text: str) -> list[str]:
    """The Python examples of a document that has no marks around them.

    Each begins with ``import hurray`` and goes on for as many paragraphs as are Python.
    """
    blocks = []
    lines = text.split("\n")
    for start, line in enumerate(lines):
        if line != "import hurray":
            continue
        block, paragraph = line, ""
        for following in [*lines[start + 1 :], ""]:
            paragraph += "\n" + following
            if following:
                continue
            try:
                ast.parse(block + paragraph)
            except SyntaxError:
                break
            block, paragraph = block + paragraph, ""
        blocks.append(block)
    return blocks


@pytest.mark.parametrize("number", range(PYTHON_EXAMPLES))
def test_a_published_example_runs_under_the_name_that_it_imports(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    require(BLOCK_PAGED.is_file(), f"the seed document {BLOCK_PAGED.name} is not beside this project")
    blocks = python_blocks(BLOCK_PAGED.read_text(encoding="utf-8"))
    assert len(blocks) == PYTHON_EXAMPLES
    monkeypatch.setitem(sys.modules, "hurray", hw)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(blocks[number], f"example {number}", "exec"), {"__name__": "example"})  # noqa: S102
    if "print(" in blocks[number]:
        assert printed.getvalue().strip()


def test_the_published_examples_are_found_whole() -> None:
    """Words between examples are not taken for Python, even where they would parse."""
    text = "import hurray\n\na = 1\n\nb = 2\n\nNot Python at all\n\nimport hurray\n\nc = 3\n\nTwo words\n\nd = 4\n"
    assert [block.split() for block in python_blocks(text)] == [
        ["import", "hurray", "a", "=", "1", "b", "=", "2"],
        ["import", "hurray", "c", "=", "3"],
    ]


LAYOUT = hw.BlockPagedLayout(
    page_size=4, num_pages=5, paged_axis=0, num_seqs=2, kv_role="key", layer_index=3, block_table_index_type="uint32"
)


def test_a_layout_knows_its_tag_its_buffers_and_its_rank() -> None:
    assert (LAYOUT.tag, LAYOUT.name, LAYOUT.buffer_count) == (0x0A, "block_paged", 3)
    assert (LAYOUT.page_size, LAYOUT.num_pages, LAYOUT.num_seqs) == (4, 5, 2)
    LAYOUT.validate_against_shape([9, 2, 8])
    for shape in ([9, 2], [9, 2, 8, 1], []):
        with pytest.raises(hw.InvalidDescriptorError):
            LAYOUT.validate_against_shape(shape)


def test_the_last_three_parameters_have_defaults() -> None:
    plain = hw.BlockPagedLayout(page_size=4, num_pages=5, paged_axis=0, num_seqs=2)
    assert (plain.kv_role, plain.layer_index, plain.block_table_index_type) == ("key", None, "uint32")


def test_an_element_is_found_through_the_table() -> None:
    """Sequence 0 owns pages 0 and 1, sequence 1 page 0 again: token 4 of sequence 0 is slot 0 of page 1."""
    where: dict[str, Any] = {
        "page_size": 4, "num_pages": 5, "num_heads": 2, "head_dim": 8, "block_table": [0, 1, 0], "seq_ptr": [0, 2, 3],
    }  # fmt: skip
    assert hw.element_offset(0, 4, 0, 0, **where) == 64
    assert hw.element_offset(0, 0, 0, 0, **where) == hw.element_offset(1, 0, 0, 0, **where) == 0
    assert hw.element_offset(0, 5, 1, 7, **where) == ((1 * 4 + 1) * 2 + 1) * 8 + 7


@pytest.mark.parametrize("kind", [list, tuple, np.array], ids=["list", "tuple", "array"])
def test_a_shared_prefix_is_valid_and_a_page_out_of_range_is_not(kind: Any) -> None:
    LAYOUT.validate_index_buffers(seq_ptr=kind([0, 2, 3]), block_table=kind([0, 1, 0]))
    with pytest.raises(hw.InvalidDescriptorError, match=r"block_table\[1\]") as caught:
        LAYOUT.validate_index_buffers(seq_ptr=kind([0, 2, 3]), block_table=kind([0, 5, 0]))
    assert caught.value.rule == "block-paged.page-id"


def test_an_empty_batch_is_valid() -> None:
    empty = hw.BlockPagedLayout(page_size=16, num_pages=0, paged_axis=0, num_seqs=0)
    empty.validate_index_buffers(seq_ptr=[0], block_table=[])


@pytest.mark.parametrize(
    ("scheme", "valid"),
    [
        (hw.PerBlockAffine.symmetric(axis=0, block_size=4, scale_buffer_index=3, scale_type=hw.float32), True),
        (hw.PerBlockAffine.symmetric(axis=0, block_size=8, scale_buffer_index=3, scale_type=hw.float32), False),
        (hw.PerBlockAffine.symmetric(axis=1, block_size=4, scale_buffer_index=3, scale_type=hw.float32), False),
        (hw.PerChannelAffine.symmetric(axis=0, scale_buffer_index=3), False),
        (hw.PerChannelAffine.symmetric(axis=1, scale_buffer_index=3), True),
        (hw.PerTensorAffine(0.5), True),
        (hw.Nf4(axis=2, block_size=8, scale_buffer_index=3), False),
    ],
    ids=["page slots", "other block", "other axis", "tokens", "heads", "tensor", "nf4"],
)
def test_a_scheme_is_compatible_or_refused(scheme: hw.Quantization, valid: bool) -> None:
    if valid:
        LAYOUT.validate_quantization_compatibility(scheme)
    else:
        with pytest.raises(hw.InvalidDescriptorError):
            LAYOUT.validate_quantization_compatibility(scheme)


def test_the_published_gathers_come_out_as_printed() -> None:
    for example in [published(number) for number in range(PUBLISHED)]:
        expected = example["expected"]
        for dtype in (np.float32, hw.bfloat16.dtype):
            found = hw.gather_kv(
                np.array(example["k_pages"], dtype), np.array(example["v_pages"], dtype),
                np.array(example["block_tables"], np.int32), np.array(example["seq_lens"], np.int32),
            )  # fmt: skip
            assert set(found) == {"keys", "values", "mask"}
            assert found["mask"].dtype == np.bool_
            assert found["mask"].tolist() == expected["mask"]
            for name in ("keys", "values"):
                assert found[name].dtype == dtype
                assert np.array_equal(found[name], np.array(expected[name], dtype))


def test_a_gather_by_hand() -> None:
    """Two pages of two tokens; the second sequence has none. What lies past a length never reaches the output."""
    keys = np.array([[[[1.0]], [[np.nan]]], [[[3.0]], [[4.0]]]], np.float32)
    found = hw.gather_kv(keys, -keys, [[1, 0], [-1, 7]], [3, 0])
    assert found["keys"][..., 0, 0].tolist() == [[3, 4, 1, 0], [0, 0, 0, 0]]
    assert found["values"][..., 0, 0].tolist() == [[-3, -4, -1, 0], [0, 0, 0, 0]]
    assert found["mask"].tolist() == [[True, True, True, False], [False] * 4]

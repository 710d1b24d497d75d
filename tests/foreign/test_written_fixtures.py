"""The committed files of the programs in other languages hold what their cases say. This takes no compiler.

What a case holds is worked out in ``cases.py`` from the formulas in ``tools/foreign/README.md``; that the committed
files are still what the programs write is a matter of ``test_foreign.py``.
"""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hurray_wire as hw

from .cases import (
    EMPTY_BATCH,
    EXPECTED,
    INT8_PAGE_SLOT,
    MULTI,
    MULTI_METADATA,
    MULTI_NAMES,
    MULTI_TOKENS,
    WORKED_EXAMPLE,
    WORKED_POOL,
    WORKED_TOKENS,
    in_python,
    sequence,
)
from .programs import CASES, FILES, WRITERS, load

write_fixtures = load("tools/foreign", "write_fixtures")

by_every_writer = pytest.mark.parametrize("writer", WRITERS)


def path_of(writer: str, case: str) -> Path:
    path: Path = write_fixtures.FIXTURES / write_fixtures.name_of(writer, case)
    return path


def bits(array: np.ndarray) -> list[int]:
    """Every element of an array as the unsigned integer that its bytes are."""
    found: list[int] = np.ascontiguousarray(array).reshape(-1).view(f"<u{array.itemsize}").tolist()
    return found


def numbers(code: str, raw: bytes) -> list[Any]:
    return list(struct.unpack(f"<{len(raw) // struct.calcsize(code)}{code}", raw))


def assert_pages(tensor: Any, buffers: list[bytes], shape: tuple[int, ...], element: str, index: str) -> None:
    """Pool, table and pointers of a block-paged tensor, number by number."""
    assert isinstance(tensor, hw.PagedTensor)
    assert tensor.page_pool.shape == shape
    assert bits(tensor.page_pool) == numbers(element, buffers[0])
    assert tensor.block_table.tolist() == numbers(index, buffers[1])
    assert tensor.seq_ptr.tolist() == numbers(index, buffers[2])


def assert_sequences(tensor: Any, pool: bytes, tokens: list[list[tuple[int, int]]], row: int) -> None:
    """All sequences of a tensor, gathered in each of three ways."""
    values, mask = tensor.gather()
    expected = [sequence(pool, of_one, row) for of_one in tokens]
    for number, (of_one, raw) in enumerate(zip(tokens, expected, strict=True)):
        assert values[number, : len(of_one)].tobytes() == raw
        assert not values[number, len(of_one) :].view(np.uint8).any()
        assert mask[number].tolist() == [True] * len(of_one) + [False] * (mask.shape[1] - len(of_one))
        assert tensor.gather([number]).values.tobytes() == raw
    assert tensor.ragged().tobytes() == b"".join(expected)


def test_every_program_has_written_every_case() -> None:
    there = {path.relative_to(write_fixtures.FIXTURES).as_posix() for path in write_fixtures.FIXTURES.glob("*/*")}
    languages = ("c", "rust", "javascript", "java")
    files = [f"{case}.hrry" for case in FILES] + ["stream.stream", "group_stream.stream"]
    assert there == {f"{language}/{file}" for language in languages for file in files}
    assert set(EXPECTED) == set(CASES)


def test_the_maker_says_when_a_file_differs(tmp_path: Path) -> None:
    written = {"c/a.hrry": b"one", "java/b.stream": b"two", "rust/c.hrry": b"three"}
    for name, data in written.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(data)
    assert write_fixtures.differences(written, tmp_path) == []
    (tmp_path / "c/a.hrry").write_bytes(b"ons")
    (tmp_path / "java/b.stream").unlink()
    (tmp_path / "rust/d.hrry").write_bytes(b"")
    assert write_fixtures.differences(written, tmp_path) == [
        "rust/d.hrry is written by no program",
        "c/a.hrry differs",
        "java/b.stream is missing",
    ]


@by_every_writer
@pytest.mark.parametrize("case", FILES)
def test_every_buffer_of_a_file_is_that_of_its_case(writer: str, case: str) -> None:
    names, buffers = EXPECTED[case]
    assert names is not None
    with hw.open(path_of(writer, case)) as file:
        report = file.verify()
        assert list(file.names) == names
        assert [[bytes(buffer) for buffer in tensor.buffers] for tensor in file.values()] == buffers
    assert (report.tensors, report.buffers) == (len(buffers), sum(map(len, buffers)))
    assert report.checksums == (4 * (1 + 3) + 2 if case == "multi" else 0)


@by_every_writer
def test_worked_example(writer: str) -> None:
    with hw.open(path_of(writer, "spec_example"), seq_lens=[6, 3]) as file:
        assert file.metadata == {}
        tensor = file["layers.3.key"]
        assert tensor.descriptor.element_type == hw.float16
        assert (tensor.shape, tensor.descriptor.layout.layer_index) == ((9, 2, 8), 3)
        assert_pages(tensor, WORKED_EXAMPLE, (5, 4, 2, 8), "H", "I")
        assert_sequences(tensor, WORKED_POOL, WORKED_TOKENS, 2 * 8 * 2)


@by_every_writer
def test_several_layers_with_metadata(writer: str) -> None:
    with hw.load_snapshot(path_of(writer, "multi")) as snapshot:
        snapshot.verify()
        assert snapshot.layers == (0, 1)
        assert snapshot.seq_lens.tolist() == [10, 7, 0]
        metadata = dict(snapshot.metadata)
        assert len(metadata.pop("hurray_wire.crc32c")) == 18
        assert metadata == in_python(MULTI_METADATA)
        assert type(metadata["b"]) is bool
        tensors = [tensor for layer in snapshot for tensor in (layer.key, layer.value)]
        assert [tensor.name for tensor in tensors] == MULTI_NAMES[:4]
        for tensor, buffers in zip(tensors, MULTI, strict=True):
            assert tensor.descriptor.element_type == hw.bfloat16
            assert tensor.page_pool.dtype == ml_dtypes.bfloat16
            assert_pages(tensor, buffers, (6, 4, 2, 4), "H", "Q")
            assert_sequences(tensor, buffers[0], MULTI_TOKENS, 2 * 4 * 2)


@by_every_writer
def test_batch_without_sequences(writer: str) -> None:
    with hw.open(path_of(writer, "empty_batch")) as file:
        tensor = file["empty"]
        assert (tensor.descriptor.layout.kv_role, tensor.descriptor.layout.layer_index) == ("value", None)
        assert_pages(tensor, EMPTY_BATCH, (0, 16, 2, 8), "I", "Q")
        assert tensor.seq_lens.tolist() == []
        assert tensor.gather().values.shape == (0, 0, 2, 8)
        assert tensor.ragged().shape == (0, 2, 8)


@by_every_writer
def test_scales_per_page_slot(writer: str) -> None:
    with hw.open(path_of(writer, "int8_page_slot"), seq_lens=[6, 3]) as file:
        tensor = file["cache"]
        assert tensor.descriptor.layout.kv_role == "fused"
        assert_pages(tensor, INT8_PAGE_SLOT, (5, 4, 2, 8), "B", "I")
        assert_sequences(tensor, INT8_PAGE_SLOT[0], WORKED_TOKENS, 2 * 8)
        values, _ = tensor.gather(dequantize=True)
        stored, scales = numbers("b", INT8_PAGE_SLOT[0]), numbers("e", INT8_PAGE_SLOT[3])
        for number, tokens in enumerate(WORKED_TOKENS):
            for token, (page, slot) in enumerate(tokens):
                j = page * 4 + slot
                expected = [(element - (j - 10)) * scales[j] for element in stored[j * 16 :][:16]]
                assert values[number, token].reshape(-1).tolist() == expected


@by_every_writer
def test_metadata_without_its_flag(writer: str) -> None:
    with hw.open(path_of(writer, "unflagged_metadata"), seq_lens=[6, 3]) as file:
        assert file.metadata == {"producer": "foreign", "tensor_count": 2}
        assert file["bytes"].numpy().tolist() == [1, 2, 3, 4, 5]
        assert_sequences(file["layers.3.key"], WORKED_POOL, WORKED_TOKENS, 2 * 8 * 2)


@by_every_writer
def test_stream_of_two_tensors(writer: str) -> None:
    with path_of(writer, "stream").open("rb") as stream:
        first, second = hw.StreamReader(stream)
    assert_pages(first, WORKED_EXAMPLE, (5, 4, 2, 8), "H", "I")
    assert_pages(second, EMPTY_BATCH, (0, 16, 2, 8), "I", "Q")


@by_every_writer
def test_snapshot_on_a_stream(writer: str) -> None:
    data = path_of(writer, "group_stream").read_bytes()
    snapshot = hw.receive_snapshot(io.BytesIO(data))
    assert snapshot.metadata == in_python(MULTI_METADATA)
    assert snapshot.seq_lens.tolist() == [10, 7, 0]
    for tensor, buffers in zip(snapshot.tensors, MULTI, strict=True):
        assert_pages(tensor, buffers, (6, 4, 2, 4), "H", "Q")
        assert_sequences(tensor, buffers[0], MULTI_TOKENS, 2 * 4 * 2)

"""Small files that are valid and speak of much, met with the limits that a reader has who sets none."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fixtures.corpus import tool

import hurray_wire as hw
from hurray_wire.arrays.memory import allowed_bytes, check_limit
from hurray_wire.buffers import MemoryBuffers

FREE = 256 << 20  # an array of this size may be made of anything


def words(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def file_of(*contents: Any) -> bytes:
    emit = tool("fixture_cases.emit")
    out = emit.Out()
    emit.emit_file(out, emit.File(tuple(contents)))
    return bytes(out.finish())


def dense(element_type: str, shape: tuple[int, ...], layout: dict[str, Any], *buffers: bytes, **more: Any) -> bytes:
    emit, p = tool("fixture_cases.emit"), tool("fixture_cases.pieces")
    descriptor = emit.Descriptor(getattr(p, element_type), shape, tuple(map(len, buffers)), **layout, **more)
    return file_of(emit.Content("t", descriptor, buffers))


def paged(
    *lengths: int,
    page_size: int,
    heads: int = 1,
    dim: int = 1,
    num_pages: int = 1,
    pages_each: int = 1,
    element_type: str = "U8",
    name: str = "key",
    **more: Any,
) -> Any:
    """Sequences that all name page 0 and nothing else."""
    emit, p = tool("fixture_cases.emit"), tool("fixture_cases.pieces")
    seqs = len(lengths)
    pool = bytes(num_pages * page_size * heads * dim)
    buffers = (pool, words(*[0] * (seqs * pages_each)), words(*(seq * pages_each for seq in range(seqs + 1))))
    sizes = tuple(len(buffer) if buffer else (0, 64) for buffer in buffers)
    layout = p.block_paged(page_size, num_pages, seqs, **more)
    shape = (sum(lengths), heads, dim)
    return emit.Content(name, emit.Descriptor(getattr(p, element_type), shape, sizes, **layout), buffers)


def refused(call: Callable[[], Any], rule: str = "limit.dense-bytes") -> hw.LimitError:
    with pytest.raises(hw.LimitError) as caught:
        call()
    assert caught.value.rule == rule
    return caught.value


def test_an_array_is_made_of_few_bytes_up_to_256_mib_and_above_that_in_proportion() -> None:
    limits = hw.Limits()
    assert allowed_bytes(limits, 0) == FREE
    assert allowed_bytes(limits, FREE // 1024) == FREE
    assert allowed_bytes(limits, FREE // 1024 + 1) == FREE + 1024
    assert allowed_bytes(limits, 1 << 40) == limits.max_dense_bytes == 64 << 30
    assert allowed_bytes(limits, None) == limits.max_dense_bytes


def test_a_limit_is_moved_by_the_field_that_its_error_names() -> None:
    error = refused(lambda: check_limit(FREE + 1, None, "it", stored=1))
    assert "Limits.max_dense_ratio" in str(error)
    assert (error.declared, error.found) == (FREE, FREE + 1)
    check_limit(FREE + 1, hw.Limits(max_dense_ratio=1 << 40), "it", stored=1)
    check_limit(FREE, None, "it", stored=0)
    lower = refused(lambda: check_limit(1001, hw.Limits(max_dense_bytes=1000), "it", stored=1 << 40))
    assert "max_dense_ratio" not in str(lower)


@pytest.mark.parametrize("element_type", ["I8", "F64"])
def test_real_values_of_a_stride_of_zero_are_bounded_by_what_is_stored(element_type: str) -> None:
    p = tool("fixture_cases.pieces")
    size = {"I8": 1, "F64": 8}[element_type]
    with hw.open(dense(element_type, (FREE // 4 + 1,), p.strided(0), bytes(size))) as file:
        assert file["t"].numpy().shape == (FREE // 4 + 1,)  # a view
        refused(lambda: file["t"].numpy(dequantize=True))


def test_unpacked_elements_of_a_stride_of_zero_are_bounded_by_what_is_stored() -> None:
    p = tool("fixture_cases.pieces")
    with hw.open(dense("U4", (FREE + 1,), p.strided(0), b"\1")) as file:
        refused(file["t"].numpy)


def test_a_sparse_tensor_becomes_dense_in_proportion_to_its_entries() -> None:
    p = tool("fixture_cases.pieces")
    coordinates = struct.pack("<2Q", 5, 7)
    with hw.open(dense("U8", (1 << 15, 1 << 14), p.coo(1, is_sorted=1), b"\7", coordinates)) as file:
        sparse = file["t"].sparse()
        assert sparse.nbytes == 17
        error = refused(sparse.to_dense)
        assert (error.declared, error.found) == (FREE, 1 << 29)
        small = hw.Limits(max_dense_bytes=(1 << 29) - 1, max_dense_ratio=1 << 40)
        assert refused(lambda: sparse.to_dense(limits=small)).declared == (1 << 29) - 1


def test_a_partition_is_bounded_by_what_its_members_store() -> None:
    emit, p = tool("fixture_cases.emit"), tool("fixture_cases.pieces")
    shape = (FREE // 4, 5)
    whole = emit.Content("whole", emit.Descriptor(p.U8, shape, **p.composite(p.PARTITION, 1)))
    member = emit.Descriptor(p.U8, shape, (5,), shard=(shape, (0, 0)), **p.strided(0, 1))
    with hw.open(file_of(whole, emit.Content("all", member, (b"abcde",)))) as file:
        refused(file["whole"].numpy)
        assert refused(lambda: file["whole"].numpy(dequantize=True)).found == 4 * 5 * FREE // 4


def test_corrections_of_little_each_are_bounded_together() -> None:
    """Five tensors of 64 MiB out of a byte each: any of them alone would pass."""
    emit, p = tool("fixture_cases.emit"), tool("fixture_cases.pieces")
    shape, count = (1 << 26,), 5
    head = emit.Descriptor(p.U4, shape, **p.composite(p.OVERLAY, count, combine=p.REPLACE))
    contents = [emit.Content("whole", head)]
    for number in range(count):
        one = emit.Descriptor(p.U4, shape, (1,), shard=(shape, (0,)), member=int(number == 0), **p.strided(0))
        contents.append(emit.Content(f"m{number}", one, (b"\1",)))
    with hw.open(file_of(*contents)) as file:
        assert refused(file["whole"].numpy).found == count << 26


def test_tokens_of_no_bytes_are_bounded_by_their_mask() -> None:
    with hw.open(file_of(paged(FREE + 1, page_size=FREE + 1, heads=0))) as file:
        refused(file["key"].gather)
        refused(lambda: file["key"].gather(dequantize=True))
        assert file["key"].gather(max_len=3).mask.tolist() == [[True] * 3]
        assert file["key"].ragged().shape == (FREE + 1, 0, 1)


def test_a_length_that_the_caller_chose_is_not_held_against_the_file() -> None:
    tokens = FREE + 1
    with hw.open(file_of(paged(4, page_size=4))) as file:
        out = np.empty((1, tokens, 1, 1), np.uint8)
        assert int(file["key"].gather(out=out).mask.sum()) == 4
        assert file["key"].gather(max_len=8).values.shape == (1, 8, 1, 1)


def test_a_width_of_tokens_that_no_page_has_is_held_against_the_file() -> None:
    with hw.open(file_of(paged(0, page_size=1, heads=1 << 20, dim=1 << 12, num_pages=0, pages_each=0))) as file:
        refused(lambda: file["key"].gather(max_len=1))


@pytest.mark.parametrize("page_size", [1, 7])
def test_pages_are_planned_in_proportion_to_what_is_stored(page_size: int) -> None:
    with hw.open(file_of(paged(1 << 28, page_size=1 << 28, heads=0))) as file:
        for call in (file.snapshot().count_pages, file.snapshot().export):
            refused(lambda call=call: call(page_size=page_size))  # type: ignore[misc]
        assert file.snapshot().count_pages(page_size=1 << 20) == 256


def test_a_padded_block_table_is_bounded() -> None:
    """One sequence of many pages beside many of one: the table is the product of both."""
    emit, p = tool("fixture_cases.emit"), tool("fixture_cases.pieces")
    many = 1 << 13
    entries = 2 * many
    pointers = (*range(many), entries - 1)
    buffers = (bytes(1), words(*[0] * (entries - 1)), words(*pointers))
    descriptor = emit.Descriptor(p.U8, (entries - 1, 1, 1), tuple(map(len, buffers)), **p.block_paged(1, 1, many))
    with hw.open(file_of(emit.Content("key", descriptor, buffers))) as file:
        for call in (file.snapshot().export, file.snapshot().count_pages):
            assert refused(call).found == 8 * many * many
        assert file.snapshot().export(seqs=[0, many - 1]).block_tables.shape == (2, many)


def test_layers_of_little_each_are_bounded_together() -> None:
    """Three layers of 128 MiB out of 64 KiB each: any of them alone would pass."""
    layers = [paged(*[1024] * 4096, page_size=1024, dim=32, name=f"k{layer}", layer=layer) for layer in range(3)]
    with hw.open(file_of(*layers)) as file:
        error = refused(lambda: file.snapshot().export(layout="dense-thd", form="ragged"))
        assert error.found == 3 << 27
        alone = file.snapshot().export(layout="dense-thd", form="ragged", layers=[1])
        assert alone.arrays[0]["key"].nbytes == 1 << 27


@pytest.mark.parametrize("ranks", [{}, {"tp.rank": 0, "tp.size": 1}, {"tp.rank": 0, "tp.size": 1 << 62}])
def test_heads_without_number_are_refused_by_an_error_of_ours(ranks: dict[str, int]) -> None:
    """2**63 heads of nothing are counted by no len()."""

    class Told:
        metadata = ranks
        layers = (0,)

        def __getitem__(self, layer: int | None) -> Any:
            return snapshot[layer]

    with hw.open(file_of(paged(0, page_size=2, heads=1 << 63, dim=0, num_pages=0, pages_each=0))) as file:
        snapshot = file.snapshot()
        for options in ({}, {"layout": "sglang-slots"}, {"layout": "dense-thd"}, {"num_heads": 1 << 63}):
            with pytest.raises((hw.LimitError, hw.IncompatibleError)):
                hw.export_merged([Told()], **options)
            with pytest.raises((hw.LimitError, hw.IncompatibleError)):
                snapshot.export(**options)


def test_rows_of_a_vast_page_are_refused_by_an_error_of_ours() -> None:
    rows = np.empty(0, np.int64)
    for row_bytes in (1 << 63, 1 << 70, 1 << 140):
        refused(lambda row_bytes=row_bytes: MemoryBuffers([b""]).fetch_rows(0, row_bytes, rows), "limit.addressable")  # type: ignore[misc]
    assert MemoryBuffers([b""]).fetch_rows(0, (1 << 63) - 1, rows).shape == (0, (1 << 63) - 1)
    assert MemoryBuffers([b"abcdefg"]).fetch_rows(0, 3, np.array([1, 0])).tobytes() == b"defabc"


def test_packed_pages_of_a_vast_shape_are_refused_by_an_error_of_ours() -> None:
    emit, p = tool("fixture_cases.emit"), tool("fixture_cases.pieces")
    descriptor = emit.Descriptor(p.U4, (0, 1 << 62, 1 << 62), ((0, 64), (0, 64), 8), **p.block_paged(2, 0, 1))
    with hw.open(file_of(emit.Content("key", descriptor, (b"", b"", words(0, 0))))) as file:
        tensor: Any = file["key"]
        for call in (tensor.gather, tensor.ragged, lambda: tensor.read_pages([]), lambda: tensor.page_pool):
            with pytest.raises(hw.LimitError):
                call()


def test_nothing_that_has_an_array_may_have_none_as_real_numbers() -> None:
    """2**62 bytes can be addressed, and as many float32 cannot, though a size of 0 leaves nothing of either."""
    emit, p = tool("fixture_cases.emit"), tool("fixture_cases.pieces")
    with hw.open(file_of(paged(0, page_size=1, heads=0, dim=1 << 61, pages_each=0))) as file:
        tensor: Any = file["key"]
        assert tensor.ragged().shape == (0, 0, 1 << 61)
        assert tensor.read_pages([0]).shape == (1, 1, 0, 1 << 61)
        for call in (tensor.ragged, tensor.gather, lambda **options: tensor.read_pages([0], **options)):
            with pytest.raises(hw.LimitError):
                call(dequantize=True)
    shape = (0, 1 << 61)
    whole = emit.Content("whole", emit.Descriptor(p.U8, shape, **p.composite(p.PARTITION, 1)))
    member = emit.Descriptor(p.U8, shape, ((0, 64),), shard=(shape, (0, 0)))
    with hw.open(file_of(whole, emit.Content("all", member, (b"",)))) as file:
        assert file["whole"].numpy().shape == shape
        refused(lambda: file["whole"].numpy(dequantize=True), "limit.addressable")


def test_real_numbers_are_bounded_by_their_own_size() -> None:
    with hw.open(file_of(paged(*[1] * 1025, page_size=1, dim=1 << 16))) as file:
        tensor: Any = file["key"]
        for call in (tensor.ragged, tensor.gather):
            assert refused(lambda call=call: call(dequantize=True)).found >= 4 * 1025 << 16  # type: ignore[misc]


def test_memory_that_runs_out_is_an_error_of_ours() -> None:
    vast = hw.Limits(max_dense_bytes=1 << 62, max_dense_ratio=1 << 60)
    p = tool("fixture_cases.pieces")
    with hw.open(file_of(paged(4, page_size=4)), limits=vast) as file:
        refused(lambda: file["key"].gather(max_len=1 << 60), "gather.size")
    with hw.open(dense("I8", (1 << 58,), p.strided(0), b"\1"), limits=vast) as file:
        refused(lambda: file["t"].numpy(dequantize=True), "limit.memory")


def without_bytes(num_pages: int) -> bytes:
    """A cache of one token without elements, in pages of which there are as many as the descriptor says."""
    layout = hw.BlockPagedLayout(1, num_pages, 0, 1, layer_index=0)
    descriptor = hw.TensorDescriptor.build(hw.uint8, (1, 1, 0), layout, (0, 4, 8))
    out = io.BytesIO()
    with hw.create(out) as writer:
        writer.add("key", descriptor, [b"", words(0), words(0, 1)])
    return out.getvalue()


@pytest.mark.parametrize(
    ("pages", "rule"),
    [
        (FREE // 8 + 1, "limit.dense-bytes"),
        (1 << 40, "limit.dense-bytes"),
        (1 << 62, "limit.addressable"),
        ((1 << 64) - 1, "limit.addressable"),
    ],
)
@pytest.mark.parametrize("way", ["save", "send"])
def test_pages_without_bytes_are_written_again_within_the_limits(pages: int, rule: str, way: str) -> None:
    with hw.load_snapshot(without_bytes(pages)) as snapshot:
        write = getattr(snapshot, way)
        refused(lambda: write(io.BytesIO(), compact=False), rule)
        if pages < 1 << 63:
            write(io.BytesIO(), compact=False, scrub=False)
            write(io.BytesIO())


@pytest.mark.parametrize("write", [hw.save_snapshot, hw.send_snapshot])
def test_pages_without_bytes_in_memory_are_written_within_the_limits(write: Callable[..., None]) -> None:
    pool = np.zeros((1 << 40, 2, 1, 0), np.float16)
    batch: dict[str, Any] = {"seq_lens": [3], "block_tables": [[7, 1]], "compact": False}
    refused(lambda: write(io.BytesIO(), [(pool, pool)], **batch), "limit.dense-bytes")
    refused(lambda: write(io.BytesIO(), [(pool, pool)], **batch, scrub=False, quantize="int8"), "limit.memory")
    write(io.BytesIO(), [(pool, pool)], **batch, scrub=False)
    write(io.BytesIO(), [(pool, pool)], **batch, scrub=False, deduplicate=True)

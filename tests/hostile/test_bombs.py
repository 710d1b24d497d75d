"""Much out of little: small files that are valid, and ask for more than they should get."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from fixtures.corpus import tool

import hurray_wire as hw

LIMITS = hw.Limits(max_dense_bytes=1 << 20)


def opened(*contents: Any, **options: Any) -> Any:
    emit = tool("fixture_cases.emit")
    out = emit.Out()
    emit.emit_file(out, emit.File(tuple(contents)))
    return hw.open(out.finish(), limits=LIMITS, **options)


def test_a_stride_of_zero_is_a_view_and_a_copy_of_it_is_bounded() -> None:
    emit, p, c = tool("fixture_cases.emit"), tool("fixture_cases.pieces"), tool("fixture_cases.contents")
    wide = emit.Descriptor(p.F32, (1 << 40, 3), (12,), **p.strided(0, 1))
    with opened(emit.Content("t", wide, (c.f32s(1, 2, 3),))) as file:
        values = file["t"].numpy()
        assert values.shape == (1 << 40, 3)
        assert values[(1 << 40) - 1].tolist() == [1, 2, 3]
        with pytest.raises(hw.LimitError):
            file["t"].numpy(dequantize=True)


def test_elements_that_must_be_unpacked_are_bounded() -> None:
    emit, p = tool("fixture_cases.emit"), tool("fixture_cases.pieces")
    packed = emit.Descriptor(p.U4, (1 << 40, 2), (1,), **p.strided(0, 1))
    with opened(emit.Content("t", packed, (b"\x21",))) as file, pytest.raises(hw.LimitError) as caught:
        file["t"].numpy()
    assert caught.value.rule == "limit.dense-bytes"


def test_a_sparse_tensor_of_a_vast_shape_keeps_its_entries_and_refuses_to_be_dense() -> None:
    emit, p, c = tool("fixture_cases.emit"), tool("fixture_cases.pieces"), tool("fixture_cases.contents")
    vast = emit.Descriptor(p.U8, (1 << 40, 1 << 40), (1, 16), **p.coo(1, is_sorted=1))
    with opened(emit.Content("t", vast, (b"\7", c.u64s((1 << 40) - 1, 5)))) as file:
        sparse = file["t"].sparse()
        assert sparse.nnz == 1
        with pytest.raises(hw.LimitError):
            sparse.to_dense(limits=LIMITS)


def bomb(num_seqs: int) -> Any:
    """One page of 4 KiB that every one of many sequences names many times."""
    emit, p = tool("fixture_cases.emit"), tool("fixture_cases.pieces")
    entries = 64 * num_seqs
    layout = p.block_paged(1, 1, num_seqs)
    buffers = (bytes(4096), bytes(4 * entries), struct.pack(f"<{num_seqs + 1}I", *range(0, entries + 1, 64)))
    descriptor = emit.Descriptor(p.U8, (entries, 1, 4096), tuple(map(len, buffers)), **layout)
    return emit.Content("key", descriptor, buffers)


def test_a_page_named_many_times_is_gathered_within_the_limit() -> None:
    with opened(bomb(64)) as file:  # 16 MiB out of 20 KiB
        tensor = file["key"]
        assert tensor.gather(seqs=[3]).values.nbytes == 64 * 4096
        assert tensor.gather(max_len=1).values.nbytes == 64 * 4096
        for use in (
            tensor.gather,
            tensor.ragged,
            lambda: tensor.gather(dequantize=True),
            lambda: file.snapshot().gather(0),
        ):
            with pytest.raises(hw.LimitError) as caught:
                use()
            assert caught.value.rule == "limit.dense-bytes"


def test_tokens_of_no_bytes_are_bounded_by_their_mask() -> None:
    emit, p, c = tool("fixture_cases.emit"), tool("fixture_cases.pieces"), tool("fixture_cases.contents")
    tokens = 1 << 31
    buffers = (b"", c.u32s(0), c.u32s(0, 1))
    descriptor = emit.Descriptor(p.U8, (tokens, 0, 4), ((0, 64), 4, 8), **p.block_paged(tokens, 1, 1))
    with opened(emit.Content("key", descriptor, buffers)) as file, pytest.raises(hw.LimitError):
        file["key"].gather()


def test_no_pages_of_a_vast_shape_are_refused_by_an_error_of_ours() -> None:
    emit, p, c = tool("fixture_cases.emit"), tool("fixture_cases.pieces"), tool("fixture_cases.contents")
    descriptor = emit.Descriptor(p.U8, (0, 1 << 63, 8), ((0, 64), (0, 64), 4), **p.block_paged(1, 0, 0))
    with opened(emit.Content("key", descriptor, (b"", b"", c.u32s(0)))) as file:
        for use in (file["key"].gather, file["key"].ragged, lambda: file["key"].page_pool):
            with pytest.raises(hw.LimitError):
                use()


def test_a_partition_of_a_vast_shape_is_bounded() -> None:
    emit, p = tool("fixture_cases.emit"), tool("fixture_cases.pieces")
    shape, strides = (1 << 30, 4), p.strided(0, 1)
    head = emit.Content("whole", emit.Descriptor(p.U8, shape, **p.composite(p.PARTITION, 1)))
    member = emit.Content("all", emit.Descriptor(p.U8, shape, (4,), shard=(shape, (0, 0)), **strides), (b"abcd",))
    with opened(head, member) as file, pytest.raises(hw.LimitError):
        file["whole"].numpy()

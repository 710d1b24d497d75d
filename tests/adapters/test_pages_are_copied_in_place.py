"""Pages go from pool to pool by id: the named ones only, each once, bit for bit, in bounded memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hurray_wire import adapters, parallel
from hurray_wire.adapters import copy_pages
from hurray_wire.errors import BufferSizeError, HurrayError, IncompatibleError, InvalidDescriptorError


def numbered(*shape: int, dtype: Any = np.uint32) -> np.ndarray:
    return np.arange(1, np.prod(shape) + 1).astype(dtype).reshape(shape)


def head_first(pool: np.ndarray) -> np.ndarray:
    """The same values with the heads of a page before its tokens in memory."""
    return np.ascontiguousarray(pool.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


@given(st.data())
def test_the_named_pages_and_no_others_are_written(data: st.DataObject) -> None:
    have, room = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    places = data.draw(st.lists(st.integers(0, room - 1), unique=True, max_size=room))
    taken = data.draw(st.lists(st.integers(0, have - 1), min_size=len(places), max_size=len(places)))
    source, target = numbered(have, 3, 2, 4), np.zeros((room, 3, 2, 4), np.uint32)
    if data.draw(st.booleans()):
        source = head_first(source)
    if data.draw(st.booleans()):
        target = head_first(target)
    as_reader = data.draw(st.booleans())
    copy_pages(
        source.__getitem__ if as_reader else source,
        target,
        source_ids=np.array(taken, np.int32),
        destination_ids=np.array(places, np.uint64),
    )
    for page in range(room):
        expected = source[taken[places.index(page)]] if page in places else np.zeros((3, 2, 4))
        np.testing.assert_array_equal(target[page], expected)


def test_ids_default_to_the_first_pages() -> None:
    source = numbered(4, 2, 1, 3)
    for options, rows in (
        ({}, [1, 2, 3, 4, 0]),
        ({"source_ids": [3, 1]}, [4, 2, 0, 0, 0]),
        ({"source_ids": [0, 2, 1, 3]}, [1, 3, 2, 4, 0]),
        ({"destination_ids": [4, 0]}, [2, 0, 0, 0, 1]),
    ):
        target = np.zeros((5, 2, 1, 3), np.uint32)
        copy_pages(source, target, **options)  # type: ignore[arg-type]
        assert target[:, 0, 0, 0].tolist() == [0 if row == 0 else (row - 1) * 6 + 1 for row in rows]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, "V16", ">f2"])
def test_every_bit_pattern_survives(dtype: Any) -> None:
    bits = np.random.default_rng(7).integers(0, 256, (64, 4, 2, 16), dtype=np.uint8)  # NaNs with payloads among them
    source = bits.view(dtype)
    target = np.zeros(source.shape, source.dtype)
    copy_pages(source, target, source_ids=np.arange(64)[::-1])
    assert target.tobytes() == bits[::-1].tobytes()


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "c8"])
def test_byte_order_is_turned_without_touching_values(dtype: str) -> None:
    little = np.random.default_rng(7).integers(0, 256, (8, 4, 2, 16), dtype=np.uint8).view(f"<{dtype}")
    target = np.zeros(little.shape, f">{dtype}")
    copy_pages(little, target)
    width = np.dtype(dtype).itemsize // (2 if dtype[0] == "c" else 1)
    turned = np.frombuffer(target.tobytes(), np.uint8).reshape(-1, width)[:, ::-1]
    assert turned.tobytes() == little.tobytes()


@pytest.mark.parametrize(
    ("source", "target", "options", "error", "rule"),
    [
        ((4, 2, 1, 3), (4, 2, 1, 4), {}, BufferSizeError, "adapter.copy-shape"),
        ((4, 2, 1, 3), (4, 3, 1, 3), {}, BufferSizeError, "adapter.copy-shape"),
        ((4, 2, 3), (4, 2, 3), {}, BufferSizeError, "adapter.copy-shape"),
        ((4, 2, 1, 3), (3, 2, 1, 3), {}, InvalidDescriptorError, "block-paged.page-id"),
        ((3, 2, 1, 3), (9, 2, 1, 3), {"destination_ids": [0, 1, 2, 3]}, InvalidDescriptorError, "block-paged.page-id"),
        ((3, 2, 1, 3), (9, 2, 1, 3), {"source_ids": [3]}, InvalidDescriptorError, "block-paged.page-id"),
        ((3, 2, 1, 3), (9, 2, 1, 3), {"source_ids": [-1]}, InvalidDescriptorError, "block-paged.page-id"),
        ((3, 2, 1, 3), (9, 2, 1, 3), {"destination_ids": [9]}, InvalidDescriptorError, "block-paged.page-id"),
        (
            (3, 2, 1, 3),
            (9, 2, 1, 3),
            {"destination_ids": np.array([2**64 - 1], np.uint64)},
            InvalidDescriptorError,
            "block-paged.page-id",
        ),
        ((3, 2, 1, 3), (9, 2, 1, 3), {"destination_ids": [5, 1, 5]}, IncompatibleError, "adapter.destination"),
        (
            (3, 2, 1, 3),
            (9, 2, 1, 3),
            {"source_ids": [0, 1], "destination_ids": [5]},
            IncompatibleError,
            "adapter.copy-count",
        ),
        ((3, 2, 1, 3), (9, 2, 1, 3), {"destination_ids": [0.0]}, IncompatibleError, "adapter.table-type"),
        ((3, 2, 1, 3), (9, 2, 1, 3), {"destination_ids": [[0]]}, IncompatibleError, "adapter.table-rank"),
    ],
)
def test_a_refused_copy_writes_nothing(
    source: tuple[int, ...], target: tuple[int, ...], options: dict[str, Any], error: type[HurrayError], rule: str
) -> None:
    pool = np.zeros(target, np.uint32)
    with pytest.raises(error) as refusal:
        copy_pages(numbered(*source), pool, **options)
    assert refusal.value.rule == rule
    assert not pool.any()


@pytest.mark.parametrize(("source", "target"), [("f2", ml_dtypes.bfloat16), ("u1", "i1"), ("f4", "f8"), ("f4", "f2")])
def test_values_are_not_converted(source: Any, target: Any) -> None:
    with pytest.raises(BufferSizeError) as refusal:
        copy_pages(np.ones((2, 2, 1, 3), source), np.zeros((2, 2, 1, 3), target))
    assert refusal.value.rule == "adapter.copy-type"


def test_a_pool_is_not_copied_over_itself() -> None:
    memory = np.zeros((8, 4, 4, 3), np.float32)
    with pytest.raises(IncompatibleError, match="same memory"):
        copy_pages(memory[:5], memory[4:])
    copy_pages(memory[:, :, 0::2], memory[:, :, 1::2])  # neighbours in memory, but apart
    read_only = memory[:4]
    read_only.flags.writeable = False
    with pytest.raises(IncompatibleError, match="read-only"):
        copy_pages(numbered(4, 4, 4, 3, dtype=np.float32), read_only)


def test_a_reader_has_to_give_what_it_was_asked_for() -> None:
    pool, target = numbered(4, 2, 1, 3), np.zeros((4, 2, 1, 3), np.uint32)
    with pytest.raises(TypeError, match="source_ids"):
        copy_pages(pool.__getitem__, target)
    with pytest.raises(BufferSizeError, match="1 pages for 2 ids"):
        copy_pages(lambda ids: pool[ids[:1]], target, source_ids=[0, 1])
    with pytest.raises(BufferSizeError, match="not converted"):
        copy_pages(lambda ids: pool[ids].astype(np.int64), target, source_ids=[0, 1])


MIB = 1 << 20


@pytest.mark.parametrize("name", adapters.names())
def test_an_export_holds_no_second_pool(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 MiB a role go into each layout, page by page in a random order: two threads hold a few MiB between them."""
    monkeypatch.setattr(parallel, "cpu_count", lambda: 2)
    pages, slots, heads, dim = 256, 16, 8, 256
    roles = ("fused",) if name == "mla" else ("key", "value")
    pool = adapters.PoolSpec(1 if name == "mla" else heads, dim * (heads if name == "mla" else 1), np.dtype(np.float16))
    adapter = adapters.get(name)
    made = adapter.allocate([adapters.LayerSpec(0, dict.fromkeys(roles, pool))], num_pages=pages, page_size=slots)
    source = np.zeros((pages, slots, pool.num_heads, pool.head_dim), np.float16)
    source[:] = np.arange(pages, dtype=np.float16)[:, None, None, None]
    order = np.random.default_rng(1).permutation(pages)
    assert source.nbytes == 16 * MIB
    tracemalloc.start()
    try:
        (layer,) = adapter.views(made, page_size=slots, num_heads=pool.num_heads, head_dim=pool.head_dim, writable=True)
        for target in layer.pools.values():
            copy_pages(source, target, source_ids=order)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 * MIB
    for target in layer.pools.values():
        assert target[:, 0, 0, 0].tolist() == order.tolist()

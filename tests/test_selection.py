"""Which pages go into a snapshot (spec/snapshot.md, privacy): compact, scrub, deduplicate, on pools of any strides."""

import numpy as np
import pytest

import hurray_wire as hw
from hurray_wire.adapters import normalise
from hurray_wire.model import element_types
from hurray_wire.selection import PoolChunks, deduplicated, plan_pages

PAGE_SIZE = 4


def tables(block_tables, seq_lens):
    return normalise(block_tables=block_tables, seq_lens=seq_lens, page_size=PAGE_SIZE, num_pages=8)


def plan(block_tables, seq_lens, *, compact=True, scrub=True):
    return plan_pages(tables(block_tables, seq_lens), num_pages=8, page_size=PAGE_SIZE, compact=compact, scrub=scrub)


def test_compact_writes_referenced_pages_in_the_order_of_first_use_and_shared_ones_once():
    made = plan([[6, 2, -1], [6, 5, 1]], [5, 12])
    assert made.pages.tolist() == [6, 2, 5, 1]
    assert made.block_table.tolist() == [0, 1, 0, 2, 3]
    assert made.seq_ptr.tolist() == [0, 2, 5]


def test_scrub_keeps_the_slots_that_some_sequence_uses():
    made = plan([[6, 2], [6, -1], [2, -1]], [5, 3, 2])
    assert dict(zip(made.pages.tolist(), made.kept.tolist(), strict=True)) == {6: 4, 2: 2}


def test_without_compact_every_page_is_written_and_unreferenced_ones_are_scrubbed_whole():
    made = plan([[6, 2]], [5], compact=False)
    assert made.pages is None
    assert made.block_table.tolist() == [6, 2]
    assert made.kept.tolist() == [0, 0, 1, 0, 0, 0, 4, 0]


def test_with_neither_the_pool_is_written_as_it_lies():
    made = plan([[6, 2]], [5], compact=False, scrub=False)
    assert (made.pages, made.kept, made.num_pages) == (None, None, 8)


def test_an_empty_batch_writes_no_page():
    made = plan_pages(
        tables(np.zeros((0, 3), np.int32), []), num_pages=8, page_size=PAGE_SIZE, compact=True, scrub=True
    )
    assert (made.num_pages, made.block_table.tolist(), made.seq_ptr.tolist()) == (0, [], [0])


def expected_bytes(pool, made):
    """Page by page, slot by slot, in plain Python."""
    pages = range(len(pool)) if made.pages is None else made.pages.tolist()
    out = b""
    for written, page in enumerate(pages):
        for slot in range(PAGE_SIZE):
            values = np.asarray(pool[page, slot], dtype=pool.dtype.newbyteorder("<"))
            kept = made.kept is None or slot < made.kept[written]
            out += values.tobytes() if kept else bytes(values.nbytes)
    return out


def pool_of(kind):
    base = np.arange(1, 8 * PAGE_SIZE * 3 * 2 + 1, dtype=np.uint16).reshape(8, PAGE_SIZE, 3, 2)
    return {
        "contiguous": base,
        "heads first": np.ascontiguousarray(base.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3),
        "fortran": np.asfortranarray(base),
        "reversed": base[::-1, :, ::-1],
        "big-endian": base.astype(">u2"),
        "slice": np.repeat(base, 2, axis=0)[::2],
        "broadcast": np.broadcast_to(base[:1], base.shape),
    }[kind]


@pytest.mark.parametrize(
    "kind", ["contiguous", "heads first", "fortran", "reversed", "big-endian", "slice", "broadcast"]
)
@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize("scrub", [True, False])
def test_a_pool_of_any_strides_is_written_by_value(kind, compact, scrub):
    pool = pool_of(kind)
    made = plan([[6, 7, 2], [6, 5, 0]], [9, 12], compact=compact, scrub=scrub)
    chunks = PoolChunks(pool, made, element_types.uint16)
    written = b"".join(bytes(chunk) for chunk in chunks.chunks())
    assert written == expected_bytes(pool, made)
    assert len(written) == chunks.nbytes
    page_bytes = chunks.nbytes // made.num_pages
    for pages in (1, 2, 3, 99):
        assert parts_of(chunks, pages * page_bytes) == written


def parts_of(chunks, part_bytes):
    """What the parts make, the last one made first, all of them into one memory that they soil for each other."""
    memory = np.full(part_bytes, 0xEE, dtype=np.uint8)
    listed = list(chunks.parts(part_bytes))
    assert [size for size, _ in listed[:-1]] == [part_bytes] * (len(listed) - 1)
    return b"".join([make(memory[:size]).tobytes() for size, make in listed[::-1]][::-1])


def test_a_pool_larger_than_the_staging_is_written_whole():
    pool = np.arange(40 * PAGE_SIZE * 32 * 512, dtype=np.uint32).reshape(40, PAGE_SIZE, 32, 512)
    order = np.random.default_rng(3).permutation(40)
    batch = normalise(block_tables=[order], seq_lens=[40 * PAGE_SIZE - 1], page_size=PAGE_SIZE, num_pages=40)
    made = plan_pages(batch, num_pages=40, page_size=PAGE_SIZE, compact=True, scrub=True)
    written = b"".join(bytes(chunk) for chunk in PoolChunks(pool, made, element_types.uint32).chunks())
    whole = pool[order].copy()
    whole[-1, -1] = 0
    assert written == whole.tobytes()


def test_packed_types_are_packed_page_after_page():
    pool = np.arange(8 * PAGE_SIZE * 1 * 3).reshape(8, PAGE_SIZE, 1, 3).astype(np.int8) % 4
    values = pool.astype(element_types.uint2.dtype)
    made = plan([[1, 0]], [8], scrub=False)
    written = b"".join(bytes(chunk) for chunk in PoolChunks(values, made, element_types.uint2).chunks())
    flat = np.concatenate([pool[1].ravel(), pool[0].ravel()]).tolist()
    packed = bytes(sum(value << 2 * k for k, value in enumerate(flat[i : i + 4])) for i in range(0, len(flat), 4))
    assert written == packed
    assert PoolChunks(values, made, element_types.uint2).parts(1 << 20) is None


def test_deduplicate_merges_pages_only_where_every_layer_agrees():
    first = np.zeros((8, PAGE_SIZE, 1, 1), np.uint8)
    first[[1, 4]] = 7  # the same in this pool...
    second = np.zeros((8, PAGE_SIZE, 1, 1), np.uint8)
    second[4] = 9  # ...but not in this one
    made = plan([[1, 4], [3, 5]], [8, 8])
    assert deduplicated(made, [first]).pages.tolist() == [1, 3]
    merged = deduplicated(made, [first, second])
    assert merged.pages.tolist() == [1, 4, 3]
    assert merged.block_table.tolist() == [0, 1, 2, 2]


def test_deduplicate_sees_pages_as_they_are_written():
    pool = np.zeros((8, PAGE_SIZE, 1, 1), np.uint8)
    pool[2, 3] = 99  # a stale slot: scrubbed, so pages 2 and 3 are written alike
    assert deduplicated(plan([[2], [3]], [3, 4]), [pool]).pages.tolist() == [2]
    assert deduplicated(plan([[2], [3]], [3, 4], scrub=False), [pool]).pages.tolist() == [2, 3]


def test_the_chunks_of_a_pool_are_a_chunked_buffer():
    made = plan([[1]], [4])
    assert isinstance(PoolChunks(pool_of("contiguous"), made, element_types.uint16), hw.Chunked)


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize("scrub", [True, False])
def test_pages_without_bytes_are_equal(compact, scrub):
    made = deduplicated(plan([[5, 2], [5]], [6, 4], compact=compact, scrub=scrub), [np.zeros((8, PAGE_SIZE, 2, 0))])
    assert (made.num_pages, made.block_table.tolist(), made.seq_ptr.tolist()) == (1, [0, 0, 0], [0, 2, 3])
    assert made.pages.tolist() == [5 if compact else 0]

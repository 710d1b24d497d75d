"""Pages to sequences: the fast path against one token at a time, and every refusal.

Longer than 400 lines because all four functions are tested on the same pools, layouts and batches, which stand first.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from gather_kv_examples import BY_HAND, PUBLISHED, Example, published
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hurray_wire import gather as gather_module
from hurray_wire import page_copy
from hurray_wire.addressing import element_offset
from hurray_wire.errors import BufferSizeError, HurrayError, IncompatibleError, InvalidDescriptorError, LimitError
from hurray_wire.gather import gather_kv, gather_padded, gather_ragged

DTYPES = [
    np.dtype(kind)
    for kind in (
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e8m0fnu,
        "<f2",
        "<f4",
        ">f4",
        "<f8",
        "<c8",
        "<c16",
        "i1",
        "<u8",
        "V16",
        "V3",
    )
]
RESTS = [(), (1,), (3,), (5, 1), (2, 3), (8, 16), (1, 2, 2), (0, 4)]


def random_pool(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """A pool of random bytes, zero bytes left out: NaN of all kinds, and padding cannot be mistaken for a slot."""
    size = int(np.prod(shape)) * dtype.itemsize
    return rng.integers(1, 256, size, np.uint8).view(dtype).reshape(shape)


def strided(array: NDArray[Any], how: str) -> NDArray[Any]:
    """The same values, and dtype, laid out in another way."""
    if how == "every second page":
        wide = np.repeat(array, 2, axis=0)
        wide[1::2] = np.zeros((), array.dtype)
        return wide[::2]
    if how == "pages backwards":
        return array[::-1].copy()[::-1]
    if how == "token axis last":
        return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)
    if how == "every second byte address":
        memory = np.zeros(array.nbytes + 1, np.uint8)[1:]
        moved = memory.view(array.dtype).reshape(array.shape)
        moved[...] = array
        return moved
    if how == "rows cut out of wider ones":
        wide = np.zeros((*array.shape[:-1], array.shape[-1] + 1), array.dtype)
        wide[..., :-1] = array
        return wide[..., :-1]
    if how == "one page for all":  # a stride of zero
        return np.broadcast_to(array[:1], array.shape) if len(array) else array
    return array


LAYOUTS = [
    "contiguous",
    "every second page",
    "pages backwards",
    "token axis last",
    "every second byte address",
    "rows cut out of wider ones",
    "one page for all",
]


@dataclass(frozen=True)
class Batch:
    pool: NDArray[Any]
    block_table: NDArray[Any]
    seq_ptr: NDArray[Any]
    seq_lens: NDArray[Any]

    @property
    def parts(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
        return self.pool, self.block_table, self.seq_ptr, self.seq_lens

    def token(self, seq: int, token: int) -> bytes:
        """The bytes of one token, found as the specification says, in Python integers."""
        page_size = self.pool.shape[1]
        page = int(self.block_table[int(self.seq_ptr[seq]) + token // page_size])
        slot = token % page_size
        return self.pool[page, slot : slot + 1].tobytes()  # a slice: a lone element would change its byte order


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    num_pages, page_size = draw(st.integers(1, 9)), draw(st.integers(1, 5))
    pool = random_pool(rng, (num_pages, page_size, *draw(st.sampled_from(RESTS))), draw(st.sampled_from(DTYPES)))
    pool = strided(pool, draw(st.sampled_from(LAYOUTS)))
    if draw(st.booleans()):
        pool = pool[:]
        pool.flags.writeable = False
    index = draw(st.sampled_from([np.uint32, np.uint64]))
    lengths = draw(st.lists(st.integers(0, 4 * page_size), max_size=4))
    spare = draw(st.integers(0, 1))  # pages that belong to a sequence and hold nothing of it
    pages = [-(-length // page_size) + spare for length in lengths]
    table = rng.integers(0, num_pages, sum(pages))  # shared and repeated pages are frequent
    return Batch(pool, table.astype(index), np.cumsum([0, *pages]).astype(index), np.array(lengths, index))


@contextmanager
def thresholds(small: bool) -> Iterator[None]:
    """Small ones send little work through everything made for large work: threads, portions, lazily zeroed memory."""
    with ExitStack() as stack:
        if small:
            for module, name, value in (
                (page_copy, "_SPREAD_BYTES", 1),
                (page_copy, "_SPREAD_PIECE_BYTES", 0),
                (page_copy, "_PORTION_BYTES", 1),
                (page_copy, "_SCATTERED_BYTES", 1),
                (gather_module, "_FRESH_BYTES", 1),
            ):
                stack.enter_context(mock.patch.object(module, name, value))
        yield


def check_padded(batch: Batch, seqs: list[int], width: int, values: NDArray[Any], mask: NDArray[Any]) -> None:
    assert values.shape == (len(seqs), width, *batch.pool.shape[2:])
    assert values.dtype == batch.pool.dtype
    assert mask.shape == (len(seqs), width)
    assert mask.dtype == np.bool_
    for row, seq in enumerate(seqs):
        length = int(batch.seq_lens[seq])
        for token in range(width):
            assert mask[row, token] == (token < length)
            found = values[row, token : token + 1].tobytes()
            assert found == (batch.token(seq, token) if token < length else bytes(len(found)))


# --- the fast path is the slow one ---------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(batch=batches(), data=st.data())
def test_padded_is_one_token_at_a_time(batch: Batch, data: st.DataObject) -> None:
    count = len(batch.seq_lens)
    chosen = data.draw(st.none() | (st.lists(st.integers(0, count - 1), max_size=5) if count else st.just([])))
    seqs = list(range(count)) if chosen is None else chosen
    longest = max((int(batch.seq_lens[seq]) for seq in seqs), default=0)
    max_len = data.draw(st.none() | st.integers(0, longest + 3))
    width = longest if max_len is None else max_len
    with thresholds(data.draw(st.booleans())):
        values, mask = gather_padded(*batch.parts, seqs=chosen, max_len=max_len)
    check_padded(batch, seqs, width, values, mask)
    assert values.flags.writeable
    assert values.ctypes.data % 64 == 0 or not values.size
    assert not np.shares_memory(values, batch.pool)


@settings(deadline=None, max_examples=100)
@given(batch=batches(), data=st.data())
def test_out_of_any_strides_receives_the_same(batch: Batch, data: st.DataObject) -> None:
    width = data.draw(st.integers(0, 12))
    seqs = list(range(len(batch.seq_lens)))
    shape = (len(seqs), width, *batch.pool.shape[2:])
    out = strided(np.full(shape, 7, np.uint8).repeat(batch.pool.dtype.itemsize, axis=-1), "contiguous")
    out = out.view(batch.pool.dtype) if len(shape) > 2 else np.zeros(shape, batch.pool.dtype)
    out = strided(out, data.draw(st.sampled_from(LAYOUTS[:-1])))
    with thresholds(data.draw(st.booleans())):
        values, mask = gather_padded(*batch.parts, out=out)
    assert values is out
    check_padded(batch, seqs, width, out, mask)


@settings(deadline=None, max_examples=100)
@given(batch=batches(), data=st.data())
def test_ragged_is_one_token_at_a_time(batch: Batch, data: st.DataObject) -> None:
    count = len(batch.seq_lens)
    chosen = data.draw(st.none() | (st.lists(st.integers(0, count - 1), max_size=5) if count else st.just([])))
    seqs = list(range(count)) if chosen is None else chosen
    with thresholds(data.draw(st.booleans())):
        values = gather_ragged(*batch.parts, seqs=chosen)
    expected = [batch.token(seq, token) for seq in seqs for token in range(int(batch.seq_lens[seq]))]
    assert values.shape == (len(expected), *batch.pool.shape[2:])
    assert values.dtype == batch.pool.dtype
    assert values.tobytes() == b"".join(expected)


@settings(deadline=None, max_examples=50)
@given(batch=batches())
def test_element_offset_is_where_the_gathered_element_lies(batch: Batch) -> None:
    num_pages, page_size = batch.pool.shape[:2]
    numbered = np.arange(num_pages * page_size * 6).reshape(num_pages, page_size, 3, 2)
    for seq, row in enumerate(gather_padded(numbered, *batch.parts[1:]).values):
        for token in range(int(batch.seq_lens[seq])):
            for head in range(3):
                for dim in range(2):
                    assert row[token, head, dim] == element_offset(
                        seq,
                        token,
                        head,
                        dim,
                        page_size=page_size,
                        num_pages=num_pages,
                        num_heads=3,
                        head_dim=2,
                        block_table=batch.block_table,
                        seq_ptr=batch.seq_ptr,
                    )


def small_batch(dtype: Any = np.float32) -> Batch:
    """Sequences of 5 and 3 tokens in pages of 4; the second shares the first page. Page p holds 10p+10, 10p+11, ..."""
    pool = (10 * np.arange(1, 6)[:, None] + np.arange(4)).astype(dtype)
    index = np.uint32
    return Batch(pool, np.array([4, 1, 4], index), np.array([0, 2, 3], index), np.array([5, 3], index))


def test_a_small_batch_comes_out_as_by_hand() -> None:
    values, mask = gather_padded(*small_batch().parts)
    assert values.tolist() == [[50, 51, 52, 53, 20], [50, 51, 52, 0, 0]]
    assert mask.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    assert gather_ragged(*small_batch().parts).tolist() == [50, 51, 52, 53, 20, 50, 51, 52]


def test_chosen_sequences_keep_their_order_and_repeat() -> None:
    batch = small_batch()
    for seqs in ([1, 0, 1], (1, 0, 1), np.array([1, 0, 1], np.uint64), iter([np.int8(1), 0, 1])):
        values, mask = gather_padded(*batch.parts, seqs=seqs, max_len=4)
        assert values.tolist() == [[50, 51, 52, 0], [50, 51, 52, 53], [50, 51, 52, 0]]
        assert mask.sum(axis=1).tolist() == [3, 4, 3]
    assert gather_ragged(*batch.parts, seqs=[1, 1]).tolist() == [50, 51, 52] * 2


def test_longer_sequences_are_cut_to_their_first_tokens() -> None:
    values, mask = gather_padded(*small_batch().parts, max_len=2)
    assert values.tolist() == [[50, 51], [50, 51]]
    assert mask.all()


def test_an_empty_batch_is_empty() -> None:
    batch = Batch(np.ones((3, 4, 2), np.float32), *(np.array(part, np.uint32) for part in ([], [0], [])))
    assert gather_padded(*batch.parts).values.shape == (0, 0, 2)
    assert gather_padded(*batch.parts, max_len=6).values.shape == (0, 6, 2)
    assert gather_ragged(*batch.parts).shape == (0, 2)


def test_an_empty_pool_has_only_empty_sequences() -> None:
    batch = Batch(np.ones((0, 4, 2), np.float32), *(np.array(part, np.uint32) for part in ([], [0, 0, 0], [0, 0])))
    values, mask = gather_padded(*batch.parts, max_len=3)
    assert values.tolist() == [[[0, 0]] * 3] * 2
    assert not mask.any()
    assert gather_ragged(*batch.parts).shape == (0, 2)


def test_nan_in_stale_slots_and_free_pages_stays_where_it_is() -> None:
    batch = small_batch()
    batch.pool[[0, 2, 3]] = np.nan
    batch.pool[1, 1:] = np.nan
    values, _ = gather_padded(*batch.parts, seqs=[0], max_len=8)
    assert values.tolist() == [[50, 51, 52, 53, 20, 0, 0, 0]]


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.itemsize <= 2], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "token axis last"])
def test_every_bit_pattern_survives(dtype: np.dtype[Any], layout: str) -> None:
    patterns = np.arange(256**dtype.itemsize, dtype=f"<u{dtype.itemsize}").reshape(16, -1, 4)
    pool = strided(patterns.view(dtype), layout)
    backwards = np.arange(16, dtype=np.uint32)[::-1]
    whole = np.array([16 * pool.shape[1]], np.uint32)
    values = gather_ragged(pool, backwards, np.array([0, 16], np.uint32), whole)
    assert values.tobytes() == patterns[::-1].tobytes()


def test_work_large_enough_for_threads_is_the_same_work() -> None:
    rng = np.random.default_rng(5)
    pool = rng.integers(0, 2**63, (257, 16, 3, 64), np.int64)
    lengths = np.array([1600, 1, 0, 1599, 2000], np.uint32)
    pages = -(-lengths.astype(int) // 16)
    table = np.concatenate([rng.permutation(257)[:count] for count in pages]).astype(np.uint32)
    batch = Batch(pool, table, np.cumsum([0, *pages]).astype(np.uint32), lengths)
    flat = pool.reshape(-1, 3, 64)
    values, mask = gather_padded(*batch.parts)
    start = 0
    for row, length in enumerate(lengths.tolist()):
        slots = [int(table[start + token // 16]) * 16 + token % 16 for token in range(length)]
        assert np.array_equal(values[row, :length], flat[slots])
        assert not values[row, length:].any()
        assert mask[row].tolist() == [True] * length + [False] * (2000 - length)
        start += int(pages[row])


def test_many_threads_gather_at_once() -> None:
    rng = np.random.default_rng(6)
    pool = rng.integers(0, 2**63, (64, 4, 8), np.int64)
    index = np.uint32
    batches = [
        Batch(pool, rng.permutation(64).astype(index), np.array([0, 40, 64], index), np.array([157, 95], index))
        for _ in range(8)
    ]
    expected = [[batch.token(seq, token) for seq in (0, 1) for token in (0, 94)] for batch in batches]
    wrong: list[int] = []
    ready = threading.Barrier(len(batches))

    def work(number: int) -> None:
        ready.wait(timeout=60)
        for _ in range(30):
            values = gather_padded(*batches[number].parts).values
            if [values[seq, token].tobytes() for seq in (0, 1) for token in (0, 94)] != expected[number]:
                wrong.append(number)

    with thresholds(small=True):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(batches))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


FORKED = """
import os, signal, sys
import numpy as np
from hurray_wire import page_copy, parallel
from hurray_wire.gather import gather_padded
parallel.cpu_count = lambda: 3
page_copy._SPREAD_BYTES = page_copy._PORTION_BYTES = 1
page_copy._SPREAD_PIECE_BYTES = 0
pool = np.arange(8 * 2).reshape(8, 2)
table = np.array([7, 0, 3, 2], np.uint32)

def check():
    values, mask = gather_padded(pool, table, np.array([0, 3, 4], np.uint32), np.array([5, 2], np.uint32))
    assert values.tolist() == [[14, 15, 0, 1, 6], [4, 5, 0, 0, 0]], values

check()
child = os.fork()
if child == 0:
    signal.alarm(30)
    check()
    os._exit(7)
_, status = os.waitpid(child, 0)
check()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork on this system")
def test_a_forked_child_gathers_on_threads() -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 7, ended.stderr


# --- refusals of gather_padded and gather_ragged -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seqs", "named"),
    [([0, 2], "2"), ([-1], "-1"), (np.array([2**63], np.uint64), str(2**63)), ([10**30], str(10**30))],
)
def test_a_sequence_that_does_not_exist_is_refused_by_number(seqs: Any, named: str) -> None:
    for function in (gather_padded, gather_ragged):
        with pytest.raises(IncompatibleError, match=rf"no sequence {named} in a batch of 2") as refused:
            function(*small_batch().parts, seqs=seqs)
        assert refused.value.rule == "gather.seqs"


@pytest.mark.parametrize("seqs", [1, [0.0], np.array([0.0]), [True, False], np.array([True]), [[0]], "01", [None]])
def test_what_is_no_list_of_sequence_numbers_is_refused(seqs: Any) -> None:
    with pytest.raises(IncompatibleError, match="seqs") as refused:
        gather_padded(*small_batch().parts, seqs=seqs)
    assert refused.value.rule == "gather.seqs"


def test_a_max_len_below_zero_is_refused() -> None:
    with pytest.raises(IncompatibleError, match="max_len is -1"):
        gather_padded(*small_batch().parts, max_len=-1)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (np.zeros((2, 5, 1), np.float32), "shape"),
        (np.zeros((1, 5), np.float32), "shape"),
        (np.zeros(10, np.float32), "shape"),
        (np.zeros((2, 5), np.int32), "int32"),
        (np.zeros((2, 5), ">f4"), ">f4"),
        (read_only(np.zeros((2, 5), np.float32)), "read-only"),
    ],
)
def test_an_out_of_another_kind_is_refused(out: NDArray[Any], words: str) -> None:
    with pytest.raises(BufferSizeError, match=words) as refused:
        gather_padded(*small_batch().parts, out=out)
    assert refused.value.rule == "gather.out"


def test_an_out_of_another_length_than_max_len_is_refused() -> None:
    with pytest.raises(BufferSizeError, match=r"\(2, 4\).*\(2, 5\)"):
        gather_padded(*small_batch().parts, out=np.zeros((2, 4), np.float32), max_len=5)


def test_an_out_that_overlaps_the_pool_is_refused() -> None:
    batch = small_batch()
    before = batch.pool.copy()
    with pytest.raises(BufferSizeError, match="overlaps"):
        gather_padded(*batch.parts, out=batch.pool[1:3])
    assert np.array_equal(batch.pool, before)


def test_a_batch_beyond_any_address_space_is_refused() -> None:
    for max_len in (2**61, 2**64, 10**40):
        with pytest.raises(LimitError, match="addressed") as refused:
            gather_padded(*small_batch().parts, max_len=max_len)
        assert refused.value.found == 2 * max_len * 4


def test_a_batch_beyond_the_memory_of_the_machine_is_refused() -> None:
    with pytest.raises(LimitError, match="not to be had") as refused:
        gather_padded(*small_batch().parts, max_len=2**52)
    assert isinstance(refused.value.__cause__, MemoryError)


def test_a_page_without_elements_cannot_ask_for_an_endless_mask() -> None:
    pool = np.zeros((1, 2**40, 0), np.float32)
    entries = 2**12
    batch = Batch(pool, *(np.array(part, np.uint64) for part in ([0] * entries, [0, entries], [entries * 2**40])))
    with pytest.raises(LimitError):
        gather_padded(*batch.parts)


def test_a_refused_gather_leaves_out_alone() -> None:
    out = np.full((2, 5), 7, np.float32)
    for wrong in ({"fill": 1e300}, {"seqs": [0, 5]}, {"max_len": 4}):
        with pytest.raises(HurrayError):
            gather_padded(*small_batch().parts, out=out, **wrong)
    assert (out == 7).all()


# --- fill ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "fill", "bits"),
    [
        (ml_dtypes.bfloat16, 1.0, "803f"),
        (ml_dtypes.bfloat16, float("-inf"), "80ff"),
        (ml_dtypes.bfloat16, -1e9, "6ece"),
        (ml_dtypes.bfloat16, -0.0, "0080"),
        (ml_dtypes.float8_e4m3fn, 448, "7e"),
        (ml_dtypes.float8_e5m2, float("inf"), "7c"),
        (ml_dtypes.float8_e8m0fnu, 0, "00"),
        (ml_dtypes.float8_e8m0fnu, 1.0, "7f"),
        (np.float16, 65504, "ff7b"),
        (np.float32, 0.1, "cdcccc3d"),
        (np.float32, np.float64(2), "00000040"),
        (np.dtype(">f4"), 1, "3f800000"),
        (np.int8, -128, "80"),
        (np.int8, True, "01"),
        (np.uint64, 2**64 - 1, "ff" * 8),
        (np.int64, -3.0, "fd" + "ff" * 7),
        (np.bool_, 1, "01"),
        (np.complex64, 1 + 2j, "0000803f00000040"),
        (np.dtype("V16"), 0, "00" * 16),
        (np.dtype("V2"), np.void(b"\x01\x02"), "0102"),
        (ml_dtypes.int4, 7, "07"),
    ],
)
@pytest.mark.parametrize("small", [False, True])
def test_fill_takes_the_bits_it_has_in_the_dtype(dtype: Any, fill: Any, bits: str, small: bool) -> None:
    pool = random_pool(np.random.default_rng(0), (3, 2, 3), np.dtype(dtype))
    index = np.uint32
    with thresholds(small):
        values, mask = gather_padded(
            pool, np.array([2, 0], index), np.array([0, 2, 2], index), np.array([3, 0], index), max_len=6, fill=fill
        )
    assert values[0, :3].tobytes() == pool[2].tobytes() + pool[0, 0].tobytes()
    assert values[~mask].tobytes().hex() == bits * (9 * 3)


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        (np.uint8, 256),
        (np.uint8, -1),
        (np.int8, 128),
        (np.int64, 2**63),
        (np.int32, 0.5),
        (np.int32, float("nan")),
        (np.uint32, float("inf")),
        (np.bool_, 2),
        (ml_dtypes.int4, 8),
        (np.float16, 1e5),
        (np.float16, 1e-30),
        (np.float32, 1e39),
        (np.float32, 10**400),
        (np.float32, 1j),
        (ml_dtypes.bfloat16, 1e39),
        (ml_dtypes.float8_e4m3fn, 1000),
        (ml_dtypes.float8_e4m3fn, float("inf")),
        (ml_dtypes.float8_e8m0fnu, -1),
        (np.float32, "1"),
        (np.float32, None),
        (np.float32, [1.0]),
        (np.float32, np.ones(1)),
        (np.dtype("V16"), 1),
        (np.dtype("V2"), b"ab"),
    ],
)
def test_a_fill_that_the_dtype_cannot_hold_is_refused(dtype: Any, fill: Any) -> None:
    pool = np.zeros((1, 2), dtype)
    index = np.array([0, 1], np.uint32)
    with pytest.raises(IncompatibleError, match="cannot hold fill") as refused:
        gather_padded(pool, index[:1], index, index[1:], fill=fill)
    assert refused.value.rule == "gather.fill"


# --- gather_kv -------------------------------------------------------------------------------------------------------


def assert_comes_out(example: Example) -> None:
    batch = gather_kv(*(example[name] for name in ("k_pages", "v_pages", "block_tables", "seq_lens")))
    assert {name: array.tolist() for name, array in batch.items()} == example["expected"]
    assert list(batch) == ["keys", "values", "mask"]


@pytest.mark.parametrize("example", BY_HAND)
def test_examples_come_out_as_worked_out_by_hand(example: Example) -> None:
    assert_comes_out(example)


@pytest.mark.parametrize("number", range(PUBLISHED))
def test_the_published_examples_come_out_as_printed(number: int) -> None:
    assert_comes_out(published(number))


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_gather_kv_is_one_token_at_a_time(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    num_pages, page_size = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4))
    max_blocks, count = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 4))
    pools = [
        strided(
            random_pool(
                rng, (num_pages, page_size, *data.draw(st.sampled_from(RESTS))), data.draw(st.sampled_from(DTYPES))
            ),
            data.draw(st.sampled_from(LAYOUTS)),
        )
        for _ in range(2)
    ]
    index = np.dtype(data.draw(st.sampled_from(["i1", "u1", "<i2", "<i4", ">i4", "<u4", ">u8", "<i8", "<u8"])))
    width = max_blocks * page_size
    lens = np.array([data.draw(st.integers(0, width)) for _ in range(count)], index)
    tables = rng.integers(0, num_pages, (count, max_blocks)).astype(index)
    padding = data.draw(st.sampled_from([0, np.iinfo(index).min, np.iinfo(index).max, num_pages]))
    for row, length in enumerate(lens.tolist()):
        tables[row, -(-length // page_size) :] = padding
    tables = data.draw(st.sampled_from([tables, np.asfortranarray(tables), np.repeat(tables, 2, axis=1)[:, ::2]]))

    batch = gather_kv(*pools, tables, lens)
    for pool, values in zip(pools, (batch["keys"], batch["values"]), strict=True):
        assert values.shape == (count, width, *pool.shape[2:])
        assert values.dtype == pool.dtype.newbyteorder("=")
        for row, length in enumerate(lens.tolist()):
            for token in range(width):
                page, slot = int(tables[row, token // page_size]), token % page_size
                expected = pool[page, slot : slot + 1] if token < length else np.zeros(pool.shape[2:], pool.dtype)
                assert values[row, token : token + 1].astype(pool.dtype).tobytes() == expected.tobytes()
    assert batch["mask"].tolist() == [[token < length for token in range(width)] for length in lens.tolist()]


class ArrayOnly:
    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.array


class DLPackOnly:
    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("wrap", [ArrayOnly, DLPackOnly, np.ndarray.tolist, memoryview])
def test_whatever_becomes_an_array_is_taken(wrap: Any) -> None:
    pool = np.arange(12.0).reshape(3, 2, 2)
    batch = gather_kv(wrap(pool), wrap(-pool), wrap(np.array([[2, 0]])), wrap(np.array([3])))
    assert batch["keys"].tolist() == [[[8, 9], [10, 11], [0, 1], [0, 0]]]
    assert batch["values"].tolist() == [[[-8, -9], [-10, -11], [0, -1], [0, 0]]]


def test_keys_and_values_may_differ_in_rest_and_dtype() -> None:
    batch = gather_kv(np.ones((2, 2, 3, 4), np.float16), np.ones((2, 2, 5), np.int8), [[1]], [1])
    assert (batch["keys"].shape, batch["keys"].dtype) == ((1, 2, 3, 4), np.float16)
    assert (batch["values"].shape, batch["values"].dtype) == ((1, 2, 5), np.int8)


def test_the_result_shares_nothing_with_the_pools() -> None:
    pool = np.ones((1, 2, 2))
    batch = gather_kv(pool, pool, [[0]], [2])
    batch["keys"][:] = 5
    assert (pool == 1).all()
    assert (batch["values"] == 1).all()


PAGES = np.zeros((3, 2, 1, 2), np.float32)


@pytest.mark.parametrize(
    ("tables", "lens", "seq", "block", "found"),
    [
        ([[0, 3]], [3], 0, 1, 3),
        ([[0, 1], [-1, 0]], [4, 1], 1, 0, -1),
        ([[0, 1], [2, 2**31 - 1]], [4, 3], 1, 1, 2**31 - 1),
        (np.array([[2**63 + 1]], np.uint64), [1], 0, 0, 2**63 + 1),
        (np.array([[2**64 - 1]], np.uint64), [2], 0, 0, 2**64 - 1),
        (np.array([[0, 200]], ">u2"), [4], 0, 1, 200),
        (np.array([[-128]], np.int8), [1], 0, 0, -128),
    ],
)
def test_a_bad_page_id_within_a_length_is_refused_with_its_place(
    tables: Any, lens: Any, seq: int, block: int, found: int
) -> None:
    with pytest.raises(
        InvalidDescriptorError, match=rf"block {block} of sequence {seq} names page {found} "
    ) as refused:
        gather_kv(PAGES, PAGES, tables, lens)
    assert (refused.value.rule, refused.value.declared, refused.value.found) == ("block-paged.page-id", 3, found)


@pytest.mark.parametrize("padding", [-1, 3, 2**31 - 1, -(2**63), 2**63 - 1])
def test_entries_beyond_a_length_are_never_looked_at(padding: int) -> None:
    batch = gather_kv(PAGES + 1, PAGES + 2, np.array([[1, padding], [padding, padding]]), [2, 0])
    assert batch["mask"].tolist() == [[True, True, False, False], [False] * 4]
    assert batch["keys"].sum() == 4


@pytest.mark.parametrize("length", [5, -1, 2**63, 2**64 - 1])
def test_a_length_that_its_pages_cannot_hold_is_refused(length: int) -> None:
    lens = np.array([0, length], np.uint64 if length >= 0 else np.int64)
    with pytest.raises(IncompatibleError, match=f"sequence 1 has length {length}, ") as refused:
        gather_kv(PAGES, PAGES, [[0, 1], [0, 1]], lens)
    assert (refused.value.rule, refused.value.declared) == ("snapshot.seq-lens-pages", 4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((PAGES, PAGES, [[0.0]], [1]), "block_tables is of float64, not of an integer type"),
        ((PAGES, PAGES, [[True]], [1]), "block_tables is of bool, not of an integer type"),
        ((PAGES, PAGES, [[0]], [1.0]), "seq_lens is of float64, not of an integer type"),
        ((PAGES, PAGES, np.zeros((0, 2)), []), "block_tables is of float64, not of an integer type"),
        ((PAGES, PAGES, [["0"]], [1]), "not of an integer type"),
        ((PAGES, PAGES, [0], [1]), "block_tables has 1 dimensions, not 2"),
        ((PAGES, PAGES, [[0]], [[1]]), "seq_lens has 2 dimensions, not 1"),
        ((PAGES, PAGES, [[0]], 1), "seq_lens has 0 dimensions, not 1"),
        ((PAGES, PAGES, [[0]], [1, 1]), "1 rows, but there are 2 lengths"),
        ((PAGES, PAGES, [[0], [0, 1]], [1, 1]), "block_tables does not become a NumPy array"),
        ((PAGES, PAGES, [[None]], [1]), "block_tables is not an array of numbers"),
        ((PAGES, PAGES, [[2**64]], [1]), "block_tables is not an array of numbers"),
        ((PAGES[:, 0, 0, 0], PAGES, [[0]], [1]), "k_pages has 1 dimensions"),
        ((PAGES, np.float32(1), [[0]], [1]), "v_pages has 0 dimensions"),
        ((PAGES, PAGES[:2], [[0]], [1]), "3 pages of 2 tokens, but v_pages is 2 of 2"),
        ((PAGES, PAGES[:, :1], [[0]], [1]), "3 pages of 2 tokens, but v_pages is 3 of 1"),
        ((object(), PAGES, [[0]], [1]), "k_pages is not an array of numbers"),
    ],
)
def test_arrays_of_another_shape_or_type_are_refused(arguments: Any, words: str) -> None:
    with pytest.raises(BufferSizeError, match=words):
        gather_kv(*arguments)


def test_an_empty_batch_of_a_padded_table_is_empty() -> None:
    batch = gather_kv(PAGES, PAGES, np.zeros((0, 3), np.int32), [])
    assert batch["keys"].shape == (0, 6, 1, 2)
    assert batch["mask"].shape == (0, 6)
    assert gather_kv(PAGES, PAGES, [[], []], [0, 0])["values"].shape == (2, 0, 1, 2)


# --- element_offset --------------------------------------------------------------------------------------------------

WORKED = {"page_size": 4, "num_pages": 5, "num_heads": 2, "head_dim": 8, "block_table": [0, 1, 0], "seq_ptr": [0, 2, 3]}


def test_element_offset_of_the_worked_example() -> None:
    assert element_offset(0, 4, 0, 0, **WORKED) == 64
    assert element_offset(0, 0, 0, 0, **WORKED) == element_offset(1, 0, 0, 0, **WORKED) == 0
    assert element_offset(1, 3, 1, 7, **WORKED) == 3 * 16 + 8 + 7
    assert element_offset(0, 7, 1, 2, **WORKED) == (4 + 3) * 16 + 8 + 2


def test_element_offset_does_not_wrap() -> None:
    big = 2**63 + 12345
    offset = element_offset(
        0,
        2**32 - 1,
        2**31,
        3,
        page_size=2**32 - 1,
        num_pages=2**64 - 1,
        num_heads=2**32,
        head_dim=7,
        block_table=np.array([1, big], np.uint64),
        seq_ptr=np.array([0, 2], np.uint64),
    )
    assert offset == (big * (2**32 - 1) * 2**32 + 2**31) * 7 + 3
    assert isinstance(offset, int)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"seq": 2}, "block-paged.element"),
        ({"seq": -1}, "block-paged.element"),
        ({"token": 8}, "block-paged.element"),
        ({"token": -1}, "block-paged.element"),
        ({"seq": 1, "token": 4}, "block-paged.element"),
        ({"head": 2}, "block-paged.element"),
        ({"head": -1}, "block-paged.element"),
        ({"dim": 8}, "block-paged.element"),
        ({"dim": -1}, "block-paged.element"),
        ({"token": 1.0}, "block-paged.element"),
        ({"page_size": 0}, "block-paged.page-size"),
        ({"num_pages": 0}, "block-paged.page-id"),
        ({"block_table": [5, 1, 0]}, "block-paged.page-id"),
        ({"block_table": [-1, 1, 0]}, "block-paged.page-id"),
        ({"block_table": np.array([2**63, 1, 0], np.uint64)}, "block-paged.page-id"),
        ({"block_table": [0.0, 1.0, 0.0]}, "block-paged.page-id"),
        ({"block_table": [0]}, "block-paged.seq-ptr-end"),
        ({"seq_ptr": []}, "block-paged.seq-ptr-length"),
        ({"seq_ptr": [0]}, "block-paged.element"),
        ({"seq_ptr": [1, 2, 3]}, "block-paged.seq-ptr-start"),
        ({"seq_ptr": [0, 4, 4]}, "block-paged.seq-ptr-end"),
        ({"seq_ptr": [0, 2, 1], "seq": 1}, "block-paged.seq-ptr-order"),
        ({"seq_ptr": np.array([0, 2**64 - 1, 3], np.uint64), "seq": 1}, "block-paged.seq-ptr-order"),
    ],
)
def test_element_offset_refuses_what_is_out_of_range(changes: dict[str, Any], rule: str) -> None:
    arguments: dict[str, Any] = {"seq": 0, "token": 0, "head": 0, "dim": 0, **WORKED, **changes}
    with pytest.raises(InvalidDescriptorError) as refused:
        element_offset(**arguments)
    assert refused.value.rule == rule

"""Gathering under jax.jit: the same answers as NumPy, bit for bit, with every argument traced."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gather_kv_examples import BY_HAND, PUBLISHED, Example, published
from numpy.typing import NDArray
from requirements import require

from hurray_wire.errors import BufferSizeError, IncompatibleError, UnsupportedError
from hurray_wire.gather import Gathered, gather_kv, gather_padded

if find_spec("jax") is None:
    require(None, "the extra 'jax' is not installed")

import jax
import jax.numpy as jnp

from hurray_wire import jax as hurray_jax

jitted = jax.jit(hurray_jax.gather_kv)
jitted_csr = jax.jit(hurray_jax.gather_kv_csr, static_argnames="max_blocks")

DTYPES = [
    np.dtype(kind)
    for kind in (
        np.float32,
        ml_dtypes.bfloat16,
        np.float16,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e8m0fnu,
        np.int8,
        np.uint32,
    )
]
RESTS = [(), (3,), (2, 3), (3, 64), (1, 128), (2, 80)]  # both ways of laying out the work, and their neighbours


def random_pool(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Random bytes, none of them zero: NaN of all kinds, also in slots that must not come out."""
    return rng.integers(1, 256, int(np.prod(shape)) * dtype.itemsize, np.uint8).view(dtype).reshape(shape)


def assert_same_bits(found: dict[str, jax.Array], expected: dict[str, NDArray[Any]]) -> None:
    assert set(found) == {"keys", "values", "mask"}
    for name, array in expected.items():
        assert isinstance(found[name], jax.Array)
        assert found[name].shape == array.shape
        assert found[name].dtype == array.dtype
        assert np.asarray(found[name]).tobytes() == array.tobytes(), name


def token_by_token(
    pool: NDArray[Any], tables: NDArray[Any], lens: list[int], bad: set[tuple[int, int]] = frozenset()
) -> NDArray[Any]:
    page_size = pool.shape[1]
    values = np.zeros((len(tables), tables.shape[1] * page_size, *pool.shape[2:]), pool.dtype)
    for row, length in enumerate(lens):
        for token in range(length):
            block, slot = divmod(token, page_size)
            if (row, block) not in bad:
                values[row, token : token + 1] = pool[int(tables[row, block]), slot : slot + 1]
    return values


def assert_comes_out(example: Example, dtype: Any) -> None:
    batch = jitted(
        jnp.asarray(example["k_pages"], dtype),
        jnp.asarray(example["v_pages"], dtype),
        jnp.asarray(example["block_tables"], jnp.int32),
        jnp.asarray(example["seq_lens"], jnp.int32),
    )
    expected = example["expected"]
    for name in ("keys", "values"):
        assert batch[name].dtype == dtype
        assert batch[name].tolist() == jnp.asarray(expected[name], dtype).tolist()
    assert batch["mask"].tolist() == expected["mask"]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("example", BY_HAND)
def test_examples_come_out_as_worked_out_by_hand(example: Example, dtype: Any) -> None:
    assert_comes_out(example, dtype)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("number", range(PUBLISHED))
def test_the_published_examples_come_out_as_printed(number: int, dtype: Any) -> None:
    assert_comes_out(published(number), dtype)


@pytest.mark.parametrize(
    ("dtype", "rest"),
    [(dtype, rest) for dtype in DTYPES[:2] for rest in RESTS] + [(dtype, (3, 64)) for dtype in DTYPES[2:]],
    ids=str,
)
def test_traced_gather_keeps_every_bit(dtype: np.dtype[Any], rest: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    k, v = (random_pool(rng, (11, 4, *rest), dtype) for _ in range(2))
    tables = rng.permutation(11)[:9].reshape(3, 3).astype(np.int32)
    tables[0, 0] = tables[1, 0]  # a shared prefix
    lens = [12, 5, 0]
    tables[1, 2], tables[2] = -1, 2**31 - 1
    found = jitted(k, v, tables, np.array(lens, np.int32))
    mask = np.arange(12) < np.array(lens)[:, None]
    assert_same_bits(
        found, {"keys": token_by_token(k, tables, lens), "values": token_by_token(v, tables, lens), "mask": mask}
    )


@pytest.mark.parametrize("head_dim", [8, 64])
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.itemsize <= 2], ids=str)
def test_every_bit_pattern_survives_tracing(dtype: np.dtype[Any], head_dim: int) -> None:
    patterns = np.arange(256**dtype.itemsize, dtype=f"<u{dtype.itemsize}").reshape(-1, 2, 1, min(head_dim, 64))
    pool = patterns.view(dtype)
    backwards = np.arange(len(pool), dtype=np.int32)[None, ::-1]
    found = jitted(pool, pool, backwards, np.array([2 * len(pool)], np.int32))
    assert np.asarray(found["keys"]).tobytes() == patterns[::-1].tobytes()


@pytest.mark.parametrize("head_dim", [3, 64])
def test_one_compilation_serves_all_values(head_dim: int) -> None:
    rng = np.random.default_rng(2)
    pool = random_pool(rng, (6, 2, 2, head_dim), np.dtype(np.float32))
    traced = 0

    def function(*arguments: jax.Array) -> dict[str, jax.Array]:
        nonlocal traced
        traced += 1
        return hurray_jax.gather_kv(*arguments)

    compiled = jax.jit(function)
    for lens in ([4, 1], [0, 0], [3, 4], [2, 2]):
        tables = rng.permutation(6)[:4].reshape(2, 2).astype(np.int32)
        found = compiled(pool, -pool, tables, np.array(lens, np.int32))
        assert np.asarray(found["keys"]).tobytes() == token_by_token(pool, tables, lens).tobytes()
    assert traced == 1


@pytest.mark.parametrize("head_dim", [3, 64])
@pytest.mark.parametrize("bad", [-1, -(2**31), 5, 2**31 - 1])
def test_a_bad_id_within_a_length_is_zero_and_masked(bad: int, head_dim: int) -> None:
    pool = random_pool(np.random.default_rng(3), (5, 2, 1, head_dim), np.dtype(np.float32))
    tables = np.array([[4, bad, 0], [1, 2, bad]], np.int32)
    lens = [5, 4]
    found = jitted(pool, pool, tables, np.array(lens, np.int32))
    assert found["mask"].tolist() == [[True, True, False, False, True, False], [True] * 4 + [False] * 2]
    assert np.asarray(found["keys"]).tobytes() == token_by_token(pool, tables, lens, {(0, 1)}).tobytes()


@pytest.mark.parametrize(
    "index", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, ">i4"]
)
def test_tables_of_any_integer_type_mean_the_same(index: Any) -> None:
    pool = random_pool(np.random.default_rng(4), (300, 1, 2), np.dtype(np.float32))
    info = np.iinfo(index)
    tables = np.array([[7, 0, 1], [2, int(info.max), int(info.min)]], index)
    lens = np.array([3, 1], index)
    found = hurray_jax.gather_kv(pool, pool, tables, lens)
    assert_same_bits(found, gather_kv(pool, pool, tables, lens))


def test_ids_beyond_32_bits_do_not_become_other_pages() -> None:
    pool = np.ones((5, 2, 3), np.float32)
    for tables in (np.array([[2**32 + 1]], np.uint64), np.array([[-(2**32)]]), [[2**32 + 1]]):
        found = hurray_jax.gather_kv(pool, pool, tables, [2])
        assert not np.asarray(found["mask"]).any()
        assert not np.asarray(found["keys"]).any()
    found = hurray_jax.gather_kv(pool, pool, [[1]], np.array([2**32], np.uint64))
    assert np.asarray(found["mask"]).all()


def test_lengths_out_of_range_count_as_none_or_all() -> None:
    pool = np.ones((5, 2, 3), np.float32)
    tables = np.array([[1, 2], [3, 4]], np.int32)
    found = jitted(pool, pool, tables, np.array([-(2**31), 2**31 - 1], np.int32))
    assert found["mask"].tolist() == [[False] * 4, [True] * 4]


@pytest.mark.parametrize(
    ("pool", "tables", "lens"),
    [
        ((0, 2, 1, 3), (2, 3), 0),
        ((4, 2, 0, 3), (2, 3), 5),
        ((4, 2, 1, 3), (0, 3), 0),
        ((4, 2, 1, 3), (2, 0), 0),
        ((4, 0, 1, 3), (2, 3), 0),
    ],
)
def test_empty_shapes_are_served(pool: Any, tables: Any, lens: int) -> None:
    pages = np.ones(pool, np.float32)
    arguments = (pages, pages, np.zeros(tables, np.int32), np.full(tables[0], lens, np.int32))
    assert_same_bits(jitted(*arguments), gather_kv(*arguments))


def test_keys_and_values_may_differ_in_rest_and_dtype() -> None:
    rng = np.random.default_rng(5)
    k = random_pool(rng, (4, 2, 3, 64), np.dtype(ml_dtypes.bfloat16))
    v = random_pool(rng, (4, 2, 5), np.dtype(ml_dtypes.float8_e4m3fn))
    arguments = (k, v, np.array([[3, 1]], np.int32), np.array([3], np.int32))
    assert_same_bits(jitted(*arguments), gather_kv(*arguments))


def test_nested_lists_and_big_endian_arrays_are_taken() -> None:
    pool = [[[1.0], [2.0]], [[3.0], [4.0]]]
    found = hurray_jax.gather_kv(pool, np.array(pool, ">f4"), [[1, 0]], [3])
    assert found["keys"].tolist() == found["values"].tolist() == [[[3], [4], [1], [0]]]
    assert found["values"].dtype == np.float32


@pytest.mark.parametrize("transform", [jax.jit, lambda function: function])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"k": np.ones(3, np.float32)}, "num_pages, page_size"),
        ({"v": np.ones((4, 2), np.float32)}, "as many pages of the same size"),
        ({"v": np.ones((3, 1), np.float32)}, "as many pages of the same size"),
        ({"tables": np.zeros(2, np.int32)}, "are not"),
        ({"lens": np.zeros(3, np.int32)}, "are not"),
        ({"tables": np.zeros((2, 2), np.float32)}, "integer type, not of float32"),
        ({"tables": np.zeros((2, 2), np.bool_)}, "integer type, not of bool"),
        ({"lens": np.zeros(2, np.float32)}, "integer type, not of float32"),
    ],
)
def test_shapes_and_types_are_refused_while_tracing(transform: Any, changes: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {
        "k": np.ones((3, 2), np.float32),
        "v": np.ones((3, 2), np.float32),
        "tables": np.zeros((2, 2), np.int32),
        "lens": np.zeros(2, np.int32),
        **changes,
    }
    with pytest.raises(BufferSizeError, match=words):
        transform(hurray_jax.gather_kv)(*arguments.values())


# --- CSR -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head_dim", [3, 64])
@pytest.mark.parametrize("index", [np.uint32, np.uint64, np.int32])
def test_csr_gathers_what_numpy_gathers(index: Any, head_dim: int) -> None:
    rng = np.random.default_rng(6)
    k, v = (random_pool(rng, (9, 4, 2, head_dim), np.dtype(ml_dtypes.bfloat16)) for _ in range(2))
    table = np.array([8, 1, 8, 0, 5, 5], index)
    seq_ptr, lens = np.array([0, 2, 2, 5, 6], index), np.array([7, 0, 12, 1], index)
    for max_blocks in (0, 1, 3):
        found = hurray_jax.gather_kv_csr(k, v, table, seq_ptr, lens, max_blocks=max_blocks)
        keys, mask = gather_padded(k, table, seq_ptr, lens, max_len=4 * max_blocks)
        values, _ = gather_padded(v, table, seq_ptr, lens, max_len=4 * max_blocks)
        assert_same_bits(found, {"keys": keys, "values": values, "mask": mask})
        if index is not np.uint64:  # jax.jit itself would narrow these
            traced = jitted_csr(k, v, table, seq_ptr, lens, max_blocks=max_blocks)
            assert_same_bits(traced, {"keys": keys, "values": values, "mask": mask})


def test_csr_never_reads_past_the_pages_of_a_sequence() -> None:
    pool = random_pool(np.random.default_rng(7), (4, 2, 3), np.dtype(np.float32))
    table = np.array([0, 1, 2], np.int32)
    # lengths beyond the slice; pointers that fall, that lie outside, and that would wrap in 32 bits
    seq_ptr = np.array([0, 1, 3, 2, 2**31 - 1, -5, 2], np.int32)
    lens = np.array([4, 4, 4, 4, 4, 4], np.int32)
    found = jitted_csr(pool, pool, table, seq_ptr, lens, max_blocks=2)
    expected_blocks = [(0, None), (1, 2), (None, None), (2, None), (None, None), (None, None)]
    for row, blocks in enumerate(expected_blocks[:5]):
        for block, page in enumerate(blocks):
            part = np.asarray(found["keys"][row, 2 * block : 2 * block + 2])
            assert part.tobytes() == (np.zeros((2, 3), np.float32) if page is None else pool[page]).tobytes()
            assert found["mask"][row, 2 * block : 2 * block + 2].tolist() == [page is not None] * 2


def test_csr_of_an_empty_table_is_empty() -> None:
    pool = np.ones((4, 2, 3), np.float32)
    none = np.zeros(0, np.int32)
    found = jitted_csr(pool, pool, none, np.zeros(3, np.int32), np.array([0, 1], np.int32), max_blocks=2)
    assert found["keys"].shape == (2, 4, 3)
    assert not np.asarray(found["keys"]).any()
    assert not np.asarray(found["mask"]).any()
    assert jitted_csr(pool, pool, none, np.zeros(1, np.int32), none, max_blocks=2)["mask"].shape == (0, 4)


@pytest.mark.parametrize(
    ("table", "seq_ptr", "lens", "max_blocks"),
    [
        ((2, 2), (2,), (1,), 1),
        ((2,), (1,), (1,), 1),
        ((2,), (2,), (1, 1), 1),
        ((2,), (2, 1), (1,), 1),
        ((2,), (2,), (1,), -1),
    ],
)
def test_csr_refuses_arrays_of_another_shape(table: Any, seq_ptr: Any, lens: Any, max_blocks: int) -> None:
    pool = np.ones((4, 2, 3), np.float32)
    arrays = (np.zeros(shape, np.int32) for shape in (table, seq_ptr, lens))
    with pytest.raises(BufferSizeError):
        hurray_jax.gather_kv_csr(pool, pool, *arrays, max_blocks=max_blocks)


# --- gather of a tensor --------------------------------------------------------------------------------------------


class Tensor:
    """Stands for a block-paged tensor of a file: two sequences of 3 and 1 tokens, the pool as given."""

    def __init__(self, pool: NDArray[Any]) -> None:
        self.pool = pool
        self.last: Gathered | None = None

    def gather(
        self, seqs: Any = None, max_len: Any = None, out: Any = None, fill: Any = 0, dequantize: Any = False
    ) -> Gathered:
        assert dequantize is False
        index = np.uint32
        self.last = gather_padded(
            self.pool,
            np.array([1, 0, 1], index),
            np.array([0, 2, 3], index),
            np.array([3, 1], index),
            seqs=seqs,
            max_len=max_len,
            out=out,
            fill=fill,
        )
        return self.last


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gather_of_a_tensor_keeps_every_bit(dtype: np.dtype[Any]) -> None:
    pool = random_pool(np.random.default_rng(8), (2, 2, 5), dtype)
    values, mask = hurray_jax.gather(Tensor(pool), [1, 0, 1], 4, fill=1)
    expected = Tensor(pool).gather([1, 0, 1], 4, fill=1)
    assert isinstance(values, jax.Array)
    assert isinstance(mask, jax.Array)
    assert values.dtype == dtype
    assert np.asarray(values).tobytes() == expected.values.tobytes()
    assert mask.tolist() == expected.mask.tolist()


def test_gather_of_a_tensor_hands_its_memory_over() -> None:
    if jax.default_backend() != "cpu":
        pytest.skip("the default device is not the CPU")
    tensor = Tensor(random_pool(np.random.default_rng(9), (2, 512, 64), np.dtype(ml_dtypes.bfloat16)))
    values, _ = hurray_jax.gather(tensor, max_len=4096)
    assert tensor.last is not None
    assert values.unsafe_buffer_pointer() == tensor.last.values.ctypes.data


def test_gather_of_a_tensor_passes_refusals_on() -> None:
    with pytest.raises(IncompatibleError, match="no sequence 2"):
        hurray_jax.gather(Tensor(np.ones((2, 2), np.float32)), [2])


@pytest.mark.parametrize("dtype", ["V16", "<f8", "<i8", "<c16"])
def test_gather_of_a_tensor_that_jax_would_change_is_refused(dtype: str) -> None:
    if jax.config.jax_enable_x64:
        pytest.skip("64-bit types are enabled")
    with pytest.raises(UnsupportedError) as refused:
        hurray_jax.gather(Tensor(np.zeros((2, 2), dtype)))
    assert refused.value.rule == "jax.dtype"


def test_without_jax_the_import_says_which_extra_to_install() -> None:
    code = "import sys; sys.modules['jax'] = None\nimport hurray_wire.jax"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "ImportError: hurray_wire.jax needs JAX" in ended.stderr
    assert "pip install 'hurray_wire[jax]'" in ended.stderr

"""How fast pages become sequences, as ratios against what else one could do on the same machine in the same minute.

Each function returns rows (name, ratio, detail). A ratio is the time of the other over our time, the median of runs in
pairs, so 2.0 means twice as fast and below 1.0 is a loss. Pool and output exceed the caches. Run alone, it prints them.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hurray_wire.gather import gather_kv, gather_padded, gather_ragged

HAVE_JAX = importlib.util.find_spec("jax") is not None
if HAVE_JAX:
    import jax
    import jax.numpy as jnp

    from hurray_wire import jax as hurray_jax

Row: TypeAlias = tuple[str, float, str]

POOL_BYTES = 256 << 20
PAGE = (16, 8, 128)
SEQS, PAGES_EACH = 8, 512
PAIRS = 11


class Batch:
    """A fragmented pool of bfloat16 pages and a batch over half of them: 8 sequences of up to 512 pages, 128 MiB."""

    def __init__(self, *, uneven: bool = False, page: tuple[int, ...] = PAGE) -> None:
        rng = np.random.default_rng(0)
        page_bytes = 2 * int(np.prod(page))
        num_pages = POOL_BYTES // page_bytes
        each = num_pages // 2 // SEQS
        noise = rng.integers(0, 2**15, page_bytes, np.uint16)  # positive numbers; contents do not matter to a copy
        self.pool = np.empty((num_pages, *page), ml_dtypes.bfloat16)
        self.pool.view(np.uint16)[...] = noise[: page_bytes // 2].reshape(page)
        self.tables = rng.permutation(num_pages)[: SEQS * each].reshape(SEQS, each).astype(np.int32)
        self.width = each * page[0]
        self.lens = np.linspace(self.width, 1, SEQS).astype(np.int32) if uneven else np.full(SEQS, self.width, np.int32)
        self.table = self.tables.reshape(-1).astype(np.uint32)
        self.seq_ptr = (np.arange(SEQS + 1) * each).astype(np.uint32)
        self.out = np.zeros((SEQS, self.width, *page[1:]), self.pool.dtype)

    def gather(self) -> None:
        gather_padded(self.pool, self.table, self.seq_ptr, self.lens, out=self.out)

    def token_formula(self) -> NDArray[Any]:
        page_size = self.pool.shape[1]
        position = np.arange(self.width)
        tokens: NDArray[Any] = self.pool[self.tables[:, position // page_size], position % page_size]
        return tokens

    def masked_formula(self) -> NDArray[Any]:
        mask = np.arange(self.width) < self.lens[:, None]
        return np.where(mask[:, :, None, None], self.token_formula(), self.pool.dtype.type(0))


def compare(name: str, ours: Callable[[], Any], other: Callable[[], Any], *, pairs: int = PAIRS) -> Row:
    """Alternating runs; each pair gives one ratio, and the median of these is the row's."""
    ours()
    other()
    ratios, mine, theirs = [], [], []
    for _ in range(pairs):
        theirs.append(_timed(other))
        mine.append(_timed(ours))
        ratios.append(theirs[-1] / mine[-1])
    detail = f"{statistics.median(mine) * 1e3:.2f} ms against {statistics.median(theirs) * 1e3:.2f} ms"
    return name, statistics.median(ratios), detail


def gather_rows() -> list[Row]:
    """Gather into a given output against one memcpy of it, and against the formulas that index token by token."""
    full, uneven, small_heads = Batch(), Batch(uneven=True), Batch(page=(16, 3, 64))
    source = np.ones_like(full.out)  # memory that was never written is one page of zeros, read from the cache
    rows = [
        compare("gather into out | one memcpy of out", full.gather, lambda: np.copyto(full.out, source)),
        compare("gather into out | pool[pages, slots]", full.gather, full.token_formula, pairs=5),
        compare("gather into out | where(mask, pool[pages, slots], 0)", full.gather, full.masked_formula, pairs=5),
        compare("gather of uneven lengths | pool[pages, slots]", uneven.gather, uneven.token_formula, pairs=5),
        compare(
            "gather of uneven lengths | where(mask, pool[pages, slots], 0)",
            uneven.gather,
            uneven.masked_formula,
            pairs=5,
        ),
    ]
    narrow = np.ones_like(small_heads.out)
    rows.append(
        compare(
            "gather of 6 KiB pages | one memcpy of out", small_heads.gather, lambda: np.copyto(small_heads.out, narrow)
        )
    )
    flat = full.out.reshape(-1, *full.out.shape[2:])
    into = np.zeros_like(flat)
    rows.append(
        compare(
            "ragged into out | one memcpy of out",
            lambda: gather_ragged(full.pool, full.table, full.seq_ptr, full.lens, out=into),
            lambda: np.copyto(into, flat),
        )
    )
    # one large memcpy goes past the caches, which spares fresh memory a read; copies of a page each do not
    rows.append(
        compare(
            "ragged, memory of its own | memcpy into memory of its own",
            lambda: gather_ragged(full.pool, full.table, full.seq_ptr, full.lens),
            flat.copy,
        )
    )
    rows.append(
        compare(
            "ragged, memory of its own | memcpy of each page into memory of its own",
            lambda: gather_ragged(full.pool, full.table, full.seq_ptr, full.lens),
            lambda: _copy_by_pages(flat),
        )
    )
    return rows


def _copy_by_pages(flat: NDArray[Any]) -> NDArray[Any]:
    """A copy of ``flat`` in new memory, made of pieces as large as a page."""
    fresh = np.empty_like(flat)
    for start in range(0, len(flat), PAGE[0]):
        fresh[start : start + PAGE[0]] = flat[start : start + PAGE[0]]
    return fresh


def overhead_rows() -> list[Row]:
    """What a gather of little costs on top of its copy, per sequence, against 100 microseconds."""
    rows = []
    for seqs in (1, 64):
        pool = np.ones((seqs, *PAGE), ml_dtypes.bfloat16)
        index = np.arange(seqs + 1, dtype=np.uint32)
        lens = np.full(seqs, PAGE[0], np.uint32)
        out = np.zeros_like(pool)
        ours = partial(gather_padded, pool, index[:-1], index, lens, out=out)
        copy = partial(np.copyto, out, pool)
        both = [(_timed(ours, 200), _timed(copy, 200)) for _ in range(PAIRS)]
        over = statistics.median(mine - theirs for mine, theirs in both) / seqs
        theirs = statistics.median(theirs for _, theirs in both) / seqs
        detail = f"{over * 1e6:.1f} us beyond the copy, which takes {theirs * 1e6:.1f} us"
        rows.append((f"{seqs} sequences x 1 page, overhead of each | 100 us", 100e-6 / over, detail))
    return rows


def jax_rows() -> list[Row]:
    """NumPy against jitted JAX on the CPU; under jit, our page-wise form against the token-wise one. [] without JAX."""
    if not HAVE_JAX:
        return []
    batch = Batch()
    token_wise, page_wise = jax.jit(_token_wise), jax.jit(hurray_jax.gather_kv)
    pool = jnp.asarray(batch.pool)
    jitted = partial(_finish, token_wise, pool, pool, jnp.asarray(batch.tables), jnp.asarray(batch.lens))
    values = np.zeros_like(batch.out)

    def keys_and_values() -> None:
        batch.gather()
        gather_padded(batch.pool, batch.table, batch.seq_ptr, batch.lens, out=values)

    rows = [
        compare("K and V into out | token formula under jax.jit", keys_and_values, jitted, pairs=5),
        compare(
            "gather_kv, memory of its own | token formula under jax.jit",
            partial(gather_kv, batch.pool, batch.pool, batch.tables, batch.lens),
            jitted,
            pairs=5,
        ),
    ]
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn):
        for heads, head_dim in ((8, 128), (3, 64)):
            for total in (4 << 20, 64 << 20):
                blocks = total // (16 * heads * head_dim * np.dtype(dtype).itemsize) // 4
                pages = jnp.ones((8 * blocks, 16, heads, head_dim), dtype)
                order = np.random.default_rng(1).permutation(8 * blocks)
                tables = jnp.asarray(order[: 4 * blocks].reshape(4, blocks))
                arguments = (pages, pages, tables, jnp.full(4, 16 * blocks - 3))
                rows.append(
                    compare(
                        f"jit, {np.dtype(dtype)} {heads} x {head_dim}, {total >> 20} MiB | token formula under jax.jit",
                        partial(_finish, page_wise, *arguments),
                        partial(_finish, token_wise, *arguments),
                        pairs=41 if total < 8 << 20 else PAIRS,
                    )
                )
    return rows


def _finish(function: Callable[..., dict[str, Any]], *arguments: Any) -> None:
    for array in function(*arguments).values():
        array.block_until_ready()


def _token_wise(k_pages: Any, v_pages: Any, block_tables: Any, seq_lens: Any) -> dict[str, Any]:
    """The textbook form of the operation."""
    page_size = k_pages.shape[1]
    position = jnp.arange(block_tables.shape[1] * page_size)
    pages, slots = block_tables[:, position // page_size], position % page_size
    mask = position < seq_lens[:, None]
    return {
        "keys": jnp.where(mask[:, :, None, None], k_pages[pages, slots], 0),
        "values": jnp.where(mask[:, :, None, None], v_pages[pages, slots], 0),
        "mask": mask,
    }


def _timed(function: Callable[[], Any], times: int = 1) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        function()
    return (time.perf_counter() - begin) / times


if __name__ == "__main__":
    for section in (gather_rows, overhead_rows, jax_rows):
        for row_name, ratio, row_detail in section():
            print(f"{ratio:7.2f} x  {row_name:<70}  {row_detail}", flush=True)

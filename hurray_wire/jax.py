"""Gathering pages into JAX arrays (optional extra ``jax``).

``gather_kv`` and ``gather_kv_csr`` are pure functions of arrays, made for ``jax.jit`` with every argument traced:
shapes decide what is compiled, values decide nothing. ``gather`` brings a tensor of a file into a JAX array.

What a traced function cannot do is refuse. A page id within a length that the pool does not have is therefore made
visible instead: its positions are zero in keys and values, and False in the mask. No other page is read in its place.
Where ids can be checked, use ``hurray_wire.gather_kv``, which raises.

Whole pages are taken, as bits: XLA computes on bfloat16 and some float8 types by way of wider ones, which changes NaN.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol, SupportsIndex

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from .errors import BufferSizeError, UnsupportedError

try:
    import jax
    import jax.numpy as jnp
    from jax import lax
except ModuleNotFoundError as error:
    raise ImportError(
        "hurray_wire.jax needs JAX, which comes with the extra: pip install 'hurray_wire[jax]'"
    ) from error

__all__ = ["Gathered", "gather", "gather_kv", "gather_kv_csr"]

_INT32 = np.iinfo(np.int32)


class Gathered(NamedTuple):
    """Sequences padded to one length: ``values`` [B, L, *rest] and ``mask`` bool [B, L], both JAX arrays."""

    values: jax.Array
    mask: jax.Array


class _Gatherable(Protocol):
    """What ``gather`` needs of a block-paged tensor."""

    def gather(
        self, *, seqs: Iterable[SupportsIndex] | None, max_len: SupportsIndex | None, fill: Any, dequantize: bool
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]: ...


def gather_kv(k_pages: Any, v_pages: Any, block_tables: Any, seq_lens: Any) -> dict[str, jax.Array]:
    """Keys and values of a batch from paged pools and a padded block table, as a dict of "keys", "values", "mask".

    ``k_pages`` and ``v_pages`` are [num_pages, page_size, *rest]; the rest and the dtype may differ between the two.
    ``block_tables`` is [B, max_blocks] and ``seq_lens`` [B], both of any integer type.

    "keys" and "values" are [B, L, *rest] in the dtype of their pool, L = max_blocks * page_size: bit for bit the slots
    of the pool before each length, zero from there on. "mask" is bool [B, L], True before each length. Entries of
    ``block_tables`` behind the last page that a length needs may be anything. A length counts as at least 0 and at most
    L. A page id within a length that is below 0 or not below num_pages gives zeros and a False mask.

    Raises BufferSizeError, while tracing, if shapes or types do not fit.
    """
    batch: dict[str, jax.Array]
    batch = _gather_padded(_as_pool(k_pages), _as_pool(v_pages), _as_indices(block_tables), _as_indices(seq_lens))
    return batch


def gather_kv_csr(
    k_pages: Any, v_pages: Any, block_table: Any, seq_ptr: Any, seq_lens: Any, *, max_blocks: SupportsIndex
) -> dict[str, jax.Array]:
    """``gather_kv`` from the index buffers of the format: sequence i has pages block_table[seq_ptr[i]:seq_ptr[i+1]].

    ``block_table`` is 1-D, ``seq_ptr`` [B + 1] and ``seq_lens`` [B], of any integer type. ``max_blocks`` is a Python
    integer, since it decides the shape of the output, L = max_blocks * page_size; longer sequences are cut to their
    first L tokens. A position within a length but behind the last page of its sequence is zero and False in the mask.
    """
    blocks = operator.index(max_blocks)
    if blocks < 0:
        raise BufferSizeError(f"max_blocks is {blocks}, below 0", rule="gather.max-len", found=blocks)
    indices = (_as_indices(block_table), _as_indices(seq_ptr), _as_indices(seq_lens))
    batch: dict[str, jax.Array]
    batch = _gather_csr(_as_pool(k_pages), _as_pool(v_pages), *indices, max_blocks=blocks)
    return batch


def gather(
    tensor: _Gatherable,
    seqs: Iterable[SupportsIndex] | None = None,
    max_len: SupportsIndex | None = None,
    *,
    fill: Any = 0,
    dequantize: bool = False,
) -> Gathered:
    """``tensor.gather`` of a block-paged tensor with the same arguments, as JAX arrays on the default device.

    On the CPU the JAX array takes over the memory that was gathered into. Raises what ``tensor.gather`` raises, and
    UnsupportedError for an element type that JAX does not have, or not in full width (64 bits, unless
    ``jax_enable_x64`` is set).
    """
    values, mask = tensor.gather(seqs=seqs, max_len=max_len, fill=fill, dequantize=dequantize)
    try:
        array = jax.device_put(values)
    except TypeError as error:
        raise UnsupportedError(f"JAX has no arrays of {values.dtype}", rule="jax.dtype", found=values.dtype) from error
    if array.dtype != values.dtype:
        raise UnsupportedError(
            f"JAX makes {array.dtype} of {values.dtype} unless jax_enable_x64 is set",
            rule="jax.dtype",
            declared=values.dtype,
            found=array.dtype,
        )
    return Gathered(array, jax.device_put(mask))


def _as_pool(source: Any) -> jax.Array:
    if isinstance(source, np.ndarray) and not source.dtype.isnative:
        source = source.astype(source.dtype.newbyteorder("="))
    return jnp.asarray(source)


def _as_indices(source: Any) -> jax.Array:
    """``source`` as a JAX array of some integer type.

    Of 64-bit integers JAX would keep the lower half, and so make a page of an id far outside the pool.
    """
    if not isinstance(source, jax.Array):
        source = np.asarray(source)
        if source.dtype.kind in "iu":
            source = np.clip(source, *_common_range(source.dtype)).astype(np.int32)
    indices = jnp.asarray(source)
    if not jnp.issubdtype(indices.dtype, jnp.integer):
        raise BufferSizeError(
            f"block tables and lengths are of an integer type, not of {indices.dtype}",
            rule="gather.array",
            found=indices.dtype,
        )
    return indices


def _common_range(dtype: np.dtype[Any]) -> tuple[int, int]:
    """The least and the greatest number that both this integer type and int32 hold."""
    info = np.iinfo(dtype)
    return max(int(info.min), int(_INT32.min)), min(int(info.max), int(_INT32.max))


def _as_int32(indices: jax.Array) -> jax.Array:
    if indices.dtype.itemsize < 4:
        return indices.astype(jnp.int32)
    return jnp.clip(indices, *_common_range(indices.dtype)).astype(jnp.int32)


@jax.jit
def _gather_padded(
    k_pages: jax.Array, v_pages: jax.Array, block_tables: jax.Array, seq_lens: jax.Array
) -> dict[str, jax.Array]:
    _check_pools(k_pages, v_pages)
    if block_tables.ndim != 2 or seq_lens.shape != block_tables.shape[:1]:
        raise BufferSizeError(
            f"block_tables of shape {block_tables.shape} and seq_lens of {seq_lens.shape} "
            "are not [B, max_blocks] and [B]",
            rule="gather.array",
            declared=block_tables.shape,
            found=seq_lens.shape,
        )
    return _gather_blocks(k_pages, v_pages, _as_int32(block_tables), _as_int32(seq_lens))


@partial(jax.jit, static_argnames="max_blocks")
def _gather_csr(
    k_pages: jax.Array,
    v_pages: jax.Array,
    block_table: jax.Array,
    seq_ptr: jax.Array,
    seq_lens: jax.Array,
    *,
    max_blocks: int,
) -> dict[str, jax.Array]:
    _check_pools(k_pages, v_pages)
    if block_table.ndim != 1 or seq_lens.ndim != 1 or seq_ptr.shape != (seq_lens.size + 1,):
        raise BufferSizeError(
            f"block_table of shape {block_table.shape}, seq_ptr of {seq_ptr.shape} and seq_lens of {seq_lens.shape} "
            "are not [entries], [B + 1] and [B]",
            rule="gather.array",
            declared=seq_ptr.shape,
            found=seq_lens.shape,
        )
    table, pointers = _as_int32(block_table), _as_int32(seq_ptr)
    if table.size == 0:
        table = jnp.full(1, -1, jnp.int32)
    entries = pointers[:-1, None] + jnp.arange(max_blocks, dtype=jnp.int32)
    own = (entries >= 0) & (entries < jnp.minimum(pointers[1:, None], table.size))
    tables = jnp.where(own, jnp.take(table, entries, mode="clip"), -1)
    return _gather_blocks(k_pages, v_pages, tables, _as_int32(seq_lens))


def _check_pools(k_pages: jax.Array, v_pages: jax.Array) -> None:
    if k_pages.ndim < 2 or v_pages.ndim < 2 or k_pages.shape[:2] != v_pages.shape[:2]:
        raise BufferSizeError(
            f"k_pages of shape {k_pages.shape} and v_pages of {v_pages.shape} are not [num_pages, page_size, ...] "
            "with as many pages of the same size",
            rule="gather.pool",
            declared=k_pages.shape,
            found=v_pages.shape,
        )


def _gather_blocks(
    k_pages: jax.Array, v_pages: jax.Array, tables: jax.Array, lengths: jax.Array
) -> dict[str, jax.Array]:
    num_pages, page_size = k_pages.shape[:2]
    batch, max_blocks = tables.shape
    width = max_blocks * page_size
    before = jnp.arange(max_blocks, dtype=jnp.int32) * page_size
    exists = (tables >= 0) & (tables < num_pages)
    counts = jnp.clip(jnp.clip(lengths, 0, width)[:, None] - before, 0, page_size)
    counts = jnp.where(exists, counts, 0)
    mask = (jnp.arange(page_size, dtype=jnp.int32) < counts[:, :, None]).reshape(batch, width)
    ids = jnp.where(exists, tables, 0)
    return {
        "keys": _take_pages(k_pages, ids, counts, mask),
        "values": _take_pages(v_pages, ids, counts, mask),
        "mask": mask,
    }


def _take_pages(pool: jax.Array, ids: jax.Array, counts: jax.Array, mask: jax.Array) -> jax.Array:
    """[B, L, *rest]: of each page in ``ids`` [B, max_blocks] the first ``counts`` slots, those that ``mask`` tells."""
    num_pages, page_size, *rest = pool.shape
    shape = (*mask.shape, *rest)
    if 0 in pool.shape or 0 in shape:
        return jnp.zeros(shape, pool.dtype)
    bits = _as_bits(pool).reshape(num_pages, -1)
    zero = jnp.zeros((), bits.dtype)
    pages = jnp.take(bits, ids.reshape(-1), axis=0, mode="clip")
    if rest and 32 < rest[-1] < 80:
        # XLA does not vectorise loops over rows of this length on the CPU; with pages as rows it takes half the time
        token = math.prod(rest)
        position = lax.broadcasted_iota(jnp.int32, (1, page_size * token), 1)
        values = jnp.where(position < counts.reshape(-1, 1) * token, pages, zero).reshape(shape)
    else:
        values = jnp.where(mask.reshape(*mask.shape, *(1 for _ in rest)), pages.reshape(shape), zero)
    return values if values.dtype == pool.dtype else lax.bitcast_convert_type(values, pool.dtype)


def _as_bits(pool: jax.Array) -> jax.Array:
    """Floating types as unsigned integers of the same width; others are moved as they are."""
    if not jnp.issubdtype(pool.dtype, jnp.floating):
        return pool
    width = ml_dtypes.finfo(pool.dtype).bits  # type: ignore[no-untyped-call]
    return lax.bitcast_convert_type(pool, f"uint{width}")

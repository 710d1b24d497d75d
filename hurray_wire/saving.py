"""Writing a snapshot to a file: ``save_snapshot`` (spec/snapshot.md).

What is written is planned in ``preparing.py``, how in ``store/writer.py``; snapshots on streams are in ``transfer.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from numpy.typing import ArrayLike

from .arrays.memory import within_memory
from .errors import InvalidFileError
from .model.descriptor import TensorDescriptor
from .preparing import prepare
from .store.writer import create
from .wire.container import MAX_ALIGNMENT, MIN_ALIGNMENT

__all__ = ["save_snapshot", "write_file"]


@within_memory
def save_snapshot(
    target: Any,
    layers: Any,
    *,
    seq_lens: ArrayLike | None = None,
    block_tables: Any = None,
    block_table: Any = None,
    seq_ptr: Any = None,
    last_page_len: Any = None,
    token_slots: Any = None,
    left_padded: bool = False,
    layout: str = "split-nhd",
    form: str | None = None,
    page_size: int | None = None,
    num_heads: int | None = None,
    head_dim: int | None = None,
    value_head_dim: int | None = None,
    dtype: Any = None,
    layer_indices: Sequence[int | None] | None = None,
    compact: bool = True,
    scrub: bool = True,
    deduplicate: bool = False,
    index_type: str = "auto",
    zstd: bool | int | None = None,
    planes: bool = False,
    alignment: int = 4096,
    checksums: bool = True,
    durable: bool = True,
    metadata: Mapping[str, Any] | None = None,
    scales: Any = None,
    quantize: str | None = None,
    model_id: str | None = None,
    model_revision: str | None = None,
    engine: str | None = None,
    tp_rank: int | None = None,
    tp_size: int | None = None,
    pp_rank: int | None = None,
    pp_size: int | None = None,
    first_token: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write the paged KV cache of one batch as a snapshot.

    ``layers`` is the cache as its engine holds it, in the named ``layout`` (``hurray_wire.adapters.names()``), of
    which ``form`` is a variant: for the split layouts a sequence, or a mapping from layer index, of (K, V) pairs,
    each [num_pages, page_size, num_heads, head_dim], with None for what a layer does not hold. Arrays may be NumPy's
    or anything with ``__dlpack__`` or ``__array__``, of any strides and byte order; they are borrowed and written by
    value. ``page_size``, ``num_heads``, ``head_dim`` are checked where given; ``dtype`` says what raw bits are (an
    element type, its name, or a NumPy dtype). The layout "auto" is the one that these arrays can have, given the
    sizes that are declared; several are an error that lists them.

    The pages of each sequence come as ``block_tables`` [num_seqs, max_blocks] padded with anything, or as
    ``block_table`` with ``seq_ptr`` (and ``last_page_len`` instead of lengths), or as ``token_slots``; ``seq_lens``
    [num_seqs] in tokens says how much of them counts, and entries beyond it are not looked at. A cache without pages
    (layout "dense-thd": past_key_values) has no tables; pages of ``page_size``, 16 by default, are cut while they are
    written, and ``left_padded`` says that its padding comes first.

    ``compact`` writes only referenced pages, renumbered; ``scrub`` zeroes slots that no sequence uses; with both
    False the pool is written as it lies. ``deduplicate`` writes pages that are equal in all layers once.
    ``index_type`` is "uint32", "uint64" or "auto". ``scales`` gives float32 scales of a float8 cache, [] or
    [num_heads], finite and above 0: a mapping from tensor name, or per layer a (key, value) pair.
    ``quantize="int8"`` writes a floating cache as int8 with a float32 scale for each slot of a page, which must
    have a power of two of them: a value x of a slot whose greatest magnitude is m comes back (``dequantize=True``)
    as x' with |x - x'| <= (m / 254) * (1 + 2**-15), or 2**-127 if that is more. NaN and infinity are refused.
    ``zstd`` (a level, or True) compresses, as does a path that ends in ``.zst`` unless it is False; ``planes`` does it
    better, see ``hw.create``. ``progress`` is called
    with the bytes taken and the bytes in all after each tensor. The rest is identity, kept in the metadata beside
    ``metadata`` itself; each is said once, and a rank with the number of ranks.

    Raises BufferSizeError, IncompatibleError, InvalidDescriptorError or UnsupportedError before anything is written;
    the file appears whole or not at all. Specification: spec/snapshot.md.
    """
    prepared = prepare(
        layers,
        seq_lens=seq_lens,
        block_tables=block_tables,
        block_table=block_table,
        seq_ptr=seq_ptr,
        last_page_len=last_page_len,
        token_slots=token_slots,
        left_padded=left_padded,
        layout=layout,
        form=form,
        page_size=page_size,
        num_heads=num_heads,
        head_dim=head_dim,
        value_head_dim=value_head_dim,
        dtype=dtype,
        layer_indices=layer_indices,
        compact=compact,
        scrub=scrub,
        deduplicate=deduplicate,
        index_type=index_type,
        metadata=metadata,
        scales=scales,
        quantize=quantize,
        model_id=model_id,
        model_revision=model_revision,
        engine=engine,
        tp_rank=tp_rank,
        tp_size=tp_size,
        pp_rank=pp_rank,
        pp_size=pp_size,
        first_token=first_token,
    )
    if not MIN_ALIGNMENT <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise InvalidFileError(
            f"alignment is {alignment}, not a power of two in {MIN_ALIGNMENT}..{MAX_ALIGNMENT}",
            rule="container.alignment",
            declared=(MIN_ALIGNMENT, MAX_ALIGNMENT),
            found=alignment,
        )
    write_file(
        target,
        [(name, (descriptor, partial(list, buffers))) for name, descriptor, buffers in prepared.tensors],
        progress=progress,
        zstd=zstd,
        planes=planes,
        alignment=alignment,
        checksums=checksums,
        durable=durable,
        metadata=prepared.metadata,
    )


def write_file(
    target: Any,
    tensors: Sequence[tuple[str, tuple[TensorDescriptor, Callable[[], Sequence[Any]]]]],
    *,
    progress: Callable[[int, int], None] | None,
    **options: Any,
) -> None:
    """Write tensors (name, descriptor, and a function for the buffers) to a file; ``options`` are ``hw.create``'s."""
    with create(target, **options) as writer:
        done, total = 0, sum(_buffer_bytes(descriptor) for _, (descriptor, _) in tensors)
        for name, (descriptor, buffers) in tensors:
            writer.add(name, descriptor, buffers())
            if progress is not None:
                done += _buffer_bytes(descriptor)
                progress(done, total)


def _buffer_bytes(descriptor: TensorDescriptor) -> int:
    return sum(handle.byte_size for handle in descriptor.buffers)

"""Snapshots: the paged KV cache of one batch, with all that a descriptor leaves out (spec/snapshot.md).

A snapshot is a file of block-paged tensors, one per layer and role, found by their descriptors; the lengths of the
sequences, in a tensor ``seq_lens``; and who wrote it for which model, in the metadata. :func:`save_snapshot` makes
one from arrays as an engine holds them, :func:`load_snapshot` gives it back. The bytes are left to ``store/``, the
choice of pages to ``selection.py``, engine layouts to ``adapters/``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import adapters
from ._version import __version__
from .adapters.tables import Tables, normalise
from .errors import BufferSizeError, IncompatibleError, InvalidFileError
from .limits import Limits
from .model import element_types as et
from .model.block_paged import BlockPagedLayout
from .model.descriptor import TensorDescriptor
from .model.layouts import RowMajorLayout
from .selection import PagePlan, PoolChunks, deduplicated, plan_pages
from .store import reader
from .store.reader import SCALE_SUFFIX, SEQ_LENS, File, Report
from .store.writer import create
from .tensors import PagedTensor, Tensor

__all__ = ["Layer", "Snapshot", "SnapshotFile", "load_snapshot", "open_file", "save_snapshot"]

SNAPSHOT_KEY = "hurray_wire.snapshot"
SNAPSHOT_VERSION = 1
ROLES = ("key", "value", "fused")
IDENTITY_KEYS = {
    "model_id": "model.id",
    "model_revision": "model.revision",
    "engine": "engine",
    "tp_rank": "tp.rank",
    "tp_size": "tp.size",
    "pp_rank": "pp.rank",
    "pp_size": "pp.size",
    "first_token": "first_token",
}
OUTPUT_NAMES = {"key": "keys", "value": "values", "fused": "fused"}

_U32_MAX = (1 << 32) - 1


def tensor_name(layer: int | None, role: str) -> str:
    """The name we give a tensor: ``layers.{i}.key``, or just the role for a tensor that belongs to no layer."""
    return role if layer is None else f"layers.{layer}.{role}"


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """The tensors of one layer; None for a role that the snapshot does not hold."""

    index: int | None
    key: PagedTensor | None = None
    value: PagedTensor | None = None
    fused: PagedTensor | None = None

    @property
    def tensors(self) -> dict[str, PagedTensor]:
        """The roles that are there."""
        return {role: tensor for role in ROLES if (tensor := getattr(self, role)) is not None}


class Holder(Protocol):
    """What a snapshot needs of the file, or the received tensors, that hold it."""

    @property
    def metadata(self) -> dict[str, Any]: ...
    @property
    def paged(self) -> tuple[PagedTensor, ...]: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    def __getitem__(self, name: str, /) -> Tensor: ...
    def __contains__(self, name: object, /) -> bool: ...
    def __len__(self) -> int: ...
    def recorded_seq_lens(self) -> NDArray[Any] | None: ...
    def verify(self, *, progress: Callable[[int, int], None] | None = None) -> Report: ...
    def close(self) -> None: ...


class Snapshot:
    """One batch of sequences over the layers of a model. A context manager that closes its file.

    ``layers`` are the layer indices present, in ascending order (None for tensors of no layer comes first);
    ``snapshot[i]`` is a :class:`Layer` with ``.key``, ``.value`` and ``.fused``.
    """

    def __init__(self, file: Holder) -> None:
        self._file = file
        found: dict[int | None, dict[str, PagedTensor]] = {}
        for tensor in file.paged:
            layer, role = tensor.layout.layer_index, tensor.layout.kv_role
            there = found.setdefault(layer, {})
            if role in there:
                raise InvalidFileError(
                    f"tensors {there[role].name!r} and {tensor.name!r} both hold the {role} of layer {layer}",
                    rule="snapshot.duplicate-role",
                    found=tensor.name,
                )
            there[role] = tensor
        order = sorted(found, key=lambda layer: -1 if layer is None else layer)
        self._layers = {layer: Layer(layer, **found[layer]) for layer in order}
        version = self.metadata.get(SNAPSHOT_KEY, SNAPSHOT_VERSION)
        if version != SNAPSHOT_VERSION:
            raise IncompatibleError(
                f"{SNAPSHOT_KEY} is {version!r}, not {SNAPSHOT_VERSION}",
                rule="snapshot.version",
                declared=SNAPSHOT_VERSION,
                found=version,
            )

    @property
    def layers(self) -> tuple[int | None, ...]:
        """Layer indices, ascending."""
        return tuple(self._layers)

    @property
    def metadata(self) -> dict[str, Any]:
        """The file's metadata, a copy."""
        return self._file.metadata

    @property
    def file(self) -> Holder:
        """The file, or the received tensors, underneath."""
        return self._file

    @property
    def tensors(self) -> Iterator[PagedTensor]:
        """Every block-paged tensor, layer by layer, keys before values."""
        return (tensor for layer in self._layers.values() for tensor in layer.tensors.values())

    @property
    def seq_lens(self) -> NDArray[Any]:
        """Tokens of each sequence, [num_seqs], read-only. Raises IncompatibleError where they are not known."""
        first = next(self.tensors, None)
        if first is not None:
            return first.seq_lens
        recorded = self._file.recorded_seq_lens()
        return np.empty(0, dtype=np.uint32) if recorded is None else recorded

    def __getitem__(self, layer: int | None) -> Layer:
        try:
            return self._layers[layer]
        except KeyError:
            raise KeyError(f"layer {layer} is not in the snapshot, which has {_listed(self.layers)}") from None

    def __contains__(self, layer: object) -> bool:
        return layer in self._layers

    def __iter__(self) -> Iterator[Layer]:
        return iter(self._layers.values())

    def __len__(self) -> int:
        return len(self._layers)

    def gather(
        self,
        layer: int | None,
        seqs: Iterable[SupportsIndex] | None = None,
        max_len: SupportsIndex | None = None,
        fill: Any = 0,
        dequantize: bool = False,
    ) -> dict[str, NDArray[Any]]:
        """The sequences of one layer, padded: {"keys", "values", "mask"}, or "fused" for a layer that holds that.

        "keys" and "values" are [B, L, num_heads, head_dim], "mask" is bool [B, L]; arguments and errors are those of
        ``PagedTensor.gather``. KeyError for a layer that is not there.
        """
        result: dict[str, NDArray[Any]] = {}
        seqs = None if seqs is None else list(seqs)
        for role, tensor in self[layer].tensors.items():
            gathered = tensor.gather(seqs, max_len, fill=fill, dequantize=dequantize)
            result[OUTPUT_NAMES[role]] = gathered.values
            result["mask"] = gathered.mask
        mask = result.pop("mask")
        return {**result, "mask": mask}

    def verify(self, *, progress: Callable[[int, int], None] | None = None) -> Report:
        """Read everything and check all that can be; see ``File.verify``."""
        return self._file.verify(progress=progress)

    def close(self) -> None:
        """Close the file. Arrays that were taken stay valid."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<hurray_wire.Snapshot of {len(self)} layers>"


class SnapshotFile(File):
    """An open file that may hold a snapshot; what ``hw.open`` returns."""

    def snapshot(self) -> Snapshot:
        """The snapshot in this file. It shares the file, and closing either closes both."""
        return Snapshot(self)


def open_file(
    target: Any,
    *,
    mmap: bool = True,
    permissive: bool = False,
    limits: Limits | None = None,
    seq_lens: ArrayLike | None = None,
) -> SnapshotFile:
    return reader.open_as(SnapshotFile, target, mmap=mmap, permissive=permissive, limits=limits, seq_lens=seq_lens)


open_file.__doc__ = reader.open_as.__doc__


def load_snapshot(target: Any, **options: Any) -> Snapshot:
    """The snapshot in a file, as a context manager; ``options`` are those of ``hw.open``. Nothing of the pools is read.

    Raises what ``hw.open`` raises, and InvalidFileError where two tensors claim one layer and role.
    """
    file = open_file(target, **options)
    try:
        return file.snapshot()
    except BaseException:
        file.close()
        raise


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
    layout: str = "split-nhd",
    layout_form: str | None = None,
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

    ``layers`` is the cache as its engine holds it, in the named ``layout`` (``hurray_wire.adapters.names()``): for
    the split layouts a sequence, or a mapping from layer index, of (K, V) pairs, each [num_pages, page_size,
    num_heads, head_dim]. Arrays may be NumPy's or anything with ``__dlpack__`` or ``__array__``, of any strides and
    byte order; they are borrowed and written by value. ``page_size``, ``num_heads``, ``head_dim`` are checked where
    given; ``dtype`` says what raw bits are (an element type or NumPy dtype).

    The pages of each sequence come as ``block_tables`` [num_seqs, max_blocks] padded with anything, or as
    ``block_table`` with ``seq_ptr`` (and ``last_page_len`` instead of lengths), or as ``token_slots``; ``seq_lens``
    [num_seqs] in tokens says how much of them counts, and entries beyond it are not looked at.

    ``compact`` writes only referenced pages, renumbered; ``scrub`` zeroes slots that no sequence uses; with both
    False the pool is written as it lies. ``deduplicate`` writes pages that are equal in all layers once.
    ``index_type`` is "uint32", "uint64" or "auto". ``scales`` gives float32 scales of a float8 cache, [] or
    [num_heads]: a mapping from tensor name, or per layer a (key, value) pair. ``zstd`` (a level, or True) compresses,
    ``planes`` does it better, see ``hw.create``. ``progress`` is called with the bytes taken and the bytes in all after
    each tensor. The rest is identity, kept in the metadata beside ``metadata`` itself.

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
        layout=layout,
        layout_form=layout_form,
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
        model_id=model_id,
        model_revision=model_revision,
        engine=engine,
        tp_rank=tp_rank,
        tp_size=tp_size,
        pp_rank=pp_rank,
        pp_size=pp_size,
        first_token=first_token,
    )
    with create(
        target,
        zstd=zstd,
        planes=planes,
        alignment=alignment,
        checksums=checksums,
        durable=durable,
        metadata=prepared.metadata,
    ) as writer:
        done, total = 0, sum(_buffer_bytes(descriptor) for _, descriptor, _ in prepared.tensors)
        for name, descriptor, buffers in prepared.tensors:
            writer.add(name, descriptor, buffers)
            if progress is not None:
                done += _buffer_bytes(descriptor)
                progress(done, total)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A batch that has passed every check and is ready to be written, to a file or a stream.

    ``tensors`` are (name, descriptor, buffers), ``seq_lens`` first; page pools are read from the caller's arrays only
    while they are written.
    """

    metadata: dict[str, Any]
    tensors: list[tuple[str, TensorDescriptor, list[Any]]]


def prepare(
    layers: Any,
    *,
    seq_lens: ArrayLike | None = None,
    block_tables: Any = None,
    block_table: Any = None,
    seq_ptr: Any = None,
    last_page_len: Any = None,
    token_slots: Any = None,
    layout: str = "split-nhd",
    layout_form: str | None = None,
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
    metadata: Mapping[str, Any] | None = None,
    scales: Any = None,
    **identity: Any,
) -> Prepared:
    """Check a batch and plan how it is written; arguments and errors are those of :func:`save_snapshot`."""
    plan_metadata = _metadata(metadata, layout, identity)
    pools = adapters.get(layout).views(
        layers,
        page_size=page_size,
        num_heads=num_heads,
        head_dim=head_dim,
        value_head_dim=value_head_dim,
        layer_indices=layer_indices,
        form=layout_form,
        dtype=dtype.dtype if isinstance(dtype, et.ElementType) else dtype,
    )
    every = [pool for layer in pools for pool in layer.pools.values()]
    if not every:
        raise BufferSizeError("there are no layers to write", rule="snapshot.no-layers")
    num_pages, slots = every[0].shape[:2]
    tables = normalise(
        page_size=slots,
        num_pages=num_pages,
        seq_lens=seq_lens,
        block_tables=block_tables,
        block_table=block_table,
        seq_ptr=seq_ptr,
        last_page_len=last_page_len,
        token_slots=token_slots,
    )
    plan = plan_pages(tables, num_pages=num_pages, page_size=slots, compact=compact, scrub=scrub)
    if deduplicate:
        plan = deduplicated(plan, every)
    index = _index_type(index_type, plan)
    planned = [
        _plan_tensor(pool, layer.index, role, plan, tables, index)
        for layer in pools
        for role, pool in layer.pools.items()
    ]
    companions = _companions(scales, planned)
    tensors = [_plan_array(SEQ_LENS, _lengths_array(tables.seq_lens))]
    for tensor in planned:
        tensors.append(tensor)
        if tensor[0] in companions:
            tensors.append(_plan_array(f"{tensor[0]}{SCALE_SUFFIX}", companions[tensor[0]]))
    return Prepared(plan_metadata, tensors)


def _buffer_bytes(descriptor: TensorDescriptor) -> int:
    return sum(handle.byte_size for handle in descriptor.buffers)


def _plan_tensor(
    pool: NDArray[Any], layer: int | None, role: str, plan: PagePlan, tables: Tables, index_type: str
) -> tuple[str, TensorDescriptor, list[Any]]:
    element_type = et.from_dtype(pool.dtype)
    _, _, heads, dim = pool.shape
    layout = BlockPagedLayout(
        page_size=plan.page_size,
        num_pages=plan.num_pages,
        paged_axis=0,
        num_seqs=len(tables.seq_lens),
        kv_role=role,
        layer_index=layer,
        block_table_index_type=index_type,
    )
    chunks = PoolChunks(pool, plan, element_type)
    block_table = plan.block_table.astype(layout.index_dtype)
    seq_ptr = plan.seq_ptr.astype(layout.index_dtype)
    shape = (int(tables.seq_lens.sum()), heads, dim)
    sizes = (chunks.nbytes, block_table.nbytes, seq_ptr.nbytes)
    descriptor = TensorDescriptor.build(element_type, shape, layout, sizes)
    return tensor_name(layer, role), descriptor, [chunks, block_table, seq_ptr]


def _index_type(index_type: str, plan: PagePlan) -> str:
    if index_type != "auto":
        return index_type
    return "uint32" if max(plan.num_pages - 1, len(plan.block_table)) <= _U32_MAX else "uint64"


def _lengths_array(seq_lens: NDArray[np.int64]) -> NDArray[Any]:
    wide = len(seq_lens) and int(seq_lens.max()) > _U32_MAX
    return seq_lens.astype("<u8" if wide else "<u4")


def _plan_array(name: str, array: NDArray[Any]) -> tuple[str, TensorDescriptor, list[Any]]:
    element_type = et.from_dtype(array.dtype)
    return name, TensorDescriptor.build(element_type, array.shape, RowMajorLayout(), (array.nbytes,)), [array]


def _metadata(given: Mapping[str, Any] | None, layout: str, identity: Mapping[str, Any]) -> dict[str, Any]:
    """What goes into the metadata: our own keys, the identity that was given, and the caller's own."""
    given = dict(given or {})
    for key in given:
        if str(key).startswith("hurray_wire."):
            raise InvalidFileError(f"metadata key {key!r} is reserved", rule="snapshot.reserved-key", found=key)
    unknown = sorted(set(identity) - set(IDENTITY_KEYS))
    if unknown:
        raise TypeError(f"unexpected argument {unknown[0]!r}")
    ours = {SNAPSHOT_KEY: SNAPSHOT_VERSION, "producer": f"hurray_wire {__version__}"}
    named = {IDENTITY_KEYS[name]: value for name, value in identity.items() if value is not None}
    return {**ours, **named, "source.layout": layout, **given}


def _companions(scales: Any, planned: Sequence[tuple[str, TensorDescriptor, Any]]) -> dict[str, NDArray[np.float32]]:
    """Companion scales by tensor name, checked: float32, [] or [num_heads]."""
    if scales is None:
        return {}
    by_place = {
        (descriptor.layout.layer_index, descriptor.layout.kv_role): name
        for name, descriptor, _ in planned
        if isinstance(descriptor.layout, BlockPagedLayout)
    }
    heads = {name: descriptor.shape[1] for name, descriptor, _ in planned}
    companions: dict[str, NDArray[np.float32]] = {}
    entries = scales.items() if isinstance(scales, Mapping) else _by_layer(scales, by_place)
    for key, value in entries:
        named = (
            [(key, value)]
            if isinstance(key, str)
            else [(by_place.get((key, role), tensor_name(key, role)), scale) for role, scale in _by_role(value)]
        )
        for name, scale in named:
            if name not in heads:
                raise IncompatibleError(f"a scale is given for {name!r}, which is not written", rule="snapshot.scale")
            array = np.asarray(scale, dtype="<f4")
            if array.shape not in ((), (heads[name],)):
                raise BufferSizeError(
                    f"the scale of {name!r} has shape {list(array.shape)}, not [] or [{heads[name]}]",
                    rule="snapshot.scale",
                    declared=heads[name],
                    found=array.shape,
                )
            companions[name] = array
    return companions


def _by_layer(scales: Sequence[Any], by_place: Mapping[tuple[int | None, str], str]) -> list[tuple[Any, Any]]:
    layers = list(dict.fromkeys(layer for layer, _ in by_place))
    if len(scales) != len(layers):
        raise IncompatibleError(
            f"{len(scales)} scales for {len(layers)} layers",
            rule="snapshot.scale",
            declared=len(layers),
            found=len(scales),
        )
    return list(zip(layers, scales, strict=True))


def _by_role(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    return [(role, scale) for role, scale in zip(("key", "value"), value, strict=True) if scale is not None]


def _listed(layers: Sequence[int | None]) -> str:
    return f"layers {', '.join(map(str, layers))}" if layers else "no layers"

"""Snapshots: the paged KV cache of one batch, with all that a descriptor leaves out (spec/snapshot.md).

A snapshot is a file of block-paged tensors, one per layer and role, found by their descriptors; the lengths of the
sequences, in a tensor ``seq_lens``; and who wrote it for which model, in the metadata. ``save_snapshot`` makes one
from arrays as an engine holds them (``saving.py``), :func:`load_snapshot` gives it back, and ``Snapshot.export`` hands
it to an engine again (``export.py``), ``Snapshot.save`` to another file and ``Snapshot.send`` to a stream
(``resaving.py``). The bytes are left to ``store/``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, SupportsIndex, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arrays.memory import within_memory
from .errors import IncompatibleError, InvalidFileError
from .export import count_pages, export_merged
from .export_pages import chosen_layers, several
from .export_parts import Alone
from .exported import Exported
from .framing import send_group
from .identity import SNAPSHOT_KEY, SNAPSHOT_VERSION
from .limits import Limits
from .paged_tensor import PagedTensor
from .preparing import tensor_name
from .resaving import Resaved, Tensors, resaved
from .saving import write_file
from .store import reader
from .store.channels import check_writable
from .store.reader import Report
from .wire.container import MIN_ALIGNMENT

__all__ = ["Layer", "Snapshot", "File", "load_snapshot", "open_file", "tensor_name"]

ROLES = ("key", "value", "fused")
OUTPUT_NAMES = {"key": "keys", "value": "values", "fused": "fused"}


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


class Holder(Tensors, Protocol):
    """What a snapshot needs of the file, or the received tensors, that hold it."""

    @property
    def paged(self) -> tuple[PagedTensor, ...]: ...
    def __contains__(self, name: object, /) -> bool: ...
    def __len__(self) -> int: ...
    def recorded_seq_lens(self) -> NDArray[Any] | None: ...
    def verify(
        self, *, progress: Callable[[int, int], None] | None = None, only: Collection[str] | None = None
    ) -> Report: ...
    def reads_from(self, target: object) -> bool: ...
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
            raise KeyError(f"layer {layer!r} is not in the snapshot, which has {_listed(self.layers)}") from None

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
        seqs = several(seqs, "seqs")
        for role, tensor in self[layer].tensors.items():
            gathered = tensor.gather(seqs, max_len, fill=fill, dequantize=dequantize)
            result[OUTPUT_NAMES[role]] = gathered.values
            result["mask"] = gathered.mask
        mask = result.pop("mask")
        return {**result, "mask": mask}

    def export(
        self,
        *,
        layout: str = "split-nhd",
        form: str | None = None,
        page_size: int | None = None,
        out: Any = None,
        page_ids: Any = None,
        layers: Iterable[int | None] | None = None,
        seqs: Iterable[SupportsIndex] | None = None,
        dtype: Any = None,
        num_heads: int | None = None,
        tp_rank: int | None = None,
        tp_size: int | None = None,
        left_padded: bool = False,
        dequantize: bool = False,
    ) -> Exported:
        """The cache in an engine's layout: fresh arrays, or pages of pools that the caller has (``out``).

        ``layout`` is one of ``hurray_wire.adapters.names()`` or "dense-thd", ``form`` a variant of it. ``layers`` and
        ``seqs`` choose some, in this order. ``page_size`` cuts the pages anew, into any size. Only pages of these
        sequences are exported, those that they share once, numbered as the sequences first use them; there are
        ``count_pages(...)``. Slots past the tokens of a page are zero. Bits are kept, unless ``dequantize`` asks for
        real numbers in float32.

        ``out`` is a cache as its engine holds it: arrays of NumPy or anything that lends its memory (tensors of
        PyTorch on the CPU), of any strides, with an entry for each layer exported, or a mapping from layer index.
        ``page_ids`` says which of its pages to write: an id for each page, or a table (padded, or lists) with a row of
        ids for each sequence, in which a shared page may have several places. No other page is touched. Without
        ``page_ids``, the pools must have just as many pages as are exported. ``dtype`` says what raw bits of ``out``
        are. With ``dequantize``, ``out`` may be of any floating type but float8, to which numbers are rounded.
        ``left_padded`` says that a batch of "dense-thd" has its padding first.

        ``tp_rank`` of ``tp_size`` takes the heads of one tensor-parallel rank. They are counted in the model, whose
        ``num_heads`` are those of the snapshot, times its ``tp.size`` where the metadata has one. See
        ``export_merged`` for several snapshots.

        Raises IncompatibleError, BufferSizeError, InvalidDescriptorError, UnsupportedError or LimitError before
        anything is written, KeyError for a layer that is not there. What only reading a damaged file can tell comes
        while pages are written.
        """
        return export_merged(
            [Alone(self) if tp_size is None else self],
            layout=layout,
            form=form,
            page_size=page_size,
            out=out,
            page_ids=page_ids,
            layers=layers,
            seqs=seqs,
            dtype=dtype,
            num_heads=num_heads,
            tp_rank=tp_rank,
            tp_size=tp_size,
            left_padded=left_padded,
            dequantize=dequantize,
        )

    def count_pages(
        self,
        *,
        page_size: int | None = None,
        layers: Iterable[int | None] | None = None,
        seqs: Iterable[SupportsIndex] | None = None,
    ) -> int:
        """How many pages ``export`` with these arguments writes: what an engine has to allocate for ``page_ids``."""
        return count_pages(self, page_size=page_size, layers=layers, seqs=seqs)

    @within_memory
    def save(
        self,
        target: Any,
        *,
        layers: Iterable[int | None] | None = None,
        seqs: Iterable[SupportsIndex] | None = None,
        compact: bool = True,
        scrub: bool = True,
        verify: bool = True,
        zstd: bool | int | None = None,
        planes: bool = False,
        alignment: int = MIN_ALIGNMENT,
        checksums: bool = True,
        durable: bool = True,
        metadata: Mapping[str, Any] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Write the snapshot again, to a file: one that came over a stream, compressed otherwise, or a part of it.

        ``layers`` chooses some, each once, and ``seqs`` sequences, in this order. Tensors keep their names, types,
        quantization and scales, and the metadata stays, in its order, with ``metadata`` in place of what it names. Of
        the pools only pages of these sequences are written (``compact``), and slots past the lengths are zeroed
        (``scrub``), as by ``save_snapshot``, whose other arguments these are too. Tensors that are not block-paged are
        written as they are. The target may be the path that is read. Since the new file has checksums of its own, what
        it is made of is checked against those of the old one first, unless ``verify=False``; that reads it once more.

        Raises what reading tables and lengths raises, KeyError for a layer and IncompatibleError for a sequence that is
        not there, a layer that is named twice, or a composite of which only a part is chosen, ValueError for the very
        object that is read, what ``File.verify`` and what ``hw.create`` raise, all before anything is written; the file
        appears whole or not at all.
        """
        plan = self._again(target, layers, seqs=seqs, compact=compact, scrub=scrub, metadata=metadata)
        if verify:
            self._file.verify(only={name for name, _ in plan.tensors if name in self._file})
        write_file(
            target,
            plan.tensors,
            progress=progress,
            zstd=zstd,
            planes=planes,
            alignment=alignment,
            checksums=checksums,
            durable=durable,
            metadata=plan.metadata,
        )

    @within_memory
    def send(
        self,
        writable: Any,
        *,
        layers: Iterable[int | None] | None = None,
        seqs: Iterable[SupportsIndex] | None = None,
        compact: bool = True,
        scrub: bool = True,
        cross_machine: bool = True,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Send the snapshot over a stream (a pipe, a socket, any writable binary object) to ``hw.receive_snapshot``.

        The arguments are those of :meth:`save`, and what is sent is what that writes, as a group: the metadata, the
        lengths, the layers in the order asked for. Pools of mapped files and of memory go out without a copy wherever
        pages that follow one another are whole; those of compressed and remote files are read page by page.
        ``cross_machine`` refuses buffers that are not producer-synced, see ``hw.receive_snapshot``.

        Raises what :meth:`save` raises before it writes, StreamError for a tensor that a group or a stream cannot
        carry (a composite, an unknown layout), LimitError for more than a receiver takes and TypeError for what takes
        no bytes, all before the first byte. What only reading a damaged file can tell comes while it is sent, and the
        receiver then finds the group without its tail. Specification: spec/stream.md; spec/snapshot.md, "On a stream".
        """
        check_writable(writable, "Snapshot.send", "Snapshot.save writes a file")
        plan = self._again(writable, layers, seqs=seqs, compact=compact, scrub=scrub, metadata=metadata)
        send_group(writable, plan.metadata, plan.in_group_order(), cross_machine=cross_machine)

    def _again(self, target: Any, layers: Iterable[int | None] | None, **choices: Any) -> Resaved:
        """How these layers are written again, to the target."""
        if self._file.reads_from(target):
            raise ValueError("the snapshot is read from this very object while it is written; write it to another one")
        indices = chosen_layers(layers)
        chosen = self.layers if indices is None else indices
        return resaved(self._file, [tensor for layer in chosen for tensor in self[layer].tensors.values()], **choices)

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
        return f"<hurray_wire.Snapshot of {len(self)} layer{'' if len(self) == 1 else 's'}>"


class File(reader.File):
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
    storage_options: Mapping[str, Any] | None = None,
) -> File:
    return reader.open_as(
        File,
        target,
        mmap=mmap,
        permissive=permissive,
        limits=limits,
        seq_lens=seq_lens,
        storage_options=storage_options,
    )


open_file.__doc__ = reader.open_as.__doc__


def load_snapshot(target: Any, **options: Unpack[reader.OpenOptions]) -> Snapshot:
    """The snapshot in a file, as a context manager; ``options`` are those of ``hw.open``. Nothing of the pools is read.

    Raises what ``hw.open`` raises, InvalidFileError where two tensors claim one layer and role, and IncompatibleError
    for a file of other tensors alone, which ``hw.open`` reads. (A snapshot of no layer says in its metadata that it is
    one.)
    """
    file = open_file(target, **options)
    try:
        snapshot = file.snapshot()
        if not snapshot.layers and SNAPSHOT_KEY not in snapshot.metadata:
            raise IncompatibleError(
                f"the file is no snapshot: of its tensors ({len(file)}), none is block-paged; hw.open reads it",
                rule="snapshot.no-tensor",
                found=len(file),
            )
        return snapshot
    except BaseException:
        file.close()
        raise


def _listed(layers: Sequence[int | None]) -> str:
    return f"layers {', '.join(map(str, layers))}" if layers else "no layers"

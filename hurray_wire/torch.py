"""Tensors of PyTorch over the memory of a snapshot, and gathering into them (optional extra ``torch``, on the CPU).

The other way needs nothing from here: ``hurray_wire.save_snapshot`` and ``Snapshot.export(out=...)`` take tensors of
PyTorch as they are, of any strides, without a copy.

PyTorch knows no read-only tensors. What ``page_pool`` gives lies in the file's mapping: writing to it changes this
process's view of the file for everyone who reads it here, though never the file itself. ``clone()`` it first, or
``gather``, whose result is the caller's own.

Every tensor from here speaks DLPack, bfloat16 and float8 included, which NumPy arrays of those types do not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from .adapters import as_array
from .adapters.intake import TORCH_BITS
from .errors import UnsupportedError
from .paged_tensor import PagedTensor
from .snapshot import Snapshot

try:
    import torch
except ModuleNotFoundError as error:
    raise ImportError(
        "hurray_wire.torch needs PyTorch, which comes with the extra: pip install 'hurray_wire[torch]'"
    ) from error

__all__ = ["Gathered", "as_tensor", "gather", "gather_layer", "page_pool"]

_BITS = {np.dtype(numpy_type): (bits, name) for name, (bits, numpy_type) in TORCH_BITS.items()}


class Gathered(NamedTuple):
    """Sequences padded to one length: ``values`` [B, L, num_heads, head_dim] and ``mask`` bool [B, L]."""

    values: torch.Tensor
    mask: torch.Tensor


def as_tensor(array: NDArray[Any]) -> torch.Tensor:
    """A tensor over the memory of a NumPy array, which it keeps alive; of ml_dtypes too, and of read-only memory.

    Whether the memory may be written is for the caller to know. Raises UnsupportedError for a type that PyTorch does
    not have, the other byte order, and negative strides.
    """
    bits, name = _BITS.get(array.dtype, (None, None))
    held = array if bits is None else array.view(bits)
    if not held.flags.writeable:
        held = np.asarray(_Lent(held))
    try:
        tensor = torch.from_numpy(held)
    except (TypeError, ValueError) as error:
        raise UnsupportedError(
            f"PyTorch has no tensor over this array of {array.dtype}: {error}",
            rule="torch.array",
            found=str(array.dtype),
        ) from error
    return tensor if name is None else tensor.view(getattr(torch, name))


def page_pool(tensor: PagedTensor) -> torch.Tensor:
    """All pages, [num_pages, page_size, num_heads, head_dim]: ``PagedTensor.page_pool`` as a tensor, without a copy.

    Never write to it (see above). It stays valid when the file is closed. Errors are those of :func:`as_tensor`.
    """
    return as_tensor(tensor.page_pool)


def gather(
    tensor: PagedTensor,
    seqs: Iterable[SupportsIndex] | None = None,
    max_len: SupportsIndex | None = None,
    out: torch.Tensor | None = None,
    *,
    fill: Any = 0,
    dequantize: bool = False,
) -> Gathered:
    """``PagedTensor.gather`` with the same arguments, as tensors; nothing is copied but the tokens, once.

    ``out``, if given, receives the values and is returned; it may be pinned memory, or a part of a larger tensor.
    Raises what ``PagedTensor.gather`` raises, and what :func:`as_tensor` does.
    """
    target = None if out is None else as_array(out, what="out", writable=True)
    values, mask = tensor.gather(seqs, max_len, out=target, fill=fill, dequantize=dequantize)
    return Gathered(as_tensor(values) if out is None else out, as_tensor(mask))


def gather_layer(
    snapshot: Snapshot,
    layer: int | None,
    seqs: Iterable[SupportsIndex] | None = None,
    max_len: SupportsIndex | None = None,
    *,
    fill: Any = 0,
    dequantize: bool = False,
) -> dict[str, torch.Tensor]:
    """``Snapshot.gather`` with the same arguments, as tensors: {"keys", "values", "mask"}, or "fused" and "mask"."""
    batch = snapshot.gather(layer, seqs, max_len, fill=fill, dequantize=dequantize)
    return {name: as_tensor(array) for name, array in batch.items()}


class _Lent:
    """Read-only memory under another name: PyTorch warns of every array that cannot be written."""

    def __init__(self, owner: NDArray[Any]) -> None:
        self.owner = owner  # NumPy keeps this object, and so the memory, alive
        address, _ = owner.__array_interface__["data"]
        self.__array_interface__ = {**owner.__array_interface__, "data": (address, False)}

"""Sparse tensors as their named arrays, checked (spec/layouts.md, layouts 0x06 to 0x09).

``read_sparse`` is the gate: an object it gives has indices within the shape, pointers that start at 0, never fall and
end where they must, and no coordinate twice. So ``to_dense`` and ``to_scipy`` need not ask again. Index and pointer
arrays are uint64 views of the buffers; values are views too, unless they are narrower than a byte.

A buffer of values, indices or row pointers may be longer than needed. The lengths of a CSF tree are told by its
buffers alone, so these must be exact.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedError
from ..limits import Limits
from ..model import element_types as et
from ..model.descriptor import TensorDescriptor
from ..model.element_types import ElementType
from ..model.layouts import CooLayout, CscLayout, CsfLayout, CsrLayout
from ..model.shape import Shape, element_count, is_dynamic
from .memory import allocate, check_limit, within_memory
from .packing import memory_dtype, unpack
from .sparse_checks import (
    check_bounds,
    check_coordinates,
    check_distinct,
    check_fibers,
    check_length,
    check_pointers,
    counts,
    owners_of,
)

__all__ = ["Coo", "Csc", "Csf", "Csr", "Sparse", "read_sparse"]

Bytes: TypeAlias = NDArray[np.uint8]
Words: TypeAlias = NDArray[np.uint64]

_POINTER_BYTES = 8
_SCIPY_DTYPES = tuple(t.dtype for t in et.ALL if t.name.startswith(("uint", "int", "complex")) and not t.is_packed)
_SCIPY_DTYPES += (et.bool_.dtype, et.float32.dtype, et.float64.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Sparse(ABC):
    """A sparse tensor: its shape and stored values, [nnz]. The subclasses add where the values belong."""

    shape: Shape
    values: NDArray[Any]

    @property
    def nnz(self) -> int:
        """The number of stored values."""
        return len(self.values)

    @property
    def nbytes(self) -> int:
        """Bytes of the values, and of what says where they belong."""
        held = [getattr(self, field.name) for field in fields(self)]
        arrays = [array for entry in held for array in (entry if isinstance(entry, tuple) else (entry,))]
        return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))

    @within_memory
    def to_dense(self, *, limits: Limits | None = None) -> NDArray[Any]:
        """An array of ``shape``, the caller's own, zero bits where no value is stored.

        Raises LimitError if it would take more than ``limits`` allow.
        """
        out = allocate(self.shape, self.values.dtype, limits, stored=self.nbytes, zeroed=True)
        out.reshape(-1)[self.positions()] = self.values
        return out

    @abstractmethod
    def positions(self) -> NDArray[np.int64]:
        """Where each stored value lies in the row-major array of ``shape``, for shapes of fewer than 2**63 elements."""

    @abstractmethod
    def to_scipy(self) -> Any:
        """The same as an array of ``scipy.sparse`` (coo_array, csr_array or csc_array), a copy.

        Raises ImportError if SciPy is not installed, UnsupportedError for what SciPy has no form for: CSF, COO of a
        rank other than 2, and element types it does not compute with.
        """

    def _scipy_values(self) -> NDArray[Any]:
        dtype = self.values.dtype
        if dtype not in _SCIPY_DTYPES or max(self.shape) >= 1 << 63:
            raise UnsupportedError(
                f"scipy.sparse has no arrays of shape {list(self.shape)} and {dtype}", rule="sparse.scipy", found=dtype
            )
        return self.values.copy()


@dataclass(frozen=True, slots=True, eq=False)
class Coo(Sparse):
    """Coordinates: ``indices`` is uint64 [nnz, rank], one row per value. ``is_sorted``: the rows ascend."""

    indices: Words
    is_sorted: bool

    def positions(self) -> NDArray[np.int64]:
        return _positions(self.shape, [self.indices[:, k] for k in range(len(self.shape))])

    def to_scipy(self) -> Any:
        if len(self.shape) != 2:
            raise UnsupportedError(
                f"scipy.sparse has no array of rank {len(self.shape)}", rule="sparse.scipy", found=len(self.shape)
            )
        rows, cols = self.indices.astype(np.int64).T
        return _scipy_sparse().coo_array((self._scipy_values(), (rows, cols)), shape=self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Csr(Sparse):
    """Compressed sparse rows: ``col_indices`` uint64 [nnz] in any order within a row, ``row_ptr`` uint64 [rows + 1]."""

    col_indices: Words
    row_ptr: Words

    def positions(self) -> NDArray[np.int64]:
        return _positions(self.shape, [owners_of(self.row_ptr), self.col_indices])

    def to_scipy(self) -> Any:
        parts = self._scipy_values(), self.col_indices.astype(np.int64), self.row_ptr.astype(np.int64)
        return _scipy_sparse().csr_array(parts, shape=self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Csc(Sparse):
    """Compressed sparse columns: ``row_indices`` [nnz] (free in order within a column), ``col_ptr`` [cols + 1]."""

    row_indices: Words
    col_ptr: Words

    def positions(self) -> NDArray[np.int64]:
        return _positions(self.shape, [self.row_indices, owners_of(self.col_ptr)])

    def to_scipy(self) -> Any:
        parts = self._scipy_values(), self.row_indices.astype(np.int64), self.col_ptr.astype(np.int64)
        return _scipy_sparse().csc_array(parts, shape=self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Csf(Sparse):
    """Compressed sparse fibers: a tree with one level per dimension, level k holding dimension ``mode_order[k]``.

    ``crd[k]`` are the coordinates of the nodes of level k, ``pos[k]`` says which of them belong to each node of the
    level above (above level 0 there is one node). The nodes of the last level are the values. All are uint64.
    """

    mode_order: tuple[int, ...]
    pos: tuple[Words, ...]
    crd: tuple[Words, ...]

    def positions(self) -> NDArray[np.int64]:
        places = np.zeros(1, np.int64)
        for mode, pos, crd in zip(self.mode_order, self.pos, self.crd, strict=True):
            stride = element_count(self.shape[mode + 1 :])
            places = np.repeat(places, counts(pos)) + crd.astype(np.int64) * stride
        return places

    def to_scipy(self) -> Any:
        raise UnsupportedError("scipy.sparse has no compressed sparse fibers", rule="sparse.scipy")


def read_sparse(
    descriptor: TensorDescriptor, buffers: Sequence[Bytes], *, limits: Limits | None = None
) -> Coo | Csr | Csc | Csf:
    """The named arrays of a COO, CSR, CSC or CSF tensor, all of them checked.

    ``buffers`` are the tensor's. Raises InvalidFileError that names the first entry at fault, UnsupportedError for
    other layouts and dynamic shapes, LimitError if unpacked values would take more than ``limits`` allow.
    """
    layout, shape = descriptor.layout, descriptor.shape
    if not isinstance(layout, CooLayout | CsrLayout | CscLayout | CsfLayout):
        raise UnsupportedError(f"the {layout.name} layout is not sparse", rule="layout.sparse", found=layout.name)
    if is_dynamic(shape):
        raise UnsupportedError("a dynamic shape has no bounds", rule="descriptor.dynamic", found=shape)
    values = _values(buffers[0], descriptor.element_type, layout.nnz, limits)
    match layout:
        case CooLayout(nnz=nnz, is_sorted=is_sorted):
            indices = _words(buffers[1], nnz * len(shape)).reshape(nnz, len(shape))
            check_bounds(indices, shape)
            check_coordinates(indices, shape, is_sorted=is_sorted)
            return Coo(shape, values, indices, is_sorted)
        case CsrLayout(nnz=nnz) | CscLayout(nnz=nnz):
            axis = layout.pointer_axis
            minor, pointers = _words(buffers[1], nnz), _words(buffers[2], shape[axis] + 1)
            _, minor_name, pointer_name = layout.buffer_names
            check_pointers(pointers, nnz, pointer_name)
            check_bounds(minor.reshape(nnz, 1), (shape[1 - axis],), minor_name)
            check_distinct(minor, pointers, minor_name)
            return Csr(shape, values, minor, pointers) if axis == 0 else Csc(shape, values, minor, pointers)
        case CsfLayout():
            return _read_tree(layout, shape, values, buffers)
    raise AssertionError(layout)


def _read_tree(layout: CsfLayout, shape: Shape, values: NDArray[Any], buffers: Sequence[Bytes]) -> Csf:
    rank = len(shape)
    pos, crd = ([_all_words(buffers[first + 2 * level]) for level in range(rank)] for first in (1, 2))
    parents = 1
    for level, mode in enumerate(layout.mode_order):
        check_length(pos[level], parents + 1, f"pos_{level}")
        check_pointers(pos[level], len(crd[level]), f"pos_{level}")
        check_bounds(crd[level].reshape(-1, 1), (shape[mode],), f"crd_{level}")
        check_fibers(crd[level], pos[level], f"crd_{level}")
        parents = len(crd[level])
    check_length(crd[-1], layout.nnz, f"crd_{rank - 1}")
    return Csf(shape, values, layout.mode_order, tuple(pos), tuple(crd))


def _values(raw: Bytes, element_type: ElementType, count: int, limits: Limits | None) -> NDArray[Any]:
    dtype = memory_dtype(element_type)
    if element_type.is_packed:
        check_limit(count, limits, f"{count} values of {element_type.name}")
        return unpack(raw, element_type, count)
    return raw[: count * dtype.itemsize].view(dtype)


def _words(raw: Bytes, count: int) -> Words:
    return raw[: count * _POINTER_BYTES].view("<u8")


def _all_words(raw: Bytes) -> Words:
    return _words(raw, len(raw) // _POINTER_BYTES)


def _positions(shape: Shape, coordinates: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    places = np.zeros(len(coordinates[0]), np.int64)
    for dim, column in zip(shape, coordinates, strict=True):
        places *= dim
        places += column.astype(np.int64)
    return places


def _scipy_sparse() -> Any:
    # found on use: importing it takes longer than importing all of this library
    try:
        return importlib.import_module("scipy.sparse")
    except ImportError as cause:
        raise ImportError("to_scipy() needs SciPy, which is not installed: pip install scipy") from cause

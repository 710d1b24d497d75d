"""Dense tensors as NumPy arrays, and back (spec/layouts.md, layouts 0x01 to 0x05 and 0x40).

Where NumPy can name the place of every element by strides (row-major, column-major, strided; elements of whole bytes)
the array is a view of the buffer. Otherwise it is a copy, bounded by ``Limits`` (``memory``): elements narrower than a
byte are unpacked, tiled and Morton tensors gathered by place (``places``), Hilbert ones part by part (``hilbert``).

Bit patterns survive, NaNs and negative zeros included. Quantized tensors are given as stored: see ``dequantize``.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import BufferSizeError, IncompatibleError, UnsupportedError
from ..limits import Limits
from ..model.descriptor import TensorDescriptor
from ..model.layouts import ColMajorLayout, HilbertLayout, RowMajorLayout, StridedLayout, TiledLayout
from ..model.shape import Shape, is_dynamic, is_empty
from . import hilbert
from .memory import allocate, check_addressable, check_limit, stored_bytes
from .packing import memory_dtype, pack, unpack
from .places import blocks, place_terms, take_packed, take_whole

__all__ = ["checked_values", "from_array", "to_array"]

Bytes: TypeAlias = NDArray[np.uint8]


def to_array(descriptor: TensorDescriptor, data: Bytes, *, limits: Limits | None = None) -> NDArray[Any]:
    """The elements of a dense tensor, as an array of its shape.

    ``data`` is buffer 0. The dtype is ``packing.memory_dtype`` of the element type. Row-major, column-major and strided
    tensors of whole bytes are views of ``data``, read-only if it is, of any alignment; all others are copies and the
    caller's own. Raises UnsupportedError for other layouts and for dynamic shapes, LimitError where a copy would take
    more than ``limits`` allow, or where NumPy has no array of such a shape.
    """
    shape, element_type = descriptor.shape, descriptor.element_type
    _check_dense(descriptor)
    dtype = memory_dtype(element_type)
    check_addressable(shape, dtype)
    if is_empty(shape):
        return np.empty(shape, dtype)
    layout = descriptor.layout
    if not element_type.is_packed and isinstance(layout, RowMajorLayout | ColMajorLayout | StridedLayout):
        return _view(descriptor, data)
    if isinstance(layout, RowMajorLayout | ColMajorLayout):
        count = descriptor.element_count
        what = f"shape {list(shape)} of {element_type.name}, unpacked,"
        check_limit(count, limits, what, stored=stored_bytes(descriptor))
        run = unpack(data[descriptor.byte_offset :], element_type, count)
        return run.reshape(shape, order="C" if isinstance(layout, RowMajorLayout) else "F")
    values = allocate(shape, dtype, limits, stored=stored_bytes(descriptor))
    if isinstance(layout, HilbertLayout):
        _read_curve(descriptor, data, values)
    elif element_type.is_packed:
        for index, places in blocks(shape, place_terms(layout, shape)):
            values[index] = take_packed(data, element_type, descriptor.byte_offset, places).view(dtype)
    else:
        for index, places in blocks(shape, place_terms(layout, shape)):
            take_whole(data, dtype.itemsize, descriptor.byte_offset, places, values[index])
    return values


def from_array(array: NDArray[Any], descriptor: TensorDescriptor, *, limits: Limits | None = None) -> Bytes:
    """Buffer 0 of a dense tensor that holds the values of ``array``: uint8, exactly the size that its handle tells.

    ``array`` has the descriptor's shape and the dtype of its element type, in either byte order and any memory order.
    The result borrows it where it already is those bytes (row-major, contiguous, little-endian, whole bytes, nothing
    before or after) and is new otherwise; what no element reaches is zero. Raises BufferSizeError for another shape or
    dtype, IncompatibleError for strides that put two elements into one place, UnsupportedError and LimitError as
    ``to_array`` does.
    """
    shape, element_type, layout = descriptor.shape, descriptor.element_type, descriptor.layout
    _check_dense(descriptor)
    dtype = memory_dtype(element_type)
    values = checked_values(array, shape, dtype)
    size, start = descriptor.buffers[0].byte_size, descriptor.byte_offset
    packed = element_type.is_packed
    if isinstance(layout, RowMajorLayout) and not packed and start == 0 and size == values.nbytes:
        return np.asarray(values, order="C").reshape(-1).view(np.uint8)
    data: Bytes = allocate((size,), np.dtype(np.uint8), limits, zeroed=True)
    if is_empty(shape):
        return data
    _check_overlap(descriptor, limits)
    if isinstance(layout, RowMajorLayout | ColMajorLayout) and packed:
        run = pack(values if isinstance(layout, RowMajorLayout) else values.T, element_type)
        data[start : start + len(run)] = run
    elif isinstance(layout, RowMajorLayout | ColMajorLayout | StridedLayout) and not packed:
        _view(descriptor, data)[...] = values
    elif packed:
        _write_packed(descriptor, values.view(np.uint8), data, limits)
    else:
        first = start % dtype.itemsize
        items = data[first : first + (size - first) // dtype.itemsize * dtype.itemsize].view(_bits(dtype))
        _scatter(descriptor, values.view(_bits(dtype)), items, start // dtype.itemsize)
    return data


def checked_values(array: NDArray[Any], shape: Shape, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The array in little-endian order. Raises BufferSizeError unless it has just this shape and type."""
    values = np.asarray(array)
    if values.shape != shape:
        raise BufferSizeError(
            f"the array has shape {list(values.shape)}, not {list(shape)}",
            rule="array.shape",
            declared=shape,
            found=values.shape,
        )
    if values.dtype.newbyteorder("<") != dtype:
        raise BufferSizeError(
            f"the array is of {values.dtype}, not {dtype}", rule="array.dtype", declared=dtype, found=values.dtype
        )
    return values.astype(dtype, copy=False)


def _view(descriptor: TensorDescriptor, data: Bytes) -> NDArray[Any]:
    """A view of ``data``; the strides of a valid descriptor stay within it."""
    shape, layout, start = descriptor.shape, descriptor.layout, descriptor.byte_offset
    dtype = memory_dtype(descriptor.element_type)
    if isinstance(layout, StridedLayout):
        strides = [stride * dtype.itemsize if dim > 1 else 0 for stride, dim in zip(layout.strides, shape, strict=True)]
        return np.ndarray(shape, dtype, data, start, strides)
    return np.ndarray(shape, dtype, data, start, order="C" if isinstance(layout, RowMajorLayout) else "F")


def _read_curve(descriptor: TensorDescriptor, data: Bytes, values: NDArray[Any]) -> None:
    layout, element_type = descriptor.layout, descriptor.element_type
    assert isinstance(layout, HilbertLayout)
    bits = _bits(values.dtype)
    held = data[descriptor.byte_offset :]
    for view, start, steps, backwards in hilbert.parts(values.view(bits), layout.hilbert_order):
        if element_type.is_packed:
            run = unpack(held, element_type, view.size, start=start).view(bits)
        else:
            run = held[start * bits.itemsize : (start + view.size) * bits.itemsize].view(bits)
        view[...] = (run[::-1] if backwards else run)[steps]


def _scatter(descriptor: TensorDescriptor, values: NDArray[Any], items: NDArray[Any], origin: int) -> None:
    """Put ``values`` into ``items``, one per element, where place 0 is number ``origin``."""
    layout, shape = descriptor.layout, descriptor.shape
    if isinstance(layout, HilbertLayout):
        for view, start, steps, backwards in hilbert.parts(values, layout.hilbert_order):
            run = items[origin + start : origin + start + view.size]
            (run[::-1] if backwards else run)[steps] = view
    else:
        for index, places in blocks(shape, place_terms(layout, shape)):
            items[places + origin] = values[index]


def _write_packed(descriptor: TensorDescriptor, values: Bytes, data: Bytes, limits: Limits | None) -> None:
    """Pack ``values`` into ``data``, by way of an array with a byte for each element between the first and the last."""
    element_type = descriptor.element_type
    per_group, group_bytes = element_type.group
    low, high = _span(descriptor)
    before = -(low // per_group)  # whole groups before place 0
    items: Bytes = allocate((before * per_group + high + 1,), np.dtype(np.uint8), limits, zeroed=True)
    _scatter(descriptor, values, items, before * per_group)
    run = pack(items, element_type)
    start = descriptor.byte_offset - before * group_bytes
    # the first 6-bit group may begin before the buffer does, with elements that nothing reaches
    data[max(start, 0) : start + len(run)] = run[max(-start, 0) :]


def _check_overlap(descriptor: TensorDescriptor, limits: Limits | None) -> None:
    """Refuse strides that put two elements into one place: one of the two values would be lost."""
    layout, shape = descriptor.layout, descriptor.shape
    if isinstance(layout, StridedLayout):
        # strides that step over everything the smaller ones reach put every element into a place of its own
        reached = 0
        for stride, dim in sorted((abs(s), dim) for s, dim in zip(layout.strides, shape, strict=True) if dim > 1):
            if stride <= reached:
                break
            reached += stride * (dim - 1)
        else:
            return
    elif not (isinstance(layout, TiledLayout) and _has_strides(layout)):
        return
    low, high = _span(descriptor)
    used = allocate((high + 1 - low,), np.dtype(np.bool_), limits, zeroed=True)
    for _, places in blocks(shape, place_terms(layout, shape)):
        used[places - low] = True
    distinct = int(np.count_nonzero(used))
    if distinct != descriptor.element_count:
        raise IncompatibleError(
            f"the {layout.name} layout puts {descriptor.element_count} elements into {distinct} places: not every "
            "array can be written so",
            rule="layout.overlap",
            declared=descriptor.element_count,
            found=distinct,
        )


def _has_strides(layout: TiledLayout) -> bool:
    own = layout.outer_strides is not None or layout.inner_strides is not None
    return own or (layout.inner_tiled is not None and _has_strides(layout.inner_tiled))


def _span(descriptor: TensorDescriptor) -> tuple[int, int]:
    span: tuple[int, int] = descriptor.layout.element_span(descriptor.shape)  # type: ignore[attr-defined]
    return span


def _bits(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """A type of the same size without byte order or meaning, so that copies copy bits."""
    return np.dtype(f"u{dtype.itemsize}" if dtype.itemsize in (1, 2, 4, 8) else f"V{dtype.itemsize}")


def _check_dense(descriptor: TensorDescriptor) -> None:
    if not descriptor.layout.is_dense:
        raise UnsupportedError(
            f"the {descriptor.layout.name} layout is not dense: its elements have no fixed places",
            rule="layout.dense",
            found=descriptor.layout.name,
        )
    if is_dynamic(descriptor.shape):
        raise UnsupportedError("a dynamic shape has no array", rule="descriptor.dynamic", found=descriptor.shape)

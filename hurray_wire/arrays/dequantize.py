"""Stored numbers to real ones (spec/quantization.md).

real = scale * (q - zero_point): the subtraction is exact, in integers; its result and the scale are float32, and so is
their product. NF4 looks its levels up, MXFP multiplies by powers of two; both in float32 too. A product too large for
float32 is infinite, and what was NaN stays NaN: arithmetic here never warns.

Dense tensors are done whole, block-paged ones after gathering: the caller gathers the scales of page slots with the
same pages, and passes them along. Everything works in place on the result, with temporaries of some hundred kilobytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import IncompatibleError, InvalidFileError, UnsupportedError
from ..limits import Limits
from ..model import element_types as et
from ..model.block_paged import BlockPagedLayout
from ..model.descriptor import TensorDescriptor
from ..model.element_types import ElementType, buffer_bytes
from ..model.quantization import Mxfp, Nf4, PerBlockAffine, PerChannelAffine, PerTensorAffine
from ..model.shape import is_empty
from ..parallel import run
from .memory import allocate, stored_bytes

__all__ = [
    "NF4_LEVELS",
    "dequantize_dense",
    "dequantize_paged",
    "parameters",
    "scale_companion",
]

Floats: TypeAlias = NDArray[np.float32]

NF4_LEVELS: Floats = np.array(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ],
    dtype=np.float32,
)
"""The 16 levels of QLoRA's NormalFloat4, by code."""

_PORTION_ELEMENTS = 1 << 16
_UNREAL = (et.float128, et.complex64, et.complex128)


def parameters(
    descriptor: TensorDescriptor, buffers: Sequence[NDArray[np.uint8]]
) -> tuple[NDArray[Any], NDArray[np.int32] | None]:
    """The scales of a quantized tensor and its zero points, or None where it has none.

    Both are 1-D, in the order of what they belong to: the channels, the blocks of a dense tensor (line by line along
    the axis), the page slots of a block-paged one; per-tensor there is one of each. Scales have their stored type. They
    are views of the parameter buffers (per-tensor excepted). Raises InvalidFileError for an MXFP scale of 0x00 or 0xFF,
    which are no numbers.
    """
    quantization, shape, layout = descriptor.quantization, descriptor.shape, descriptor.layout
    if quantization is None:
        raise IncompatibleError("the tensor is not quantized", rule="quantization.presence")
    if isinstance(quantization, PerTensorAffine):
        return np.array([quantization.scale], np.float32), np.array([quantization.zero_point], np.int32)
    assert isinstance(quantization, PerChannelAffine | PerBlockAffine | Nf4 | Mxfp)
    slots = layout.num_pages * layout.page_size if isinstance(layout, BlockPagedLayout) else None
    count = quantization.parameter_count(shape, slots)
    scale_type = quantization.scale_type
    assert scale_type.dtype is not None
    held = buffers[quantization.scale_buffer_index]
    scale_bytes = buffer_bytes(scale_type, count)
    scales = held[:scale_bytes].view(scale_type.dtype)
    if isinstance(quantization, Mxfp):
        _check_e8m0(held[:scale_bytes])
    zero_index = None if isinstance(quantization, Nf4 | Mxfp) else quantization.zero_point_buffer_index
    if zero_index is None:
        return scales, None
    held = held[scale_bytes:] if zero_index == quantization.scale_buffer_index else buffers[zero_index]
    return scales, held[: 4 * count].view("<i4")


def dequantize_dense(
    descriptor: TensorDescriptor,
    stored: NDArray[Any],
    buffers: Sequence[NDArray[np.uint8]],
    *,
    limits: Limits | None = None,
) -> Floats:
    """The real values of a dense tensor as a new float32 array of its shape.

    ``stored`` is what ``dense.to_array`` gives, ``buffers`` are all of the tensor's. A tensor that is not quantized has
    its own values, rounded to float32. Raises UnsupportedError for types without real values, InvalidFileError for an
    MXFP scale that is not a number, LimitError as ``to_array`` does.
    """
    quantization = descriptor.quantization
    out = _real_array(descriptor.element_type, stored, limits, made_of=stored_bytes(descriptor))
    if is_empty(stored.shape):
        return out
    if quantization is None or isinstance(quantization, PerTensorAffine):
        _apply(stored, out, quantization)
        return out
    scales, zero_points = parameters(descriptor, buffers)
    if isinstance(quantization, PerChannelAffine):
        edge = [1] * stored.ndim
        edge[quantization.axis] = -1
        _affine(stored, out, scales.reshape(edge), None if zero_points is None else zero_points.reshape(edge))
        return out
    assert isinstance(quantization, PerBlockAffine | Nf4 | Mxfp)
    if not isinstance(quantization, PerBlockAffine):
        _look_up(stored, out, NF4_LEVELS if isinstance(quantization, Nf4) else _byte_values(descriptor.element_type))
    axis, size = quantization.axis, quantization.block_size
    dim = stored.shape[axis]
    # three dimensions tell all there is to blocks, whatever the rank: those before the axis, it, and those behind it
    flat = math.prod(stored.shape[:axis]), dim, math.prod(stored.shape[axis + 1 :])
    codes, values = np.ascontiguousarray(stored).reshape(flat), out.reshape(flat)
    reals = _by_block(_real_scales(scales), flat)
    zeros = None if zero_points is None else _by_block(zero_points, flat)
    for begin, end, width in _runs_of_blocks(dim, size):
        whole = flat[0], (end - begin) // width, width, flat[2]
        block = slice(begin // size, -(-end // size))
        target, factors = values[:, begin:end].reshape(whole), reals[:, block, np.newaxis]
        if isinstance(quantization, PerBlockAffine):
            offsets = None if zeros is None else zeros[:, block, np.newaxis]
            _affine(codes[:, begin:end].reshape(whole), target, factors, offsets)
        else:
            with np.errstate(all="ignore"):
                np.multiply(target, factors, out=target)
    return out


def dequantize_paged(
    descriptor: TensorDescriptor,
    stored: NDArray[Any],
    buffers: Sequence[NDArray[np.uint8]],
    slot_scales: NDArray[Any] | None = None,
    slot_zero_points: NDArray[Any] | None = None,
    *,
    limits: Limits | None = None,
) -> Floats:
    """The real values of tokens gathered from a block-paged tensor, a new float32 array [*lead, num_heads, head_dim].

    ``stored`` holds the tokens, [*lead, num_heads, head_dim]. Per-block schemes need ``slot_scales`` (and, unless
    symmetric, ``slot_zero_points``), each [*lead], gathered by the caller from the page slots the tokens came from;
    the other schemes ignore both. Errors as for ``dequantize_dense``.
    """
    quantization = descriptor.quantization
    out = _real_array(descriptor.element_type, stored, limits)
    match quantization:
        case None | PerTensorAffine():
            _apply(stored, out, quantization)
        case PerChannelAffine(axis=axis):
            scales, zero_points = parameters(descriptor, buffers)
            edge = (-1, 1) if axis == 1 else (-1,)
            _affine(stored, out, scales.reshape(edge), None if zero_points is None else zero_points.reshape(edge))
        case PerBlockAffine():
            if slot_scales is None or (slot_zero_points is None) != quantization.is_symmetric:
                raise IncompatibleError(
                    "per-block values of a page pool need the scales of their slots, and zero points unless symmetric",
                    rule="quantization.page-slots",
                )
            offsets = None if slot_zero_points is None else slot_zero_points[..., np.newaxis, np.newaxis]
            _affine(stored, out, _real_scales(slot_scales)[..., np.newaxis, np.newaxis], offsets)
        case _:
            raise UnsupportedError(
                f"{quantization.name} does not quantize a block-paged tensor", rule="block-paged.quantization"
            )
    return out


def scale_companion(values: NDArray[Any], scale: NDArray[Any], *, limits: Limits | None = None) -> Floats:
    """``values`` [*lead, num_heads, head_dim] of a float8 cache times its companion scale, as a new float32 array.

    ``scale`` is a float32 array of shape [] or [num_heads]; any other raises IncompatibleError.
    """
    heads = values.shape[-2]
    if scale.shape not in ((), (heads,)):
        raise IncompatibleError(
            f"a companion scale has shape [] or [{heads}], not {list(scale.shape)}",
            rule="snapshot.scale-shape",
            declared=(heads,),
            found=scale.shape,
        )
    element_type = et.from_dtype(values.dtype)
    out = _real_array(element_type, values, limits)
    _apply(values, out, None)
    with np.errstate(all="ignore"):
        np.multiply(out, scale[..., np.newaxis] if scale.ndim else scale, out=out)
    return out


def _apply(stored: NDArray[Any], out: Floats, quantization: PerTensorAffine | None) -> None:
    """Per-tensor values, or plain ones."""
    if quantization is not None:
        _affine(stored, out, np.float32(quantization.scale), np.int32(quantization.zero_point))
    elif stored.dtype.itemsize == 1 and stored.dtype.kind not in "biu":
        _look_up(stored, out, _byte_values(et.from_dtype(stored.dtype)))
    else:
        with np.errstate(all="ignore"):
            out[...] = stored


def _affine(stored: NDArray[Any], out: Floats, scale: Any, zero_point: Any) -> None:
    """scale * (stored - zero_point) into ``out``, all of them broadcast to its shape."""
    codes = _as_integers(stored)
    with np.errstate(all="ignore"):
        if zero_point is None:
            np.multiply(codes, scale, out=out, dtype=np.float32, casting="unsafe")
        else:
            # 64 bits hold the difference of any two numbers of 32; NumPy widens and narrows them by small portions
            np.subtract(codes, zero_point, out=out, dtype=np.int64, casting="unsafe")
            np.multiply(out, scale, out=out, dtype=np.float32, casting="unsafe")


def _as_integers(stored: NDArray[Any]) -> NDArray[Any]:
    """The same values in a type that NumPy computes with. Above int4 and int2 memory holds zeros, not the sign."""
    if stored.dtype.kind in "iu":
        return stored
    codes = stored.view(np.uint8)
    for element_type in (et.int4, et.int2):
        if stored.dtype == element_type.dtype:
            unused = 8 - element_type.bits
            signed = (codes << np.uint8(unused)).view(np.int8)
            signed >>= np.int8(unused)
            return signed
    return codes


def _look_up(stored: NDArray[Any], out: Floats, table: Floats) -> None:
    """The entry of ``table`` for each one-byte element of ``stored``."""
    codes = np.ascontiguousarray(stored).reshape(-1).view(np.uint8)
    flat = out.reshape(-1)

    def work(start: int) -> None:
        end = start + _PORTION_ELEMENTS
        np.take(table, codes[start:end], out=flat[start:end], mode="clip")

    run(work, range(0, len(codes), _PORTION_ELEMENTS))


def _byte_values(element_type: ElementType) -> Floats:
    """What each byte in memory is worth, of an element type that has one byte there."""
    assert element_type.dtype is not None
    with np.errstate(all="ignore"):
        return np.arange(256, dtype=np.uint8).view(element_type.dtype).astype(np.float32)


def _real_scales(scales: NDArray[Any]) -> Floats:
    with np.errstate(all="ignore"):
        if scales.dtype == et.float8_e8m0.dtype:
            return np.ldexp(np.float32(1), scales.view(np.uint8).astype(np.int32) - 127)
        return scales.astype(np.float32)


def _check_e8m0(scales: NDArray[np.uint8]) -> None:
    bad = (scales == 0x00) | (scales == 0xFF)
    if bad.any():
        block = int(np.argmax(bad))
        raise InvalidFileError(
            f"the scale of block {block} is 0x{scales[block]:02X}, which no float8_e8m0 number is",
            rule="quantization.mxfp-scale",
            found=int(scales[block]),
        )


def _by_block(parameters: NDArray[Any], flat: tuple[int, int, int]) -> NDArray[Any]:
    """Parameters with blocks in place of elements: in the buffer those of one line along the axis are neighbours."""
    return parameters.reshape(flat[0], flat[2], -1).transpose(0, 2, 1)


def _runs_of_blocks(dim: int, size: int) -> Iterator[tuple[int, int, int]]:
    """(begin, end, width of each block): the whole blocks, then the last one if it is partly filled."""
    whole = dim // size * size
    if whole:
        yield 0, whole, size
    if whole < dim:
        yield whole, dim, dim - whole


def _real_array(
    element_type: ElementType, stored: NDArray[Any], limits: Limits | None, *, made_of: int | None = None
) -> Floats:
    """Room for the real values of ``stored``, which may be a view of fewer bytes (``made_of``) than it seems."""
    if element_type.is_private or element_type in _UNREAL:
        raise UnsupportedError(
            f"{element_type.name} has no values in float32", rule="quantization.storage", found=element_type.name
        )
    return allocate(stored.shape, np.dtype(np.float32), limits, stored=made_of)

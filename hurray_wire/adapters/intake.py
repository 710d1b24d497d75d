"""The gate for a caller's arrays: a NumPy array over the caller's own memory, or a refusal with its reason.

A pool of a running engine may be a NumPy array of any order, stride or byte order, a PyTorch tensor, a JAX array, or
anything that speaks ``__array__`` or ``__dlpack__``. ``as_array`` turns it into a NumPy array over the same memory
wherever the owner allows that. Types that NumPy lacks come as their ml_dtypes counterparts; types that the format
lacks are refused here with the reason, while the table of those it has belongs to ``model/element_types.py``. Axes
are the work of ``axes.py``.
"""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import BufferSizeError, IncompatibleError, UnsupportedError

__all__ = ["TORCH_BITS", "as_array"]

_REFUSED = {
    "float8_e4m3fnuz": "its bias and its NaN are not those of the OCP type; convert the values, never the label",
    "float8_e5m2fnuz": "its bias and its NaN are not those of the OCP type; convert the values, never the label",
    "float8_e4m3b11fnuz": "its bias is not that of the OCP type; convert the values, never the label",
    "float8_e4m3": "it has infinities; the format's float8_e4m3 is the finite OCP type, float8_e4m3fn",
    "float8_e3m4": "the format has no such type",
    "int1": "the format has no such type",
    "uint1": "the format has no such type",
}

# One element in a byte of its own: a byte that came from elsewhere holds two or four of them, so it cannot be
# relabelled.
_PACKED_ELSEWHERE = frozenset({"int4", "uint4", "int2", "uint2", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"})

# PyTorch types that NumPy cannot take, the torch type of equal width that it can, and what the bits are.
TORCH_BITS: dict[str, tuple[str, Any]] = {
    "bfloat16": ("int16", ml_dtypes.bfloat16),
    "float8_e4m3fn": ("uint8", ml_dtypes.float8_e4m3fn),
    "float8_e5m2": ("uint8", ml_dtypes.float8_e5m2),
    "float8_e8m0fnu": ("uint8", ml_dtypes.float8_e8m0fnu),
}


def as_array(obj: Any, *, what: str, dtype: DTypeLike | None = None, writable: bool = False) -> NDArray[Any]:
    """The array behind ``obj``, borrowed: the result shares the caller's memory wherever its owner allows that.

    ``what`` names the array in errors. ``dtype`` says what raw bits are (float8 held as uint8, bfloat16 held as
    uint16 or as bare two-byte records); it relabels integers and bare bytes only, and never converts. With
    ``writable`` the result is a destination: it can be written, and writing it writes the caller's own memory.

    Raises UnsupportedError for element types that the format does not have, IncompatibleError for an array that
    cannot be reached from here (another device), borrowed, written or relabelled as asked, BufferSizeError for what
    is no array.
    """
    array = _borrow(obj, what, writable)
    if dtype is not None:
        array = _relabel(array, np.dtype(dtype), what)
    _check_dtype(array.dtype, what)
    if writable:
        reason = None
        if not array.flags.writeable:
            reason = "is read-only"
        elif array.size and any(
            stride == 0 and size > 1 for stride, size in zip(array.strides, array.shape, strict=True)
        ):
            reason = "has elements that share their memory"
        if reason is not None:
            raise IncompatibleError(f"{what} {reason}, so it cannot be a destination", rule="adapter.destination")
    return array


def _borrow(obj: Any, what: str, writable: bool) -> NDArray[Any]:
    if isinstance(obj, np.ma.MaskedArray):
        raise UnsupportedError(
            f"{what} is a masked array: the format has no mask; pass its data", rule="adapter.array-kind"
        )
    if isinstance(obj, np.ndarray):
        return np.asarray(obj)
    torch = sys.modules.get("torch")  # never imported from here: a caller who holds a tensor has imported it
    if torch is not None and isinstance(obj, torch.Tensor):
        return _borrow_torch(obj, torch, what)
    if not hasattr(obj, "__array__") and not hasattr(obj, "__dlpack__"):
        raise BufferSizeError(
            f"{what} is a {type(obj).__name__}, not an array (it has neither __array__ nor __dlpack__)",
            rule="adapter.array-kind",
            found=type(obj).__name__,
        )
    borrowed = True
    try:
        if hasattr(obj, "__array__"):
            array = np.asarray(obj)
            if writable:  # an owner that copies on each request would swallow what is written to the copy
                borrowed = array.size == 0 or np.may_share_memory(array, np.asarray(obj))
        else:
            array = np.from_dlpack(obj)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise IncompatibleError(
            f"{what}, a {type(obj).__name__}, does not give its memory to NumPy: {error}", rule="adapter.array-kind"
        ) from error
    if not borrowed:
        raise IncompatibleError(
            f"{what}, a {type(obj).__name__}, gives NumPy a copy, so it cannot be a destination",
            rule="adapter.destination",
        )
    return array


def _borrow_torch(tensor: Any, torch: Any, what: str) -> NDArray[Any]:
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.device.type != "cpu":
        raise IncompatibleError(
            f"{what} is on the device {tensor.device}; move it to the CPU first", rule="adapter.device"
        )
    if name in _REFUSED:
        raise _refusal(what, name)
    bits, numpy_type = TORCH_BITS.get(name, (None, None))
    try:
        tensor = tensor.detach()
        array: NDArray[Any] = (tensor if bits is None else tensor.view(getattr(torch, bits))).numpy()
    except (TypeError, RuntimeError) as error:
        raise IncompatibleError(
            f"{what}, a tensor of {tensor.dtype}, does not give its memory to NumPy: {error}", rule="adapter.array-kind"
        ) from error
    return array if numpy_type is None else array.view(numpy_type)


def _relabel(array: NDArray[Any], dtype: np.dtype[Any], what: str) -> NDArray[Any]:
    held = array.dtype
    if held == dtype:
        return array
    raw = held.kind in "iu" or (held.type is np.void and held.fields is None and held.subdtype is None)
    if not raw or held.itemsize != dtype.itemsize or dtype.name in _PACKED_ELSEWHERE:
        raise IncompatibleError(
            f"{what} holds {held}, which cannot be taken as {dtype} without converting values",
            rule="adapter.relabel",
            declared=str(dtype),
            found=str(held),
        )
    if not held.isnative:
        raise IncompatibleError(
            f"{what} holds {held} in the other byte order; swap its bytes before they are taken as {dtype}",
            rule="adapter.relabel",
            declared=str(dtype),
            found=str(held),
        )
    return array.view(dtype)


def _check_dtype(dtype: np.dtype[Any], what: str) -> None:
    reason = None
    if dtype.name in _REFUSED:
        raise _refusal(what, dtype.name)
    if dtype.fields is not None:
        reason = "an opaque record with fields, which only its producer can read; pass its parts as arrays of their own"
    elif dtype.type is np.void and dtype.itemsize != 16:  # 16 bare bytes are the format's float128
        reason = "bare bytes without a type; say what they are with dtype="
    elif dtype.kind in "OSUMmT":
        reason = "not a numeric type"
    elif dtype.char in "gG":
        reason = "the machine's own long double, whose bits differ from machine to machine"
    if reason is not None:
        raise UnsupportedError(f"{what} holds {dtype}: {reason}", rule="element-type.dtype", found=str(dtype))


def _refusal(what: str, name: str) -> UnsupportedError:
    return UnsupportedError(f"{what} holds {name}: {_REFUSED[name]}", rule="element-type.dtype", found=name)

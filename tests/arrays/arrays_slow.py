"""What the array tests compare with: the plain decoder, and loops too simple to be wrong."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hurray_wire.model import element_types as et
from hurray_wire.model.descriptor import TensorDescriptor
from hurray_wire.model.element_types import ElementType
from hurray_wire.model.layouts import Layout
from hurray_wire.model.sections import ExtensionType

ROOT = Path(__file__).resolve().parents[2]


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("plain_decoder", ROOT / "tools" / "plain_decoder.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


plain = _load()

PACKED = [t for t in et.ALL if t.is_packed]
WHOLE = [t for t in et.ALL if not t.is_packed]


def buffer(data: bytes) -> np.ndarray:
    """A buffer as the readers hand it out: 1-D uint8, read-only."""
    return np.frombuffer(data, np.uint8)


def dense(
    element_type: ElementType,
    shape: Sequence[int],
    layout: Layout,
    *,
    byte_offset: int = 0,
    slack: int = 0,
    **sections: Any,
) -> TensorDescriptor:
    """A dense descriptor whose buffer 0 is as small as it can be, or ``slack`` bytes larger."""
    (size,) = layout.minimum_buffer_bytes(element_type, tuple(shape), byte_offset)
    return TensorDescriptor.build(element_type, shape, layout, [size + slack], byte_offset=byte_offset, **sections)


def private(bits: int) -> tuple[ElementType, ExtensionType]:
    """A private integer type of this width, and the section that tells it."""
    extension = ExtensionType(bit_width=bits, packing_factor=8 // bits if bits < 8 else 1)
    return extension.element_type(0xF3), extension


def bits_of(array: np.ndarray, width: int) -> list[int]:
    """The stored bits of every element in row-major order, as unsigned integers."""
    size = array.dtype.itemsize
    data = b"".join(item.tobytes() for item in array.astype(array.dtype.newbyteorder("<")).reshape(-1))
    mask = (1 << width) - 1
    return [int.from_bytes(data[at : at + size], "little") & mask for at in range(0, len(data), size)]


def plain_bits(descriptor: TensorDescriptor, *buffers: bytes | np.ndarray) -> list[int]:
    """What the plain decoder finds: the bits of every element of a dense tensor in row-major order."""
    told = plain.decode_descriptor(descriptor.encode())
    found: list[int] = plain.dense_elements(told, [bytes(b) for b in buffers])
    return found


def packed_bits(data: bytes, width: int, index: int) -> int:
    """Element ``index`` of a run packed LSB first, bit by bit."""
    return sum((data[bit // 8] >> bit % 8 & 1) << k for k, bit in enumerate(range(index * width, (index + 1) * width)))

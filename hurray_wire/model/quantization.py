"""The five quantization schemes as checked objects (spec/quantization.md).

A scheme says how stored numbers become real ones: its parameters are inline (per-tensor) or in further buffers of the
same tensor, named by index. Each object refuses values that no tensor could have when it is made; what depends on the
tensor (its element type, shape and buffers) is asked of :meth:`Quantization.check`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from ..errors import InvalidDescriptorError
from . import element_types as et
from .checks import U32_MAX, check_int, check_uint
from .element_types import ElementType, buffer_bytes
from .shape import DYNAMIC, Shape, element_count

__all__ = ["Mxfp", "Nf4", "PerBlockAffine", "PerChannelAffine", "PerTensorAffine", "Quantization"]

NO_BUFFER = U32_MAX  # the zero point buffer index of a symmetric scheme
ZERO_POINT_BYTES = 4  # zero points are i32

_SMALL_INTEGERS = (et.int8, et.uint8, et.int4, et.uint4, et.int2, et.uint2)
_INTEGERS = (*_SMALL_INTEGERS, et.int16, et.uint16, et.int32, et.uint32)


class Quantization:
    """Base of the five schemes. Frozen; equal by value."""

    __slots__ = ()

    tag: ClassVar[int]
    name: ClassVar[str]
    storage_types: ClassVar[tuple[ElementType, ...]]
    axis: int | None

    @property
    def parameter_buffers(self) -> tuple[int, ...]:
        """Indices of the buffers that hold scales and zero points, without repeats."""
        return ()

    def check(
        self, element_type: ElementType, shape: Shape, buffer_sizes: Sequence[int], layout_buffers: int | None
    ) -> None:
        """Raise InvalidDescriptorError unless a tensor of this type, shape and buffers can be quantized this way."""
        if element_type not in self.storage_types:
            raise InvalidDescriptorError(
                f"{self.name} does not store {element_type.name}", rule="quantization.storage", found=element_type.name
            )
        if self.axis is not None and self.axis >= len(shape):
            raise InvalidDescriptorError(
                f"quantization axis {self.axis} in a tensor of rank {len(shape)}",
                rule="quantization.axis",
                declared=len(shape),
                found=self.axis,
            )
        for index in self.parameter_buffers:
            if index >= len(buffer_sizes):
                raise InvalidDescriptorError(
                    f"quantization buffer index {index} in a tensor of {len(buffer_sizes)} buffers",
                    rule="quantization.buffer-index",
                    declared=len(buffer_sizes),
                    found=index,
                )
            if layout_buffers is not None and index < layout_buffers:
                raise InvalidDescriptorError(
                    f"quantization buffer index {index} is a buffer of the layout",
                    rule="quantization.buffer-index",
                    declared=layout_buffers,
                    found=index,
                )

    def parameter_count(self, shape: Shape, page_slots: int | None) -> int:
        """How many scales a tensor of this shape has; ``page_slots`` is num_pages * page_size where it is block-
        paged.
        """
        return 0

    def minimum_parameter_bytes(self, count: int) -> dict[int, int]:
        """Bytes that each parameter buffer must hold at least, for ``count`` scales."""
        return {}


@dataclass(frozen=True, slots=True)
class PerTensorAffine(Quantization):
    """One scale and zero point, inline: real = scale * (q - zero_point). ``scale`` is a float32, finite and not 0."""

    scale: float
    zero_point: int = 0

    tag = 1
    name = "per_tensor_affine"
    axis = None
    storage_types = _INTEGERS

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", _float32(self.scale))
        if not math.isfinite(self.scale) or self.scale == 0:
            raise InvalidDescriptorError(
                f"scale {self.scale} is not a finite number other than 0", rule="quantization.scale", found=self.scale
            )
        check_int(self.zero_point, -(1 << 31), (1 << 31) - 1, "zero_point", "quantization.zero-point")

    def check(
        self, element_type: ElementType, shape: Shape, buffer_sizes: Sequence[int], layout_buffers: int | None
    ) -> None:
        Quantization.check(self, element_type, shape, buffer_sizes, layout_buffers)
        low, high = integer_range(element_type)
        check_int(self.zero_point, low, high, f"zero_point of {element_type.name}", "quantization.zero-point")


class _Affine(Quantization):
    """What per-channel and per-block affine share: scales in one buffer, zero points in another, the same, or none."""

    __slots__ = ()

    scale_buffer_index: int
    zero_point_buffer_index: int | None
    scale_type: ElementType

    @property
    def is_symmetric(self) -> bool:
        """True if there are no zero points."""
        return self.zero_point_buffer_index is None

    @property
    def parameter_buffers(self) -> tuple[int, ...]:
        if self.zero_point_buffer_index in (None, self.scale_buffer_index):
            return (self.scale_buffer_index,)
        assert self.zero_point_buffer_index is not None
        return self.scale_buffer_index, self.zero_point_buffer_index

    def minimum_parameter_bytes(self, count: int) -> dict[int, int]:
        sizes = {self.scale_buffer_index: buffer_bytes(self.scale_type, count)}
        if self.zero_point_buffer_index is not None:
            # one buffer for both holds the scales, then the zero points
            held = sizes.get(self.zero_point_buffer_index, 0)
            sizes[self.zero_point_buffer_index] = held + count * ZERO_POINT_BYTES
        return sizes

    def _check_indices(self) -> None:
        check_uint(self.scale_buffer_index, 32, "scale_buffer_index", "quantization.buffer-index")
        if self.zero_point_buffer_index is not None:
            check_int(
                self.zero_point_buffer_index, 0, NO_BUFFER - 1, "zero_point_buffer_index", "quantization.buffer-index"
            )


@dataclass(frozen=True, slots=True)
class PerChannelAffine(_Affine):
    """One float32 scale (and zero point, unless symmetric) per index along ``axis``."""

    axis: int
    scale_buffer_index: int
    zero_point_buffer_index: int | None = None

    tag = 2
    name = "per_channel_affine"
    storage_types = _INTEGERS
    scale_type = et.float32

    def __post_init__(self) -> None:
        check_uint(self.axis, 32, "quantization axis", "quantization.axis")
        self._check_indices()

    @classmethod
    def symmetric(cls, axis: int, scale_buffer_index: int) -> Self:
        """Scales only: real = scale * q."""
        return cls(axis, scale_buffer_index, None)

    @classmethod
    def asymmetric(cls, axis: int, scale_buffer_index: int, zero_point_buffer_index: int) -> Self:
        """Scales and zero points; both indices may name one buffer, holding the scales and then the zero points."""
        return cls(axis, scale_buffer_index, zero_point_buffer_index)

    def parameter_count(self, shape: Shape, page_slots: int | None) -> int:
        return shape[self.axis]


@dataclass(frozen=True, slots=True)
class PerBlockAffine(_Affine):
    """One scale (and zero point) per block of ``block_size`` (a power of two >= 2) elements along ``axis``.

    On a block-paged tensor the axis is 0, the block size is the page size, and there is one scale per page slot.
    ``scale_type`` is float16, bfloat16 or float32.
    """

    axis: int
    block_size: int
    scale_buffer_index: int
    scale_type: ElementType
    zero_point_buffer_index: int | None = None

    tag = 3
    name = "per_block_affine"
    storage_types = _SMALL_INTEGERS

    SCALE_TYPES: ClassVar[tuple[ElementType, ...]] = (et.float16, et.bfloat16, et.float32)

    def __post_init__(self) -> None:
        check_uint(self.axis, 32, "quantization axis", "quantization.axis")
        _check_block_size(self.block_size, 2, 1 << 31)
        self._check_indices()
        if self.scale_type not in self.SCALE_TYPES:
            raise InvalidDescriptorError(
                f"per-block scales are float16, bfloat16 or float32, not {self.scale_type!r}",
                rule="quantization.scale-type",
            )

    @classmethod
    def symmetric(cls, axis: int, block_size: int, scale_buffer_index: int, scale_type: ElementType) -> Self:
        """Scales only: real = scale * q."""
        return cls(axis, block_size, scale_buffer_index, scale_type)

    @classmethod
    def asymmetric(
        cls, axis: int, block_size: int, scale_buffer_index: int, zero_point_buffer_index: int, scale_type: ElementType
    ) -> Self:
        """Scales and zero points; both indices may name one buffer, holding the scales and then the zero points."""
        return cls(axis, block_size, scale_buffer_index, scale_type, zero_point_buffer_index)

    def parameter_count(self, shape: Shape, page_slots: int | None) -> int:
        return page_slots if page_slots is not None else _blocks(shape, self.axis, self.block_size)


class _BlockScaled(Quantization):
    """What NF4 and MXFP share: one scale per block along an axis, in one buffer."""

    __slots__ = ()

    block_size: int
    scale_buffer_index: int
    scale_type: ClassVar[ElementType]

    @property
    def parameter_buffers(self) -> tuple[int, ...]:
        return (self.scale_buffer_index,)

    def parameter_count(self, shape: Shape, page_slots: int | None) -> int:
        assert self.axis is not None
        return _blocks(shape, self.axis, self.block_size)

    def minimum_parameter_bytes(self, count: int) -> dict[int, int]:
        return {self.scale_buffer_index: buffer_bytes(self.scale_type, count)}


@dataclass(frozen=True, slots=True)
class Nf4(_BlockScaled):
    """NF4: uint4 codes for the 16 QLoRA levels, a float32 absolute maximum per block (a power of two >= 8)."""

    axis: int
    block_size: int
    scale_buffer_index: int

    tag = 4
    name = "nf4"
    storage_types = (et.uint4,)
    scale_type = et.float32

    def __post_init__(self) -> None:
        check_uint(self.axis, 32, "quantization axis", "quantization.axis")
        _check_block_size(self.block_size, 8, 1 << 31)
        check_uint(self.scale_buffer_index, 32, "scale_buffer_index", "quantization.buffer-index")


@dataclass(frozen=True, slots=True)
class Mxfp(_BlockScaled):
    """Microscaling: a float8_e8m0 scale per block (a power of two, 16..2048) of fp8, fp6, fp4, int8 or int4."""

    axis: int
    block_size: int
    scale_buffer_index: int

    tag = 5
    name = "mxfp"
    storage_types = (
        et.float8_e4m3,
        et.float8_e5m2,
        et.float6_e2m3,
        et.float6_e3m2,
        et.float4_e2m1,
        et.int8,
        et.int4,
    )
    scale_type = et.float8_e8m0

    def __post_init__(self) -> None:
        check_uint(self.axis, 32, "quantization axis", "quantization.axis")
        _check_block_size(self.block_size, 16, 2048)
        check_uint(self.scale_buffer_index, 32, "scale_buffer_index", "quantization.buffer-index")

    def check(
        self, element_type: ElementType, shape: Shape, buffer_sizes: Sequence[int], layout_buffers: int | None
    ) -> None:
        Quantization.check(self, element_type, shape, buffer_sizes, layout_buffers)
        dim = shape[self.axis]
        if dim == 0 or (dim != DYNAMIC and dim % self.block_size):
            raise InvalidDescriptorError(
                f"dimension {self.axis} is {dim}, not a positive multiple of the block size {self.block_size}",
                rule="quantization.mxfp-multiple",
                declared=self.block_size,
                found=dim,
            )


def integer_range(element_type: ElementType) -> tuple[int, int]:
    """Lowest and highest value of an integer element type."""
    if element_type.name.startswith("uint"):
        return 0, (1 << element_type.bits) - 1
    return -(1 << element_type.bits - 1), (1 << element_type.bits - 1) - 1


def _blocks(shape: Shape, axis: int, block_size: int) -> int:
    """Scales of a tensor with blocks along one axis: that dimension in blocks, every other as it is."""
    return element_count([-(-dim // block_size) if k == axis else dim for k, dim in enumerate(shape)])


def _check_block_size(block_size: int, low: int, high: int) -> None:
    check_int(block_size, low, high, "block_size", "quantization.block-size")
    if block_size & (block_size - 1):
        raise InvalidDescriptorError(
            f"block_size {block_size} is not a power of two", rule="quantization.block-size", found=block_size
        )


def _float32(value: float) -> float:
    """The value rounded to float32, as the wire holds it; what float32 cannot hold becomes infinity."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.inf
    return rounded

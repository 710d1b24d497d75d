"""The parts of a tensor descriptor: buffer handles, shard, statistics, extension type, composite member.

Small frozen objects that check themselves (spec/descriptor.md). What depends on several of them is left to
``descriptor.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import InvalidDescriptorError
from . import element_types as et
from .checks import U32_MAX, check_int, check_uint, check_word
from .element_types import ElementType
from .shape import Shape, checked_shape, is_dynamic

__all__ = ["BufferHandle", "CompositeMember", "ExtensionType", "Shard", "Statistics"]

MIN_ALIGNMENT = 64
PRIVATE = range(0xF0, 0xFF)

DEVICES: dict[str, int] = {
    "cpu": 0,
    "cuda": 1,
    "rocm": 2,
    "metal": 3,
    "vulkan": 4,
    "webgpu": 5,
    "hexagon": 6,
    "level_zero": 7,
    "opencl": 8,
}
SYNC_MODES: dict[str, int] = {"producer_synced": 0, "event": 1, "consumer_stream": 2}
MEMORY_CLASSES: dict[str, int] = {"standard": 0, "host_pinned": 1, "unified": 2, "peer": 3}

_PEER_DEVICES = ("cuda", "rocm", "vulkan", "level_zero")


@dataclass(frozen=True, slots=True)
class BufferHandle:
    """Size and place of one buffer.

    ``byte_size`` in bytes; ``alignment`` a power of two, at least 64 unless the buffer is empty. ``device`` and
    ``memory_class`` are words of the format, or numbers 0xF0..0xFE for private ones. In a file every buffer is on the
    CPU in spirit: the handle tells where the producer held it.
    """

    byte_size: int
    alignment: int = MIN_ALIGNMENT
    device: str | int = "cpu"
    sync_mode: str = "producer_synced"
    memory_class: str | int = "standard"

    def __post_init__(self) -> None:
        check_uint(self.byte_size, 64, "byte_size", "buffer.byte-size")
        check_uint(self.alignment, 32, "alignment", "buffer.alignment")
        power_of_two = self.alignment > 0 and self.alignment & (self.alignment - 1) == 0
        if not power_of_two or (self.alignment < MIN_ALIGNMENT and self.byte_size > 0):
            raise InvalidDescriptorError(
                f"alignment {self.alignment} is not a power of two of at least {MIN_ALIGNMENT}",
                rule="buffer.alignment",
                declared=MIN_ALIGNMENT,
                found=self.alignment,
            )
        _check_word_or_private(self.device, DEVICES, "device", "buffer.device")
        check_word(self.sync_mode, SYNC_MODES, "sync_mode", "buffer.sync-mode")
        if self.device == "cpu" and self.sync_mode != "producer_synced":
            raise InvalidDescriptorError(
                f"a CPU buffer is producer-synced, not {self.sync_mode}", rule="buffer.sync-mode", found=self.sync_mode
            )
        _check_word_or_private(self.memory_class, MEMORY_CLASSES, "memory_class", "buffer.memory-class")
        private_device = isinstance(self.device, int)
        fits = {
            "standard": True,
            "host_pinned": self.device != "webgpu",
            "unified": self.device != "webgpu",
            "peer": self.device in _PEER_DEVICES,
        }
        if not (private_device if isinstance(self.memory_class, int) else fits[self.memory_class]):
            raise InvalidDescriptorError(
                f"memory class {self.memory_class} does not exist on device {self.device}",
                rule="buffer.device-memory",
                declared=self.device,
                found=self.memory_class,
            )


@dataclass(frozen=True, slots=True)
class Shard:
    """This tensor is a box of a larger one: ``shard_offset`` in ``parent_shape``, one entry per dimension."""

    parent_shape: Shape
    shard_offset: Shape

    def __post_init__(self) -> None:
        object.__setattr__(self, "parent_shape", checked_shape(self.parent_shape))
        object.__setattr__(self, "shard_offset", checked_shape(self.shard_offset))
        if len(self.parent_shape) != len(self.shard_offset):
            raise InvalidDescriptorError(
                f"parent_shape has {len(self.parent_shape)} dimensions, shard_offset {len(self.shard_offset)}",
                rule="shard.rank",
                declared=len(self.parent_shape),
                found=len(self.shard_offset),
            )

    def check(self, shape: Shape) -> None:
        """Raise InvalidDescriptorError unless a tensor of ``shape`` lies inside the parent."""
        if len(shape) != len(self.parent_shape):
            raise InvalidDescriptorError(
                f"a shard of rank {len(self.parent_shape)} for a tensor of rank {len(shape)}",
                rule="shard.rank",
                declared=len(shape),
                found=len(self.parent_shape),
            )
        if is_dynamic(shape) or is_dynamic(self.parent_shape) or is_dynamic(self.shard_offset):
            raise InvalidDescriptorError("a shard has a dynamic dimension", rule="shard.dynamic")
        for k, (dim, offset, parent) in enumerate(zip(shape, self.shard_offset, self.parent_shape, strict=True)):
            if offset + dim > parent:
                raise InvalidDescriptorError(
                    f"the shard ends at {offset + dim} in dimension {k}, past the parent's {parent}",
                    rule="shard.bounds",
                    declared=parent,
                    found=offset + dim,
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Advisory statistics of the values. None means not computed; the fields of one group come together.

    Groups: nnz; sparsity_ratio; value_min, value_max, value_abs_max; value_mean, value_stddev; nm_n, nm_m (N:M
    sparsity); has_nan, has_inf.
    """

    nnz: int | None = None
    sparsity_ratio: float | None = None
    value_min: float | None = None
    value_max: float | None = None
    value_abs_max: float | None = None
    value_mean: float | None = None
    value_stddev: float | None = None
    nm_n: int | None = None
    nm_m: int | None = None
    has_nan: bool | None = None
    has_inf: bool | None = None

    GROUPS: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("nnz",),
        ("sparsity_ratio",),
        ("value_min", "value_max", "value_abs_max"),
        ("value_mean", "value_stddev"),
        ("nm_n", "nm_m"),
        ("has_nan", "has_inf"),
    )

    def __post_init__(self) -> None:
        for group in self.GROUPS:
            given = [name for name in group if getattr(self, name) is not None]
            if given and len(given) != len(group):
                raise InvalidDescriptorError(
                    f"statistics {', '.join(group)} come together, but only {', '.join(given)} is given",
                    rule="statistics.group",
                )
        if self.nnz is not None:
            check_uint(self.nnz, 64, "nnz", "statistics.value")
        for name in ("nm_n", "nm_m"):
            if (value := getattr(self, name)) is not None:
                check_uint(value, 8, name, "statistics.value")

    @property
    def computed_mask(self) -> int:
        """Bit k is set if group k of ``GROUPS`` is computed."""
        return sum(1 << bit for bit, group in enumerate(self.GROUPS) if getattr(self, group[0]) is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionType:
    """What a private element type (tags 0xF0..0xFE) is made of. Bit counts; float fields are 0 for integer types."""

    bit_width: int
    packing_factor: int = 1
    is_float: bool = False
    is_signed: bool = False
    sign_bits: int = 0
    exponent_bits: int = 0
    mantissa_bits: int = 0
    exponent_bias: int = 0
    has_nan: bool = False
    has_inf: bool = False

    PACKING: ClassVar[dict[int, int]] = {1: 8, 2: 4, 4: 2}

    def __post_init__(self) -> None:
        check_int(self.bit_width, 1, U32_MAX, "bit_width", "extension-type.bit-width")
        packing = 1 if self.bit_width >= 8 else self.PACKING.get(self.bit_width)
        if packing is None:
            raise InvalidDescriptorError(
                f"a private type of {self.bit_width} bits has no packing (below a byte only 1, 2 and 4 bits have)",
                rule="extension-type.bit-width",
                found=self.bit_width,
            )
        if self.packing_factor != packing:
            raise InvalidDescriptorError(
                f"packing_factor of a {self.bit_width}-bit type is {packing}, not {self.packing_factor}",
                rule="extension-type.packing",
                declared=packing,
                found=self.packing_factor,
            )
        for name in ("sign_bits", "exponent_bits", "mantissa_bits"):
            check_uint(getattr(self, name), 8, name, "extension-type.bits")
        check_uint(self.exponent_bias, 32, "exponent_bias", "extension-type.bits")
        float_fields = (self.exponent_bits, self.mantissa_bits, self.exponent_bias, self.has_nan, self.has_inf)
        if not self.is_float and (self.sign_bits or any(float_fields)):
            raise InvalidDescriptorError(
                "an integer extension type has float fields other than 0", rule="extension-type.integer"
            )

    def element_type(self, tag: int) -> ElementType:
        """The element type with this private tag. Wider than a byte it must fill whole bytes to have a size."""
        return et.private(tag, self.bit_width if self.bit_width < 8 else -(-self.bit_width // 8) * 8)


@dataclass(frozen=True, slots=True)
class CompositeMember:
    """The part a tensor plays in an overlay: "base" or "correction"."""

    role: str

    ROLES: ClassVar[dict[str, int]] = {"correction": 0, "base": 1}

    def __post_init__(self) -> None:
        check_word(self.role, self.ROLES, "composite member role", "composite-member.role")


def _check_word_or_private(value: object, words: dict[str, int], what: str, rule: str) -> None:
    if isinstance(value, int):
        check_int(value, PRIVATE[0], PRIVATE[-1], f"private {what}", rule)
    else:
        check_word(value, words, what, rule)

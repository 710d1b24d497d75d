"""The tensor descriptor: everything a tensor says about itself (spec/descriptor.md).

Its parts, buffer handles, shard, statistics, extension type and composite member, are small frozen objects that check
themselves; :class:`TensorDescriptor` checks what depends on several of them. Bytes are the work of ``wire/``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, SupportsIndex

from ..errors import BufferSizeError, InvalidDescriptorError
from . import element_types as et
from .block_paged import BlockPagedLayout
from .checks import U32_MAX, check_int, check_uint, check_word
from .element_types import ElementType, buffer_bytes
from .layouts import CompositeLayout, CsfLayout, Layout, UnknownLayout
from .quantization import Quantization
from .shape import Shape, checked_shape, element_count, is_dynamic

__all__ = [
    "BufferHandle",
    "CompositeMember",
    "ExtensionType",
    "Shard",
    "Statistics",
    "TensorDescriptor",
]

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


# How the codec is reached from the object: `wire/__init__` fills these in, so that model imports nothing of wire.
def _no_codec(*_: Any, **__: Any) -> Any:
    raise RuntimeError("hurray_wire.wire has not been imported")


_encode: Callable[..., bytes] = _no_codec
_decode: Callable[..., Any] = _no_codec


@dataclass(frozen=True, slots=True)
class TensorDescriptor:
    """A whole tensor descriptor, valid by construction.

    ``shape`` is in elements, None for a dynamic dimension; ``byte_offset`` is where the first element lies in buffer 0.
    ``buffers`` are the layout's own (see ``layout.buffer_names``), then quantization parameters; sizes in them may
    exceed what the layout needs. ``version_minor`` and ``unknown_tail`` keep what a newer minor version wrote, ``quantization_padding`` how many zero
    bytes a producer left behind the scheme.
    Raises InvalidDescriptorError, or BufferSizeError (both ValueErrors) for a buffer too small for the shape.
    Specification: spec/descriptor.md.
    """

    element_type: ElementType
    shape: Shape
    layout: Layout
    buffers: tuple[BufferHandle, ...] = ()
    byte_offset: int = 0
    quantization: Quantization | None = None
    shard: Shard | None = None
    statistics: Statistics | None = None
    extension_type: ExtensionType | None = None
    composite_member: CompositeMember | None = None
    version_minor: int = field(default=0, kw_only=True)
    unknown_tail: bytes = field(default=b"", kw_only=True)
    quantization_padding: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", checked_shape(self.shape))
        object.__setattr__(self, "buffers", tuple(self.buffers))
        check_uint(self.version_minor, 8, "version_minor", "descriptor.version-minor")
        if self.unknown_tail and self.version_minor == 0:
            raise InvalidDescriptorError(
                "a descriptor of minor version 0 has nothing after its last section", rule="descriptor.length"
            )
        if not isinstance(self.element_type, ElementType):
            raise InvalidDescriptorError(f"{self.element_type!r} is not an element type", rule="element-type.tag")
        if not isinstance(self.layout, Layout):
            raise InvalidDescriptorError(f"{self.layout!r} is not a layout", rule="layout.tag")
        if isinstance(self.layout, UnknownLayout):
            return
        self.layout.validate_against_shape(self.shape)
        self._check_byte_offset()
        self._check_buffer_count()
        self._check_handles_agree()
        self._check_layout_sizes()
        check_uint(self.quantization_padding, 32, "quantization_padding", "quantization.padding")
        if self.quantization is not None:
            self._check_quantization(self.quantization)
        elif self.quantization_padding:
            raise InvalidDescriptorError("quantization_padding without quantization", rule="quantization.padding")
        if self.shard is not None:
            if not self.layout.takes_shard:
                raise InvalidDescriptorError(
                    f"a {self.layout.name} tensor has no shard section", rule="shard.layout", found=self.layout.name
                )
            self.shard.check(self.shape)
        if (self.extension_type is not None) != self.element_type.is_private:
            raise InvalidDescriptorError(
                "the extension type section is there if and only if the element type is private",
                rule="extension-type.presence",
            )
        if isinstance(self.layout, CompositeLayout) and self.composite_member is not None:
            raise InvalidDescriptorError(
                "a composite head has no composite member section", rule="composite-member.head"
            )

    @classmethod
    def decode(cls, buffer: Any, *, permissive: bool = False) -> Self:
        """The descriptor held by exactly the bytes of ``buffer`` (any bytes-like object; nothing of it is kept).

        ``permissive`` keeps a descriptor with an unknown layout tag whole instead of refusing it. Raises
        InvalidDescriptorError, TruncatedError if the bytes end early, or BufferSizeError.
        """
        decoded: Self = _decode(buffer, permissive=permissive)
        return decoded

    def encode(self) -> bytes:
        """The descriptor's bytes."""
        return _encode(self)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def layout_buffers(self) -> tuple[BufferHandle, ...]:
        """The handles of the layout's own buffers."""
        return self.buffers[: self.layout.buffer_count]

    @classmethod
    def build(
        cls,
        element_type: ElementType,
        shape: Iterable[SupportsIndex],
        layout: Layout,
        buffer_sizes: Iterable[int],
        **sections: Any,
    ) -> Self:
        """A descriptor of CPU buffers of these sizes in bytes, with the alignment every reader accepts."""
        return cls(
            element_type, checked_shape(shape), layout, tuple(BufferHandle(size) for size in buffer_sizes), **sections
        )

    def _check_byte_offset(self) -> None:
        check_uint(self.byte_offset, 64, "byte_offset", "descriptor.byte-offset")
        if self.byte_offset and not self.layout.takes_byte_offset:
            raise InvalidDescriptorError(
                f"byte_offset of a {self.layout.name} tensor is {self.byte_offset}, not 0",
                rule="descriptor.byte-offset",
                declared=0,
                found=self.byte_offset,
            )
        if self.buffers and self.byte_offset > self.buffers[0].byte_size:
            raise InvalidDescriptorError(
                f"byte_offset {self.byte_offset} is past the end of buffer 0 ({self.buffers[0].byte_size} bytes)",
                rule="descriptor.byte-offset",
                declared=self.buffers[0].byte_size,
                found=self.byte_offset,
            )

    def _check_buffer_count(self) -> None:
        found = len(self.buffers)
        own = self.layout.buffer_count
        if isinstance(self.layout, CompositeLayout):
            if found or self.quantization is not None:
                raise InvalidDescriptorError(
                    "a composite head has neither buffers nor quantization", rule="descriptor.buffer-count", found=found
                )
            return
        check_int(found, 1, 255, "buffer_count", "descriptor.buffer-count")
        if own is None:
            return
        parameters = self.quantization.parameter_buffers if self.quantization is not None else ()
        if found < own or (found > own and not parameters):
            raise InvalidDescriptorError(
                f"a {self.layout.name} tensor has {own} buffers, not {found}",
                rule="descriptor.buffer-count",
                declared=own,
                found=found,
            )

    def _check_handles_agree(self) -> None:
        for name, rule in (("device", "buffer.same-device"), ("memory_class", "buffer.same-memory-class")):
            values = {getattr(handle, name) for handle in self.buffers}
            if len(values) > 1:
                raise InvalidDescriptorError(
                    f"the buffers of one tensor name several values of {name}: {sorted(map(str, values))}", rule=rule
                )

    def _check_layout_sizes(self) -> None:
        needed = self.layout.minimum_buffer_bytes(self.element_type, self.shape, self.byte_offset)
        self._check_sizes(dict(enumerate(needed)), self.layout.buffer_names or ())
        if isinstance(self.layout, BlockPagedLayout):
            self._check_whole_entries(1, self.layout.index_dtype.itemsize)
        elif isinstance(self.layout, CsfLayout):
            for index in range(1, len(self.buffers[: self.layout.buffer_count])):
                self._check_whole_entries(index, 8)

    def _check_whole_entries(self, index: int, itemsize: int) -> None:
        size = self.buffers[index].byte_size
        if size % itemsize:
            names = self.layout.buffer_names or ()
            raise BufferSizeError(
                f"{names[index]} (buffer {index}) has {size} bytes, not a whole number of {itemsize}-byte entries",
                rule="buffer.entries",
                declared=itemsize,
                found=size,
            )

    def _check_sizes(self, needed: dict[int, int], names: tuple[str, ...]) -> None:
        for index, size in needed.items():
            found = self.buffers[index].byte_size
            if found < size:
                what = names[index] if index < len(names) else "quantization parameters"
                raise BufferSizeError(
                    f"{what} (buffer {index}) has {found} bytes, but shape {list(self.shape)} of "
                    f"{self.element_type.name} needs {size}",
                    rule="buffer.too-small",
                    declared=size,
                    found=found,
                )

    def _check_quantization(self, quantization: Quantization) -> None:
        if isinstance(self.layout, BlockPagedLayout):
            self.layout.validate_quantization_compatibility(quantization)
        sizes = [handle.byte_size for handle in self.buffers]
        quantization.check(self.element_type, self.shape, sizes, self.layout.buffer_count)
        if is_dynamic(self.shape):
            return
        slots = None
        if isinstance(self.layout, BlockPagedLayout):
            slots = self.layout.num_pages * self.layout.page_size
        count = quantization.parameter_count(self.shape, slots)
        self._check_sizes(quantization.minimum_parameter_bytes(count), ())

    @property
    def element_count(self) -> int:
        """Logical elements; refused for a shape with dynamic dimensions."""
        if is_dynamic(self.shape):
            raise InvalidDescriptorError("a dynamic shape has no element count", rule="descriptor.dynamic")
        return element_count(self.shape)

    @property
    def logical_bytes(self) -> int:
        """Bytes of the logical elements, packed."""
        return buffer_bytes(self.element_type, self.element_count)


def _check_word_or_private(value: object, words: dict[str, int], what: str, rule: str) -> None:
    if isinstance(value, int):
        check_int(value, PRIVATE[0], PRIVATE[-1], f"private {what}", rule)
    else:
        check_word(value, words, what, rule)

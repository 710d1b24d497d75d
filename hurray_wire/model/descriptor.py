"""The tensor descriptor: everything a tensor says about itself (spec/descriptor.md).

Its parts stand in ``sections.py`` and check themselves; :class:`TensorDescriptor` checks what depends on several of
them. Bytes are the work of ``wire/``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self, SupportsIndex

from ..errors import BufferSizeError, InvalidDescriptorError
from .block_paged import BlockPagedLayout
from .checks import check_int, check_uint
from .element_types import ElementType, buffer_bytes
from .layouts import CompositeLayout, CsfLayout, Layout, UnknownLayout
from .quantization import Quantization
from .sections import BufferHandle, CompositeMember, ExtensionType, Shard, Statistics
from .shape import Shape, checked_shape, element_count, is_dynamic

__all__ = ["TensorDescriptor"]


# How the codec is reached from the object: `wire/__init__` fills these in, so that model imports nothing of wire.
def _no_codec(*_: Any, **__: Any) -> Any:
    raise RuntimeError("hurray_wire.wire has not been imported")


_encode: Callable[..., bytes] = _no_codec
_decode: Callable[..., Any] = _no_codec


@dataclass(frozen=True, slots=True)
class TensorDescriptor:
    """A whole tensor descriptor, valid by construction.

    ``shape`` is in elements, None for a dynamic dimension; ``byte_offset`` is where the first element lies in buffer
    0. ``buffers`` are the layout's own (see ``layout.buffer_names``), then quantization parameters; sizes in them may
    exceed what the layout needs. ``version_minor`` and ``unknown_tail`` keep what a newer minor version wrote,
    ``quantization_padding`` how many zero bytes a producer left behind the scheme. Raises InvalidDescriptorError, or
    BufferSizeError (both ValueErrors) for a buffer too small for the shape. Specification: spec/descriptor.md.
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

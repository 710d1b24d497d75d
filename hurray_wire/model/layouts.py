"""The layouts of the format, block-paged excepted (spec/layouts.md).

A layout says how a tensor's elements lie in its buffers. Each class holds the parameters of one layout, refuses values
that no tensor could have, and answers four questions: does it fit this shape, how many buffers has it, what are they
called, and how many bytes must each hold at least. Turning bytes into layouts is the work of ``wire/layouts.py``, and
turning elements into arrays that of ``arrays/``. The block-paged layout, which the project is about, has a file of its
own: ``block_paged.py``.

This file is past 300 lines because it tells one table, the format's layouts, in the order of their tags.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, SupportsIndex

from ..errors import InvalidDescriptorError
from ..limits import MAX_NESTING
from .checks import U32_MAX, U64_MAX, check_int, check_uint, check_word
from .element_types import ElementType, buffer_bytes
from .shape import Shape, element_count, is_dynamic, is_empty, reach

__all__ = [
    "ColMajorLayout",
    "CompositeLayout",
    "CooLayout",
    "CscLayout",
    "CsfLayout",
    "CsrLayout",
    "HilbertLayout",
    "Layout",
    "MortonLayout",
    "PrivateExtensionLayout",
    "RowMajorLayout",
    "StridedLayout",
    "TiledLayout",
    "UnknownLayout",
]

POINTER_BYTES = 8  # index and pointer buffers of sparse layouts are u64
I64_MIN, I64_MAX = -(1 << 63), (1 << 63) - 1
PRIVATE_TAGS = range(0xF0, 0xFF)


class Layout(ABC):
    """How a tensor's elements lie in its buffers. Frozen; equal by value."""

    __slots__ = ()

    tag: int  # the layout's byte on the wire
    name: ClassVar[str]
    is_dense: ClassVar[bool] = False  # every element has one place in buffer 0, found without reading a buffer
    takes_byte_offset: ClassVar[bool] = False
    takes_shard: ClassVar[bool] = True

    @property
    @abstractmethod
    def buffer_names(self) -> tuple[str, ...] | None:
        """Names of the layout's own buffers in order (quantization parameters follow them); None if not known."""

    @property
    def buffer_count(self) -> int | None:
        """The number of the layout's own buffers; None if only the producer knows."""
        names = self.buffer_names
        return None if names is None else len(names)

    @abstractmethod
    def validate_against_shape(self, shape: Iterable[SupportsIndex]) -> None:
        """Raise InvalidDescriptorError unless a tensor of this shape can have this layout."""

    @abstractmethod
    def minimum_buffer_bytes(self, element_type: ElementType, shape: Shape, byte_offset: int) -> tuple[int, ...]:
        """Bytes that each of the layout's own buffers must hold at least; what a dynamic dimension would tell counts
        as 0.

        The byte offset is counted into buffer 0. A buffer may be larger (a producer's slack), never smaller.
        """


class _DenseLayout(Layout):
    """A layout whose elements all lie in buffer 0, within a range of element offsets."""

    __slots__ = ()

    is_dense = True
    takes_byte_offset = True

    @property
    def buffer_names(self) -> tuple[str, ...]:
        return ("data",)

    @abstractmethod
    def element_span(self, shape: Shape) -> tuple[int, int]:
        """Lowest and highest element offset in buffer 0 that a non-empty tensor of this shape uses."""

    def minimum_buffer_bytes(self, element_type: ElementType, shape: Shape, byte_offset: int) -> tuple[int, ...]:
        if is_empty(shape) or is_dynamic(shape):
            return (byte_offset,)
        low, high = self.element_span(shape)
        if byte_offset * 8 + low * element_type.bits < 0:
            raise InvalidDescriptorError(
                f"{self.name} strides reach element {low} before the start of buffer 0 (byte offset {byte_offset})",
                rule="layout.strided-reach",
                found=low,
            )
        return (byte_offset + buffer_bytes(element_type, high + 1),)


@dataclass(frozen=True, slots=True)
class RowMajorLayout(_DenseLayout):
    """Elements in row-major (C) order, without gaps."""

    name = "row_major"
    tag = 0x01

    def validate_against_shape(self, shape: Iterable[SupportsIndex]) -> None:
        """Any shape of at most 64 dimensions fits."""

    def element_span(self, shape: Shape) -> tuple[int, int]:
        return 0, element_count(shape) - 1


@dataclass(frozen=True, slots=True)
class ColMajorLayout(_DenseLayout):
    """Elements in column-major (Fortran) order, without gaps."""

    name = "col_major"
    tag = 0x02

    def validate_against_shape(self, shape: Iterable[SupportsIndex]) -> None:
        """Any shape of at most 64 dimensions fits."""

    def element_span(self, shape: Shape) -> tuple[int, int]:
        return 0, element_count(shape) - 1


@dataclass(frozen=True, slots=True)
class StridedLayout(_DenseLayout):
    """One stride per dimension, in elements; negative and zero strides are valid."""

    strides: tuple[int, ...]

    name = "strided"
    tag = 0x03

    def __post_init__(self) -> None:
        object.__setattr__(self, "strides", _strides(self.strides, "stride"))

    def validate_against_shape(self, shape: Iterable[SupportsIndex]) -> None:
        """One stride per dimension."""
        _check_length(self.strides, shape, "strides", "layout.strides")

    def element_span(self, shape: Shape) -> tuple[int, int]:
        return reach(shape, self.strides)


@dataclass(frozen=True, slots=True)
class TiledLayout(_DenseLayout):
    """Fixed-size tiles: where a tile lies is told by the outer layout, where an element lies within it by the inner
    one.

    ``outer_layout`` is "row_major", "col_major" or "strided" (then ``outer_strides``, in tiles); ``inner_layout`` may
    also be "tiled" (then ``inner_tiled``, the tiles within each tile, at most 8 levels). Edge tiles are stored whole.
    """

    tile_shape: tuple[int, ...]
    outer_layout: str = "row_major"
    inner_layout: str = "row_major"
    outer_strides: tuple[int, ...] | None = None
    inner_strides: tuple[int, ...] | None = None
    inner_tiled: TiledLayout | None = None

    name = "tiled"
    tag = 0x04

    OUTER_LAYOUTS: ClassVar[dict[str, int]] = {"row_major": 1, "col_major": 2, "strided": 3}
    INNER_LAYOUTS: ClassVar[dict[str, int]] = {"row_major": 1, "col_major": 2, "strided": 3, "tiled": 4}

    def __post_init__(self) -> None:
        tile_shape = tuple(
            check_int(dim, 1, U64_MAX, f"tile dimension {k}", "layout.tile-shape")
            for k, dim in enumerate(self.tile_shape)
        )
        object.__setattr__(self, "tile_shape", tile_shape)
        if not tile_shape:
            raise InvalidDescriptorError("a tiled layout needs at least one dimension", rule="layout.rank-zero")
        check_word(self.outer_layout, self.OUTER_LAYOUTS, "outer layout", "layout.tile-outer")
        check_word(self.inner_layout, self.INNER_LAYOUTS, "inner layout", "layout.tile-inner")
        for side, layout, strides in (
            ("outer", self.outer_layout, self.outer_strides),
            ("inner", self.inner_layout, self.inner_strides),
        ):
            if (layout == "strided") != (strides is not None):
                raise InvalidDescriptorError(
                    f"{side} strides are given if and only if the {side} layout is strided", rule="layout.tile-strides"
                )
            if strides is not None:
                object.__setattr__(self, f"{side}_strides", _strides(strides, f"{side} stride"))
                _check_length(strides, tile_shape, f"{side} strides", "layout.tile-strides")
        if (self.inner_layout == "tiled") != (self.inner_tiled is not None):
            raise InvalidDescriptorError(
                "inner tiles are given if and only if the inner layout is tiled", rule="layout.tile-inner"
            )
        if self.inner_tiled is not None:
            _check_length(self.inner_tiled.tile_shape, tile_shape, "inner tile dimensions", "layout.tile-shape")
            if self.depth > MAX_NESTING:
                raise InvalidDescriptorError(
                    f"tiles are nested {self.depth} deep, more than {MAX_NESTING}",
                    rule="layout.tile-depth",
                    declared=MAX_NESTING,
                    found=self.depth,
                )

    @property
    def depth(self) -> int:
        """Levels of tiling, this one included."""
        return 1 + (self.inner_tiled.depth if self.inner_tiled is not None else 0)

    def grid(self, shape: Shape) -> Shape:
        """Tiles along each dimension; the last may be partly filled."""
        return tuple(-(-dim // tile) for dim, tile in zip(shape, self.tile_shape, strict=True))

    @property
    def tile_elements(self) -> int:
        """Elements that one tile takes in the buffer, the padding of tiles within it included."""
        if self.inner_tiled is None:
            return element_count(self.tile_shape)
        return element_count(self.inner_tiled.grid(self.tile_shape)) * self.inner_tiled.tile_elements

    def validate_against_shape(self, shape: Iterable[SupportsIndex]) -> None:
        """One tile dimension per dimension; rank 0 is refused."""
        _check_length(self.tile_shape, shape, "tile dimensions", "layout.tile-shape")

    def element_span(self, shape: Shape) -> tuple[int, int]:
        grid = self.grid(shape)
        outer = reach(grid, self.outer_strides) if self.outer_strides else (0, element_count(grid) - 1)
        if self.inner_tiled is not None:
            inner = self.inner_tiled.element_span(self.tile_shape)
        elif self.inner_strides:
            inner = reach(self.tile_shape, self.inner_strides)
        else:
            inner = (0, element_count(self.tile_shape) - 1)
        return outer[0] * self.tile_elements + inner[0], outer[1] * self.tile_elements + inner[1]


@dataclass(frozen=True, slots=True)
class MortonLayout(_DenseLayout):
    """Z-order: the bits of the coordinates interleaved, dimension 0 lowest. The buffer holds 2**sum(bits) elements."""

    morton_bits: tuple[int, ...]

    name = "morton"
    tag = 0x05

    def __post_init__(self) -> None:
        bits = tuple(
            check_int(b, 1, U32_MAX, f"morton_bits[{k}]", "layout.morton-bits") for k, b in enumerate(self.morton_bits)
        )
        object.__setattr__(self, "morton_bits", bits)
        if sum(bits) > 64:
            raise InvalidDescriptorError(
                f"morton_bits sum to {sum(bits)}: no buffer holds 2**{sum(bits)} elements",
                rule="layout.morton-bits",
                declared=64,
                found=sum(bits),
            )

    def validate_against_shape(self, shape: Iterable[SupportsIndex]) -> None:
        """One bit count per dimension, and no dimension above 2**bits."""
        dims = _check_length(self.morton_bits, shape, "morton_bits", "layout.morton-bits")
        for k, (dim, bits) in enumerate(zip(dims, self.morton_bits, strict=True)):
            if dim > 1 << bits and not is_dynamic((dim,)):
                raise InvalidDescriptorError(
                    f"dimension {k} is {dim}, above 2**{bits}", rule="layout.morton-bits", declared=1 << bits, found=dim
                )

    def element_span(self, shape: Shape) -> tuple[int, int]:
        return 0, (1 << sum(self.morton_bits)) - 1


@dataclass(frozen=True, slots=True)
class HilbertLayout(_DenseLayout):
    """A Hilbert curve through a cube of 2**hilbert_order elements a side, in hilbert_rank >= 2 dimensions."""

    hilbert_order: int
    hilbert_rank: int

    name = "hilbert"
    tag = 0x40

    def __post_init__(self) -> None:
        order = check_int(self.hilbert_order, 1, U32_MAX, "hilbert_order", "layout.hilbert-order")
        rank = check_int(self.hilbert_rank, 2, U32_MAX, "hilbert_rank", "layout.hilbert-rank")
        if order * rank > 64:
            raise InvalidDescriptorError(
                f"a Hilbert cube of 2**{order * rank} elements fits no buffer", rule="layout.hilbert-order", found=order
            )

    def validate_against_shape(self, shape: Iterable[SupportsIndex]) -> None:
        """The rank is hilbert_rank and every dimension 2**hilbert_order (or 0, or dynamic)."""
        dims = tuple(int(dim) for dim in shape)
        if len(dims) != self.hilbert_rank:
            raise InvalidDescriptorError(
                f"hilbert_rank is {self.hilbert_rank} in a tensor of rank {len(dims)}",
                rule="layout.hilbert-rank",
                declared=self.hilbert_rank,
                found=len(dims),
            )
        if is_empty(dims):
            return
        for k, dim in enumerate(dims):
            if dim != 1 << self.hilbert_order and not is_dynamic((dim,)):
                raise InvalidDescriptorError(
                    f"dimension {k} is {dim}, not 2**{self.hilbert_order}",
                    rule="layout.hilbert-order",
                    declared=1 << self.hilbert_order,
                    found=dim,
                )

    def element_span(self, shape: Shape) -> tuple[int, int]:
        return 0, (1 << self.hilbert_order * self.hilbert_rank) - 1


class _SparseLayout(Layout):
    """A layout that stores only some elements, with buffers that say which."""

    __slots__ = ()

    nnz: int  # stored elements

    def __post_init__(self) -> None:
        check_uint(self.nnz, 64, "nnz", "layout.nnz")

    def validate_against_shape(self, shape: Iterable[SupportsIndex]) -> None:
        """Rank 0 is refused; CSR and CSC have rank 2, CSF at least 3."""
        self._check_rank(len(tuple(shape)))

    @abstractmethod
    def _check_rank(self, rank: int) -> None: ...


@dataclass(frozen=True, slots=True)
class CooLayout(_SparseLayout):
    """Coordinates: values[nnz] and indices u64[nnz, rank]."""

    nnz: int
    is_sorted: bool = False

    name = "coo"
    tag = 0x06

    @property
    def buffer_names(self) -> tuple[str, ...]:
        return ("values", "indices")

    def _check_rank(self, rank: int) -> None:
        if rank == 0:
            raise InvalidDescriptorError("a COO layout needs at least one dimension", rule="layout.rank-zero", found=0)

    def minimum_buffer_bytes(self, element_type: ElementType, shape: Shape, byte_offset: int) -> tuple[int, ...]:
        return buffer_bytes(element_type, self.nnz), self.nnz * len(shape) * POINTER_BYTES


class _CompressedLayout(_SparseLayout):
    """CSR and CSC: rank 2, a pointer array along one axis."""

    __slots__ = ()

    pointer_axis: ClassVar[int]

    def _check_rank(self, rank: int) -> None:
        if rank != 2:
            raise InvalidDescriptorError(
                f"{self.name.upper()} has rank 2, not {rank}", rule="layout.sparse-rank", declared=2, found=rank
            )

    def minimum_buffer_bytes(self, element_type: ElementType, shape: Shape, byte_offset: int) -> tuple[int, ...]:
        rows = shape[self.pointer_axis]
        pointers = 0 if is_dynamic((rows,)) else (rows + 1) * POINTER_BYTES
        return buffer_bytes(element_type, self.nnz), self.nnz * POINTER_BYTES, pointers


@dataclass(frozen=True, slots=True)
class CsrLayout(_CompressedLayout):
    """Compressed sparse rows: values[nnz], col_indices u64[nnz], row_ptr u64[rows + 1]."""

    nnz: int

    name = "csr"
    tag = 0x07
    pointer_axis = 0

    @property
    def buffer_names(self) -> tuple[str, ...]:
        return ("values", "col_indices", "row_ptr")


@dataclass(frozen=True, slots=True)
class CscLayout(_CompressedLayout):
    """Compressed sparse columns: values[nnz], row_indices u64[nnz], col_ptr u64[cols + 1]."""

    nnz: int

    name = "csc"
    tag = 0x08
    pointer_axis = 1

    @property
    def buffer_names(self) -> tuple[str, ...]:
        return ("values", "row_indices", "col_ptr")


@dataclass(frozen=True, slots=True)
class CsfLayout(_SparseLayout):
    """Compressed sparse fibers, rank >= 3: values[nnz], then pos and crd (u64) for each level of the fiber tree.

    ``mode_order`` says which dimension each level holds; level 0 is the root.
    """

    nnz: int
    mode_order: tuple[int, ...]

    name = "csf"
    tag = 0x09
    takes_shard = False

    def __post_init__(self) -> None:
        _SparseLayout.__post_init__(self)
        order = tuple(
            check_uint(mode, 32, f"mode_order[{k}]", "layout.mode-order") for k, mode in enumerate(self.mode_order)
        )
        object.__setattr__(self, "mode_order", order)
        if sorted(order) != list(range(len(order))):
            raise InvalidDescriptorError(
                f"mode_order {order} is not a permutation of its dimensions", rule="layout.mode-order", found=order
            )

    @property
    def buffer_names(self) -> tuple[str, ...]:
        levels = range(len(self.mode_order))
        return ("values", *(f"{kind}_{level}" for level in levels for kind in ("pos", "crd")))

    def _check_rank(self, rank: int) -> None:
        if rank < 3:
            raise InvalidDescriptorError(
                f"CSF has rank 3 or more, not {rank}", rule="layout.sparse-rank", declared=3, found=rank
            )
        if rank != len(self.mode_order):
            raise InvalidDescriptorError(
                f"mode_order has {len(self.mode_order)} entries in a tensor of rank {rank}",
                rule="layout.mode-order",
                declared=rank,
                found=len(self.mode_order),
            )

    def minimum_buffer_bytes(self, element_type: ElementType, shape: Shape, byte_offset: int) -> tuple[int, ...]:
        sizes = [buffer_bytes(element_type, self.nnz)]
        last = len(self.mode_order) - 1
        for level in range(len(self.mode_order)):
            # the root has one fiber; how many the other levels have is told by the buffers themselves
            sizes.append((2 if level == 0 else 1) * POINTER_BYTES)
            sizes.append(self.nnz * POINTER_BYTES if level == last else 0)
        return tuple(sizes)


@dataclass(frozen=True, slots=True, repr=False)
class CompositeLayout(Layout):
    """The head of a composite: no buffers of its own; the next ``member_count`` tensors are its members.

    ``composition_rule`` is "partition", "overlay" or "group", or a number 0xF0..0xFE for a private rule. ``combine_op``
    is "replace" or "add" for an overlay and None for every other rule.
    """

    composition_rule: str | int
    member_count: int
    combine_op: str | None = None

    name = "composite"
    tag = 0x0B

    RULES: ClassVar[dict[str, int]] = {"partition": 1, "overlay": 2, "group": 3}
    COMBINE_OPS: ClassVar[dict[str, int]] = {"replace": 1, "add": 2}

    def __post_init__(self) -> None:
        if not isinstance(self.composition_rule, int):
            check_word(self.composition_rule, self.RULES, "composition rule", "layout.composition-rule")
        elif self.composition_rule not in PRIVATE_TAGS:
            raise InvalidDescriptorError(
                f"composition rule {self.composition_rule} is unknown",
                rule="layout.composition-rule",
                found=self.composition_rule,
            )
        if self.composition_rule == "overlay":
            check_word(self.combine_op, self.COMBINE_OPS, "combine_op", "layout.combine-op")
        elif self.combine_op is not None:
            raise InvalidDescriptorError(
                f"combine_op is {self.combine_op!r}, but only an overlay combines", rule="layout.combine-op"
            )
        check_int(self.member_count, 0, U32_MAX - 1, "member_count", "layout.member-count")

    @property
    def is_virtual(self) -> bool:
        return True

    @property
    def buffer_names(self) -> tuple[str, ...]:
        return ()

    def validate_against_shape(self, shape: Iterable[SupportsIndex]) -> None:
        """Any shape fits; what the members must cover is checked when they are there."""

    def minimum_buffer_bytes(self, element_type: ElementType, shape: Shape, byte_offset: int) -> tuple[int, ...]:
        return ()

    def __repr__(self) -> str:
        combine = f", combine_op={self.combine_op!r}" if self.combine_op else ""
        return f"CompositeLayout(composition_rule={self.composition_rule!r}, member_count={self.member_count}{combine})"


@dataclass(frozen=True, slots=True)
class PrivateExtensionLayout(Layout):
    """A layout by private agreement, tags 0xF0..0xFE. Carried, never interpreted."""

    tag: int
    extension_layout_id: int
    extension_data: bytes = b""

    name = "extension"
    takes_byte_offset = True

    def __post_init__(self) -> None:
        check_int(self.tag, PRIVATE_TAGS[0], PRIVATE_TAGS[-1], "private layout tag", "layout.tag")
        check_uint(self.extension_layout_id, 64, "extension_layout_id", "layout.extension")
        object.__setattr__(self, "extension_data", bytes(self.extension_data))

    @property
    def buffer_names(self) -> None:
        return None

    def validate_against_shape(self, shape: Iterable[SupportsIndex]) -> None:
        """Only the producer knows which shapes fit."""

    def minimum_buffer_bytes(self, element_type: ElementType, shape: Shape, byte_offset: int) -> tuple[int, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class UnknownLayout(Layout):
    """A layout tag this version does not know, kept whole by permissive reading and re-emitted byte for byte.

    ``raw_bytes`` is everything after the descriptor's byte_offset field; ``flags`` are the descriptor's flags, since
    the sections they announce lie unread in ``raw_bytes``.
    """

    tag: int
    raw_bytes: bytes = b""
    flags: int = 0

    name = "extension"
    takes_byte_offset = True

    def __post_init__(self) -> None:
        check_uint(self.tag, 8, "layout tag", "layout.tag")
        if self.tag in PRIVATE_TAGS:
            raise InvalidDescriptorError(
                f"layout tag 0x{self.tag:02X} is private: use PrivateExtensionLayout", rule="layout.tag", found=self.tag
            )
        if (known := KNOWN_TAGS.get(self.tag)) is not None:
            raise InvalidDescriptorError(
                f"layout tag 0x{self.tag:02X} is not unknown: it is {known}", rule="layout.tag", found=self.tag
            )
        object.__setattr__(self, "raw_bytes", bytes(self.raw_bytes))

    @property
    def buffer_names(self) -> None:
        return None

    def validate_against_shape(self, shape: Iterable[SupportsIndex]) -> None:
        """Nothing is known of this layout."""

    def minimum_buffer_bytes(self, element_type: ElementType, shape: Shape, byte_offset: int) -> tuple[int, ...]:
        return ()


KNOWN_TAGS: dict[int, str] = {
    0x01: "RowMajorLayout",
    0x02: "ColMajorLayout",
    0x03: "StridedLayout",
    0x04: "TiledLayout",
    0x05: "MortonLayout",
    0x06: "CooLayout",
    0x07: "CsrLayout",
    0x08: "CscLayout",
    0x09: "CsfLayout",
    0x0A: "BlockPagedLayout",
    0x0B: "CompositeLayout",
    0x40: "HilbertLayout",
}


def _strides(strides: Iterable[SupportsIndex], what: str) -> tuple[int, ...]:
    return tuple(check_int(s, I64_MIN, I64_MAX, f"{what} {k}", "layout.strides") for k, s in enumerate(strides))


def _check_length(values: Sequence[object], shape: Iterable[SupportsIndex], what: str, rule: str) -> tuple[int, ...]:
    dims = tuple(int(dim) for dim in shape)
    if len(values) != len(dims):
        raise InvalidDescriptorError(
            f"{len(values)} {what} in a tensor of rank {len(dims)}", rule=rule, declared=len(dims), found=len(values)
        )
    return dims

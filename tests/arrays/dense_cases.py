"""Random dense layouts, and their places by the words of the specification."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from hurray_wire.model.layouts import (
    ColMajorLayout,
    HilbertLayout,
    Layout,
    MortonLayout,
    RowMajorLayout,
    StridedLayout,
    TiledLayout,
)


def tiled(rank: int, depth: int) -> st.SearchStrategy[TiledLayout]:
    """Tiles in which inner ones need not divide outer ones, with strides of any sign that keep tiles apart or not."""
    edges = st.tuples(*[st.integers(1, 5)] * rank)
    strides = st.tuples(*[st.integers(-3, 6)] * rank)

    def build(tile: Sequence[int], outer: Any, inner: Any) -> TiledLayout:
        outer_layout, outer_strides = ("strided", outer) if isinstance(outer, tuple) else (outer, None)
        if isinstance(inner, TiledLayout):
            return TiledLayout(tuple(tile), outer_layout, "tiled", outer_strides, None, inner)
        inner_layout, inner_strides = ("strided", inner) if isinstance(inner, tuple) else (inner, None)
        return TiledLayout(tuple(tile), outer_layout, inner_layout, outer_strides, inner_strides)

    plain_order = st.sampled_from(["row_major", "col_major"]) | strides
    inner = plain_order | tiled(rank, depth - 1) if depth > 1 else plain_order
    return st.builds(build, edges, plain_order, inner)


@st.composite
def dense_layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], Layout]:
    kind = draw(st.sampled_from(["row", "col", "strided", "tiled", "morton", "hilbert"]))
    if kind == "hilbert":
        rank = draw(st.integers(2, 4))
        order = draw(st.integers(1, 6 // rank))
        return (1 << order,) * rank, HilbertLayout(order, rank)
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=kind in ("tiled", "morton"), max_size=3)))
    if kind == "strided":
        return shape, StridedLayout(tuple(draw(st.integers(-9, 9)) for _ in shape))
    if kind == "tiled":
        return shape, draw(tiled(len(shape), 3))
    if kind == "morton":
        return shape, MortonLayout(tuple(draw(st.integers(max(1, (dim - 1).bit_length()), 4)) for dim in shape))
    return shape, RowMajorLayout() if kind == "row" else ColMajorLayout()


def position(at: Sequence[int], shape: Sequence[int], layout: Layout) -> int:
    """The place of one element, by the words of the specification; Morton and Hilbert are left to the plain decoder."""

    def linear(index: Sequence[int], edges: Sequence[int], order: str, strides: Sequence[int] | None) -> int:
        if strides is not None:
            return sum(i * stride for i, stride in zip(index, strides, strict=True))
        place = 0
        for k in range(len(edges)) if order == "row_major" else reversed(range(len(edges))):
            place = place * edges[k] + index[k]
        return place

    if not isinstance(layout, TiledLayout):
        return linear(at, shape, layout.name, getattr(layout, "strides", None))
    tile = layout.tile_shape
    grid = [-(-dim // edge) for dim, edge in zip(shape, tile, strict=True)]
    number = linear(
        [i // edge for i, edge in zip(at, tile, strict=True)], grid, layout.outer_layout, layout.outer_strides
    )
    rest = [i % edge for i, edge in zip(at, tile, strict=True)]
    if layout.inner_tiled is not None:
        within = position(rest, tile, layout.inner_tiled)
    else:
        within = linear(rest, tile, layout.inner_layout, layout.inner_strides)
    return number * volume(layout) + within


def volume(layout: TiledLayout) -> int:
    inner = layout.inner_tiled
    if inner is None:
        return int(np.prod(layout.tile_shape))
    tiles = [-(-edge // small) for edge, small in zip(layout.tile_shape, inner.tile_shape, strict=True)]
    return int(np.prod(tiles)) * volume(inner)


def every_position(shape: Sequence[int], layout: Layout) -> list[int]:
    """The places of all elements, in row-major order of their coordinates."""
    return [position(at, shape, layout) for at in itertools.product(*map(range, shape))]


def lowest(layout: Any, shape: tuple[int, ...]) -> int:
    found: int = layout.element_span(shape)[0]
    return found

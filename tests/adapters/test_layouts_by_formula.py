"""Every layout against its own index formula: where an element stands in the engine's arrays.

The formulas are written out here by hand and share nothing with the adapters. Arrays hold a different number in every
element, so a view that shows the right numbers can only be the right view.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from hurray_wire import adapters
from hurray_wire.adapters import LayerSpec, PoolSpec
from hurray_wire.errors import BufferSizeError, HurrayError

# No two sizes are equal, nor is one twice another: a mix-up of axes shows as a size.
PAGES, SLOTS, HEADS, DIM, LAYERS = 5, 4, 3, 10, 7
VALUE_DIM = 9
BOTH = ("key", "value")


@dataclass(frozen=True)
class Engine:
    """One layout in one form: the shape of each array, and where an element stands in it."""

    layout: str
    form: str
    shape: tuple[int, ...]
    place: Callable[
        [int, int, int, int, int, int], tuple[int, ...]
    ]  # layer, role (0 key, 1 value), page, slot, head, dim
    holds: str  # "role": an array for each layer and role; "layer": for each layer; "cache": one
    roles: tuple[str, ...] = BOTH
    heads: int = HEADS
    dims: tuple[int, int] = (DIM, DIM)

    def __str__(self) -> str:
        return f"{self.layout}/{self.form}"

    def arrays(self) -> dict[Any, np.ndarray]:
        """Arrays by (layer, role), layer or None, with a different number in every element of all of them."""
        keys: list[Any] = {
            "role": list(itertools.product(range(LAYERS), self.roles)),
            "layer": list(range(LAYERS)),
            "cache": [None],
        }[self.holds]
        size = int(np.prod(self.shape))
        return {
            key: np.arange(n * size, (n + 1) * size, dtype=np.uint32).reshape(self.shape) for n, key in enumerate(keys)
        }

    def layers(self, arrays: dict[Any, np.ndarray]) -> Any:
        if self.holds == "cache":
            return arrays[None]
        if self.holds == "layer":
            return [arrays[layer] for layer in range(LAYERS)]
        return [(arrays[layer, "key"], arrays[layer, "value"]) for layer in range(LAYERS)]

    def expected(self, arrays: dict[Any, np.ndarray], layer: int, role: str) -> np.ndarray:
        """[pages, slots, heads, dim] of one layer and role, element by element."""
        key = {"role": (layer, role), "layer": layer, "cache": None}[self.holds]
        number = int(role == "value")
        out = np.empty((PAGES, SLOTS, self.heads, self.dims[number]), dtype=arrays[key].dtype)
        for page, slot, head, dim in np.ndindex(*out.shape):
            out[page, slot, head, dim] = arrays[key][self.place(layer, number, page, slot, head, dim)]
        return out

    @property
    def declared(self) -> dict[str, int]:
        sizes = {"page_size": SLOTS, "num_pages": PAGES, "num_heads": self.heads, "head_dim": self.dims[0]}
        return sizes if self.dims[0] == self.dims[1] else {**sizes, "value_head_dim": self.dims[1]}

    @property
    def specs(self) -> list[LayerSpec]:
        pools = {
            role: PoolSpec(self.heads, self.dims[int(role == "value")], np.dtype(np.uint32)) for role in self.roles
        }
        return [LayerSpec(layer, pools) for layer in range(LAYERS)]


ENGINES = [
    Engine("split-nhd", "nhd", (PAGES, SLOTS, HEADS, DIM), lambda n, r, p, s, h, d: (p, s, h, d), "role"),
    Engine("split-hnd", "hnd", (PAGES, HEADS, SLOTS, DIM), lambda n, r, p, s, h, d: (p, h, s, d), "role"),
    Engine("vllm-kv-first", "nhd", (2, PAGES, SLOTS, HEADS, DIM), lambda n, r, p, s, h, d: (r, p, s, h, d), "layer"),
    Engine("vllm-kv-first", "hnd", (2, PAGES, SLOTS, HEADS, DIM), lambda n, r, p, s, h, d: (r, p, s, h, d), "layer"),
    Engine(
        "vllm-blocks-first", "nhd", (PAGES, 2, SLOTS, HEADS, DIM), lambda n, r, p, s, h, d: (p, r, s, h, d), "layer"
    ),
    Engine(
        "vllm-blocks-first", "hnd", (PAGES, 2, HEADS, SLOTS, DIM), lambda n, r, p, s, h, d: (p, r, h, s, d), "layer"
    ),
    Engine(
        "vllm-packed", "nhd", (PAGES, HEADS, SLOTS, 2 * DIM), lambda n, r, p, s, h, d: (p, h, s, DIM * r + d), "layer"
    ),
    Engine(
        "vllm-packed",
        "hnd",
        (PAGES, HEADS, SLOTS, DIM + VALUE_DIM),
        lambda n, r, p, s, h, d: (p, h, s, DIM * r + d),
        "layer",
        dims=(DIM, VALUE_DIM),
    ),
    Engine(
        "vllm-cross-layer",
        "pair",
        (PAGES, LAYERS, 2, SLOTS, HEADS, DIM),
        lambda n, r, p, s, h, d: (p, n, r, s, h, d),
        "cache",
    ),
    Engine(
        "vllm-cross-layer",
        "packed",
        (PAGES, LAYERS, HEADS, SLOTS, DIM + VALUE_DIM),
        lambda n, r, p, s, h, d: (p, n, h, s, DIM * r + d),
        "cache",
        dims=(DIM, VALUE_DIM),
    ),
    Engine(
        "trtllm-pool",
        "hnd",
        (PAGES, LAYERS, 2, HEADS, SLOTS, DIM),
        lambda n, r, p, s, h, d: (p, n, r, h, s, d),
        "cache",
    ),
    Engine(
        "sglang-slots", "slots", (PAGES * SLOTS, HEADS, DIM), lambda n, r, p, s, h, d: (p * SLOTS + s, h, d), "role"
    ),
    Engine("mla", "blocks", (PAGES, SLOTS, DIM), lambda n, r, p, s, h, d: (p, s, d), "layer", ("fused",), 1),
    Engine("mla", "hnd", (PAGES, 1, SLOTS, DIM), lambda n, r, p, s, h, d: (p, 0, s, d), "layer", ("fused",), 1),
    Engine(
        "mla", "slots", (PAGES * SLOTS, 1, DIM), lambda n, r, p, s, h, d: (p * SLOTS + s, 0, d), "layer", ("fused",), 1
    ),
    Engine("jax-paged", "heads-first", (HEADS, PAGES, SLOTS, DIM), lambda n, r, p, s, h, d: (h, p, s, d), "role"),
    Engine(
        "jax-rpa", "interleaved", (PAGES, SLOTS, 2 * HEADS, DIM), lambda n, r, p, s, h, d: (p, s, 2 * h + r, d), "layer"
    ),
]


def contiguous(array: np.ndarray) -> np.ndarray:
    return array


def fortran(array: np.ndarray) -> np.ndarray:
    return np.asfortranarray(array)


def axes_turned(array: np.ndarray) -> np.ndarray:
    """Same values, the first axis fastest but one: as vLLM keeps its HND form under NHD axes."""
    order = [*range(1, array.ndim - 1), 0, array.ndim - 1]
    return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))


def sliced(array: np.ndarray) -> np.ndarray:
    """Every second element of a larger array, from the second on."""
    larger = np.full([2 * size + 3 for size in array.shape], 0xDEAD, dtype=array.dtype)
    window = larger[tuple(slice(1, 1 + 2 * size, 2) for size in array.shape)]
    window[...] = array
    return window


def backwards(array: np.ndarray) -> np.ndarray:
    """Negative strides on every axis."""
    turned = tuple(slice(None, None, -1) for _ in array.shape)
    return np.ascontiguousarray(array[turned])[turned]


def other_endian(array: np.ndarray) -> np.ndarray:
    return array.astype(array.dtype.newbyteorder(">"))


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


WRITABLE = [contiguous, fortran, axes_turned, sliced, backwards, other_endian]
VARIANTS = [*WRITABLE, read_only]

each_engine = pytest.mark.parametrize("engine", ENGINES, ids=str)


def pools_of(engine: Engine, layers: Any, **options: Any) -> Iterator[tuple[int, str, np.ndarray]]:
    found = adapters.get(engine.layout).views(layers, **engine.declared, form=engine.form, **options)
    assert [layer.index for layer in found] == list(range(LAYERS))
    for layer in found:
        assert tuple(layer.pools) == engine.roles
        for role, pool in layer.pools.items():
            yield layer.index, role, pool


@each_engine
@pytest.mark.parametrize("variant", VARIANTS)
def test_views_show_the_element_that_the_formula_names(engine: Engine, variant: Callable[..., np.ndarray]) -> None:
    arrays = {key: variant(array) for key, array in engine.arrays().items()}
    for layer, role, pool in pools_of(engine, engine.layers(arrays)):
        np.testing.assert_array_equal(pool, engine.expected(arrays, layer, role), strict=True)


@each_engine
@pytest.mark.parametrize("variant", VARIANTS)
def test_views_are_the_callers_memory(engine: Engine, variant: Callable[..., np.ndarray]) -> None:
    arrays = {key: variant(array) for key, array in engine.arrays().items()}
    for layer, role, pool in pools_of(engine, engine.layers(arrays)):
        owner = arrays[{"role": (layer, role), "layer": layer, "cache": None}[engine.holds]]
        assert np.shares_memory(pool, owner)
        assert pool.flags.writeable == owner.flags.writeable


@each_engine
@pytest.mark.parametrize("variant", WRITABLE)
def test_assignment_through_views_restores_the_arrays_bit_for_bit(
    engine: Engine, variant: Callable[..., np.ndarray]
) -> None:
    arrays = engine.arrays()
    targets = {key: variant(np.zeros_like(array)) for key, array in arrays.items()}
    for layer, role, pool in pools_of(engine, engine.layers(targets), writable=True):
        pool[...] = engine.expected(arrays, layer, role)
    for key, array in arrays.items():
        np.testing.assert_array_equal(targets[key], array)


@each_engine
def test_allocated_arrays_take_an_export(engine: Engine) -> None:
    arrays = engine.arrays()
    adapter = adapters.get(engine.layout)
    fresh = adapter.allocate(engine.specs, num_pages=PAGES, page_size=SLOTS, form=engine.form)
    for layer, role, pool in pools_of(engine, fresh, writable=True):
        assert not pool.any()
        pool[...] = engine.expected(arrays, layer, role)
    if engine.holds == "cache":
        np.testing.assert_array_equal(fresh, arrays[None], strict=True)
    else:
        for made, original in zip(fresh, engine.layers(arrays), strict=True):
            np.testing.assert_array_equal(made, original, strict=True)


@pytest.mark.parametrize(
    ("engine", "neighbour"),
    [(a, b) for a, b in itertools.permutations(ENGINES, 2) if a.layout != b.layout],
    ids=lambda engine: str(engine),
)
def test_the_arrays_of_a_neighbour_are_refused(engine: Engine, neighbour: Engine) -> None:
    layers = neighbour.layers(neighbour.arrays())
    with pytest.raises(HurrayError) as refusal:
        adapters.get(engine.layout).views(layers, **engine.declared)
    assert isinstance(refusal.value, BufferSizeError)


@each_engine
@pytest.mark.parametrize("wrong", ["page_size", "num_pages", "num_heads", "head_dim"])
def test_a_size_unlike_the_declared_one_is_refused(engine: Engine, wrong: str) -> None:
    declared = {**engine.declared, wrong: engine.declared[wrong] + 4}
    with pytest.raises(BufferSizeError) as refusal:
        adapters.get(engine.layout).views(engine.layers(engine.arrays()), **declared, form=engine.form)
    assert refusal.value.rule == "adapter.axis-size"


@each_engine
def test_with_every_size_declared_only_the_right_layout_is_a_candidate(engine: Engine) -> None:
    layers = engine.layers(engine.arrays())
    assert adapters.detect_layout(layers, **engine.declared) == (engine.layout,)
    assert adapters.resolve("auto", layers, **engine.declared) is adapters.get(engine.layout)


@each_engine
def test_a_mapping_names_its_layers(engine: Engine) -> None:
    arrays = engine.arrays()
    layers = engine.layers(arrays)
    if engine.holds == "cache":
        found = adapters.get(engine.layout).views(
            layers, **engine.declared, form=engine.form, layer_indices=range(40, 40 + LAYERS)
        )
        assert [layer.index for layer in found] == [40, 41, 42, 43, 44, 45, 46]
        return
    found = adapters.get(engine.layout).views({31: layers[5], None: layers[2]}, **engine.declared, form=engine.form)
    assert [layer.index for layer in found] == [31, None]
    for layer, number in zip(found, (5, 2), strict=True):
        for role, pool in layer.pools.items():
            np.testing.assert_array_equal(pool, engine.expected(arrays, number, role))


@each_engine
def test_a_layout_takes_an_empty_pool(engine: Engine) -> None:
    adapter = adapters.get(engine.layout)
    fresh = adapter.allocate(engine.specs, num_pages=0, page_size=SLOTS, form=engine.form)
    for layer in adapter.views(fresh, **{**engine.declared, "num_pages": 0}, form=engine.form, writable=True):
        for role, pool in layer.pools.items():
            assert pool.shape == (0, SLOTS, engine.heads, engine.dims[int(role == "value")])

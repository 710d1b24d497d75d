"""What an adapter refuses before it hands out a view, and what it says about it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hurray_wire import adapters
from hurray_wire.adapters import LayerSpec, PoolSpec
from hurray_wire.errors import BufferSizeError, HurrayError, IncompatibleError, LimitError, UnsupportedError

FLOAT16 = np.dtype(np.float16)


def zeros(*shape: int, dtype: Any = np.float16) -> np.ndarray:
    return np.zeros(shape, dtype=dtype)


def views(name: str, layers: Any, **options: Any) -> list[adapters.LayerPools]:
    return adapters.get(name).views(layers, **options)


def test_an_error_names_layer_role_axis_and_both_sizes() -> None:
    layers = {3: (zeros(17, 16, 3, 64), zeros(17, 16, 3, 64)), 9: (zeros(17, 16, 3, 64), zeros(17, 3, 16, 64))}
    with pytest.raises(BufferSizeError) as refusal:
        views("split-nhd", layers, page_size=16, num_heads=3)
    assert refusal.value.message == (
        "split-nhd: layer 9 value of shape [17, 3, 16, 64] has 3 on axis 1, page_size, where the caller declared 16"
    )
    assert (refusal.value.rule, refusal.value.declared, refusal.value.found) == ("adapter.axis-size", 16, 3)


def test_an_unknown_layout_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(IncompatibleError, match="there is no layout 'nhd'; there are split-nhd, split-hnd") as refusal:
        adapters.get("nhd")
    assert refusal.value.rule == "adapter.name"


def test_a_wrong_number_of_axes_says_which_axes_there_are() -> None:
    with pytest.raises(BufferSizeError, match=r"\[num_pages, page_size, num_heads, head_dim\]") as refusal:
        views("split-nhd", [(zeros(4, 4, 4), zeros(4, 4, 4))])
    assert (refusal.value.rule, refusal.value.declared, refusal.value.found) == ("adapter.rank", 4, 3)


# Where shape cannot tell


def test_declared_sizes_choose_between_forms() -> None:
    array = zeros(5, 2, 16, 8, 64)
    (nhd,) = views("vllm-blocks-first", [array], page_size=16)
    (hnd,) = views("vllm-blocks-first", [array], page_size=8)
    (by_heads,) = views("vllm-blocks-first", [array], num_heads=16)
    assert nhd.pools["key"].shape == (5, 16, 8, 64)
    assert hnd.pools["key"].shape == by_heads.pools["key"].shape == (5, 8, 16, 64)


def test_layers_of_one_page_size_choose_between_forms() -> None:
    layers = [zeros(5, 2, 16, 8, 64), zeros(5, 2, 16, 4, 64)]  # 8 heads, then 4: the other reading has two page sizes
    assert [layer.pools["key"].shape[1:3] for layer in views("vllm-blocks-first", layers)] == [(16, 8), (16, 4)]


@pytest.mark.parametrize(
    ("shape", "declared"), [((5, 2, 16, 8, 64), {}), ((5, 2, 8, 8, 64), {"page_size": 8, "num_heads": 8})]
)
def test_a_shape_that_fits_two_forms_is_refused(shape: tuple[int, ...], declared: dict[str, int]) -> None:
    with pytest.raises(IncompatibleError, match="nhd and hnd of vllm-blocks-first; say which with form=") as refusal:
        views("vllm-blocks-first", [zeros(*shape)], **declared)
    assert (refusal.value.rule, refusal.value.found) == ("adapter.ambiguous", ("nhd", "hnd"))
    for form in ("nhd", "hnd"):
        assert len(views("vllm-blocks-first", [zeros(*shape)], **declared, form=form)) == 1


def test_forms_that_give_the_same_views_are_not_ambiguous() -> None:
    assert len(views("vllm-kv-first", [zeros(2, 5, 16, 8, 64)])) == 1


def test_a_shape_that_fits_no_form_says_why_for_each() -> None:
    with pytest.raises(BufferSizeError, match=r"as nhd, .* has 8 on axis 2, page_size.*as hnd, .* has 16 on axis 3"):
        views("vllm-blocks-first", [zeros(5, 2, 8, 16, 64)], page_size=32)


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(IncompatibleError, match="no form 'hdn'; it has nhd, hnd") as refusal:
        views("vllm-blocks-first", [zeros(5, 2, 8, 16, 64)], form="hdn")
    assert refusal.value.rule == "adapter.form"


def test_every_candidate_is_listed() -> None:
    pair = [(zeros(8, 8, 8, 64), zeros(8, 8, 8, 64))]
    candidates = adapters.detect_layout(pair, page_size=8, num_heads=8, head_dim=64)
    assert {"split-nhd", "split-hnd"} <= set(candidates)
    with pytest.raises(IncompatibleError) as refusal:
        adapters.resolve("auto", pair, page_size=8, num_heads=8, head_dim=64)
    assert (refusal.value.rule, refusal.value.found) == ("adapter.ambiguous", candidates)
    for name in candidates:
        assert name in refusal.value.message
    assert adapters.resolve("split-hnd", pair) is adapters.get("split-hnd")


def test_a_layout_that_needs_more_to_be_said_is_a_candidate() -> None:
    assert "vllm-blocks-first" in adapters.detect_layout([zeros(5, 2, 8, 16, 64)])


def test_arrays_of_no_layout_are_refused() -> None:
    with pytest.raises(IncompatibleError, match="fit none of the layouts split-nhd") as refusal:
        adapters.resolve("auto", [zeros(7)])
    assert refusal.value.rule == "adapter.no-layout"


def test_two_blocks_and_two_roles_look_alike() -> None:
    candidates = adapters.detect_layout([zeros(2, 2, 16, 8, 64)], page_size=16, num_heads=8)
    assert candidates == ("vllm-kv-first", "vllm-blocks-first")


def test_a_record_of_no_layout_is_refused_with_its_reason() -> None:
    with pytest.raises(UnsupportedError, match="656 bytes, which are fp8_ds_mla records"):
        adapters.resolve("auto", [zeros(4, 64, 656, dtype=np.uint8)], page_size=64)


# Layouts with something of their own


def test_token_slots_need_their_page_size() -> None:
    pair = [(zeros(64, 2, 8), zeros(64, 2, 8))]
    with pytest.raises(IncompatibleError, match="does not tell its page size") as refusal:
        views("sglang-slots", pair)
    assert refusal.value.rule == "adapter.undeclared"
    assert "sglang-slots" in adapters.detect_layout(pair)
    with pytest.raises(BufferSizeError, match="64 token slots, not a multiple of the declared page_size 12"):
        views("sglang-slots", pair, page_size=12)


def test_bytes_become_float8_only_when_told() -> None:
    pair = [(zeros(64, 2, 8, dtype=np.uint8), zeros(64, 2, 8, dtype=np.uint8))]
    (plain,) = views("sglang-slots", pair, page_size=16)
    (told,) = views("sglang-slots", pair, page_size=16, dtype=ml_dtypes.float8_e4m3fn)
    assert plain.pools["key"].dtype == np.uint8
    assert told.pools["key"].dtype == ml_dtypes.float8_e4m3fn


def test_a_packed_row_is_halved_unless_its_widths_are_declared() -> None:
    (halved,) = views("vllm-packed", [zeros(4, 2, 16, 320)])
    (told,) = views("vllm-packed", [zeros(4, 2, 16, 320)], head_dim=192, value_head_dim=128)
    (by_value,) = views("vllm-packed", [zeros(4, 2, 16, 320)], value_head_dim=128)
    assert [pool.shape[3] for pool in halved.pools.values()] == [160, 160]
    assert [pool.shape[3] for pool in told.pools.values()] == [192, 128]
    assert [pool.shape[3] for pool in by_value.pools.values()] == [192, 128]


@pytest.mark.parametrize(
    ("row", "declared", "words"),
    [
        (321, {}, "which is odd"),
        (320, {"head_dim": 192}, "has 320 on axis 3, key dim . value dim, where the caller declared 384"),
        (320, {"value_head_dim": 321}, "too few for a value_head_dim of 321"),
    ],
)
def test_a_packed_row_of_another_width_is_refused(row: int, declared: dict[str, int], words: str) -> None:
    with pytest.raises(BufferSizeError, match=words):
        views("vllm-packed", [zeros(4, 2, 16, row)], **declared)


def test_interleaved_heads_come_in_pairs() -> None:
    with pytest.raises(BufferSizeError, match=r"has 7 on axis 2, 2 \* num_heads, which is odd"):
        views("jax-rpa", [zeros(4, 16, 7, 8)])


def test_latent_rows_of_one_token_a_page_read_the_same_in_both_forms() -> None:
    array = zeros(12, 1, 576)
    (single,) = views("mla", [array], page_size=1)
    (paged,) = views("mla", [array], page_size=4)
    assert single.pools["fused"].shape == (12, 1, 1, 576)
    assert paged.pools["fused"].shape == (3, 4, 1, 576)
    with pytest.raises(IncompatibleError, match="pass page_size="):
        views("mla", [array])


def test_latent_attention_has_one_head() -> None:
    with pytest.raises(BufferSizeError, match="has 1 head, where the caller declared 8"):
        views("mla", [zeros(4, 16, 576)], num_heads=8)
    with pytest.raises(IncompatibleError, match="mla holds 1 head, but layer 0 has 8"):
        adapters.get("mla").allocate([spec(fused=(8, 576, "f2"))], num_pages=2, page_size=4)


@pytest.mark.parametrize("row", [656, 132])
def test_latent_rows_of_mixed_types_are_an_opaque_record(row: int) -> None:
    for dtype in (np.uint8, np.int8):
        with pytest.raises(UnsupportedError, match=f"layer 0 fused has rows of {row} bytes") as refusal:
            views("mla", [zeros(4, 64, row, dtype=dtype)])
        assert refusal.value.rule == "adapter.opaque-record"
    assert views("mla", [zeros(4, 64, row)])  # as many float16 are just wide rows


@pytest.mark.parametrize("name", ["trtllm-pool", "vllm-cross-layer"])
def test_layers_in_one_array_are_alike(name: str) -> None:
    adapter = adapters.get(name)
    with pytest.raises(IncompatibleError, match="these differ in heads, head_dim or type"):
        adapter.allocate(
            [spec(0, key=(2, 8, "f2"), value=(2, 8, "f2")), spec(1, key=(2, 4, "f2"), value=(2, 4, "f2"))],
            num_pages=2,
            page_size=4,
        )
    with pytest.raises(BufferSizeError, match="the cache is a list, not an array"):
        adapter.views([zeros(2, 3, 2, 4, 5, 6)])
    with pytest.raises(IncompatibleError, match="2 layer indices were given for 3 layers"):
        adapter.views(zeros(2, 3, 2, 4, 5, 6), layer_indices=[0, 1])


# What must agree


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ((4, 16, 2, 8), (5, 16, 2, 8), "layer 0 value has 5 pages of 16 tokens, but layer 0 key has 4 of 16"),
        ((4, 16, 2, 8), (4, 8, 2, 8), "layer 0 value has 4 pages of 8 tokens, but layer 0 key has 4 of 16"),
        ((4, 16, 2, 8), (4, 16, 4, 8), "layer 0 has 2 heads of keys and 4 of values"),
    ],
)
def test_keys_and_values_agree(key: tuple[int, ...], value: tuple[int, ...], words: str) -> None:
    with pytest.raises(BufferSizeError, match=words) as refusal:
        views("split-nhd", [(zeros(*key), zeros(*value))])
    assert refusal.value.rule == "adapter.agreement"


def test_layers_agree_on_their_pages() -> None:
    layers = {2: (zeros(4, 16, 2, 8), None), 7: (None, zeros(3, 16, 2, 8))}
    with pytest.raises(BufferSizeError, match="layer 7 value has 3 pages of 16 tokens, but layer 2 key has 4 of 16"):
        views("split-nhd", layers)


def test_values_may_be_narrower_and_of_another_type() -> None:
    layers = [(zeros(4, 16, 2, 192), zeros(4, 16, 2, 128, dtype=np.int8))]
    (layer,) = views("split-nhd", layers, head_dim=192, value_head_dim=128)
    assert layer.pools["value"].shape == (4, 16, 2, 128)
    with pytest.raises(BufferSizeError, match=r"layer 0 value .* has 128 on axis 3, head_dim, where .* declared 192"):
        views("split-nhd", layers, head_dim=192)


def test_one_head_dim_cannot_be_two() -> None:
    with pytest.raises(BufferSizeError, match="192 for keys and 128 for values"):
        views("vllm-kv-first", [zeros(2, 4, 16, 2, 192)], head_dim=192, value_head_dim=128)


# Roles and layers


@pytest.mark.parametrize(
    ("entry", "roles"),
    [
        ((zeros(4, 16, 2, 8), zeros(4, 16, 2, 8)), ["key", "value"]),
        ([zeros(4, 16, 2, 8), None], ["key"]),
        ((None, zeros(4, 16, 2, 8)), ["value"]),
        ({"value": zeros(4, 16, 2, 8), "key": None}, ["value"]),
        ({"fused": zeros(4, 16, 1, 576)}, ["fused"]),
    ],
)
def test_a_layer_has_the_roles_it_was_given(entry: Any, roles: list[str]) -> None:
    (layer,) = views("split-nhd", [entry])
    assert list(layer.pools) == roles


@pytest.mark.parametrize(
    "entry",
    [{}, (None, None), {"k": zeros(4, 16, 2, 8)}, {"key": None}, zeros(2, 4, 16, 2, 8), [zeros(4, 16, 2, 8)] * 3],
)
def test_a_layer_without_roles_is_refused(entry: Any) -> None:
    with pytest.raises(BufferSizeError, match="split-nhd: layer 0 ") as refusal:
        views("split-nhd", [entry])
    assert refusal.value.rule == "adapter.roles"


@pytest.mark.parametrize(
    ("layers", "indices", "words"),
    [
        ([zeros(2, 1, 1, 1, 1)] * 2, [5, 5], "layer 5 is given twice"),
        ([zeros(2, 1, 1, 1, 1)] * 2, [None, None], "the layer without index is given twice"),
        ([zeros(2, 1, 1, 1, 1)], [2**32 - 1], "layer index 4294967295 is not in 0..4294967294"),
        ([zeros(2, 1, 1, 1, 1)], [-1], "layer index -1 is not in"),
        ([zeros(2, 1, 1, 1, 1)] * 3, [0, 1], "2 layer indices were given for 3 layers"),
        ({"model.layers.0": zeros(2, 1, 1, 1, 1)}, None, "'model.layers.0' is not a layer index"),
        ({0: zeros(2, 1, 1, 1, 1)}, [0], "says again"),
    ],
)
def test_layer_indices_are_distinct_and_fit_the_descriptor(layers: Any, indices: Any, words: str) -> None:
    with pytest.raises(IncompatibleError, match=words) as refusal:
        views("vllm-kv-first", layers, layer_indices=indices)
    assert refusal.value.rule == "adapter.layer-index"


def test_layer_indices_may_be_numpy_integers() -> None:
    found = views("vllm-kv-first", [zeros(2, 1, 1, 1, 1)] * 2, layer_indices=np.array([7, 2**32 - 2], np.uint32))
    assert [(layer.index, type(layer.index)) for layer in found] == [(7, int), (2**32 - 2, int)]


@pytest.mark.parametrize("layers", [zeros(3, 2, 4, 16, 2, 8), "layers", None, 7])
def test_a_cache_is_a_sequence_or_a_mapping(layers: Any) -> None:
    with pytest.raises(BufferSizeError) as refusal:
        views("vllm-kv-first", layers)
    assert refusal.value.rule == "adapter.layers"


@pytest.mark.parametrize("layers", [[], {}])
def test_a_cache_without_layers_is_refused(layers: Any) -> None:
    with pytest.raises(IncompatibleError, match="there is no layer"):
        views("vllm-kv-first", layers)


# Sizes


@pytest.mark.parametrize(
    "declared", [{"page_size": 0}, {"num_heads": -1}, {"head_dim": 0}, {"value_head_dim": 0}, {"num_pages": -1}]
)
def test_a_declared_size_below_its_least_is_refused(declared: dict[str, int]) -> None:
    with pytest.raises(IncompatibleError) as refusal:
        views("split-nhd", [(zeros(4, 16, 2, 8), None)], **declared)
    assert refusal.value.rule == "adapter.declared"


def test_declared_sizes_may_be_numpy_integers() -> None:
    assert views("split-nhd", [(zeros(4, 16, 2, 8), None)], page_size=np.int8(16), num_heads=np.uint8(2))
    assert views("jax-rpa", [zeros(1, 2, 400, 1)], num_heads=np.uint8(200))  # twice that is no uint8


def test_pages_of_no_token_are_refused() -> None:
    with pytest.raises(BufferSizeError, match="pages of no token"):
        views("split-nhd", [(zeros(4, 0, 2, 8), None)])


@pytest.mark.parametrize("row", [130, 132, 72])  # a float16 scale, a float32 scale; 4 bits an element with e4m3 per 16
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_scales_inside_a_page_are_an_opaque_record(row: int, dtype: Any) -> None:
    with pytest.raises(UnsupportedError, match=f"rows of {row} bytes for 128 declared elements") as refusal:
        views("split-nhd", [(zeros(4, 16, 2, row, dtype=dtype), None)], head_dim=128)
    assert refusal.value.rule == "adapter.opaque-record"


def test_a_wider_row_of_wider_elements_is_just_a_wrong_size() -> None:
    with pytest.raises(BufferSizeError):
        views("split-nhd", [(zeros(4, 16, 2, 132), None)], head_dim=128)


# Fresh arrays


def spec(index: int | None = 0, **pools: tuple[int, int, Any]) -> LayerSpec:
    return LayerSpec(
        index, {role: PoolSpec(heads, dim, np.dtype(dtype)) for role, (heads, dim, dtype) in pools.items()}
    )


@pytest.mark.parametrize(
    ("name", "specs"),
    [
        ("vllm-kv-first", [spec(key=(2, 8, "f2"))]),
        ("vllm-kv-first", [spec(fused=(1, 8, "f2"))]),
        ("vllm-kv-first", [spec(key=(2, 8, "f2"), value=(2, 4, "f2"))]),
        ("vllm-kv-first", [spec(key=(2, 8, "f2"), value=(2, 8, "i1"))]),
        ("vllm-blocks-first", [spec(key=(2, 8, "f2"), value=(4, 8, "f2"))]),
        ("split-nhd", [spec()]),
        ("split-nhd", [spec(keys=(2, 8, "f2"))]),
    ],
)
def test_what_a_layout_cannot_hold_is_not_allocated(name: str, specs: list[LayerSpec]) -> None:
    with pytest.raises(IncompatibleError) as refusal:
        adapters.get(name).allocate(specs, num_pages=3, page_size=4)
    assert refusal.value.rule == "adapter.roles"


def test_layers_that_repeat_are_not_allocated() -> None:
    with pytest.raises(IncompatibleError, match="layer 4 is given twice"):
        adapters.get("split-nhd").allocate([spec(4, key=(2, 8, "f2"))] * 2, num_pages=3, page_size=4)


def test_a_fresh_hnd_array_has_its_tokens_together_in_memory() -> None:
    (array,) = adapters.get("vllm-kv-first").allocate(
        [spec(key=(2, 8, "f2"), value=(2, 8, "f2"))], num_pages=3, page_size=4, form="hnd"
    )
    assert array.shape == (2, 3, 4, 2, 8)
    assert array.strides == (384, 128, 16, 64, 2)  # bytes: 2 heads of 4 tokens of 8 float16


def test_fresh_layers_have_the_roles_asked_for() -> None:
    made = adapters.get("split-hnd").allocate(
        [spec(0, key=(2, 8, "f2"), value=(2, 4, "f2")), spec(1, value=(2, 8, "f4")), spec(2, fused=(1, 6, "i1"))],
        num_pages=3,
        page_size=5,
    )
    assert [array.shape for array in made[0]] == [(3, 2, 5, 8), (3, 2, 5, 4)]
    assert (made[1]["value"].shape, made[1]["value"].dtype) == ((3, 2, 5, 8), np.float32)
    assert (made[2]["fused"].shape, made[2]["fused"].dtype) == ((3, 1, 5, 6), np.int8)


def test_the_gate_raises_only_our_errors_on_ragged_caches() -> None:
    for layers in ([(zeros(4, 16, 2, 8),)], [[]], [{}], [None], {0: object()}, [(1, 2)], [["a", "b"]]):
        for name in adapters.names():
            with pytest.raises(HurrayError):
                views(name, layers, page_size=4)


@pytest.mark.parametrize("name", [name for name in adapters.names() if name != "mla"])
def test_an_array_that_numpy_cannot_address_is_not_allocated(name: str) -> None:
    """No head, and so not a byte; NumPy multiplies the other sizes all the same."""
    spec = LayerSpec(0, dict.fromkeys(("key", "value"), PoolSpec(0, 128, FLOAT16)))
    with pytest.raises(LimitError, match="more than NumPy can address") as refusal:
        adapters.get(name).allocate([spec], num_pages=1 << 40, page_size=1 << 30)
    assert refusal.value.rule == "limit.addressable"
    assert isinstance(refusal.value.__cause__, ValueError)


def test_pages_of_no_slot_that_numpy_cannot_address_are_refused() -> None:
    empty = np.zeros((0, 1 << 40, 128), np.uint8)
    with pytest.raises(LimitError, match="more than NumPy can address") as refusal:
        views("sglang-slots", [(empty, empty)], page_size=(1 << 32) - 1)
    assert refusal.value.rule == "limit.addressable"
    assert views("sglang-slots", [(empty, empty)], page_size=16)[0].pools["key"].shape == (0, 16, 1 << 40, 128)


@pytest.mark.parametrize("form", ["batch", "ragged", "sequences"])
def test_a_dense_cache_that_numpy_cannot_address_is_not_allocated(form: str) -> None:
    spec = LayerSpec(0, {"key": PoolSpec(0, 1 << 40, FLOAT16)})
    with pytest.raises(LimitError) as refusal:
        adapters.dense.allocate([spec], seq_lens=[1 << 40], form=form)
    assert refusal.value.rule == "limit.addressable"


def test_an_array_that_no_memory_holds_is_not_allocated() -> None:
    spec = LayerSpec(0, {"key": PoolSpec(1, 1, FLOAT16)})
    with pytest.raises(LimitError, match="no memory") as refusal:
        adapters.get("split-nhd").allocate([spec], num_pages=1 << 40, page_size=1 << 20)
    assert refusal.value.rule == "limit.memory"
    assert isinstance(refusal.value.__cause__, MemoryError)

"""``quantize="int8"``: within the stated bound of the exact values, a scale a slot, and only of the chosen slots."""

from __future__ import annotations

import io
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from export_cases import LENS, PAGE, TABLES, saved

import hurray_wire as hw

HEADS, DIM = 2, 8
TYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


def random_pool(dtype, *, power: float = 0, seed: int = 0) -> np.ndarray:
    """Slots of very different magnitudes, some all zero."""
    random = np.random.default_rng(seed)
    values = random.standard_normal((7, PAGE, HEADS, DIM)) * 10.0**power
    values *= 2.0 ** random.integers(-8, 8, (7, PAGE, 1, 1))
    values[5, 1] = 0
    return values.astype(dtype)


def bound(slot: np.ndarray) -> float:
    """The bound that save_snapshot states, from the exact values of a slot."""
    return max(np.abs(slot).max() / 254 * (1 + 2**-15), 2.0**-127)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("power", [-40, -30, 0, 2])
@pytest.mark.parametrize("options", [{}, {"compact": False, "scrub": False}, {"deduplicate": True}, {"zstd": 1}])
def test_values_come_back_within_the_bound(dtype, power, options) -> None:
    keys = random_pool(dtype, power=power)
    exact = keys.astype(np.float64)
    gathered = hw.load_snapshot(saved([(keys, None)], quantize="int8", **options)).gather(0, dequantize=True)
    assert gathered["keys"].dtype == np.float32
    for seq, length in enumerate(LENS):
        for token in range(length):
            slot = exact[TABLES[seq][token // PAGE], token % PAGE]
            assert np.abs(gathered["keys"][seq, token].astype(np.float64) - slot).max() <= bound(slot)
        assert not gathered["keys"][seq, length:].any()


def test_the_tensor_says_how_it_is_quantized() -> None:
    keys = random_pool(np.float32)
    with hw.load_snapshot(saved([(keys, None)], quantize="int8")) as snapshot:
        tensor = snapshot[0].key
        assert tensor.descriptor.element_type == hw.int8
        assert tensor.descriptor.quantization == hw.PerBlockAffine.symmetric(0, PAGE, 3, hw.float32)
        scales = tensor.buffers[3].view("<f4").reshape(5, PAGE)
        # a slot's scale is its greatest magnitude over 127; 1 where nothing is: past a length, and in a slot of zeros
        greatest = np.abs(keys[[5, 2, 6, 1, 3]].astype(np.float64)).max(axis=(2, 3))
        used = np.arange(PAGE) < np.array([[4], [2], [4], [4], [3]])
        expected = np.where(used & (greatest > 0), greatest / 127, 1)
        np.testing.assert_allclose(scales, expected, rtol=2.0**-23)
        assert not tensor.page_pool[~used].any()
        assert tensor.page_pool.min() >= -127
        report = snapshot.verify()
        assert (report.tensors, report.checksums) == (2, 2 + 5)


def test_the_whole_pool_is_written_where_that_is_asked_for() -> None:
    keys = random_pool(np.float16)
    tensor = hw.load_snapshot(saved([(keys, None)], quantize="int8", compact=False, scrub=False))[0].key
    read = tensor.read_pages(range(7), dequantize=True)
    for page, slot in np.ndindex(7, PAGE):
        exact = keys[page, slot].astype(np.float64)
        assert np.abs(read[page, slot] - exact).max() <= bound(exact)


@pytest.mark.parametrize("layout", ["strided", "big-endian", "fortran"])
def test_arrays_of_any_strides_and_byte_order_are_quantized_by_value(layout) -> None:
    keys = random_pool(np.float32)
    turned = {
        "strided": np.repeat(keys, 2, axis=3)[..., ::2],
        "big-endian": keys.astype(">f4"),
        "fortran": np.asfortranarray(keys),
    }[layout]
    assert saved([(turned, None)], quantize="int8") == saved([(keys, None)], quantize="int8")


@pytest.mark.parametrize("pieces", [1, 64, 1 << 20])
def test_pieces_change_nothing(pieces, monkeypatch) -> None:
    keys = random_pool(np.float32)
    expected = saved([(keys, None)], quantize="int8", compact=False, scrub=False)
    monkeypatch.setattr("hurray_wire.quantizing._PIECE_ELEMENTS", pieces)
    assert saved([(keys, None)], quantize="int8", compact=False, scrub=False) == expected


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_no_scale_reaches_is_refused_by_the_callers_page_before_anything_is_written(value) -> None:
    keys, values = random_pool(np.float32), random_pool(np.float32)
    values[6, 2, 1, 3] = value
    out = io.BytesIO()
    with pytest.raises(hw.IncompatibleError, match=r"slot 2 of page 6 of 'layers\.0\.value' holds") as refusal:
        hw.save_snapshot(out, [(keys, values)], block_tables=TABLES, seq_lens=LENS, quantize="int8")
    assert refusal.value.rule == "quantization.not-finite"
    assert out.getvalue() == b""


def test_what_stale_slots_hold_does_not_matter_once_they_are_scrubbed() -> None:
    keys = random_pool(np.float32)
    dirty = keys.copy()
    dirty[[0, 4]], dirty[2, 2:], dirty[3, 3] = np.nan, np.inf, np.nan
    assert saved([(dirty, None)], quantize="int8") == saved([(keys, None)], quantize="int8")
    with pytest.raises(hw.IncompatibleError, match="slot 2 of page 2"):
        saved([(dirty, None)], quantize="int8", scrub=False)


@pytest.mark.parametrize(
    ("keys", "options", "match"),
    [
        (random_pool(np.float32), {"quantize": "int4"}, "quantize is 'int4'; there is 'int8'"),
        (random_pool(np.float32).astype(np.int8), {}, "'layers.0.key' is int8; what is quantized is float16"),
        (random_pool(ml_dtypes.float8_e4m3fn), {}, "is float8_e4m3"),
        (random_pool(np.float32).astype(np.complex64), {}, "is complex64"),
        (random_pool(np.float32), {"scales": [(1.0, None)]}, "quantized already"),
        (np.zeros((7, 6, 2, 8)), {}, "pages of 6 tokens cannot have a scale a slot"),
        (np.zeros((28, 1, 2, 8)), {"block_tables": np.zeros((4, 28), int)}, "pages of 1 tokens"),
    ],
)
def test_what_cannot_be_quantized_is_refused(keys, options, match) -> None:
    with pytest.raises(hw.IncompatibleError, match=match) as refusal:
        saved([(keys, None)], **({"quantize": "int8"} | options))
    assert refusal.value.rule == "snapshot.quantize"


def test_an_empty_batch_is_quantized() -> None:
    data = saved([(random_pool(np.float32), None)], quantize="int8", block_tables=np.zeros((0, 1), int), seq_lens=[])
    assert hw.load_snapshot(data).gather(0, dequantize=True)["keys"].shape == (0, 0, HEADS, DIM)


def test_quantized_numbers_are_not_exported_without_their_scales() -> None:
    snapshot = hw.load_snapshot(saved([(random_pool(np.float32), None)], quantize="int8"))
    with pytest.raises(hw.IncompatibleError, match="mean nothing without their scales") as refusal:
        snapshot.export()
    assert refusal.value.rule == "export.quantized"


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("page_size", [PAGE, 8])
def test_real_numbers_go_into_pools_of_any_floating_type(dtype, page_size) -> None:
    keys = random_pool(np.float32)
    snapshot = hw.load_snapshot(saved([(keys, None)], quantize="int8"))
    out = [(np.full((9, page_size, HEADS, DIM), 7, dtype), None)]
    exported = snapshot.export(out=out, page_ids=[8, 6, 4, 2, 1][: snapshot.count_pages(page_size=page_size)],
                               page_size=page_size, dequantize=True)  # fmt: skip
    real = snapshot.gather(0, dequantize=True)["keys"]
    for seq, length in enumerate(LENS):
        for token in range(length):
            found = out[0][0][exported.block_tables[seq, token // page_size], token % page_size]
            assert found.tobytes() == real[seq, token].astype(dtype).tobytes()
    assert (out[0][0][0] == 7).all()
    for wrong in (np.int8, ml_dtypes.float8_e5m2):
        with pytest.raises(hw.BufferSizeError, match="values are not converted"):
            snapshot.export(out=[(np.zeros((9, PAGE, HEADS, DIM), wrong), None)], page_ids=range(5), dequantize=True)


def test_numbers_without_a_real_value_are_refused_before_anything_is_written() -> None:
    keys = random_pool(np.float32)
    snapshot = hw.load_snapshot(saved([(keys, None), (keys.astype(np.complex64), None)]))
    out = [(np.full((5, PAGE, HEADS, DIM), 7, np.float32), None) for _ in range(2)]
    with pytest.raises(hw.IncompatibleError, match="no real values"):
        snapshot.export(out=out, dequantize=True)
    assert all((entry[0] == 7).all() for entry in out)


def test_quantizing_holds_no_pool() -> None:
    keys = np.random.default_rng(5).standard_normal((1024, 16, 8, 64)).astype(np.float32)  # 32 MiB
    sink = Counter()
    table = np.random.default_rng(6).permutation(1024).reshape(4, 256)
    tracemalloc.start()
    try:
        hw.save_snapshot(sink, [(keys, keys)], block_tables=table, seq_lens=[4096] * 4, quantize="int8")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sink.taken > keys.size * 2
    assert peak < 12 << 20


class Counter:
    """A writable that keeps nothing."""

    taken = 0

    def write(self, data) -> int:
        self.taken += len(data)
        return len(data)

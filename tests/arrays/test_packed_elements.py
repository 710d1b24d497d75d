"""Elements narrower than a byte: LSB first on the wire, one byte each in memory, and nothing lost between."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from arrays_slow import PACKED, buffer, packed_bits, private
from hypothesis import given, settings
from hypothesis import strategies as st

from hurray_wire.arrays import packing
from hurray_wire.arrays.packing import check_tail, memory_dtype, pack, unpack
from hurray_wire.errors import InvalidFileError
from hurray_wire.model import element_types as et
from hurray_wire.model.element_types import ElementType

# Written out by hand: element 0 in the lowest bits of byte 0.
BY_HAND = [
    pytest.param(et.bool_, "01 80 06", [1] + [0] * 14 + [1] + [0, 1, 1], [1] + [0] * 14 + [1] + [0, 1, 1], id="bool"),
    pytest.param(et.int4, "f8 17 0e", [-8, -1, 7, 1, -2], [0x08, 0x0F, 0x07, 0x01, 0x0E], id="int4"),
    pytest.param(et.uint4, "f8 17 0e", [8, 15, 7, 1, 14], [0x08, 0x0F, 0x07, 0x01, 0x0E], id="uint4"),
    pytest.param(et.int2, "e4 01", [0, 1, -2, -1, 1], [0x00, 0x01, 0x02, 0x03, 0x01], id="int2"),
    pytest.param(et.uint2, "e4 01", [0, 1, 2, 3, 1], [0x00, 0x01, 0x02, 0x03, 0x01], id="uint2"),
    # e2m1: 0x2 is 1, 0xA is -1, 0x7 is 6, 0xF is -6
    pytest.param(et.float4_e2m1, "a2 f7 00", [1, -1, 6, -6, 0], [0x02, 0x0A, 0x07, 0x0F, 0x00], id="float4_e2m1"),
    # 0x3F, 0x20, 0x08, 0x01 are 111111 | 100000 | 001000 | 000001: bytes 00_111111, 1000_1000, 000001_00
    pytest.param(
        et.float6_e2m3, "3f 88 04 28 00 00", [-7.5, -0.0, 1, 0.125, -1], [0x3F, 0x20, 0x08, 0x01, 0x28], id="e2m3"
    ),
    pytest.param(
        et.float6_e3m2, "3f 88 04 2c 00 00", [-28, -0.0, 0.5, 0.0625, -1], [0x3F, 0x20, 0x08, 0x01, 0x2C], id="e3m2"
    ),
]


@pytest.mark.parametrize(("element_type", "wire", "values", "memory"), BY_HAND)
def test_elements_written_out_by_hand(
    element_type: ElementType, wire: str, values: list[float], memory: list[int]
) -> None:
    raw = buffer(bytes.fromhex(wire))
    found = unpack(raw, element_type, len(values))
    assert found.dtype == element_type.dtype
    assert found.astype(np.float64).tolist() == values
    assert found.view(np.uint8).tolist() == memory
    assert pack(found, element_type).tobytes() == raw.tobytes()


@pytest.mark.parametrize("element_type", [t for t in PACKED if t is not et.bool_], ids=lambda t: t.name)
def test_memory_holds_the_bytes_that_ml_dtypes_itself_stores(element_type: ElementType) -> None:
    codes = np.arange(1 << element_type.bits, dtype=np.uint8)
    raw = bytes(
        sum(int(codes[i]) << (i - first) * element_type.bits for i in range(first, first + per_group)) >> 8 * k & 0xFF
        for per_group, group_bytes in [element_type.group]
        for first in range(0, len(codes), per_group)
        for k in range(group_bytes)
    )
    found = unpack(buffer(raw), element_type, len(codes))
    values = found.astype(np.float64)
    assert found.view(np.uint8).tolist() == values.astype(element_type.dtype).view(np.uint8).tolist()
    assert len(set(zip(values.tolist(), np.signbit(values).tolist(), strict=True))) == len(codes)


@given(st.data())
@settings(deadline=None)
def test_a_run_is_what_its_bits_say_one_by_one(data: st.DataObject) -> None:
    element_type = data.draw(st.sampled_from(PACKED))
    start, count = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 70))
    least = et.buffer_bytes(element_type, start + count)
    raw = data.draw(st.binary(min_size=least, max_size=least + 5))
    found = unpack(buffer(raw), element_type, count, start=start)
    mask = (1 << element_type.bits) - 1
    expected = [packed_bits(raw, element_type.bits, start + i) for i in range(count)]
    assert (found.view(np.uint8) & mask).tolist() == expected
    again = pack(found, element_type).tobytes()
    assert len(again) == et.buffer_bytes(element_type, count)
    assert [packed_bits(again, element_type.bits, i) for i in range(count)] == expected
    check_tail(buffer(again), element_type, count)


@pytest.mark.parametrize("element_type", PACKED, ids=lambda t: t.name)
@pytest.mark.parametrize("spread", [1, 1 << 30])
def test_portions_and_threads_change_nothing(
    element_type: ElementType, spread: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = buffer(np.random.default_rng(7).integers(0, 256, 3000, dtype=np.uint8).tobytes())
    count = len(raw) // element_type.group[1] * element_type.group[0] - 1
    whole = unpack(raw, element_type, count, start=1)
    packed = pack(whole, element_type)
    monkeypatch.setattr(packing, "_PORTION_GROUPS", 37)
    monkeypatch.setattr(packing, "_SPREAD_GROUPS", spread)
    assert unpack(raw, element_type, count, start=1).view(np.uint8).tolist() == whole.view(np.uint8).tolist()
    assert pack(whole, element_type).tolist() == packed.tolist()


@pytest.mark.parametrize("element_type", [t for t in PACKED if t is not et.bool_], ids=lambda t: t.name)
def test_bits_above_the_width_are_dropped(element_type: ElementType) -> None:
    clean = np.arange(16, dtype=np.uint8) & ((1 << element_type.bits) - 1)
    dirty = clean | np.uint8(0xFF << element_type.bits & 0xFF)
    assert (
        pack(dirty.view(element_type.dtype), element_type).tolist()
        == pack(clean.view(element_type.dtype), element_type).tolist()
    )


def test_any_bit_makes_a_boolean_true() -> None:
    assert pack(np.array([0, 2, 128, 1], np.uint8).view(np.bool_), et.bool_).tolist() == [0b1110]


def test_values_are_packed_in_row_major_order_whatever_their_strides() -> None:
    values = np.array([[1, 2, 3], [4, 5, 6]], ml_dtypes.uint4)
    assert pack(values.T, et.uint4).tobytes().hex() == "415263"
    assert pack(values[:, ::-1], et.uint4).tobytes().hex() == "236145"


@pytest.mark.parametrize("element_type", PACKED, ids=lambda t: t.name)
def test_each_unused_bit_of_the_last_group_is_refused(element_type: ElementType) -> None:
    per_group, group_bytes = element_type.group
    for count in range(per_group + 1, 2 * per_group):
        for bit in range((count - per_group) * element_type.bits, group_bytes * 8):
            raw = bytearray(2 * group_bytes + 1)
            raw[group_bytes + bit // 8] = 1 << bit % 8
            with pytest.raises(InvalidFileError) as caught:
                check_tail(buffer(bytes(raw)), element_type, count)
            assert caught.value.rule == "buffer.tail-bits"


@pytest.mark.parametrize("element_type", PACKED, ids=lambda t: t.name)
def test_used_bits_and_slack_are_not_judged(element_type: ElementType) -> None:
    per_group, group_bytes = element_type.group
    full = b"\xff" * (2 * group_bytes + 3)
    check_tail(buffer(full), element_type, 2 * per_group)
    check_tail(buffer(full), element_type, 0)
    used = ((1 << element_type.bits) - 1).to_bytes(group_bytes, "little")
    check_tail(buffer(used + b"\xff" * 3), element_type, 1)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_a_narrow_private_type_comes_as_its_bits(bits: int) -> None:
    element_type, _ = private(bits)
    assert memory_dtype(element_type) == np.uint8
    found = unpack(buffer(b"\xb4\x01"), element_type, 8 // bits + 1)
    assert found.dtype == np.uint8
    assert found.tolist() == [packed_bits(b"\xb4\x01", bits, i) for i in range(8 // bits + 1)]
    assert pack(found, element_type).tobytes() == b"\xb4\x01"


def test_a_wide_private_type_is_opaque() -> None:
    assert memory_dtype(private(24)[0]) == np.dtype("V3")

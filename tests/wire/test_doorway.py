"""The doorway to construct: exact lengths, errors with rule and place, and a fast way with construct's answers."""

import random

import numpy as np
import pytest
from construct import Struct

import hurray_wire as hw
from hurray_wire.wire import structs
from hurray_wire.wire.doorway import Cursor, Taken, build, fields_of, recording, size_of, table

SCHEMAS = {name: value for name, value in vars(structs).items() if isinstance(value, Struct)}
SCHEMAS |= {
    f"{make.__name__}({rank})": make(rank)
    for make in (structs.u64_array, structs.i64_array, structs.u32_array, structs.shard, structs.csf)
    for rank in (0, 1, 3, 64)
}


def test_every_schema_is_found():
    assert len(SCHEMAS) >= 45


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_fast_way_gives_the_answers_of_construct(name):
    schema = SCHEMAS[name]
    draw = random.Random(name)
    for _ in range(50):
        raw = bytearray(draw.randbytes(size_of(schema)))
        for field, offset, size in fields_of(schema):
            if "reserved" in field or (field == "magic" and "SEEK" not in name and "SKIPPABLE" not in name):
                constant = next(sub.subcon.value for sub in schema.subcons if sub.name == field)
                raw[offset : offset + size] = constant
        expected = schema.parse(bytes(raw))
        record = Cursor(memoryview(raw), area="test").take(schema, "a table")
        assert list(record) == [field for field, _, _ in fields_of(schema)]
        for field, value in record.items():
            # by their text, since a NaN is not equal to itself
            told = list(value) if isinstance(value, tuple) else value
            assert repr(told) == repr(list(expected[field]) if isinstance(value, tuple) else expected[field])
        assert build(schema, record) == bytes(raw)
        assert schema.build(dict(record)) == bytes(raw)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_table_cut_short_is_truncated_before_construct_sees_it(name):
    schema = SCHEMAS[name]
    if size_of(schema) == 0:
        return
    with pytest.raises(hw.TruncatedError) as caught:
        Cursor(memoryview(bytes(size_of(schema) - 1)), area="test", base=100).take(schema, "a table")
    assert (caught.value.rule, caught.value.offset, caught.value.declared) == ("test.truncated", 100, size_of(schema))


def test_a_broken_constant_is_told_by_its_field_and_keeps_its_cause():
    raw = bytearray(
        build(
            structs.TRAILER,
            dict.fromkeys(("index_offset", "index_length", "kv_offset", "kv_length", "index_crc32c"), 0),
        )
    )
    raw[33] = 5
    with pytest.raises(hw.InvalidFileError) as caught:
        Cursor(memoryview(raw), area="trailer", base=1000, error=hw.InvalidFileError).take(
            structs.TRAILER, "the trailer"
        )
    assert (caught.value.rule, caught.value.offset, caught.value.found) == ("trailer.reserved", 1032, b"\0\5\0\0")
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("fields", [{"value": -1}, {"value": 1 << 32}, {"value": "x"}, {"value": 1.5}, {}])
def test_a_value_that_does_not_fit_its_field_is_our_error(fields):
    with pytest.raises(hw.InvalidDescriptorError) as caught:
        build(structs.U32, fields)
    assert caught.value.rule == "wire.build"


def test_a_table_of_rows_is_read_at_once():
    rows = b"".join(
        build(structs.SEEK_ENTRY_CHECKED, {"compressed_size": n, "decompressed_size": n * n, "checksum": 7})
        for n in range(5)
    )
    read = table(structs.SEEK_ENTRY_CHECKED, memoryview(b"??" + rows), np.arange(5, dtype=np.int64) * 12 + 2)
    assert read["decompressed_size"].tolist() == [0, 1, 4, 9, 16]


def test_a_recording_tells_every_step_up_to_a_fault():
    raw = build(structs.U32, {"value": 9}) + b"abc"
    with recording() as taken:
        cursor = Cursor(memoryview(raw), area="test", base=50)
        cursor.take(structs.U32, "a number")
        cursor.take_bytes(3, "text")
        with pytest.raises(hw.TruncatedError):
            cursor.take(structs.U32, "more")
    assert [(step.offset, step.data, step.what) for step in taken] == [(50, raw[:4], "a number"), (54, b"abc", "text")]
    assert taken[0].fields == (("value", 0, 4, 9),)
    assert isinstance(taken[1], Taken)
    cursor = Cursor(memoryview(raw), area="test")
    cursor.take(structs.U32, "a number")
    assert len(taken) == 2

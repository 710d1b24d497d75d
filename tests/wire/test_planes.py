"""Byte planes (spec/compressed.md, "Byte planes"): byte k of element e stands at k * n + e."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hurray_wire as hw
from hurray_wire.model import element_types
from hurray_wire.wire import planes


def array(data):
    return np.frombuffer(data, dtype=np.uint8)


@pytest.mark.parametrize(
    ("size", "plain", "stored"),
    [
        (2, "00 01 10 11 20 21 30 31", "00 10 20 30 01 11 21 31"),
        (2, "00 01 10 11 7f", "00 10 01 11 7f"),
        (4, "00 01 02 03 10 11 12 13", "00 10 01 11 02 12 03 13"),
        (4, "00 01 02 03 a0 a1 a2", "00 01 02 03 a0 a1 a2"),
        (8, "00 01 02 03 04 05 06 07 10 11 12 13 14 15 16 17", "00 10 01 11 02 12 03 13 04 14 05 15 06 16 07 17"),
        (8, "aa bb", "aa bb"),
        (2, "", ""),
    ],
)
def test_the_bytes_of_equal_rank_stand_together_and_what_is_left_stays_behind(size, plain, stored):
    plain, stored = bytes.fromhex(plain), bytes.fromhex(stored)
    assert planes.split(array(plain), size).tobytes() == stored
    assert planes.merge(array(stored), size).tobytes() == plain


@given(data=st.binary(max_size=300), size=st.sampled_from((2, 4, 8)))
def test_splitting_takes_every_nth_byte_and_merging_undoes_it(data, size):
    whole = len(data) // size * size
    stored = b"".join(data[rank:whole:size] for rank in range(size)) + data[whole:]
    assert planes.split(array(data), size).tobytes() == stored
    assert planes.merge(array(stored), size).tobytes() == data


def test_the_given_bytes_stay_as_they_are():
    data = np.arange(32, dtype=np.uint8)
    for size in (2, 4, 8):
        planes.split(data, size)
        planes.merge(data, size)
    assert data.tolist() == list(range(32))


def paged(element_type, **options):
    layout = hw.BlockPagedLayout(page_size=1, num_pages=8, paged_axis=0, num_seqs=0)
    return hw.TensorDescriptor.build(element_type, (0, 1, 8), layout, (1024, 0, 4), **options)


SPLIT = {
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
}


@pytest.mark.parametrize("element_type", element_types.ALL, ids=lambda e: e.name)
def test_pools_of_16_32_and_64_bits_are_split_and_no_others(element_type):
    assert planes.element_bytes(paged(element_type)) == SPLIT.get(element_type.name, 1)


@pytest.mark.parametrize(("bits", "size"), [(8, 1), (16, 2), (24, 1), (32, 4)])
def test_a_private_type_is_split_by_its_width(bits, size):
    extension = hw.ExtensionType(bit_width=bits)
    assert planes.element_bytes(paged(extension.element_type(0xF0), extension_type=extension)) == size


def test_other_layouts_are_never_split():
    assert planes.element_bytes(hw.TensorDescriptor.build(hw.float16, (2,), hw.RowMajorLayout(), (4,))) == 1

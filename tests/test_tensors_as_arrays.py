"""Tensors where NumPy expects arrays: their type and size, and NumPy's own protocol."""

import io
import struct

import ml_dtypes
import numpy as np
import pytest

import hurray_wire as hw
from hurray_wire.model import element_types

VALUES = np.arange(6, dtype=np.int16).reshape(2, 3)
PAGED = hw.BlockPagedLayout(page_size=2, num_pages=3, paged_axis=0, num_seqs=1)


def tensor(element_type, shape, buffers, layout=None, **sections):
    sizes = [len(buffer) for buffer in buffers]
    layout = layout or hw.RowMajorLayout()
    return hw.Tensor("t", hw.TensorDescriptor.build(element_type, shape, layout, sizes, **sections), buffers)


DENSE = tensor(hw.int16, (2, 3), [VALUES.tobytes()])
PACKED = tensor(hw.uint4, (3,), [b"\x21\x03"])


def stored(**options):
    """A file with a dense tensor and a block-paged one."""
    out = io.BytesIO()
    with hw.create(out, **options) as writer:
        writer.add("dense", DENSE.descriptor, [VALUES])
        paged = hw.TensorDescriptor.build(hw.bfloat16, (3, 1, 2), PAGED, (24, 8, 8))
        writer.add("paged", paged, [bytes(24), struct.pack("<2I", 1, 0), struct.pack("<2I", 0, 2)])
    return hw.open(out.getvalue())


def test_a_dense_tensor_is_an_array():
    array = np.asarray(DENSE)
    assert array.dtype == np.int16
    assert array.tolist() == VALUES.tolist()
    assert np.shares_memory(array, DENSE.numpy())
    assert np.concatenate([DENSE, DENSE], axis=1).shape == (2, 6)
    assert np.asarray(PACKED).tolist() == [1, 2, 3]
    assert np.asarray(tensor(hw.int16, (2, 3), [VALUES.tobytes()], hw.ColMajorLayout())).tolist() == [
        [0, 2, 4],
        [1, 3, 5],
    ]


def test_the_array_is_converted_and_copied_as_numpy_asks():
    assert np.asarray(DENSE, dtype=np.float64).tolist() == VALUES.tolist()
    assert np.asarray(DENSE, dtype=np.float64).dtype == np.float64
    copy = np.array(DENSE)
    assert copy.flags.writeable
    assert not np.shares_memory(copy, DENSE.numpy())
    assert np.shares_memory(np.array(DENSE, copy=False), DENSE.numpy())
    assert np.array(tensor(hw.int16, (0, 3), [b""]), copy=False).shape == (0, 3)


@pytest.mark.parametrize(
    "action",
    [
        lambda: np.array(DENSE, dtype=np.float32, copy=False),
        lambda: np.array(PACKED, copy=False),
        lambda: np.array(stored(zstd=True)["dense"], copy=False),
    ],
)
def test_what_needs_a_copy_is_refused_where_none_may_be_made(action):
    with pytest.raises(ValueError, match="without a copy"):
        action()


def test_a_block_paged_tensor_is_no_array_and_says_what_to_ask_for():
    with pytest.raises(TypeError, match=r"'paged' is block-paged .* \.page_pool .* \.gather\(\) and \.ragged\(\)"):
        np.asarray(stored()["paged"])


def test_a_sparse_tensor_and_a_group_are_no_arrays():
    layout = hw.CooLayout(nnz=1, is_sorted=True)
    sparse = tensor(hw.uint8, (2,), [b"x", bytes(8)], layout)
    with pytest.raises(hw.UnsupportedError):
        np.asarray(sparse)
    out = io.BytesIO()
    with hw.create(out) as writer:
        writer.add("head", hw.TensorDescriptor(hw.uint8, (), hw.CompositeLayout("group", 1)))
        writer.add("member", DENSE.descriptor, [VALUES])
    with pytest.raises(hw.UnsupportedError):
        np.asarray(hw.open(out.getvalue())["head"])


@pytest.mark.parametrize("options", [{}, {"zstd": True}])
def test_type_rank_and_stored_bytes_are_told_without_reading(options):
    file = stored(**options)
    dense, paged = file["dense"], file["paged"]
    assert (dense.dtype, dense.ndim, dense.shape, dense.nbytes) == (np.int16, 2, (2, 3), 12)
    assert (paged.dtype, paged.ndim, paged.shape, paged.nbytes) == (ml_dtypes.bfloat16, 3, (3, 1, 2), 24 + 8 + 8)
    assert (PACKED.dtype, PACKED.nbytes) == (ml_dtypes.uint4, 2)


def test_a_private_type_is_raw_bytes():
    private = tensor(element_types.private(0xF0, 24), (2,), [b"abcdef"], extension_type=hw.ExtensionType(bit_width=24))
    assert private.dtype == np.dtype("V3")
    assert np.asarray(private).tobytes() == b"abcdef"


def test_a_tensor_may_be_handed_to_a_writer():
    out = io.BytesIO()
    with hw.create(out) as writer:
        writer.add("t", DENSE.descriptor, [DENSE])
    assert hw.open(out.getvalue())["t"].numpy().tolist() == VALUES.tolist()

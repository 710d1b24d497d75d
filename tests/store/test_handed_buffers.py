"""Buffers as they are handed to a writer (spec/calls.md): taken for what they mean, or refused at once."""

import ctypes
import io
import struct
from array import array as row_of

import numpy as np
import pytest

import hurray_wire as hw
from hurray_wire.model import element_types
from hurray_wire.store import handed
from hurray_wire.store import writer as writer_module

PAGED = hw.BlockPagedLayout(page_size=4, num_pages=3, paged_axis=0, num_seqs=2)
TABLE, PTR = struct.pack("<3I", 2, 0, 1), struct.pack("<3I", 0, 2, 3)
BASE = np.arange(6, dtype=np.int16).reshape(2, 3)


def dense(element_type, shape, size, layout=None, **sections):
    return hw.TensorDescriptor.build(element_type, shape, layout or hw.RowMajorLayout(), (size,), **sections)


def paged(element_type=hw.uint16, size=48, index=(12, 12), **options):
    return hw.TensorDescriptor.build(element_type, (9, 1, 2), PAGED, (size, *index), **options)


def payload(descriptor, *buffers):
    """Buffer 0 as a file and as a stream have it, which is the same."""
    out, stream = io.BytesIO(), io.BytesIO()
    with hw.create(out) as writer:
        writer.add("t", descriptor, buffers)
    with hw.StreamWriter(stream) as writer:
        writer.add(descriptor, buffers)
    with hw.open(out.getvalue()) as file:
        file.verify()
        data = bytes(file["t"].buffers[0])
    (received,) = hw.StreamReader(io.BytesIO(stream.getvalue()))
    assert bytes(received.buffers[0]) == data
    return data


def refusal(descriptor, *buffers):
    """The error that a file and a stream refuse this with, both before the first byte of it."""
    errors = []
    with hw.create(io.BytesIO()) as writer:
        with pytest.raises(hw.HurrayError) as caught:
            writer.add("t", descriptor, buffers)
        errors.append(caught.value)
        writer.add("t", dense(hw.uint8, (1,), 1), [b"x"])
    stream = io.BytesIO()
    with pytest.raises(hw.HurrayError) as caught:
        hw.StreamWriter(stream).add(descriptor, buffers)
    errors.append(caught.value)
    assert stream.getvalue() == b""
    assert type(errors[0]) is type(errors[1])
    assert errors[0].rule == errors[1].rule
    return errors[0]


# Arrays of several dimensions


@pytest.mark.parametrize("layout", [hw.RowMajorLayout(), hw.ColMajorLayout(), hw.StridedLayout((3, 1))])
@pytest.mark.parametrize("shape", [(3, 2), (1, 6), (6, 1), (1, 2, 3)])
def test_a_dense_array_of_several_dimensions_has_the_tensors_shape(layout, shape):
    for order in "CF":
        error = refusal(dense(hw.int16, (2, 3), 12, layout), np.array(BASE.reshape(shape), order=order))
        assert (error.rule, error.declared, error.found) == ("array.shape", (2, 3), shape)
        assert isinstance(error, hw.BufferSizeError)


class Named(np.ndarray):
    """An array with something of its own."""


@pytest.mark.parametrize("array", [BASE, np.asfortranarray(BASE), BASE.astype(">i2"), BASE.view(Named)])
def test_a_dense_array_of_the_tensors_shape_is_laid_out_by_the_layout(array):
    assert payload(dense(hw.int16, (2, 3), 12), array) == struct.pack("<6h", 0, 1, 2, 3, 4, 5)
    assert payload(dense(hw.int16, (2, 3), 12, hw.ColMajorLayout()), array) == struct.pack("<6h", 0, 3, 1, 4, 2, 5)


def test_bits_of_bfloat16_are_laid_out_as_its_values_are():
    bits = np.array([[0x3F80, 0x4000, 0x4040], [0x4080, 0x40A0, 0x40C0]], np.uint16)
    expected = struct.pack("<6H", 0x3F80, 0x4080, 0x4000, 0x40A0, 0x4040, 0x40C0)
    assert payload(dense(hw.bfloat16, (2, 3), 12, hw.ColMajorLayout()), bits) == expected
    assert refusal(dense(hw.bfloat16, (2, 3), 12), bits.reshape(3, 2)).rule == "array.shape"


def test_elements_of_a_private_type_are_laid_out_too():
    private = element_types.private(0xF0, 16)
    descriptor = dense(private, (2, 3), 12, hw.ColMajorLayout(), extension_type=hw.ExtensionType(bit_width=16))
    assert payload(descriptor, BASE.view("V2")) == struct.pack("<6h", 0, 3, 1, 4, 2, 5)


def test_an_array_of_one_dimension_is_the_buffer_as_it_is():
    assert payload(dense(hw.int16, (2, 3), 12, hw.ColMajorLayout()), BASE.reshape(-1)) == BASE.tobytes()
    assert payload(dense(hw.int16, (2, 3), 12), BASE.view(np.uint8)) == BASE.tobytes()


def test_a_pool_of_several_dimensions_has_the_shape_of_the_pool():
    pool = np.arange(24, dtype=np.uint16)
    whole = pool.reshape(3, 4, 1, 2)
    assert payload(paged(), whole, TABLE, PTR) == pool.tobytes()
    assert payload(paged(), np.asfortranarray(whole), TABLE, PTR) == pool.tobytes()
    heads_first = np.ascontiguousarray(whole.transpose(0, 2, 1, 3))
    for array in (heads_first, pool.reshape(12, 2), pool.reshape(4, 3, 1, 2)):
        error = refusal(paged(), array, TABLE, PTR)
        assert (error.rule, error.declared) == ("array.shape", (3, 4, 1, 2))


def test_coordinates_have_a_row_for_each_value():
    layout = hw.CooLayout(nnz=3, is_sorted=True)
    descriptor = hw.TensorDescriptor.build(hw.int16, (4, 5), layout, (6, 48))
    rows = np.array([[0, 1], [2, 0], [3, 4]], np.uint64)
    assert payload(descriptor, np.array([7, 8, 9], np.int16), rows) == struct.pack("<3h", 7, 8, 9)
    assert refusal(descriptor, np.array([7, 8, 9], np.int16), rows.T).rule == "array.shape"


def test_scales_of_slots_have_a_row_for_each_page():
    scheme = hw.PerBlockAffine.symmetric(0, 4, 3, hw.float32)
    descriptor = paged(hw.int8, 24, (12, 12, 48), quantization=scheme)
    scales = np.arange(1, 13, dtype=np.float32)
    for array in (scales, scales.reshape(3, 4)):
        payload(descriptor, bytes(24), TABLE, PTR, array)
    assert refusal(descriptor, bytes(24), TABLE, PTR, scales.astype(np.int32)).rule == "buffer.type"
    assert refusal(descriptor, bytes(24), TABLE, PTR, scales.reshape(4, 3)).rule == "array.shape"


# Arrays that are none


@pytest.mark.parametrize("mask", [False, [[True, False, False], [False, False, False]]])
def test_a_masked_array_is_refused(mask):
    assert refusal(dense(hw.int16, (2, 3), 12), np.ma.masked_array(BASE, mask=mask)).rule == "buffer.type"


@pytest.mark.parametrize("array", [BASE.astype(object), np.array(["a"] * 6), np.zeros(6, [("a", "<i2")])], ids=repr)
def test_arrays_of_no_numbers_are_refused(array):
    assert refusal(dense(hw.int16, (2, 3), 12), array).rule == "buffer.type"


class Elsewhere:
    """An array on another device, as its library says it."""

    def __array__(self, dtype=None, copy=None):
        raise TypeError("it is on another device")


def test_arrays_that_numpy_does_not_get_are_refused_with_their_reason():
    error = refusal(dense(hw.int16, (2, 3), 12), Elsewhere())
    assert error.rule == "buffer.type"
    assert "Elsewhere, does not give its memory to NumPy: it is on another device" in str(error)
    pool = hw.Tensor("t", paged(), [bytes(48), TABLE, PTR])
    assert "block-paged" in str(refusal(paged(), pool, TABLE, PTR))


class Dataset:
    """What libraries of files give: an array that tells the shape of its chunks."""

    nbytes = 12
    chunks = (1, 3)

    def __array__(self, dtype=None, copy=None):
        return BASE


def test_an_array_that_tells_the_shape_of_its_chunks_is_an_array():
    assert payload(dense(hw.int16, (2, 3), 12), Dataset()) == BASE.tobytes()


# What a reader would refuse


@pytest.mark.parametrize(
    ("table", "ptr", "rule"),
    [
        ((2, 3, 1), (0, 2, 3), "block-paged.page-id"),
        ((2, 0, 1), (1, 2, 3), "block-paged.seq-ptr-start"),
        ((2, 0, 1), (0, 3, 2), "block-paged.seq-ptr-order"),
        ((2, 0, 1), (0, 2, 2), "block-paged.seq-ptr-end"),
    ],
)
def test_index_buffers_are_checked_as_a_reader_checks_them(table, ptr, rule):
    pool = np.zeros(24, np.uint16)
    table, ptr = np.array(table, np.uint32), np.array(ptr, np.uint32)
    assert refusal(paged(), pool, table, ptr).rule == rule
    assert refusal(paged(), pool, table.tobytes(), ptr.tobytes()).rule == rule
    assert refusal(paged(), Zeros(48), table, ptr).rule == rule


class Zeros:
    def __init__(self, nbytes):
        self.nbytes = nbytes

    def chunks(self):
        yield bytes(self.nbytes)


def test_chunked_pools_and_empty_tables_pass():
    assert payload(paged(), Zeros(48), TABLE, PTR) == bytes(48)
    none = hw.BlockPagedLayout(page_size=4, num_pages=0, paged_axis=0, num_seqs=0)
    for pool in (b"", Zeros(0)):
        assert payload(hw.TensorDescriptor.build(hw.uint8, (0, 1, 2), none, (0, 0, 4)), pool, b"", bytes(4)) == b""


def test_unused_bits_are_zero():
    for layout in (hw.RowMajorLayout(), hw.ColMajorLayout()):
        assert payload(dense(hw.uint4, (3,), 2, layout), b"\x21\x03") == b"\x21\x03"
        error = refusal(dense(hw.uint4, (3,), 2, layout), b"\x21\x13")
        assert (error.rule, error.found) == ("buffer.tail-bits", 1)
    one = hw.BlockPagedLayout(page_size=1, num_pages=3, paged_axis=0, num_seqs=0)
    descriptor = hw.TensorDescriptor.build(hw.uint4, (0, 1, 1), one, (2, 0, 4))
    assert refusal(descriptor, b"\x21\x13", b"", bytes(4)).rule == "buffer.tail-bits"


def test_sparse_indices_are_checked_as_a_reader_checks_them():
    descriptor = hw.TensorDescriptor.build(hw.int16, (4, 5), hw.CooLayout(nnz=1, is_sorted=True), (2, 16))
    assert refusal(descriptor, b"ab", struct.pack("<2Q", 4, 0)).rule == "sparse.bounds"


def test_a_descriptor_is_as_long_as_a_reader_takes():
    most = hw.Limits().max_descriptor_bytes
    for extra, fits in ((0, True), (1, False)):
        layout = hw.PrivateExtensionLayout(0xF0, 1, bytes(8))
        size = len(dense(hw.uint8, (1,), 1, layout).encode())
        layout = hw.PrivateExtensionLayout(0xF0, 1, bytes(8 + most - size + extra))
        descriptor = dense(hw.uint8, (1,), 1, layout)
        assert len(descriptor.encode()) == most + extra
        if fits:
            assert payload(descriptor, b"x") == b"x"
        else:
            error = refusal(descriptor, b"x")
            assert (error.rule, error.found) == ("limit.descriptor-bytes", most + 1)


# Buffers that say what they hold


@pytest.mark.parametrize("layout", [hw.RowMajorLayout(), hw.ColMajorLayout()])
@pytest.mark.parametrize("array", [BASE, np.asfortranarray(BASE), BASE.astype(">i2"), BASE[:, ::-1]])
def test_a_view_of_several_axes_or_another_byte_order_is_written_by_value(layout, array):
    values = array.tolist()
    if isinstance(layout, hw.ColMajorLayout):
        values = list(zip(*values, strict=True))
    expected = struct.pack("<6h", *(value for row in values for value in row))
    assert payload(dense(hw.int16, (2, 3), 12, layout), memoryview(array)) == expected


def test_a_typed_buffer_of_one_axis_is_the_elements_in_a_row():
    descriptor, expected = dense(hw.int16, (2, 3), 12, hw.ColMajorLayout()), struct.pack("<6h", *range(6))
    swapped = (ctypes.c_int16.__ctype_be__ * 6)(*range(6))
    for buffer in (row_of("h", range(6)), (ctypes.c_int16 * 6)(*range(6)), swapped, memoryview(BASE.reshape(-1))):
        assert payload(descriptor, buffer) == expected
    assert payload(descriptor, memoryview(np.repeat(BASE.reshape(-1), 2))[::2]) == expected
    pair = ((ctypes.c_int16 * 3) * 2)((0, 1, 2), (3, 4, 5))
    assert payload(descriptor, pair) == struct.pack("<6h", 0, 3, 1, 4, 2, 5)
    assert payload(dense(hw.float64, (), 8), ctypes.c_double(0.5)) == struct.pack("<d", 0.5)


@pytest.mark.parametrize(
    "buffer", [expected := struct.pack("<6h", *range(6)), bytearray(expected), memoryview(expected),
               memoryview(expected).cast("c"), row_of("B", expected), (ctypes.c_ubyte * 12)(*expected)],
    ids=lambda buffer: type(buffer).__name__,
)  # fmt: skip
def test_bytes_in_a_row_are_the_buffer_as_it_is(buffer):
    assert payload(dense(hw.int16, (2, 3), 12, hw.ColMajorLayout()), buffer) == bytes(buffer)


@pytest.mark.parametrize(
    ("buffer", "rule"),
    [
        (memoryview(np.zeros((2, 3), np.float16)), "buffer.type"),
        (memoryview(np.zeros((2, 3), np.uint16)), "buffer.type"),
        (memoryview(np.zeros(12, np.int8)), "buffer.type"),
        (row_of("f", [0] * 3), "buffer.type"),
        (memoryview(np.zeros((3, 2), np.int16)), "array.shape"),
        (((ctypes.c_int16 * 2) * 3)(), "array.shape"),
        (memoryview(np.zeros((2, 2), np.int16)), "array.shape"),
        (row_of("h", [0] * 5), "buffer.size"),
    ],
)
def test_a_buffer_that_says_otherwise_is_refused(buffer, rule):
    assert refusal(dense(hw.int16, (2, 3), 12), buffer).rule == rule


def test_index_buffers_may_be_typed_and_are_held_to_their_type():
    pool = bytes(48)
    table, pointers = row_of("I", [2, 0, 1]), row_of("I", [0, 2, 3])
    assert payload(paged(), pool, table, pointers) == pool
    assert refusal(paged(), pool, row_of("i", [2, 0, 1]), pointers).rule == "buffer.type"
    assert refusal(paged(), pool, row_of("I", [2, 0, 3]), pointers).rule == "block-paged.page-id"


# Parts of a buffer


class Parts:
    """A buffer that says how large it is, and gives parts of other sizes."""

    nbytes = 3 << 20

    def __init__(self, *sizes):
        self.sizes = sizes

    def chunks(self):
        raise AssertionError("it is asked for its parts")

    def parts(self, part_bytes):
        return ((size, lambda memory: memory) for size in self.sizes)


@pytest.mark.parametrize(
    ("sizes", "declared", "found"),
    [
        ((), 3 << 20, 0),
        ((1 << 20,), 3 << 20, 1 << 20),
        ((1 << 20, 1 << 20, 500), 1 << 20, 500),
        ((1 << 20, 1 << 20, 1 << 20, 1), 0, 1),
        ((2 << 20, 1 << 20), 1 << 20, 2 << 20),
        ((1 << 20, 0, 1 << 20, 1 << 20), 1 << 20, 0),
    ],
)
def test_parts_that_are_not_of_the_size_of_their_buffer_leave_no_file(sizes, declared, found, tmp_path):
    writer = hw.create(tmp_path / "out", zstd=1)
    with pytest.raises(hw.BufferSizeError) as caught:
        writer.add("t", dense(hw.uint8, (3 << 20,), 3 << 20), [Parts(*sizes)])
    assert (caught.value.rule, caught.value.declared, caught.value.found) == ("buffer.size", declared, found)
    with pytest.raises(hw.InvalidFileError) as unfinished:
        writer.close()
    assert unfinished.value.rule == "file.unfinished"
    assert list(tmp_path.iterdir()) == []


# What a file may have in all


def refused_metadata(metadata, **options):
    out = io.BytesIO()
    with pytest.raises(hw.LimitError) as caught:
        hw.create(out, metadata=metadata, **options)
    assert out.getvalue() == b""
    return caught.value.rule


@pytest.mark.parametrize("checksums", [True, False])
def test_metadata_are_as_large_as_a_reader_takes(checksums):
    assert refused_metadata({"k": bytes(hw.Limits().max_metadata_bytes)}, checksums=checksums) == "limit.metadata-bytes"
    texts = [""] * hw.Limits().max_metadata_entries
    assert refused_metadata({"k": texts}, checksums=checksums) == "limit.metadata-entries"
    with hw.create(out := io.BytesIO(), metadata={"k": texts[4:]}, checksums=checksums):
        pass
    with hw.open(out.getvalue()) as file:
        assert file.metadata["k"] == texts[4:]


@pytest.fixture
def bounded(monkeypatch):
    """Writers that take their bounds from what is given."""

    def bound(**limits):
        for module in (handed, writer_module):
            monkeypatch.setattr(module, "WRITTEN", hw.Limits(**limits))

    return bound


@pytest.mark.parametrize(
    ("limits", "rule"),
    [
        ({"max_tensors": 3}, "limit.tensors"),
        ({"max_index_bytes": 8 + 3 * (2 + 1 + 32) + 34}, "limit.index-bytes"),
        ({"max_metadata_entries": 2, "max_metadata_bytes": 200}, "limit.metadata-bytes"),
    ],
)
def test_a_file_has_no_more_tensors_than_its_reader_takes(limits, rule, bounded):
    bounded(**limits)
    descriptor = dense(hw.uint8, (1,), 1)
    out, written = io.BytesIO(), ""

    def fill(writer):
        nonlocal written
        for name in "abcdefghijklmnopqrstuvwxyz":
            writer.add(name, descriptor, [b"x"])
            written += name

    with hw.create(out) as writer:
        with pytest.raises(hw.LimitError) as caught:
            fill(writer)
        assert caught.value.rule == rule
    assert len(written) >= 3
    with hw.open(out.getvalue(), limits=hw.Limits(**limits)) as file:
        assert "".join(file.names) == written
        file.verify()
    bounded()
    wider = io.BytesIO()
    with hw.create(wider) as writer:
        for name in "abcdefghijklmnopqrstuvwxyz"[: len(written) + 1]:
            writer.add(name, descriptor, [b"x"])
    with pytest.raises(hw.LimitError) as caught:
        hw.open(wider.getvalue(), limits=hw.Limits(**limits))
    assert caught.value.rule == rule

"""Writing files (spec/container.md): the bytes, arrays by value, and refusals before the first byte."""

import io
import struct

import ml_dtypes
import numpy as np
import pytest

import hurray_wire as hw
from hurray_wire.model import element_types


class Forward(io.RawIOBase):
    """A writable object on which nothing but writing forward is possible."""

    def __init__(self):
        self.data = b""

    def writable(self):
        return True

    def write(self, view):
        self.data += bytes(view)
        return len(view)


def written(*tensors, **options):
    out = Forward()
    with hw.create(out, **options) as writer:
        for name, descriptor, buffers in tensors:
            writer.add(name, descriptor, buffers)
    return out.data


def dense(element_type, shape, size, layout=None):
    return hw.TensorDescriptor.build(element_type, shape, layout or hw.RowMajorLayout(), (size,))


def first_buffer(data):
    with hw.open(data) as file:
        return bytes(file["t"].buffers[0])


def test_a_file_is_laid_out_as_the_specification_says():
    a, b = dense(hw.uint8, (3,), 3), dense(hw.uint8, (5,), 5)
    data = written(("a", a, [b"abc"]), ("b", b, [b"defgh"]), checksums=False)
    assert data[:8] == b"HRRYFILE"
    assert struct.unpack_from("<IIQQ", data, 12) == (4, 4096, 64, 2**64 - 1)
    assert data[64 : 64 + 53] == a.encode()
    assert data[117:4096] == bytes(4096 - 117)
    assert data[4096:4099] == b"abc"
    assert data[4104 : 4104 + 53] == b.encode()
    assert data[8192:8197] == b"defgh"
    assert struct.unpack_from("<Q", data, 8200) == (2,)
    assert data[8208:8211] == b"\1\0a"
    assert struct.unpack_from("<QIQQI", data, 8211) == (64, 53, 4096, 3, 0)
    assert data[-4:] == b"HRRY"
    assert struct.unpack_from("<QQQI", data, len(data) - 40) == (8200, len(data) - 40 - 8200, 0, 0)


def test_buffers_start_at_the_alignment_and_padding_after_the_last_is_not_data():
    layout = hw.BlockPagedLayout(4, 1, 0, 1)
    descriptor = hw.TensorDescriptor.build(hw.uint8, (4, 1, 1), layout, (4, 4, 8))
    data = written(("t", descriptor, [b"abcd", bytes(4), struct.pack("<2I", 0, 1)]), alignment=8192, checksums=False)
    assert data[8192:8196] == b"abcd"
    assert data[24576:24584] == struct.pack("<2I", 0, 1)
    entry = data.index(b"\1\0t") + 3
    assert struct.unpack_from("<QIQQI", data, entry)[2:4] == (8192, 24584 - 8192)


def test_metadata_sets_its_flag_and_checksums_are_of_every_descriptor_and_buffer():
    import crc32c as judge

    descriptor = dense(hw.uint8, (3,), 3)
    data = written(("t", descriptor, [b"abc"]), metadata={"k": "v"})
    with hw.open(data) as file:
        assert data[12] == 5
        assert file.metadata == {
            "k": "v",
            "hurray_wire.crc32c": [judge.crc32c(descriptor.encode()), judge.crc32c(b"abc")],
            "hurray_wire.metadata_crc32c": judge.crc32c(data[8192 - 4088 : data.index(b"\x1b\0hurray_wire.metadata")]),
        }


def test_a_sorted_index_is_by_name_and_names_stay_in_write_order():
    a = dense(hw.uint8, (1,), 1)
    data = written(("b", a, [b"b"]), ("a", a, [b"a"]), sorted_index=True, checksums=False)
    assert data.index(b"\1\0a") < data.index(b"\1\0b")
    with hw.open(data) as file:
        assert file.names == ("b", "a")
        assert bytes(file["a"].buffers[0]) == b"a"


BASE = np.arange(24, dtype=np.int32).reshape(4, 6)
BY_VALUE = {
    "plain": BASE,
    "fortran": np.asfortranarray(BASE),
    "strided": np.repeat(BASE, 2, axis=1)[:, ::2],
    "reversed": BASE[::-1, ::-1][::-1, ::-1],
    "big-endian": BASE.astype(">i4"),
    "transposed": BASE.T.copy().T,
}


@pytest.mark.parametrize("kind", BY_VALUE)
def test_an_array_is_written_by_value_in_the_order_of_its_layout(kind):
    array = BY_VALUE[kind]
    row = written(("t", dense(hw.int32, (4, 6), 96), [array]))
    column = written(("t", dense(hw.int32, (4, 6), 96, hw.ColMajorLayout()), [array]))
    assert first_buffer(row) == struct.pack("<24i", *range(24))
    assert first_buffer(column) == struct.pack("<24i", *(6 * i + j for j in range(6) for i in range(4)))
    for data in (row, column):
        with hw.open(data) as file:
            assert np.array_equal(file["t"].numpy(), BASE)


def test_broadcast_read_only_and_zero_dimensional_arrays_are_written_by_value():
    broadcast = np.broadcast_to(np.int32(7), (4, 6))
    assert first_buffer(written(("t", dense(hw.int32, (4, 6), 96), [broadcast]))) == struct.pack("<i", 7) * 24
    assert first_buffer(written(("t", dense(hw.int32, (), 4), [np.array(-1, np.int32)]))) == b"\xff" * 4
    assert first_buffer(written(("t", dense(hw.int32, (0, 5), 0), [np.empty((0, 5), np.int32)]))) == b""


def test_bfloat16_may_come_as_its_bits():
    bits = np.array([0x3F80, 0xC000], np.uint16)
    data = written(("t", dense(hw.bfloat16, (2,), 4), [bits]))
    with hw.open(data) as file:
        assert file["t"].numpy().tolist() == [1.0, -2.0]
        assert file["t"].numpy().dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("element_type", element_types.ALL, ids=lambda e: e.name)
def test_every_element_type_that_can_be_written_can_be_read_back(element_type):
    bits = np.random.default_rng(element_type.tag).integers(0, 256, (6, element_type.dtype.itemsize), dtype=np.uint8)
    if element_type.is_packed:
        # in memory an element has a byte of its own; only values that the type can have may stand there
        bits = (np.arange(6, dtype=np.uint8) % 2)[:, None]
    values = bits.view(element_type.dtype).reshape(2, 3)
    size = element_types.buffer_bytes(element_type, 6)
    data = written(("t", dense(element_type, (2, 3), size), [values]))
    with hw.open(data) as file:
        assert file["t"].numpy().tobytes() == values.tobytes()
        file.verify()


@pytest.mark.parametrize(
    ("buffers", "rule"),
    [
        ([], "buffer.count"),
        ([bytes(12), bytes(12)], "buffer.count"),
        ([bytes(11)], "buffer.size"),
        ([np.zeros(4, np.float32)], "buffer.size"),
        ([np.zeros(3, np.int32)], "buffer.type"),  # of the same size, but another type
        ([np.zeros(6, np.float16)], "buffer.type"),
        ([np.array(["abc"])], "buffer.type"),
        ([None], "buffer.type"),
        ([memoryview(bytes(24))[::2]], "buffer.type"),
    ],
)
def test_buffers_that_are_not_the_descriptors_are_refused_and_the_writer_goes_on(buffers, rule):
    out = io.BytesIO()
    descriptor = dense(hw.float32, (3,), 12)
    with hw.create(out) as writer:
        with pytest.raises(hw.BufferSizeError) as caught:
            writer.add("t", descriptor, buffers)
        assert caught.value.rule == rule
        writer.add("t", descriptor, [bytes(12)])
    with hw.open(out.getvalue()) as file:
        file.verify()
        assert file.names == ("t",)


def test_index_buffers_must_have_the_index_type():
    layout = hw.BlockPagedLayout(4, 1, 0, 1)
    descriptor = hw.TensorDescriptor.build(hw.uint8, (4, 1, 1), layout, (4, 4, 8))
    with hw.create(io.BytesIO()) as writer, pytest.raises(hw.BufferSizeError, match="holds uint32"):
        writer.add("t", descriptor, [bytes(4), np.zeros(1, np.int32), np.zeros(2, np.uint32)])


def test_a_name_is_written_once_and_must_be_readable():
    descriptor = dense(hw.uint8, (), 1)
    with hw.create(io.BytesIO()) as writer:
        writer.add("t", descriptor, [b"x"])
        with pytest.raises(hw.InvalidFileError, match="duplicate tensor name 't'"):
            writer.add("t", descriptor, [b"x"])
        with pytest.raises(hw.InvalidFileError):
            writer.add("", descriptor, [b"x"])


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"alignment": 1000}, "container.alignment"),
        ({"alignment": 4 << 20}, "container.alignment"),
        ({"metadata": {"k": None}}, "metadata.value-tag"),
        ({"metadata": {"hurray_wire.crc32c": [1]}}, "metadata.key-duplicate"),
    ],
)
def test_arguments_that_no_reader_would_take_are_refused_before_a_file_appears(options, rule, tmp_path):
    with pytest.raises(hw.InvalidFileError) as caught:
        hw.create(tmp_path / "out", **options)
    assert caught.value.rule == rule
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_block_leaves_no_file(tmp_path):
    def fail_half_way():
        with hw.create(tmp_path / "out") as writer:
            writer.add("t", dense(hw.uint8, (3,), 3), [b"abc"])
            raise KeyError

    with pytest.raises(KeyError):
        fail_half_way()
    assert list(tmp_path.iterdir()) == []


class LyingChunks:
    nbytes = 3

    def chunks(self):
        yield b"ab"


def test_a_chunked_buffer_that_lies_about_its_size_leaves_no_file(tmp_path):
    with pytest.raises(hw.BufferSizeError, match="gave 2 bytes of 3"), hw.create(tmp_path / "out") as writer:
        writer.add("t", dense(hw.uint8, (3,), 3), [LyingChunks()])
    assert list(tmp_path.iterdir()) == []


class EndlessChunks:
    nbytes = 3

    def chunks(self):
        while True:
            yield b"ab"


def test_a_chunked_buffer_that_never_ends_is_stopped_at_its_size():
    out = Forward()
    with pytest.raises(hw.BufferSizeError) as caught, hw.create(out) as writer:
        writer.add("t", dense(hw.uint8, (3,), 3), [EndlessChunks()])
    assert (caught.value.rule, caught.value.declared, caught.value.found) == ("buffer.size", 3, 4)
    assert out.data.endswith(b"ab")
    assert not out.data.endswith(b"abab")


def test_a_closed_writer_takes_nothing_and_closing_twice_is_fine(tmp_path):
    writer = hw.create(tmp_path / "out")
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.add("t", dense(hw.uint8, (3,), 3), [b"abc"])
    with hw.open(tmp_path / "out") as file:
        assert len(file) == 0


def test_an_add_that_failed_half_way_and_was_swallowed_is_told_at_the_end(tmp_path):
    writer = hw.create(tmp_path / "out")
    with pytest.raises(hw.BufferSizeError):
        writer.add("t", dense(hw.uint8, (3,), 3), [LyingChunks()])
    with pytest.raises(hw.InvalidFileError) as caught:
        writer.close()
    assert caught.value.rule == "file.unfinished"
    assert list(tmp_path.iterdir()) == []


class Full(io.RawIOBase):
    """A disk on which there is no room beyond so many bytes."""

    def __init__(self, room):
        self.room = room

    def writable(self):
        return True

    def write(self, data):
        if self.room < len(data):
            raise OSError("no room")
        self.room -= len(data)
        return len(data)


@pytest.mark.parametrize("zstd", [False, 1])
def test_a_file_that_could_not_be_finished_is_told_as_often_as_it_is_closed(zstd):
    disk = Full(1 << 20)
    writer = hw.create(disk, zstd=zstd)
    writer.add("t", dense(hw.uint8, (3,), 3), [b"abc"])
    disk.room = 0
    with pytest.raises(OSError, match="no room"):
        writer.close()
    disk.room = 1 << 20
    for _ in range(2):
        with pytest.raises(hw.InvalidFileError, match="could not be finished") as caught:
            writer.close()
        assert caught.value.rule == "file.unfinished"
    with pytest.raises(ValueError, match="closed"):
        writer.add("u", dense(hw.uint8, (3,), 3), [b"abc"])


def test_a_block_whose_file_was_torn_and_closed_in_it_is_no_success(tmp_path):
    def close_in_the_block():
        with hw.create(tmp_path / "out") as writer:
            writer.add("head", hw.TensorDescriptor(hw.uint8, (), hw.CompositeLayout("group", 1)))
            with pytest.raises(hw.InvalidFileError) as caught:
                writer.close()
            assert caught.value.rule == "composite.torn"

    with pytest.raises(hw.InvalidFileError) as caught:
        close_in_the_block()
    assert caught.value.rule == "file.unfinished"
    assert list(tmp_path.iterdir()) == []


def nothing_is_created(tmp_path, target, error):
    with pytest.raises(error):
        hw.create(target)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["new/", "new//", "new/.", "new/..", "."])
def test_a_path_that_names_a_folder_is_refused_at_once(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nothing_is_created(tmp_path, name, IsADirectoryError)
    nothing_is_created(tmp_path, name.encode(), IsADirectoryError)


def test_an_empty_path_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nothing_is_created(tmp_path, "", FileNotFoundError)


ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


@pytest.mark.parametrize(
    ("name", "zstd", "magic"),
    [
        ("a.hrry.zst", None, ZSTD_MAGIC),
        ("a.hrry.zst", False, b"HRRY"),
        ("a.hrry.zst", 3, ZSTD_MAGIC),
        ("a.hrry", None, b"HRRY"),
        ("a.hrry", True, ZSTD_MAGIC),
        ("a.zst.hrry", None, b"HRRY"),
    ],
)
def test_a_name_that_ends_in_zst_is_compressed_unless_zstd_says_otherwise(name, zstd, magic, tmp_path):
    for number, target in enumerate((tmp_path / name, str(tmp_path / name), str(tmp_path / name).encode())):
        with hw.create(target, zstd=zstd) as writer:
            writer.add("t", dense(hw.uint8, (3,), 3), [b"abc"])
        assert (tmp_path / name).read_bytes()[:4] == magic, number
        with hw.open(tmp_path / name) as file:
            assert file["t"].numpy().tolist() == [97, 98, 99]


def test_byte_planes_need_no_more_than_a_name_that_is_compressed(tmp_path):
    with hw.create(tmp_path / "a.hrry.zst", planes=True) as writer:
        writer.add("t", dense(hw.uint8, (3,), 3), [b"abc"])
    assert (tmp_path / "a.hrry.zst").read_bytes()[:4] == ZSTD_MAGIC
    with pytest.raises(hw.IncompatibleError) as caught:
        hw.create(tmp_path / "b.hrry.zst", planes=True, zstd=False)
    assert caught.value.rule == "compressed.planes-without-zstd"

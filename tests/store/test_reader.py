"""Reading files (spec/container.md): lazily, held to their own words, and verified byte by byte."""

import io
import pickle
import struct

import numpy as np
import pytest

import hurray_wire as hw

LAYOUT = hw.BlockPagedLayout(4, 3, 0, 2, kv_role="key", layer_index=0)
DESCRIPTOR = hw.TensorDescriptor.build(hw.uint8, (6, 1, 2), LAYOUT, (24, 12, 12))
POOL = bytes(range(100, 124))
TABLE, PTR = struct.pack("<3I", 2, 0, 1), struct.pack("<3I", 0, 2, 3)
LENGTHS = hw.TensorDescriptor.build(hw.uint32, (2,), hw.RowMajorLayout(), (8,))


def snapshot(*, lengths=(5, 1), table=TABLE, ptr=PTR, metadata=None, **options):
    out = io.BytesIO()
    with hw.create(out, metadata=metadata, **options) as writer:
        writer.add("layers.0.key", DESCRIPTOR, [POOL, table, ptr])
        if lengths is not None:
            writer.add("seq_lens", LENGTHS, [struct.pack("<2I", *lengths)])
    return out.getvalue()


def tokens(*values):
    return [[list(pair)] for pair in values]


def test_a_block_paged_tensor_gives_its_parts_as_read_only_views():
    data = snapshot()
    tensor = hw.open(data)["layers.0.key"]
    assert isinstance(tensor, hw.PagedTensor)
    assert tensor.page_pool.shape == (3, 4, 1, 2)
    assert tensor.page_pool.tobytes() == POOL
    assert tensor.block_table.tolist() == [2, 0, 1]
    assert tensor.seq_ptr.tolist() == [0, 2, 3]
    assert tensor.seq_lens.tolist() == [5, 1]
    for array in (tensor.page_pool, tensor.block_table, tensor.seq_ptr, tensor.seq_lens, *tensor.buffers):
        assert not array.flags.writeable
    assert np.shares_memory(tensor.page_pool, np.frombuffer(data, np.uint8))


def test_gather_and_ragged_follow_the_table_to_each_length():
    tensor = hw.open(snapshot())["layers.0.key"]
    first = tokens((116, 117), (118, 119), (120, 121), (122, 123), (100, 101))
    second = tokens((108, 109))
    values, mask = tensor.gather()
    assert values.tolist() == [first, second + tokens(*[(0, 0)] * 4)]
    assert mask.tolist() == [[True] * 5, [True, False, False, False, False]]
    assert tensor.ragged().tolist() == first + second
    assert tensor.gather(seqs=[1, 0, 1], max_len=2, fill=9).values.tolist() == [
        second + tokens((9, 9)),
        first[:2],
        second + tokens((9, 9)),
    ]


@pytest.mark.parametrize("options", [{}, {"mmap": False}])
@pytest.mark.parametrize("kind", ["path", "bytes", "object"])
def test_every_way_of_opening_reads_the_same(tmp_path, options, kind):
    data = snapshot(metadata={"k": [1, 2]})
    path = tmp_path / "file"
    path.write_bytes(data)
    target = {"path": path, "bytes": data, "object": io.BytesIO(data)}[kind]
    with hw.open(target, **options) as file:
        assert file.names == tuple(file) == ("layers.0.key", "seq_lens")
        assert "seq_lens" in file
        assert file.metadata["k"] == [1, 2]
        assert file["layers.0.key"].gather(seqs=[0]).values.tolist() == [
            tokens((116, 117), (118, 119), (120, 121), (122, 123), (100, 101))
        ]
        report = file.verify()
        assert (report.tensors, report.buffers, report.checksums) == (2, 4, 6)
        assert report.payload_bytes == 24 + 12 + 12 + 8


def test_only_the_pages_of_the_chosen_sequences_are_read_from_a_plain_file(tmp_path):
    class Counting(io.BytesIO):
        def read(self, size=-1):
            taken.append(size)
            return super().read(size)

    taken = []
    file = hw.open(Counting(snapshot()))
    tensor = file["layers.0.key"]
    _ = tensor.seq_lens, tensor.block_table
    taken.clear()
    tensor.gather(seqs=[1])
    assert sum(taken) == 8  # one page of four slots of two bytes


def test_a_tensor_that_is_not_there_is_a_key_error():
    with pytest.raises(KeyError):
        hw.open(snapshot())["layers.1.key"]


def test_lengths_come_from_the_caller_before_the_file():
    data = snapshot(lengths=None)
    tensor = hw.open(data)["layers.0.key"]
    with pytest.raises(hw.IncompatibleError, match="pass seq_lens="):
        tensor.gather()
    assert hw.open(data, seq_lens=[5, 1])["layers.0.key"].seq_lens.tolist() == [5, 1]
    assert hw.open(snapshot(lengths=(4, 2)), seq_lens=np.array([5, 1]))["layers.0.key"].seq_lens.tolist() == [5, 1]


@pytest.mark.parametrize(
    ("lengths", "rule"),
    [
        ((5, 2), "snapshot.seq-lens-sum"),
        ((1, 5), "snapshot.seq-lens-pages"),
        ((6, 0), None),
        ((2**32 - 1, 7), "snapshot.seq-lens-pages"),
    ],
)
def test_recorded_lengths_must_fit_the_pages(lengths, rule):
    file = hw.open(snapshot(lengths=lengths))
    if rule is None:
        assert file["layers.0.key"].ragged().shape == (6, 1, 2)
        return
    for action in (file["layers.0.key"].gather, file.verify):
        with pytest.raises(hw.IncompatibleError) as caught:
            action()
        assert caught.value.rule == rule


@pytest.mark.parametrize(
    ("descriptor", "buffer"),
    [
        (hw.TensorDescriptor.build(hw.int32, (2,), hw.RowMajorLayout(), (8,)), bytes(8)),
        (hw.TensorDescriptor.build(hw.uint32, (2, 1), hw.RowMajorLayout(), (8,)), bytes(8)),
        (hw.TensorDescriptor.build(hw.float32, (2,), hw.RowMajorLayout(), (8,)), bytes(8)),
    ],
)
def test_a_tensor_named_seq_lens_must_be_lengths(descriptor, buffer):
    out = io.BytesIO()
    with hw.create(out) as writer:
        writer.add("layers.0.key", DESCRIPTOR, [POOL, TABLE, PTR])
        writer.add("seq_lens", descriptor, [buffer])
    with pytest.raises(hw.IncompatibleError) as caught:
        hw.open(out.getvalue())["layers.0.key"].gather()
    assert caught.value.rule == "snapshot.seq-lens-type"


@pytest.mark.parametrize(
    ("table", "ptr", "rule"),
    [
        (struct.pack("<3I", 2, 3, 1), PTR, "block-paged.page-id"),
        (struct.pack("<3I", 2, 2**32 - 1, 1), PTR, "block-paged.page-id"),
        (TABLE, struct.pack("<3I", 1, 2, 3), "block-paged.seq-ptr-start"),
        (TABLE, struct.pack("<3I", 0, 3, 2), "block-paged.seq-ptr-order"),
        (TABLE, struct.pack("<3I", 0, 2, 2), "block-paged.seq-ptr-end"),
    ],
)
def test_a_broken_table_is_refused_before_any_page_is_read(table, ptr, rule):
    data = bytearray(snapshot(checksums=False))
    data[8192 : 8192 + 12], data[12288 : 12288 + 12] = table, ptr
    file = hw.open(data)
    tensor = file["layers.0.key"]
    for action in (tensor.gather, tensor.ragged, lambda: tensor.block_table, file.verify):
        with pytest.raises(hw.InvalidDescriptorError) as caught:
            action()
        assert caught.value.rule == rule


def test_verify_notices_one_flipped_byte_anywhere():
    data = snapshot(metadata={"k": "v"})
    with hw.open(data) as file:
        file.verify()
    for position in range(len(data)):
        if data[position - 8 : position + 9] == bytes(17) and position % 61:
            continue  # deep in padding one byte stands for its neighbours
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        try:
            hw.open(damaged).verify()
        except hw.HurrayError:
            continue
        # these bind no reader: the minor version, a hint, and the name of the metadata's own checksum
        seal = data.index(b"hurray_wire.metadata_crc32c")
        assert position == 9 or 28 <= position < 36 or seal <= position < seal + 27, position


def test_verify_names_the_tensor_and_buffer_that_was_damaged():
    data = bytearray(snapshot())
    data[data.index(POOL) + 5] ^= 1
    with pytest.raises(hw.ChecksumError, match=r"buffer 0 of 'layers\.0\.key'") as caught:
        hw.open(data).verify()
    assert caught.value.rule == "verify.crc"


def test_verify_notices_padding_without_any_checksum():
    data = bytearray(snapshot(checksums=False))
    data[4096 + 24] = 1  # just behind the pool
    with pytest.raises(hw.InvalidFileError) as caught:
        hw.open(data).verify()
    assert (caught.value.rule, caught.value.offset) == ("verify.padding", 4096 + 24)


@pytest.mark.parametrize("recorded", ["text", [1], [1] * 9, [-1] * 6, [2**40] * 6, [0.5] * 6])
def test_recorded_checksums_of_another_form_are_refused(recorded):
    file = hw.open(snapshot(checksums=False, metadata={"hurray_wire.crc32c": recorded}))
    with pytest.raises(hw.InvalidFileError) as caught:
        file.verify()
    assert caught.value.rule in ("verify.crc-type", "verify.crc-count", "verify.crc")


def test_the_index_must_agree_with_the_descriptor():
    data = bytearray(snapshot(checksums=False))
    entry = data.index(b"layers.0.key", 8192) + 12
    length = struct.unpack_from("<QIQQI", data, entry)[3]
    struct.pack_into("<Q", data, entry + 20, length - 1)
    data[12] &= ~4  # without its checksum the index is taken at its word
    struct.pack_into("<I", data, len(data) - 12, 0)
    with pytest.raises(hw.InvalidFileError, match=r"tensor 'layers\.0\.key'") as caught:
        _ = hw.open(data)["layers.0.key"]
    assert caught.value.rule == "index.data-length"


def test_descriptors_are_read_on_first_touch_only():
    data = bytearray(snapshot())
    data[64:68] = b"????"  # the first descriptor's magic
    file = hw.open(data)
    assert file["seq_lens"].numpy().tolist() == [5, 1]
    with pytest.raises(hw.InvalidDescriptorError) as caught:
        _ = file["layers.0.key"]
    assert (caught.value.rule, caught.value.offset) == ("descriptor.magic", 64)


def test_an_unknown_layout_is_kept_in_permissive_mode():
    data = bytearray(snapshot(checksums=False))
    data[64 + 15] = 0x0C
    with pytest.raises(hw.UnsupportedError):
        _ = hw.open(data)["layers.0.key"]
    tensor = hw.open(data, permissive=True)["layers.0.key"]
    assert tensor.descriptor.layout.tag == 0x0C
    assert bytes(tensor.buffers[0][:24]) == POOL
    with pytest.raises(hw.UnsupportedError):
        tensor.numpy()


def test_a_closed_file_refuses_and_its_arrays_stay(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(snapshot())
    file = hw.open(path)
    pool = file["layers.0.key"].page_pool
    file.close()
    file.close()
    path.unlink()
    assert pool.tobytes() == POOL
    with pytest.raises(ValueError, match="closed"):
        _ = file["seq_lens"].numpy()


@pytest.mark.parametrize("size", [0, 1, 63, 64, 100, 103])
def test_a_file_too_short_for_header_and_trailer_is_truncated(size):
    with pytest.raises(hw.TruncatedError):
        hw.open(snapshot()[:size])
    if size >= 64:
        with pytest.raises(hw.InvalidFileError) as caught:
            hw.open(b"not a file of ours at all" + bytes(size))
        assert caught.value.rule == "container.magic"


def test_a_batch_of_unknown_total_is_gathered_by_recorded_lengths_only():
    dynamic = hw.TensorDescriptor.build(hw.uint8, (None, 1, 2), LAYOUT, (24, 12, 12))
    out = io.BytesIO()
    with hw.create(out) as writer:
        writer.add("layers.0.key", dynamic, [POOL, TABLE, PTR])
    with pytest.raises(hw.IncompatibleError, match="pass seq_lens="):
        hw.open(out.getvalue())["layers.0.key"].gather()
    tensor = hw.open(out.getvalue(), seq_lens=[5, 1])["layers.0.key"]
    assert tensor.ragged().shape == (6, 1, 2)
    hw.open(out.getvalue()).verify()


def test_a_batch_of_unknown_heads_has_no_pages():
    dynamic = hw.TensorDescriptor.build(hw.uint8, (6, None, 2), LAYOUT, (24, 12, 12))
    out = io.BytesIO()
    with hw.create(out) as writer:
        writer.add("layers.0.key", dynamic, [POOL, TABLE, PTR])
    tensor = hw.open(out.getvalue(), seq_lens=[5, 1])["layers.0.key"]
    for action in (tensor.gather, tensor.ragged, lambda: tensor.page_pool):
        with pytest.raises(hw.UnsupportedError):
            action()


def test_metadata_are_a_copy_and_so_are_their_lists():
    out = io.BytesIO()
    hw.create(out, metadata={"list": [1, 2]}).close()
    with hw.open(out.getvalue()) as file:
        file.metadata["list"].append(3)
        file.metadata["more"] = 4
        assert file.metadata["list"] == [1, 2]
        assert "more" not in file.metadata
        assert file.verify().checksums == 0


def test_a_name_that_is_not_there_is_told_with_those_that_come_near():
    with hw.open(snapshot()) as file:
        with pytest.raises(KeyError) as caught:
            file["layer.0.key"]
        assert caught.value.args == ("layer.0.key",)
        assert str(caught.value) == "no tensor 'layer.0.key'; there is 'layers.0.key'"
        with pytest.raises(KeyError, match="no tensor 17 among 2"):
            file[17]
        assert file.get("layer.0.key") is None


def test_an_error_has_a_note_that_names_the_file_and_keeps_it(tmp_path):
    path = tmp_path / "cache.hrry"
    path.write_bytes(b"no file of ours, but long enough for one" * 9)
    with pytest.raises(hw.InvalidFileError) as caught:
        hw.open(path)
    assert caught.value.__notes__ == [f"while reading {str(path)!r}"]
    assert pickle.loads(pickle.dumps(caught.value)).__notes__ == caught.value.__notes__

    data = bytearray(snapshot())
    data[4096] ^= 1  # of the lengths
    path.write_bytes(data)
    with hw.open(path) as file:
        assert repr(file) == f"<hurray_wire.File {str(path)!r} of 2 tensors, {len(data)} bytes>"
        with pytest.raises(hw.ChecksumError) as caught:
            file.verify()
    assert caught.value.__notes__ == [f"while reading {str(path)!r}"]
    with pytest.raises(hw.ChecksumError) as caught:
        hw.open(data).verify()
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize(
    ("data", "rule", "said"),
    [
        (b"", "container.truncated", "the file is empty"),
        (b"hello world", "container.magic", "68 65 6c 6c 6f"),
        (b"HRRY", "container.truncated", "104"),
        (b"HRRYFILE", "container.truncated", "104"),
    ],
)
def test_a_file_too_short_to_be_one_is_told_by_what_there_is_of_it(data, rule, said):
    with pytest.raises(hw.InvalidFileError) as caught:
        hw.open(data)
    assert caught.value.rule == rule
    assert said in caught.value.message


def test_some_tensors_are_verified_and_others_are_not_looked_at():
    out = io.BytesIO()
    descriptor = hw.TensorDescriptor.build(hw.uint8, (8,), hw.RowMajorLayout(), (8,))
    with hw.create(out) as writer:
        for number in range(4):
            writer.add(f"t{number}", descriptor, [bytes([number + 1] * 8)])
    data = bytearray(out.getvalue())
    data[data.index(bytes([3] * 8))] = 9  # of t2
    with hw.open(bytes(data)) as file:
        report = file.verify(only=["t3", "t0"])
        assert (report.tensors, report.buffers, report.checksums, report.payload_bytes) == (2, 2, 4, 16)
        for only in (["t2"], ["t1", "t2"], None):
            with pytest.raises(hw.ChecksumError, match="'t2'"):
                file.verify(only=only)
        with pytest.raises(KeyError, match="t9"):
            file.verify(only=["t9"])
        assert file.verify(only=[]).tensors == 0

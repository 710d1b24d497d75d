"""Writing a snapshot again: whatever is written another way or left out, what remains is what there was."""

import io
import struct

import ml_dtypes
import numpy as np
import pytest

import hurray_wire as hw
from hurray_wire.model import element_types

PAGE, HEADS, DIM, PAGES = 4, 2, 3, 7
TABLES = [[5, 2], [5, 6, 1], []]
LENS = [6, 11, 0]
STALE = 77


def pool(layer, role, dtype=np.float16):
    """Small numbers, distinct in the slots of sequences; STALE in all others."""
    values = np.full((PAGES, PAGE, HEADS, DIM), STALE, np.float32)
    used = [(page, slot) for table, n in zip(TABLES, LENS, strict=True) for slot, page in slots(table, n)]
    for number, place in enumerate(used):
        values[place] = number / 4 + layer + (0 if role == "key" else -8)
    return values.astype(dtype)


def slots(table, length):
    return [(t % PAGE, table[t // PAGE]) for t in range(length)]


def saved(layers=(0, 3), *, dtype=np.float16, **options):
    out = io.BytesIO()
    cache = {layer: (pool(layer, "key", dtype), pool(layer, "value", dtype)) for layer in layers}
    arguments = {"block_tables": [[5, 2, -1], [5, 6, 1], [-1] * 3], "seq_lens": LENS, **options}
    hw.save_snapshot(out, cache, **arguments)
    return out.getvalue()


def again(source, **options):
    out = io.BytesIO()
    with hw.load_snapshot(source) as snapshot:
        snapshot.save(out, **options)
    with hw.load_snapshot(out.getvalue()) as snapshot:
        snapshot.verify()
    return out.getvalue()


def expected(layer, role, seqs=(0, 1, 2), dtype=np.float16):
    array = pool(layer, role, dtype)
    rows = [array[page, slot] for seq in seqs for slot, page in slots(TABLES[seq], LENS[seq])]
    return np.array(rows, dtype).reshape(-1, HEADS, DIM)


def check(data, layers=(0, 3), seqs=(0, 1, 2), dtype=np.float16):
    with hw.load_snapshot(data) as snapshot:
        assert snapshot.layers == tuple(layers)
        assert snapshot.seq_lens.tolist() == [LENS[seq] for seq in seqs]
        for layer in layers:
            for role, tensor in snapshot[layer].tensors.items():
                assert tensor.ragged().tobytes() == expected(layer, role, seqs, dtype).tobytes()


def test_a_file_of_ours_comes_out_as_the_same_bytes():
    assert again(saved()) == saved()
    assert again(saved(), alignment=8192, checksums=False) == saved(alignment=8192, checksums=False)
    assert again(saved(zstd=True), zstd=3, planes=True) == saved(zstd=3, planes=True)
    assert again(saved(zstd=3, planes=True)) == saved()
    kept = {"compact": False, "scrub": False}
    assert again(saved(**kept), **kept) == saved(**kept)


@pytest.mark.parametrize("source", [{}, {"zstd": True}, {"zstd": True, "planes": True}, {"compact": False}])
def test_a_part_of_a_snapshot_has_its_layers_and_sequences_in_the_order_asked_for(source):
    data = saved(**source)
    check(again(data, layers=[3]), layers=[3])
    check(again(data, seqs=[1, 0]), seqs=[1, 0])
    check(again(data, layers=[0], seqs=[np.int64(0), 0]), layers=[0], seqs=[0, 0])
    check(again(data, seqs=[]), seqs=[])
    part = again(data, layers=[3], seqs=[0])
    check(part, layers=[3], seqs=[0])
    with hw.load_snapshot(part) as snapshot:
        assert snapshot.file.names == ("seq_lens", "layers.3.key", "layers.3.value")
        assert snapshot[3].key.layout.num_pages == 2


def test_only_pages_and_slots_of_the_chosen_sequences_are_written():
    stale = struct.pack("<e", STALE)
    data = saved(compact=False, scrub=False)
    assert stale in data
    assert stale not in again(data)
    # sequence 0 has two tokens in page 2, and shares page 5; what sequence 1 alone has is not there
    with hw.load_snapshot(again(data, seqs=[0])) as snapshot:
        pages = snapshot[0].key.page_pool
    whole = pool(0, "key")
    whole[2, 2:] = 0
    assert np.array_equal(pages, whole[[5, 2]])
    assert stale in again(data, compact=False, scrub=False, seqs=[0])


def test_what_came_over_a_stream_is_saved():
    stream = io.BytesIO()
    cache = {layer: (pool(layer, "key"), pool(layer, "value")) for layer in (0, 3)}
    hw.send_snapshot(stream, cache, block_tables=TABLES[:2], seq_lens=LENS[:2], model_id="m")
    out = io.BytesIO()
    hw.receive_snapshot(io.BytesIO(stream.getvalue())).save(out, zstd=True)
    check(out.getvalue(), seqs=[0, 1])
    with hw.load_snapshot(out.getvalue()) as snapshot:
        assert snapshot.metadata["model.id"] == "m"
        assert snapshot.file.compression is not None
        assert snapshot.verify().checksums > 0


def test_bare_tensors_of_a_stream_get_the_lengths_that_they_were_given():
    layout = hw.BlockPagedLayout(2, 3, 0, 2, layer_index=9)
    descriptor = hw.TensorDescriptor.build(hw.uint8, (3, 1, 1), layout, (6, 8, 12))
    wire = descriptor.encode() + b"abcdef" + struct.pack("<5I", 2, 0, 0, 1, 2)
    out = io.BytesIO()
    hw.receive_snapshot(io.BytesIO(wire), seq_lens=[2, 1]).save(out)
    with hw.load_snapshot(out.getvalue()) as snapshot:
        assert snapshot.file.names == ("seq_lens", "layers.9.key")
        assert snapshot[9].key.page_pool.tobytes() == b"efa\0"
        assert snapshot.metadata["hurray_wire.snapshot"] == 1
    with pytest.raises(hw.IncompatibleError) as caught:
        hw.receive_snapshot(io.BytesIO(wire)).save(io.BytesIO())
    assert caught.value.rule == "snapshot.seq-lens-unknown"


def test_metadata_stay_but_for_what_is_said_anew():
    data = saved(model_id="m", tp_rank=1, tp_size=2, metadata={"note": "old", "list": [1, 2], "producer": "somebody"})
    with hw.load_snapshot(again(data, metadata={"note": "new", "more": 1.5})) as snapshot:
        told = snapshot.metadata
    assert (told["model.id"], told["tp.rank"], told["tp.size"]) == ("m", 1, 2)
    assert (told["note"], told["more"], told["list"], told["source.layout"]) == ("new", 1.5, [1, 2], "split-nhd")
    assert told["producer"] == f"hurray_wire {hw.__version__}"
    with pytest.raises(hw.InvalidFileError) as caught:
        again(data, metadata={"hurray_wire.snapshot": 2})
    assert caught.value.rule == "snapshot.reserved-key"


@pytest.mark.parametrize("seqs", [None, [1]])
def test_scales_of_slots_stay_with_their_slots(seqs):
    data = saved(quantize="int8", compact=False)
    with hw.load_snapshot(data) as snapshot:
        before = snapshot[3].value.ragged(seqs, dequantize=True)
    with hw.load_snapshot(again(data, seqs=seqs)) as snapshot:
        tensor = snapshot[3].value
        assert tensor.descriptor.element_type == hw.int8
        assert tensor.ragged(dequantize=True).tobytes() == before.tobytes()
        assert tensor.layout.num_pages == (4 if seqs is None else 3)


def per_slot(scheme, parameters):
    """A file with one sequence of three tokens, in pages 1 and 0 of two with two slots each."""
    layout = hw.BlockPagedLayout(2, 3, 0, 1, layer_index=0)
    sizes = (6, 8, 8, *map(len, parameters))
    descriptor = hw.TensorDescriptor.build(hw.int8, (3, 1, 1), layout, sizes, quantization=scheme)
    out = io.BytesIO()
    with hw.create(out) as writer:
        writer.add("k", descriptor, [b"\1\2\3\4\5\6", struct.pack("<2I", 1, 0), struct.pack("<2I", 0, 2), *parameters])
    return out.getvalue()


SCALES, ZEROS = struct.pack("<6f", 1, 2, 3, 4, 5, 6), struct.pack("<6i", -1, -2, -3, -4, -5, -6)


@pytest.mark.parametrize(
    ("scheme", "parameters", "written"),
    [
        (
            hw.PerBlockAffine.asymmetric(0, 2, 3, 4, hw.float32),
            [SCALES, ZEROS],
            [struct.pack("<4f", 3, 4, 1, 1), struct.pack("<4i", -3, -4, -1, 0)],
        ),
        (
            hw.PerBlockAffine.asymmetric(0, 2, 3, 3, hw.float32),
            [SCALES + ZEROS],
            [struct.pack("<4f4i", 3, 4, 1, 1, -3, -4, -1, 0)],
        ),
        (
            hw.PerChannelAffine.symmetric(2, 3),
            [struct.pack("<f", 7)],
            [struct.pack("<f", 7)],
        ),
    ],
)
def test_parameters_of_slots_are_those_of_the_pages_that_are_written(scheme, parameters, written):
    """Slot 1 of page 0 holds no token, and page 2 is nobody's: their parameters tell nothing any more."""
    with hw.load_snapshot(again(per_slot(scheme, parameters))) as snapshot:
        assert [bytes(buffer) for buffer in snapshot[0].key.buffers[3:]] == written
        assert bytes(snapshot[0].key.buffers[0]) == b"\3\4\1\0"
        assert snapshot.file.names == ("seq_lens", "k")


def test_scales_beside_a_tensor_go_where_it_goes():
    scales = {"layers.0.key": 0.5, "layers.3.value": [2.0, 4.0]}
    data = saved(dtype=ml_dtypes.float8_e4m3fn, scales=scales)
    with hw.load_snapshot(again(data)) as snapshot:
        assert snapshot[0].key.companion_scale.tolist() == 0.5
        assert snapshot[3].value.companion_scale.tolist() == [2.0, 4.0]
    part = again(data, layers=[3])
    check(part, layers=[3], dtype=ml_dtypes.float8_e4m3fn)
    with hw.load_snapshot(part) as snapshot:
        assert snapshot.file.names == ("seq_lens", "layers.3.key", "layers.3.value", "layers.3.value.scale")


@pytest.mark.parametrize(
    ("element_type", "sections", "size", "written"),
    [
        (hw.uint4, {}, 6, b"\5\6\1\0"),
        (
            element_types.private(0xF1, 8),
            {"extension_type": hw.ExtensionType(bit_width=8)},
            12,
            b"\x09\x0a\x0b\x0c\1\2\0\0",
        ),
    ],
)
def test_elements_narrower_than_a_byte_and_private_ones_stay(element_type, sections, size, written):
    layout = hw.BlockPagedLayout(2, 3, 0, 1, layer_index=0)
    descriptor = hw.TensorDescriptor.build(element_type, (3, 1, 2), layout, (size, 8, 8), **sections)
    out = io.BytesIO()
    with hw.create(out, zstd=True) as writer:
        writer.add("k", descriptor, [bytes(range(1, size + 1)), struct.pack("<2I", 2, 0), struct.pack("<2I", 0, 2)])
    with hw.load_snapshot(again(out.getvalue())) as snapshot:
        assert snapshot[0].key.descriptor.element_type == element_type
        assert bytes(snapshot[0].key.buffers[0]) == written


def test_other_tensors_of_the_file_are_written_as_they_are():
    head = hw.TensorDescriptor(hw.uint8, (), hw.CompositeLayout("group", 1))
    vector = hw.TensorDescriptor.build(hw.int16, (3,), hw.ColMajorLayout(), (6,))
    out = io.BytesIO()
    with hw.load_snapshot(saved((0,))) as snapshot, hw.create(out) as writer:
        writer.add("first", head)
        writer.add("inner", vector, [b"abcdef"])
        for name, tensor in snapshot.file.items():
            writer.add(name, tensor.descriptor, tensor.buffers)
        writer.add("last", vector, [b"ghijkl"])
    with hw.open(again(out.getvalue(), seqs=[0])) as file:
        assert file.names == ("first", "inner", "seq_lens", "layers.0.key", "layers.0.value", "last")
        assert file["first"].members[0].numpy().tobytes() == b"abcdef"
        assert file["last"].descriptor == vector


def test_the_file_that_is_read_may_be_replaced(tmp_path):
    path = tmp_path / "cache.hrry.zst"
    path.write_bytes(saved(zstd=True))
    with hw.load_snapshot(path) as snapshot:
        snapshot.save(path, seqs=[1])
        assert snapshot.seq_lens.tolist() == LENS
    check(path, seqs=[1])
    with hw.open(path) as file:
        assert file.compression is not None
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("options", "error"),
    [({"layers": [1]}, KeyError), ({"seqs": [3]}, hw.IncompatibleError), ({"planes": True}, hw.IncompatibleError)],
)
def test_what_is_not_there_is_refused_before_a_file_appears(options, error, tmp_path):
    with hw.load_snapshot(saved()) as snapshot, pytest.raises(error):
        snapshot.save(tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_progress_is_told_in_bytes():
    told = []
    again(saved(), progress=lambda done, total: told.append((done, total)))
    size = 4 * PAGE * HEADS * DIM * 2 + 5 * 4 + 4 * 4  # four pages, five entries, four pointers
    assert told == [(12 + number * size, 12 + 4 * size) for number in range(5)]


def test_a_snapshot_without_tensors_is_written_again():
    out = io.BytesIO()
    with hw.create(out, metadata={"hurray_wire.snapshot": 1}):
        pass
    with hw.load_snapshot(again(out.getvalue())) as snapshot:
        assert snapshot.layers == ()


def test_a_file_that_is_read_and_not_mapped_is_written_again(tmp_path):
    path = tmp_path / "cache.hrry"
    path.write_bytes(saved(compact=False))
    out = io.BytesIO()
    with hw.load_snapshot(path, mmap=False) as snapshot:
        snapshot.save(out)
    assert out.getvalue() == saved()


def test_tensors_of_different_batches_are_not_written_together():
    out = io.BytesIO()
    with hw.create(out) as writer:
        for layer, tokens in ((0, 3), (1, 2)):
            layout = hw.BlockPagedLayout(2, 2, 0, 1, layer_index=layer)
            descriptor = hw.TensorDescriptor.build(hw.uint8, (tokens, 1, 1), layout, (4, 8, 8))
            pages = struct.pack("<2I", 1, 0), struct.pack("<2I", 0, 2)
            writer.add(f"k{layer}", descriptor, [b"abcd", *pages])
    with pytest.raises(hw.IncompatibleError, match="'k1' is of another batch than 'k0'") as caught:
        again(out.getvalue())
    assert caught.value.rule == "export.batch"
    with hw.load_snapshot(again(out.getvalue(), layers=[1])) as snapshot:
        assert snapshot[1].key.ragged().tobytes() == b"cd"
        assert snapshot.file.names == ("seq_lens", "k1")


def test_metadata_keep_their_order_and_so_the_bytes():
    told = {"z": 1, "model.id": "m", "a": [1, 2], "tp.size": 2, "tp.rank": 1, "source.layout": "nhd"}
    assert again(saved(metadata=told)) == saved(metadata=told)
    assert again(saved(model_id="m", tp_rank=1, tp_size=2)) == saved(model_id="m", tp_rank=1, tp_size=2)
    with hw.load_snapshot(again(saved(metadata=told), metadata={"new": 0, "z": 2})) as snapshot:
        own = [key for key in snapshot.metadata if not key.startswith("hurray_wire.")]
    assert own == ["producer", "source.layout", "z", "model.id", "a", "tp.size", "tp.rank", "new"]


@pytest.mark.parametrize("layers", [[0, 0], [3, 0, np.int64(3)]], ids=repr)
def test_a_layer_named_twice_is_refused(layers):
    with hw.load_snapshot(saved()) as snapshot:
        calls = [
            lambda: snapshot.save(io.BytesIO(), layers=layers),
            lambda: snapshot.send(io.BytesIO(), layers=layers),
            lambda: snapshot.export(layers=layers),
            lambda: snapshot.count_pages(layers=layers),
            lambda: hw.export_merged([snapshot], layers=layers),
        ]
        for call in calls:
            with pytest.raises(hw.IncompatibleError, match=f"layer {layers[0]} twice") as caught:
                call()
            assert caught.value.rule == "adapter.layer-index"


def test_a_layer_without_an_index_is_named_once_too():
    layout = hw.BlockPagedLayout(1, 1, 0, 1)
    out = io.BytesIO()
    with hw.create(out) as writer:
        descriptor = hw.TensorDescriptor.build(hw.uint8, (1, 1, 1), layout, (1, 4, 8))
        writer.add("k", descriptor, [b"a", bytes(4), struct.pack("<2I", 0, 1)])
    with hw.load_snapshot(out.getvalue()) as snapshot:
        assert hw.load_snapshot(again(out.getvalue(), layers=[None])).layers == (None,)
        with pytest.raises(hw.IncompatibleError, match="the layer without index twice"):
            snapshot.save(io.BytesIO(), layers=[None, None])


def test_what_is_damaged_gets_no_fresh_checksums(tmp_path):
    data = bytearray(saved())
    with hw.open(bytes(data)) as file:
        pool = file["layers.3.key"].page_pool
        start = bytes(data).index(pool[0, 0, 0].tobytes())
    data[start] ^= 1
    target = tmp_path / "again.hrry"
    with hw.load_snapshot(bytes(data)) as snapshot:
        for layers in (None, [3], [0, 3]):
            with pytest.raises(hw.ChecksumError, match=r"'layers\.3\.key'"):
                snapshot.save(target, layers=layers)
        assert not target.exists()
        snapshot.save(target, layers=[0])  # nothing of which is damaged
        hw.open(target).verify()
        snapshot.save(target, verify=False)
    with hw.open(target) as file:
        file.verify()  # its checksums are those of what it holds
        assert file["layers.3.key"].page_pool.tobytes() != pool.tobytes()

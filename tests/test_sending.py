"""A snapshot that there is, sent over a stream: what arrives is what ``save`` would have written."""

import io
import socket
import struct
import threading

import ml_dtypes
import numpy as np
import pytest

import hurray_wire as hw

PAGE, PAGES = 4, 6
TABLES = [[5, 2], [5, 3, 1]]
LENS = [6, 11]


def pool(layer, role, dtype=np.float16):
    start = layer * 10 + (0.5 if role == "value" else 0)
    return (start + np.arange(PAGES * PAGE * 2 * 3).reshape(PAGES, PAGE, 2, 3)).astype(dtype)


def tokens(layer, role, seqs=(0, 1)):
    array = pool(layer, role)
    return np.array([array[TABLES[seq][t // PAGE], t % PAGE] for seq in seqs for t in range(LENS[seq])])


def batch(dtype=np.float16, **options):
    tables = {"block_tables": [[5, 2, -1], [5, 3, 1]], "seq_lens": LENS}
    return {layer: (pool(layer, "key", dtype), pool(layer, "value", dtype)) for layer in (0, 3)}, tables | options


def saved(**options):
    layers, options = batch(**options)
    out = io.BytesIO()
    hw.save_snapshot(out, layers, **options)
    return out.getvalue()


def sent(snapshot, **options):
    out = io.BytesIO()
    snapshot.send(out, **options)
    return out.getvalue()


def sent_from_arrays(**options):
    layers, options = batch(**options)
    out = io.BytesIO()
    hw.send_snapshot(out, layers, **options)
    return out.getvalue()


@pytest.mark.parametrize(
    "source", [{}, {"zstd": True}, {"zstd": True, "planes": True}, {"compact": False, "scrub": False}], ids=str
)
def test_what_is_sent_of_a_file_is_what_is_sent_of_its_arrays(source, tmp_path):
    expected = sent_from_arrays(model_id="m", metadata={"z": 1, "a": [2.5]})
    path = tmp_path / "cache"
    path.write_bytes(saved(model_id="m", metadata={"z": 1, "a": [2.5]}, **source))
    for mmap in (True, False):
        with hw.load_snapshot(path, mmap=mmap) as snapshot:
            assert sent(snapshot) == expected
    with hw.receive_snapshot(io.BytesIO(expected)) as snapshot:
        assert sent(snapshot) == expected


def test_a_part_of_it_arrives_in_the_order_asked_for():
    with hw.load_snapshot(saved(zstd=True, model_id="m", metadata={"note": "old"})) as snapshot:
        data = sent(snapshot, layers=[3, 0], seqs=[1, 0], metadata={"note": "new"})
    arrived = hw.receive_snapshot(io.BytesIO(data))
    assert arrived.seq_lens.tolist() == [11, 6]
    assert arrived.file.names == ("seq_lens", "layers.3.key", "layers.3.value", "layers.0.key", "layers.0.value")
    for layer in (0, 3):
        for role, tensor in arrived[layer].tensors.items():
            assert np.array_equal(tensor.ragged(), tokens(layer, role, (1, 0)))
    assert (arrived.metadata["model.id"], arrived.metadata["note"]) == ("m", "new")


def test_pages_and_slots_of_others_are_sent_only_where_that_is_asked_for():
    with hw.load_snapshot(saved(compact=False, scrub=False)) as snapshot:
        arrived = hw.receive_snapshot(io.BytesIO(sent(snapshot, seqs=[0])))
        assert arrived[0].key.layout.num_pages == 2
        assert arrived[0].key.page_pool[1, 2:].tobytes() == bytes(2 * 6 * 2)
        whole = hw.receive_snapshot(io.BytesIO(sent(snapshot, seqs=[0], compact=False, scrub=False)))
        assert np.array_equal(whole[0].key.page_pool, pool(0, "key"))


def test_lengths_come_first_and_scales_behind_their_tensors():
    layout = hw.BlockPagedLayout(2, 1, 0, 1, layer_index=0)
    fused = hw.BlockPagedLayout(2, 1, 0, 1, layer_index=0, kv_role="value")
    scale = hw.TensorDescriptor.build(hw.float32, (), hw.RowMajorLayout(), (4,))
    lengths = hw.TensorDescriptor.build(hw.uint32, (1,), hw.RowMajorLayout(), (4,))
    index = [bytes(4), struct.pack("<2I", 0, 1)]
    out = io.BytesIO()
    with hw.create(out) as writer:
        writer.add("other", lengths, [b"abcd"])
        writer.add("v.scale", scale, [struct.pack("<f", 2)])
        writer.add("v", hw.TensorDescriptor.build(hw.float8_e4m3, (2, 1, 1), fused, (2, 4, 8)), [b"ab", *index])
        writer.add("k", hw.TensorDescriptor.build(hw.float8_e4m3, (2, 1, 1), layout, (2, 4, 8)), [b"cd", *index])
        writer.add("seq_lens", lengths, [struct.pack("<I", 2)])
    with hw.load_snapshot(out.getvalue()) as snapshot:
        arrived = hw.receive_snapshot(io.BytesIO(sent(snapshot)))
    assert arrived.file.names == ("seq_lens", "k", "v", "v.scale", "other")
    assert arrived[0].value.companion_scale.tolist() == 2
    assert arrived.file["other"].numpy().tobytes() == b"abcd"


def test_scales_of_a_float8_cache_arrive():
    with hw.load_snapshot(saved(dtype=ml_dtypes.float8_e4m3fn, scales=[(2.0, 0.5)] * 2)) as snapshot:
        arrived = hw.receive_snapshot(io.BytesIO(sent(snapshot, layers=[3])))
    assert arrived.file.names[1:] == ("layers.3.key", "layers.3.key.scale", "layers.3.value", "layers.3.value.scale")
    assert arrived[3].value.companion_scale.tolist() == 0.5


def test_send_snapshot_takes_a_snapshot_too():
    out = io.BytesIO()
    with hw.load_snapshot(saved()) as snapshot:
        hw.send_snapshot(out, snapshot, seqs=[1], metadata={"more": 1})
        assert out.getvalue() == sent(snapshot, seqs=[1], metadata={"more": 1})
        with pytest.raises(TypeError, match=r"send\(\) got an unexpected keyword argument 'block_tables'"):
            hw.send_snapshot(out, snapshot, block_tables=TABLES)


class Watched(io.BytesIO):
    """Keeps what it was handed, rather than its bytes."""

    def __init__(self):
        super().__init__()
        self.handed = []

    def write(self, data):
        self.handed.append(np.frombuffer(data, np.uint8))
        return len(data)


def test_whole_pages_of_a_mapped_file_go_out_without_a_copy(tmp_path):
    path = tmp_path / "cache.hrry"
    path.write_bytes(saved())
    out = Watched()
    with hw.load_snapshot(path) as snapshot:
        snapshot.send(out, compact=False, scrub=False)
        for tensor in snapshot.tensors:
            lent = [piece for piece in out.handed if np.shares_memory(piece, tensor.page_pool)]
            assert sum(map(len, lent)) == tensor.page_pool.nbytes


def test_a_snapshot_goes_from_a_compressed_file_through_a_socket():
    ours, theirs = socket.socketpair()
    with ours, theirs, hw.load_snapshot(saved(zstd=True)) as snapshot:
        thread = threading.Thread(target=snapshot.send, args=(ours,))
        thread.start()
        arrived = hw.receive_snapshot(theirs)
        thread.join()
    assert np.array_equal(arrived[3].value.ragged(), tokens(3, "value"))


def refused(data, error, **options):
    out = io.BytesIO()
    with hw.load_snapshot(data) as snapshot, pytest.raises(error) as caught:
        snapshot.send(out, **options)
    assert out.getvalue() == b""
    return caught.value


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"layers": [1]}, KeyError),
        ({"layers": 3}, TypeError),
        ({"seqs": [2]}, hw.IncompatibleError),
        ({"metadata": {"hurray_wire.names": ["x"]}}, hw.InvalidFileError),
        ({"metadata": {"k": [""] * hw.Limits().max_metadata_entries}}, hw.LimitError),
    ],
    ids=str,
)
def test_nothing_is_sent_of_what_is_refused(options, error):
    refused(saved(), error, **options)


def with_another(descriptor, *buffers, **options):
    """The file, and one tensor more."""
    out = io.BytesIO()
    with hw.load_snapshot(saved()) as snapshot, hw.create(out) as writer:
        for name, tensor in snapshot.file.items():
            writer.add(name, tensor.descriptor, tensor.buffers)
        writer.add("more", descriptor, buffers)
    return out.getvalue()


def test_a_composite_beside_the_cache_is_not_sent():
    head = hw.TensorDescriptor(hw.uint8, (), hw.CompositeLayout("group", 0))
    fault = refused(with_another(head), hw.StreamError)
    assert (fault.rule, fault.found) == ("snapshot.stream-group", "more")


def test_buffers_that_are_synced_otherwise_are_not_sent_to_another_machine():
    handle = hw.BufferHandle(3, device="cuda", sync_mode="event")
    data = with_another(hw.TensorDescriptor(hw.uint8, (3,), hw.RowMajorLayout(), (handle,)), b"abc")
    assert refused(data, hw.StreamError).rule == "stream.sync-mode"
    with hw.load_snapshot(data) as snapshot:
        wire = sent(snapshot, cross_machine=False)
    arrived = hw.receive_snapshot(io.BytesIO(wire), cross_machine=False)
    assert arrived.file["more"].numpy().tobytes() == b"abc"


def test_a_fault_that_shows_while_it_is_sent_leaves_a_group_that_is_refused():
    data = saved(zstd=True)
    frames = [at for at in range(1, len(data)) if data.startswith(b"\x28\xb5\x2f\xfd", at)]
    torn = []
    for at in frames:
        damaged, out = bytearray(data), io.BytesIO()
        damaged[at - 1] ^= 1  # the checksum of the frame before
        try:
            with hw.load_snapshot(bytes(damaged)) as snapshot:
                snapshot.send(out)
        except hw.HurrayError:
            if out.getvalue():
                torn.append(out.getvalue())
    assert len(torn) == 4  # the pools; what else there is, is read before the first byte, or is padding
    for wire in torn:
        with pytest.raises(hw.StreamError) as caught:
            hw.receive_snapshot(io.BytesIO(wire))
        assert caught.value.rule in ("composite.torn", "stream.truncated")

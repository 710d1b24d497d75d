"""Snapshots over streams (spec/snapshot.md): one composite group, whole or refused; bare tensors too."""

import io
import os
import threading
from pathlib import Path

import numpy as np
import pytest

import hurray_wire as hw
from hurray_wire.wire.metadata import encode_metadata

PAGE, PAGES = 2, 4
KEYS = np.arange(1, 1 + PAGES * PAGE * 3, dtype=np.int16).reshape(PAGES, PAGE, 1, 3)
VALUES = -KEYS
TABLES, LENS = [[3, 1], [3, -1]], [3, 2]


def sent(**options):
    out = io.BytesIO()
    arguments = {"block_tables": TABLES, "seq_lens": LENS} | options
    hw.send_snapshot(out, [(KEYS, VALUES)], **arguments)
    return out.getvalue()


def check(snapshot):
    assert snapshot.seq_lens.tolist() == LENS
    batch = snapshot.gather(0)
    assert batch["keys"][0].reshape(3, 3).tolist() == [
        KEYS[3, 0, 0].tolist(),
        KEYS[3, 1, 0].tolist(),
        KEYS[1, 0, 0].tolist(),
    ]
    assert batch["values"][1].reshape(3, 3).tolist() == [VALUES[3, 0, 0].tolist(), VALUES[3, 1, 0].tolist(), [0, 0, 0]]


def test_a_snapshot_goes_over_a_stream_as_one_group():
    data = sent(model_id="m")
    members = list(hw.StreamReader(io.BytesIO(data)))
    head = members[0].descriptor
    assert head.layout == hw.CompositeLayout("group", 4)
    assert (head.element_type, head.shape) == (hw.uint8, ())
    assert members[1].descriptor.element_type == hw.uint8
    assert members[2].numpy().tolist() == LENS
    with hw.receive_snapshot(io.BytesIO(data)) as snapshot:
        check(snapshot)
        assert snapshot.metadata["model.id"] == "m"
        assert "hurray_wire.names" not in snapshot.metadata
        assert snapshot.file.names == ("seq_lens", "layers.0.key", "layers.0.value")
        assert snapshot.verify().tensors == 3


def test_scales_keep_their_names():
    snapshot = hw.receive_snapshot(io.BytesIO(sent(scales=[(2.0, 0.5)])))
    assert snapshot.gather(0, dequantize=True)["keys"][1, 0, 0].tolist() == (KEYS[3, 0, 0] * 2.0).tolist()


def test_snapshots_follow_one_another():
    stream = io.BytesIO(sent() + sent(metadata={"second": True}))
    check(hw.receive_snapshot(stream))
    assert hw.receive_snapshot(stream).metadata["second"] is True
    with pytest.raises(hw.StreamError) as caught:
        hw.receive_snapshot(stream)
    assert caught.value.rule == "stream.empty"


def test_snapshots_are_received_to_the_end_of_the_stream():
    stream = io.BytesIO(sent(metadata={"number": 1}) + sent(metadata={"number": 2}))
    assert [snapshot.metadata["number"] for snapshot in hw.receive_snapshots(stream)] == [1, 2]
    assert list(hw.receive_snapshots(io.BytesIO())) == []
    received = hw.receive_snapshots(io.BytesIO(sent() + sent()[:-1]))
    check(next(received))
    with pytest.raises(hw.StreamError):
        next(received)


def test_the_bytes_of_a_file_are_told_from_a_stream():
    out = io.BytesIO()
    hw.save_snapshot(out, [(KEYS, VALUES)], block_tables=TABLES, seq_lens=LENS)
    with pytest.raises(hw.UnsupportedError, match=r"bytes of a file, not of a stream; hw\.open reads them"):
        hw.receive_snapshot(io.BytesIO(out.getvalue()))


@pytest.mark.parametrize("path", ["cache.hrry", Path("cache.hrry"), b"HRRY"], ids=repr)
def test_a_path_is_no_stream(path):
    with pytest.raises(TypeError, match=r"receive_snapshot takes a binary file, .* load_snapshot reads a file"):
        hw.receive_snapshot(path)
    with pytest.raises(TypeError, match=r"send_snapshot takes a binary file, .* save_snapshot writes a file"):
        hw.send_snapshot(path, [(KEYS, VALUES)], block_tables=TABLES, seq_lens=LENS)


def test_a_stream_cut_anywhere_is_refused():
    data = sent()
    for length in range(len(data)):
        with pytest.raises(hw.StreamError):
            hw.receive_snapshot(io.BytesIO(data[:length]))


def test_bare_tensors_are_taken_and_named_by_their_descriptors():
    out = io.BytesIO()
    with hw.StreamWriter(out) as writer:
        for tensor in list(hw.StreamReader(io.BytesIO(sent())))[3:]:
            writer.add(tensor.descriptor, tensor.buffers)
    with pytest.raises(hw.IncompatibleError, match="pass seq_lens="):
        hw.receive_snapshot(io.BytesIO(out.getvalue())).gather(0)
    check(hw.receive_snapshot(io.BytesIO(out.getvalue()), seq_lens=LENS))


def rewritten(change):
    """The group with one member changed: ``change`` maps (descriptor, buffers) lists."""
    members = [(tensor.descriptor, list(tensor.buffers)) for tensor in hw.StreamReader(io.BytesIO(sent()))]
    out = io.BytesIO()
    with hw.StreamWriter(out) as writer:
        for descriptor, buffers in change(members):
            writer.add(descriptor, buffers)
    return io.BytesIO(out.getvalue())


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda m: [m[0], m[2], m[1], *m[3:]], "snapshot.stream-metadata"),
        (
            lambda m: [(hw.TensorDescriptor(hw.uint8, (), hw.CompositeLayout("overlay", 4, "add")), []), *m[1:]],
            "snapshot.stream-group",
        ),
        (
            lambda m: [(hw.TensorDescriptor(hw.uint8, (), hw.CompositeLayout("group", 3)), []), *m[1:4]],
            "snapshot.stream-names",
        ),
        (
            lambda m: [m[0], m[1], (hw.TensorDescriptor(hw.uint8, (), hw.CompositeLayout("group", 0)), []), *m[3:]],
            "snapshot.stream-group",
        ),
    ],
)
def test_a_group_that_is_no_snapshot_is_refused_by_its_rule(change, rule):
    with pytest.raises(hw.StreamError) as caught:
        hw.receive_snapshot(rewritten(change))
    assert caught.value.rule == rule


def test_nothing_is_sent_of_a_batch_that_is_refused():
    out = io.BytesIO()
    with pytest.raises(hw.IncompatibleError):
        hw.send_snapshot(out, [(KEYS, VALUES)], block_tables=TABLES, seq_lens=[9, 9])
    assert out.getvalue() == b""


def test_a_snapshot_goes_through_a_pipe():
    receiving, sending = os.pipe()

    def send():
        with open(sending, "wb", buffering=0) as pipe:
            hw.send_snapshot(pipe, [(KEYS, VALUES)], block_tables=TABLES, seq_lens=LENS)

    thread = threading.Thread(target=send)
    thread.start()
    with open(receiving, "rb") as pipe:
        check(hw.receive_snapshot(pipe))
    thread.join()


def test_a_name_that_did_not_come_along_is_told_with_those_that_come_near():
    with pytest.raises(KeyError, match=r"'layers\.0\.keys'.*'layers\.0\.key'"):
        hw.receive_snapshot(io.BytesIO(sent())).file["layers.0.keys"]


def test_metadata_that_nobody_would_receive_are_not_sent():
    out = io.BytesIO()
    with pytest.raises(hw.LimitError) as caught:
        hw.send_snapshot(
            out,
            [(KEYS, VALUES)],
            block_tables=TABLES,
            seq_lens=LENS,
            metadata={"k": [""] * hw.Limits().max_metadata_entries},
        )
    assert caught.value.rule == "limit.metadata-entries"
    assert out.getvalue() == b""


@pytest.mark.parametrize("given", [None, io.StringIO("x")], ids=["nothing", "text"])
def test_what_is_neither_read_nor_written_as_bytes_is_named_by_the_call(given):
    with hw.receive_snapshot(io.BytesIO(sent())) as snapshot:
        calls = {
            "receive_snapshot": lambda: hw.receive_snapshot(given),
            "receive_snapshots": lambda: hw.receive_snapshots(given),
            "send_snapshot": lambda: hw.send_snapshot(given, [(KEYS, VALUES)], block_tables=TABLES, seq_lens=LENS),
            r"Snapshot\.send": lambda: snapshot.send(given),
        }
        for name, call in calls.items():
            with pytest.raises(TypeError, match=f"^{name} takes a binary file, .* not a {type(given).__name__}"):
                call()


def test_an_empty_stream_says_that_nothing_came():
    with pytest.raises(hw.StreamError, match="nothing came") as caught:
        hw.receive_snapshot(io.BytesIO())
    assert caught.value.rule == "stream.empty"


def test_lengths_that_cannot_be_are_refused_before_anything_is_read():
    stream = io.BytesIO(sent())
    with pytest.raises(hw.IncompatibleError) as caught:
        hw.receive_snapshot(stream, seq_lens=[0.5])
    assert caught.value.rule == "snapshot.seq-lens-type"
    assert stream.tell() == 0


def test_metadata_above_the_limit_are_neither_sent_nor_received():
    out = io.BytesIO()
    vast = {"k": bytes(hw.Limits().max_metadata_bytes)}
    with pytest.raises(hw.LimitError) as caught:
        hw.send_snapshot(out, [(KEYS, VALUES)], block_tables=TABLES, seq_lens=LENS, metadata=vast)
    assert (caught.value.rule, caught.value.declared) == ("limit.metadata-bytes", 64 << 20)
    assert out.getvalue() == b""
    data = sent(metadata={"k": bytes(1000)})
    _, section, *_ = hw.StreamReader(io.BytesIO(data))
    (size,) = section.shape
    check(hw.receive_snapshot(io.BytesIO(data), limits=hw.Limits(max_metadata_bytes=size)))
    limits = hw.Limits(max_metadata_bytes=size - 1)
    for receive in (
        lambda: hw.receive_snapshot(io.BytesIO(data), limits=limits),
        lambda: hw.SnapshotDecoder(limits=limits).feed(data),
    ):
        with pytest.raises(hw.LimitError) as caught:
            receive()
        assert (caught.value.rule, caught.value.declared, caught.value.found) == (
            "limit.metadata-bytes",
            size - 1,
            size,
        )


def test_a_cache_with_the_name_of_a_scale_is_received_as_none():
    def named(members):
        head, _, *others = members
        names = ["seq_lens", "k", "k.scale"]
        raw = encode_metadata({"hurray_wire.snapshot": 1, "hurray_wire.names": names})
        vector = hw.TensorDescriptor.build(hw.uint8, (len(raw),), hw.RowMajorLayout(), (len(raw),))
        return [head, (vector, [raw]), *others]

    snapshot = hw.receive_snapshot(rewritten(named))
    check(snapshot)
    assert snapshot.file.names == ("seq_lens", "k", "k.scale")
    assert snapshot[0].key.companion_scale is None

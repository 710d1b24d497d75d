"""Snapshots out of bytes as they come (spec/stream.md): whole or refused, wherever the bytes were cut."""

import asyncio
import io

import numpy as np
import pytest

import hurray_wire as hw

KEYS = np.arange(1, 25, dtype=np.int16).reshape(4, 2, 1, 3)
LENS = [3, 2]
PAGED = hw.BlockPagedLayout(page_size=2, num_pages=2, paged_axis=0, num_seqs=2, layer_index=7)
BARE = hw.TensorDescriptor.build(hw.uint8, (3, 1, 1), PAGED, (4, 8, 12))
VECTOR = hw.TensorDescriptor.build(hw.int8, (2,), hw.RowMajorLayout(), (2,)).encode() + b"ab"
BARE_WIRE = BARE.encode() + b"abcd" + np.array([1, 0, 0, 1, 2], "<u4").tobytes()


def sent(**metadata):
    out = io.BytesIO()
    hw.send_snapshot(out, [(KEYS, -KEYS)], block_tables=[[3, 1], [0, -1]], seq_lens=LENS, metadata=metadata)
    return out.getvalue()


def check(snapshot):
    assert snapshot.seq_lens.tolist() == LENS
    assert snapshot[0].key.ragged().reshape(-1).tolist() == [*range(19, 25), 7, 8, 9, *range(1, 7)]
    assert snapshot[0].value.ragged().reshape(-1).tolist() == [*range(-19, -25, -1), -7, -8, -9, *range(-1, -7, -1)]


def in_pieces(decoder, data, size):
    return [snapshot for at in range(0, len(data), size) for snapshot in decoder.feed(data[at : at + size])]


def group(count, *members, rule="group"):
    out = io.BytesIO()
    out.write(hw.TensorDescriptor(hw.uint8, (), hw.CompositeLayout(rule, count)).encode())
    return out.getvalue() + b"".join(members)


def refusal(action):
    with pytest.raises(hw.StreamError) as caught:
        action()
    return caught.value.rule


@pytest.mark.parametrize("size", [1, 7, 20, 1000, 1 << 20])
def test_snapshots_come_out_however_their_bytes_came(size):
    decoder = hw.SnapshotDecoder()
    data = sent(number=1) + sent(number=2) + sent(number=3)
    snapshots = in_pieces(decoder, data, size)
    assert [snapshot.metadata["number"] for snapshot in snapshots] == [1, 2, 3]
    for snapshot in snapshots:
        check(snapshot)
    assert decoder.position == len(data)
    assert decoder.close() is True
    assert decoder.bare is None


def test_a_snapshot_is_there_with_its_last_byte():
    decoder, data = hw.SnapshotDecoder(), sent()
    assert decoder.feed(data[:-1]) == []
    (snapshot,) = decoder.feed(memoryview(data)[-1:])
    check(snapshot)


@pytest.mark.parametrize("empty", [b"", bytearray(), memoryview(b""), np.empty(0, np.uint8)], ids=type)
def test_no_bytes_are_no_end(empty):
    decoder, data = hw.SnapshotDecoder(), sent()
    assert decoder.feed(data[:50]) == []
    assert decoder.feed(empty) == []
    assert len(decoder.feed(bytearray(data[50:]))) == 1


def test_a_stream_without_a_snapshot_has_a_clean_end():
    decoder = hw.SnapshotDecoder()
    assert decoder.close() is True
    assert decoder.bare is None


def test_an_end_is_clean_between_snapshots_alone():
    data = sent()
    for length in range(1, len(data)):
        decoder = hw.SnapshotDecoder()
        check(*decoder.feed(data + data[:length]))
        assert refusal(decoder.close) in ("stream.truncated", "composite.torn")
        assert decoder.bare is None


def test_bare_tensors_are_one_snapshot_that_ends_with_the_stream():
    decoder = hw.SnapshotDecoder(seq_lens=[2, 1])
    assert in_pieces(decoder, BARE_WIRE + BARE_WIRE.replace(b"\7\0\0\0", b"\x08\0\0\0", 1), 1) == []
    assert decoder.bare is None
    assert decoder.close() is True
    assert decoder.bare.layers == (7, 8)
    assert decoder.bare[8].key.ragged().tobytes() == b"cda"
    assert decoder.close() is True


def test_bare_tensors_may_follow_a_group():
    decoder = hw.SnapshotDecoder()
    check(*decoder.feed(sent() + BARE_WIRE))
    assert decoder.close() is True
    assert decoder.bare.layers == (7,)


def test_a_group_behind_bare_tensors_is_one_of_them():
    decoder, data = hw.SnapshotDecoder(), BARE_WIRE + group(1, VECTOR)
    assert decoder.feed(data) == []
    assert decoder.close() is True
    for snapshot in (decoder.bare, hw.receive_snapshot(io.BytesIO(data))):
        assert snapshot.file.names == ("layers.7.key", "tensor.1", "tensor.2")


def test_bare_tensors_that_are_cut_are_none():
    for length in range(1, len(BARE_WIRE)):
        decoder = hw.SnapshotDecoder()
        decoder.feed(BARE_WIRE[:length])
        assert refusal(decoder.close) == "stream.truncated"
        assert decoder.bare is None


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (group(2, rule="partition"), "snapshot.stream-group"),
        (group(2, VECTOR), "snapshot.stream-metadata"),
        (group(2, group(1)), "snapshot.stream-group"),
    ],
)
def test_a_group_of_another_kind_is_refused_as_soon_as_it_shows(data, rule):
    decoder = hw.SnapshotDecoder()
    assert in_pieces(decoder, data[:-1], 1) == []
    assert refusal(lambda: decoder.feed(data[-1:])) == rule
    for action in (lambda: decoder.feed(sent()), decoder.close):
        assert refusal(action) == "stream.failed"


@pytest.mark.parametrize("size", [1, 10, 1 << 20])
def test_what_came_before_a_fault_comes_out_however_the_bytes_were_cut(size):
    decoder, given = hw.SnapshotDecoder(), []
    data = sent(number=1) + sent(number=2) + b"GET / HTTP/1.1\r\n"

    def take():
        for at in range(0, len(data), size):
            given.extend(decoder.feed(data[at : at + size]))
        decoder.close()

    with pytest.raises(hw.InvalidDescriptorError, match="b'GET '") as caught:
        take()
    assert caught.value.rule == "descriptor.magic"
    assert caught.value.offset == len(data) - 16
    assert [snapshot.metadata["number"] for snapshot in given] == [1, 2]
    assert refusal(lambda: decoder.feed(b"")) == "stream.failed"
    assert refusal(decoder.close) == "stream.failed"


def test_a_snapshot_of_another_version_is_refused_by_the_decoder_too():
    data = sent().replace(b"hurray_wire.snapshot\2\1", b"hurray_wire.snapshot\2\2")
    with pytest.raises(hw.IncompatibleError) as caught:
        hw.SnapshotDecoder().feed(data)
    assert caught.value.rule == "snapshot.version"


def test_given_lengths_take_the_place_of_those_that_came():
    (snapshot,) = hw.SnapshotDecoder(seq_lens=[4, 1]).feed(sent())
    assert snapshot.file.recorded_seq_lens().tolist() == [4, 1]
    with pytest.raises(hw.IncompatibleError) as caught:
        hw.SnapshotDecoder(seq_lens=[[1]])
    assert caught.value.rule == "snapshot.seq-lens-type"


def test_limits_and_machines_are_those_of_the_decoder_beneath():
    with pytest.raises(hw.LimitError) as caught:
        hw.SnapshotDecoder(limits=hw.Limits(max_buffer_bytes=40)).feed(sent())
    assert caught.value.rule == "limit.buffer-bytes"
    handles = tuple(hw.BufferHandle(size, device="cuda", sync_mode="event") for size in (4, 8, 12))
    synced_later = hw.TensorDescriptor(hw.uint8, (3, 1, 1), PAGED, handles).encode() + BARE_WIRE[len(BARE.encode()) :]
    assert refusal(lambda: hw.SnapshotDecoder().feed(synced_later)) == "stream.sync-mode"
    decoder = hw.SnapshotDecoder(cross_machine=False)
    decoder.feed(synced_later)
    assert decoder.close() is True
    assert decoder.bare.layers == (7,)


def test_a_closed_decoder_takes_nothing():
    decoder = hw.SnapshotDecoder()
    decoder.close()
    with pytest.raises(ValueError, match="closed"):
        decoder.feed(sent())


def test_an_asynchronous_server_needs_no_thread():
    async def serve():
        received, done = [], asyncio.Event()

        async def connected(reader, writer):
            decoder = hw.SnapshotDecoder()
            while data := await reader.read(100):
                received.extend(decoder.feed(data))
            assert decoder.close() is True
            writer.close()
            done.set()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        async with server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(sent(number=1) + sent(number=2))
            await writer.drain()
            writer.close()
            await asyncio.wait_for(done.wait(), 30)
        return received

    for number, snapshot in enumerate(asyncio.run(serve()), 1):
        check(snapshot)
        assert snapshot.metadata["number"] == number


def test_what_asyncio_has_is_no_object_to_read_or_write_at_once():
    async def refused():
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            with pytest.raises(TypeError, match=r"not a StreamReader, which reads asynchronously"):
                hw.receive_snapshot(reader)
            with pytest.raises(TypeError, match=r"not a StreamWriter, which writes asynchronously"):
                hw.send_snapshot(writer, [(KEYS, KEYS)], block_tables=[[0]], seq_lens=[1])
            writer.close()

    asyncio.run(refused())

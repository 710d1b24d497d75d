"""Streams (spec/stream.md): tensors as their bytes arrive, clean ends and all others, nothing read ahead."""

import io
import os
import socket
import struct
import threading

import numpy as np
import pytest

import hurray_wire as hw

DENSE = hw.TensorDescriptor.build(hw.float32, (3,), hw.RowMajorLayout(), (12,))
EMPTY = hw.TensorDescriptor.build(hw.float32, (0,), hw.RowMajorLayout(), (0,))
PAGED = hw.TensorDescriptor.build(hw.uint8, (5, 1, 2), hw.BlockPagedLayout(4, 2, 0, 1), (16, 8, 8))
HEAD = hw.TensorDescriptor(hw.uint8, (), hw.CompositeLayout("group", 2))

VALUES = np.array([1.5, -2.0, 3.0], dtype=np.float32)
POOL = np.arange(16, dtype=np.uint8)
TABLES = [np.array([1, 0], np.uint32), np.array([0, 2], np.uint32)]

# what the format says goes over the wire: descriptor, buffers, descriptor, buffers, with nothing between
WIRE = (
    DENSE.encode()
    + struct.pack("<3f", 1.5, -2.0, 3.0)
    + EMPTY.encode()
    + PAGED.encode()
    + bytes(range(16))
    + struct.pack("<4I", 1, 0, 0, 2)
)


def clean_ends():
    first = len(DENSE.encode()) + 12
    return {0, first, first + len(EMPTY.encode()), len(WIRE)}


class OneByteAtATime:
    def __init__(self, data):
        self.file = io.BytesIO(data)

    def read(self, size):
        return self.file.read(min(size, 1))


def check(tensors):
    dense, empty, paged = tensors
    assert dense.numpy().tolist() == [1.5, -2.0, 3.0]
    assert empty.numpy().shape == (0,)
    # pages 1 then 0: slots 4, 5, 6, 7, then 0
    assert paged.ragged()[:, 0, 0].tolist() == [8, 10, 12, 14, 0]


def test_a_writer_puts_nothing_between_tensors():
    out = io.BytesIO()
    with hw.StreamWriter(out) as writer:
        writer.add(DENSE, [VALUES])
        writer.add(EMPTY, [b""])
        writer.add(PAGED, [POOL, *TABLES])
    assert out.getvalue() == WIRE


@pytest.mark.parametrize("kind", [io.BytesIO, OneByteAtATime, lambda data: io.BufferedReader(io.BytesIO(data))])
def test_a_reader_gives_tensors_from_any_readable(kind):
    check(hw.StreamReader(kind(WIRE)))


def test_a_decoder_gives_each_tensor_with_its_last_byte():
    decoder = hw.StreamDecoder()
    tensors, ends = [], []
    for position in range(len(WIRE)):
        done = decoder.feed(WIRE[position : position + 1])
        tensors += done
        ends += [position + 1] * len(done)
    assert set(ends) | {0} == clean_ends()
    assert decoder.close() is True
    check(tensors)


def test_a_decoder_fed_all_at_once_gives_all():
    decoder = hw.StreamDecoder()
    check(decoder.feed(bytearray(WIRE)))
    assert decoder.position == len(WIRE)


def test_a_stream_cut_anywhere_but_between_tensors_is_refused():
    for length in range(len(WIRE) + 1):
        decoder = hw.StreamDecoder()
        decoder.feed(WIRE[:length])
        if length in clean_ends():
            assert decoder.close() is True
        else:
            with pytest.raises(hw.StreamError) as caught:
                decoder.close()
            assert caught.value.rule == "stream.truncated"
            assert caught.value.offset == length
        reader = hw.StreamReader(io.BytesIO(WIRE[:length]))
        if length not in clean_ends():
            with pytest.raises(hw.StreamError):
                list(reader)


def test_a_reader_takes_no_byte_of_the_next_tensor():
    file = io.BytesIO(WIRE)
    next(hw.StreamReader(file))
    assert file.tell() == len(DENSE.encode()) + 12


def test_after_an_error_a_decoder_takes_no_more():
    decoder = hw.StreamDecoder()
    with pytest.raises(hw.InvalidDescriptorError):
        decoder.feed(b"HRRX" + bytes(16))
    for action in (decoder.wanted, decoder.close, lambda: decoder.feed(b"x")):
        with pytest.raises(hw.StreamError) as caught:
            action()
        assert caught.value.rule == "stream.failed"


def test_members_of_a_composite_are_counted():
    out = io.BytesIO()
    writer = hw.StreamWriter(out)
    writer.add(HEAD)
    writer.add(DENSE, [VALUES])
    with pytest.raises(hw.StreamError) as caught:
        writer.close()
    assert caught.value.rule == "composite.torn"
    with pytest.raises(hw.StreamError, match="1 members"):
        list(hw.StreamReader(io.BytesIO(out.getvalue())))
    whole = out.getvalue() + EMPTY.encode()
    assert [tensor.descriptor for tensor in hw.StreamReader(io.BytesIO(whole))] == [HEAD, DENSE, EMPTY]


def test_composites_nest_eight_deep():
    single = hw.TensorDescriptor(hw.uint8, (), hw.CompositeLayout("group", 1)).encode()
    assert len(list(hw.StreamReader(io.BytesIO(single * 8 + EMPTY.encode())))) == 9
    with pytest.raises(hw.StreamError) as caught:
        list(hw.StreamReader(io.BytesIO(single * 9 + EMPTY.encode())))
    assert caught.value.rule == "composite.depth"


def test_a_composite_without_members_is_whole():
    nothing = hw.TensorDescriptor(hw.uint8, (), hw.CompositeLayout("group", 0)).encode()
    both = hw.TensorDescriptor(hw.uint8, (), hw.CompositeLayout("group", 2)).encode() + nothing + EMPTY.encode()
    assert len(list(hw.StreamReader(io.BytesIO(both)))) == 3


def test_between_machines_only_producer_synced_buffers_pass():
    handle = hw.BufferHandle(12, device="cuda", sync_mode="event")
    synced_later = hw.TensorDescriptor(hw.float32, (3,), hw.RowMajorLayout(), (handle,))
    wire = synced_later.encode() + VALUES.tobytes()
    assert len(list(hw.StreamReader(io.BytesIO(wire)))) == 1
    with pytest.raises(hw.StreamError) as caught:
        list(hw.StreamReader(io.BytesIO(wire), cross_machine=True))
    assert caught.value.rule == "stream.sync-mode"
    with pytest.raises(hw.StreamError):
        hw.StreamWriter(io.BytesIO(), cross_machine=True).add(synced_later, [VALUES])


def test_a_claimed_size_costs_nothing_until_its_bytes_come():
    claims = hw.TensorDescriptor.build(hw.uint8, (3,), hw.RowMajorLayout(), (1 << 45,))
    decoder = hw.StreamDecoder()

    def take_and_end():
        decoder.feed(claims.encode())
        decoder.close()

    # the system grants the address space, and then the stream is too short; or it does not
    with pytest.raises((hw.StreamError, hw.LimitError)) as caught:
        take_and_end()
    assert caught.value.rule in ("stream.truncated", "limit.memory")


def test_a_buffer_above_the_limit_is_refused():
    claims = hw.TensorDescriptor.build(hw.uint8, (3,), hw.RowMajorLayout(), (1 << 20,))
    with pytest.raises(hw.LimitError) as caught:
        hw.StreamDecoder(limits=hw.Limits(max_buffer_bytes=1 << 19)).feed(claims.encode())
    assert caught.value.rule == "limit.buffer-bytes"


def test_an_unknown_layout_has_no_end_in_a_stream():
    unknown = hw.TensorDescriptor(hw.uint8, (3,), hw.UnknownLayout(0x0C, b"\0"))
    with pytest.raises(hw.StreamError):
        hw.StreamWriter(io.BytesIO()).add(unknown, [b"abc"])
    with pytest.raises(hw.UnsupportedError):
        hw.StreamDecoder().feed(unknown.encode())


def test_nothing_is_written_of_a_tensor_that_is_refused():
    out = io.BytesIO()
    writer = hw.StreamWriter(out)
    with pytest.raises(hw.BufferSizeError):
        writer.add(DENSE, [VALUES[:2]])
    assert out.getvalue() == b""


def test_a_large_tensor_goes_through_a_pipe():
    large = np.arange(3 << 20, dtype=np.uint8)
    descriptor = hw.TensorDescriptor.build(hw.uint8, large.shape, hw.RowMajorLayout(), (large.nbytes,))
    receiving, sending = os.pipe()

    def send():
        with open(sending, "wb", buffering=0) as pipe, hw.StreamWriter(pipe) as writer:
            writer.add(descriptor, [large])

    thread = threading.Thread(target=send)
    thread.start()
    with open(receiving, "rb") as pipe:
        (tensor,) = hw.StreamReader(pipe)
    thread.join()
    assert np.array_equal(tensor.numpy(), large)


def test_sockets_are_read_and_written_as_they_are():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with hw.StreamWriter(ours) as writer:
            writer.add(PAGED, [POOL, *TABLES])
        ours.shutdown(socket.SHUT_WR)
        (tensor,) = hw.StreamReader(theirs)
    assert tensor.ragged()[:, 0, 1].tolist() == [9, 11, 13, 15, 1]


class Chunks:
    """A chunked buffer that says it has 12 bytes."""

    nbytes = 12

    def __init__(self, *given):
        self.given = given

    def chunks(self):
        yield from self.given


def refused(action, rule):
    with pytest.raises(hw.StreamError) as caught:
        action()
    assert caught.value.rule == rule


@pytest.mark.parametrize("given", [(bytes(8),), (bytes(8), bytes(5)), (), (bytes(13),)])
def test_a_chunked_buffer_of_another_size_is_the_end_of_the_stream(given):
    out = io.BytesIO()
    writer = hw.StreamWriter(out)
    writer.add(DENSE, [Chunks(bytes(5), b"", bytes(7))])
    with pytest.raises(hw.BufferSizeError) as caught:
        writer.add(DENSE, [Chunks(*given)])
    assert caught.value.rule == "buffer.size"
    torn = out.getvalue()
    refused(lambda: writer.add(DENSE, [VALUES]), "stream.failed")
    refused(writer.close, "stream.failed")
    assert out.getvalue() == torn
    reader = hw.StreamReader(io.BytesIO(torn))
    assert next(reader).descriptor == DENSE
    refused(lambda: next(reader), "stream.truncated")


class Narrow(io.BytesIO):
    """Takes as many bytes as it has room for, and then none."""

    def __init__(self, room):
        super().__init__()
        self.room = room

    def write(self, data):
        if self.room < len(data):
            raise OSError(28, "No space left on device")
        self.room -= len(data)
        return super().write(data)


def test_an_error_of_the_system_is_the_end_of_the_stream():
    writer = hw.StreamWriter(Narrow(len(DENSE.encode()) + 3))
    with pytest.raises(OSError, match="No space"):
        writer.add(DENSE, [VALUES])
    refused(lambda: writer.add(EMPTY, [b""]), "stream.failed")


def test_what_is_refused_before_the_first_byte_leaves_the_stream_whole():
    out = io.BytesIO()
    with hw.StreamWriter(out) as writer:
        with pytest.raises(hw.BufferSizeError):
            writer.add(DENSE, [bytes(11)])
        with pytest.raises(hw.InvalidDescriptorError) as caught:
            writer.add(PAGED, [POOL, np.array([1, 2], np.uint32), TABLES[1]])
        assert caught.value.rule == "block-paged.page-id"
        writer.add(DENSE, [VALUES])
    assert [tensor.descriptor for tensor in hw.StreamReader(io.BytesIO(out.getvalue()))] == [DENSE]


def test_a_composite_that_is_refused_counts_for_nothing():
    out = io.BytesIO()
    too_many = hw.TensorDescriptor(hw.uint8, (), hw.CompositeLayout("group", (1 << 20) + 1))
    with hw.StreamWriter(out) as writer:
        writer.add(HEAD)
        with pytest.raises(hw.LimitError) as caught:
            writer.add(too_many)
        assert caught.value.rule == "limit.members"
        writer.add(DENSE, [VALUES])
        writer.add(EMPTY, [b""])
    assert len(list(hw.StreamReader(io.BytesIO(out.getvalue())))) == 3


def test_a_closed_writer_takes_nothing_and_closing_twice_is_fine():
    out = io.BytesIO()
    with hw.StreamWriter(out) as writer:
        writer.add(DENSE, [VALUES])
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.add(DENSE, [VALUES])
    assert len(list(hw.StreamReader(io.BytesIO(out.getvalue())))) == 1


def test_a_stream_that_could_not_be_finished_is_told_as_often_as_it_is_closed():
    class Full(io.BytesIO):
        def flush(self):
            raise OSError("no room")

    torn = hw.StreamWriter(io.BytesIO())
    torn.add(hw.TensorDescriptor(hw.uint8, (), hw.CompositeLayout("group", 1)))
    for writer, first in ((hw.StreamWriter(Full()), OSError), (torn, hw.StreamError)):
        with pytest.raises(first):
            writer.close()
        for _ in range(2):
            refused(writer.close, "stream.failed")


@pytest.mark.parametrize(
    ("start", "error", "words"),
    [
        (b"HRRYFILE", hw.UnsupportedError, "the bytes of a file, not of a stream"),
        (b"HRRYPLNS", hw.UnsupportedError, "the bytes of a file in byte planes that was inflated"),
        (b"\x28\xb5\x2f\xfd", hw.InvalidDescriptorError, "the bytes of a Zstandard-compressed file"),
        (b"\x50\x2a\x4d\x18", hw.InvalidDescriptorError, "the bytes of a Zstandard-compressed file"),
    ],
)
def test_what_is_no_stream_is_called_by_its_name(start, error, words):
    with pytest.raises(error, match=words) as caught:
        next(hw.StreamReader(io.BytesIO(start.ljust(4096, b"\0"))))
    assert caught.value.rule in ("descriptor.version-major", "descriptor.magic")


@pytest.mark.parametrize(
    ("start", "rule"),
    [
        (b"HTTP", "descriptor.magic"),
        (b"HRR\0", "descriptor.magic"),
        (b"HRRY\2\0" + bytes(14), "descriptor.version-major"),
        (b"HRRY\1\0" + struct.pack("<I", 19) + bytes(10), "descriptor.length"),
    ],
)
def test_what_is_no_descriptor_is_refused_as_soon_as_it_shows(start, rule):
    """Behind a whole tensor as well, and before anything that would have to follow."""
    for before in (b"", WIRE):
        decoder = hw.StreamDecoder()
        decoder.feed(before)
        for byte in start[:-1]:
            assert decoder.feed(bytes([byte])) == []
        with pytest.raises((hw.InvalidDescriptorError, hw.UnsupportedError)) as caught:
            decoder.feed(start[-1:])
        assert caught.value.rule == rule
        assert len(before) <= caught.value.offset < len(before) + 20


@pytest.mark.parametrize("buffered", [False, True])
def test_a_peer_that_says_something_else_and_waits_is_refused_at_once(buffered):
    ours, theirs = socket.socketpair()
    with ours, theirs, theirs.makefile("rb") as file:
        theirs.settimeout(30)  # a reader that waits for more fails rather than hangs
        ours.sendall(b"HTTP/1.1 400 Bad\r\n")
        with pytest.raises(hw.InvalidDescriptorError, match=r"no stream of tensors: it starts with b'HTTP'") as caught:
            next(hw.StreamReader(file if buffered else theirs))
    assert caught.value.rule == "descriptor.magic"


@pytest.mark.parametrize("data", [b"G", b"{}", b"HRX"])
def test_an_end_before_four_bytes_is_judged_by_those_there_are(data):
    with pytest.raises(hw.InvalidDescriptorError) as caught:
        list(hw.StreamReader(io.BytesIO(data)))
    assert caught.value.rule == "descriptor.magic"


@pytest.mark.parametrize("length", [1, 3, 4, 5, 19])
def test_an_end_within_the_header_says_how_much_of_it_is_missing(length):
    with pytest.raises(hw.StreamError, match=f"within a descriptor: {20 - length} bytes are missing") as caught:
        list(hw.StreamReader(io.BytesIO(WIRE[:length])))
    assert (caught.value.declared, caught.value.found) == (20, length)


class Text:
    """Text that is no TextIOBase, as tempfile's wrappers are not."""

    def read(self, size):
        return "HRRY"[:size]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, r"not a NoneType, which has none of readinto, recv_into, read"),
        (3, r"not a int, which has none of"),
        ("cache.hrry", r"not a str; hw\.open reads a file"),
        (io.StringIO("x"), r"not a StringIO: open it in binary mode"),
    ],
    ids=repr,
)
def test_what_gives_no_bytes_is_named(given, words):
    with pytest.raises(TypeError, match=rf"StreamReader takes a binary file, pipe or socket, {words}"):
        hw.StreamReader(given)


def test_an_object_that_gives_text_is_named_when_it_does():
    with pytest.raises(TypeError, match="gives a str: open it in binary mode"):
        next(hw.StreamReader(Text()))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, r"not a NoneType, which has none of write, sendall"),
        (Text(), r"not a Text, which has none of write, sendall"),
        (b"", r"not a bytes; hw\.create writes a file"),
        (io.StringIO(), r"not a StringIO: open it in binary mode"),
    ],
    ids=repr,
)
def test_what_takes_no_bytes_is_named(given, words):
    with pytest.raises(TypeError, match=rf"StreamWriter takes a binary file, pipe or socket, {words}"):
        hw.StreamWriter(given)


@pytest.mark.parametrize("cut", [None, 1, 7, len(WIRE) - 1, len(WIRE), len(WIRE) + 3])
def test_what_came_before_a_fault_is_handed_out_wherever_the_bytes_were_cut(cut):
    """Three tensors, and behind them what is none: in one piece, or in two."""
    data = WIRE + b"HTTP/1.1 404"
    decoder, tensors = hw.StreamDecoder(), []

    def feed():
        for piece in [data, b""] if cut is None else [data[:cut], data[cut:], b""]:
            tensors.extend(decoder.feed(piece))

    with pytest.raises(hw.HurrayError) as caught:
        feed()
    check(tensors)
    assert caught.value.rule == "descriptor.magic"
    assert caught.value.offset == len(WIRE)
    for use in (lambda: decoder.feed(b"more"), decoder.close):
        with pytest.raises(hw.StreamError) as caught:
            use()
        assert caught.value.rule == "stream.failed"


def test_a_fault_that_was_not_raised_yet_is_raised_by_closing():
    decoder = hw.StreamDecoder()
    check(decoder.feed(WIRE + b"HTTP/1.1 404"))
    with pytest.raises(hw.HurrayError) as caught:
        decoder.close()
    assert caught.value.rule == "descriptor.magic"

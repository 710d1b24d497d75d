"""Snapshots over streams (spec/stream.md, and spec/snapshot.md, "On a stream").

``send_snapshot`` sends the cache of an engine, or a snapshot that there is; ``receive_snapshot`` and
``receive_snapshots`` read from a pipe or a socket, and :class:`SnapshotDecoder` is fed by whoever has bytes. A snapshot
travels as one composite group: how it is framed is told in ``framing.py``, how it is put together in ``received.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from numpy.typing import ArrayLike

from .arrays.memory import within_memory
from .errors import HurrayError, StreamError
from .framing import Group, send_group
from .limits import Limits
from .preparing import prepare
from .received import Collector
from .snapshot import Snapshot
from .store.channels import check_readable, check_writable
from .store.sink import flat
from .store.stream import StreamDecoder, StreamReader

__all__ = ["SnapshotDecoder", "receive_snapshot", "receive_snapshots", "send_snapshot"]

_READS_FILES = "load_snapshot reads a file"


@within_memory
def send_snapshot(writable: Any, layers: Any, *, cross_machine: bool = True, **batch: Any) -> None:
    """Write the paged KV cache of one batch to a stream: a pipe, a socket, any writable binary object.

    ``layers`` and ``batch`` are those of ``save_snapshot`` (its arguments that concern the file excepted), and so are
    the errors, all raised before the first byte; TypeError for what takes no bytes. Pools go out of the caller's
    arrays page by page. A :class:`Snapshot` in place of ``layers`` is sent by its own ``send``, whose arguments
    ``batch`` then are (to choose layers, call that). ``cross_machine`` refuses buffers that are not producer-synced; it
    is True as in :func:`receive_snapshot`. Specification: spec/stream.md, and spec/snapshot.md, "On a stream".
    """
    if isinstance(layers, Snapshot):
        layers.send(writable, cross_machine=cross_machine, **batch)
        return
    check_writable(writable, "send_snapshot", "save_snapshot writes a file")
    prepared = prepare(layers, **batch)
    tensors: Group = [(name, (descriptor, partial(list, buffers))) for name, descriptor, buffers in prepared.tensors]
    send_group(writable, prepared.metadata, tensors, cross_machine=cross_machine)


class SnapshotDecoder:
    """Turns the bytes of a stream into snapshots, without reading anything itself: for asyncio, or any other loop.

    :meth:`feed` it whatever bytes have come; each snapshot is handed out as soon as its last byte is there, and owns
    its memory. Groups and bare tensors are taken as by :func:`receive_snapshot`, whose arguments these are. A tensor
    without a group, and all that follows it, make one snapshot that ends with the stream: :attr:`bare`, after
    :meth:`close`. ``seq_lens`` [num_seqs] are the lengths of every snapshot, in place of those that come along.

    After an error the decoder takes no more bytes. Specification: spec/stream.md and spec/snapshot.md.
    """

    def __init__(
        self, *, limits: Limits | None = None, cross_machine: bool = True, seq_lens: ArrayLike | None = None
    ) -> None:
        limits = limits or Limits()
        self._decoder = StreamDecoder(limits=limits, cross_machine=cross_machine)
        self._collector = Collector(limits, seq_lens)
        self._fault: HurrayError | None = None
        self._failed = False
        self._closed = False
        self._bare: Snapshot | None = None

    @property
    def position(self) -> int:
        """Bytes taken so far."""
        return self._decoder.position

    @property
    def bare(self) -> Snapshot | None:
        """The snapshot of tensors that came without a group; None if there are none, or the stream goes on."""
        return self._bare

    def feed(self, data: Any) -> list[Snapshot]:
        """Take all of a bytes-like object, by copy; the snapshots that became whole, in order.

        Raises what :func:`receive_snapshot` raises. What is wrong behind a snapshot that became whole is raised by the
        next call, so that it does not matter where the bytes were cut. ValueError after :meth:`close`.
        """
        self._check_usable()
        if self._closed:
            raise ValueError("the decoder is closed")
        view = flat(data)
        done: list[Snapshot] = []
        try:
            while len(view):
                count = len(self._decoder.wanted())  # never past one tensor
                taken = map(self._collector.take, self._decoder.feed(view[:count]))
                done += [Snapshot(received) for received in taken if received is not None]
                view = view[count:]
        except HurrayError as fault:
            self._failed = True
            if not done:
                raise
            self._fault = fault
        return done

    def close(self) -> bool:
        """The stream has ended. True if that was a clean end; otherwise StreamError says what is missing."""
        self._check_usable()
        if not self._closed:
            self._decoder.close()
            received = self._collector.end()
            self._bare = None if received is None else Snapshot(received)
            self._closed = True
        return True

    def _check_usable(self) -> None:
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault
        if self._failed:
            raise StreamError("the stream was given up after an error", rule="stream.failed", offset=self.position)


def receive_snapshot(
    readable: Any, *, limits: Limits | None = None, cross_machine: bool = True, seq_lens: ArrayLike | None = None
) -> Snapshot:
    """Read one snapshot from a stream into memory: a group as :func:`send_snapshot` writes it, or bare tensors.

    A group is read to its last member and no further, so that several may follow one another; bare tensors are read
    to the end of the stream. ``seq_lens`` [num_seqs] gives lengths that the stream does not carry. ``cross_machine``
    refuses buffers that are not producer-synced: it is True, as a snapshot mostly comes from another machine, where
    nothing else can be waited for; a StreamReader, which knows nothing of its tensors, has it False.

    Raises StreamError for a stream on which nothing comes, that ends early or holds something else, and the other
    errors of ours; TypeError for what gives no bytes. Specification: spec/stream.md and spec/snapshot.md.
    """
    check_readable(readable, "receive_snapshot", _READS_FILES)
    snapshot = _receive(readable, limits or Limits(), cross_machine, seq_lens)
    if snapshot is None:
        raise StreamError("nothing came: the stream ends where a snapshot would start", rule="stream.empty")
    return snapshot


def receive_snapshots(readable: Any, *, limits: Limits | None = None, cross_machine: bool = True) -> Iterator[Snapshot]:
    """The snapshots that follow one another on a stream, each as :func:`receive_snapshot` reads it, to its clean end.

    No more is read than the snapshot at hand needs. Raises as :func:`receive_snapshot`, but takes an empty stream for
    no snapshot.
    """
    check_readable(readable, "receive_snapshots", _READS_FILES)
    return _all_of(readable, limits or Limits(), cross_machine)


def _all_of(readable: Any, limits: Limits, cross_machine: bool) -> Iterator[Snapshot]:
    while (snapshot := _receive(readable, limits, cross_machine, None)) is not None:
        yield snapshot


def _receive(readable: Any, limits: Limits, cross_machine: bool, seq_lens: ArrayLike | None) -> Snapshot | None:
    """The next snapshot; None at the end of the stream."""
    collector = Collector(limits, seq_lens)
    for tensor in StreamReader(readable, limits=limits, cross_machine=cross_machine):
        if (received := collector.take(tensor)) is not None:
            return Snapshot(received)
    received = collector.end()
    return None if received is None else Snapshot(received)

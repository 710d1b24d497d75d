"""Which requests bring some stretches of a file that lies far away: few, each bounded, all of them side by side.

A request costs a round trip whatever it brings, so stretches that are near each other share one, and what lies between
them comes along. A long stretch is cut into parts, since several connections bring more than one does. Who sends the
requests is left to ``remote_files.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["GAP_BYTES", "PART_BYTES", "Request", "merged", "plan"]

PART_BYTES = 4 << 20  # of one request: long against a round trip, and some of them at once are no burden to memory
GAP_BYTES = 32 << 10  # takes well below a millisecond to bring, and a request takes several


@dataclass(frozen=True, slots=True)
class Request:
    """The bytes [start, stop) of a file, and the pieces of memory that are to be filled from them."""

    start: int
    stop: int
    pieces: tuple[tuple[int, memoryview], ...]  # where in the file each begins

    def memory(self) -> memoryview:
        """Where to put the bytes: their very place, if that is one, or fresh memory."""
        if len(self.pieces) == 1:
            return self.pieces[0][1]
        return memoryview(bytearray(self.stop - self.start))

    def deliver(self, data: memoryview) -> None:
        """Hand out all bytes of the request, which lie in ``data``."""
        for offset, piece in self.pieces:
            if piece is not data:
                piece[:] = data[offset - self.start : offset - self.start + len(piece)]


def plan(stretches: Iterable[tuple[int, memoryview]]) -> list[Request]:
    """Requests that fill every stretch, an (offset, memory) pair each; in the order of the file."""
    parts = [
        (offset + at, memory[at : at + PART_BYTES])
        for offset, memory in stretches
        for at in range(0, len(memory), PART_BYTES)
    ]
    parts.sort(key=lambda part: part[0])
    requests: list[Request] = []
    pieces: list[tuple[int, memoryview]] = []
    start = stop = 0
    for offset, memory in parts:
        end = offset + len(memory)
        if pieces and (offset - stop > GAP_BYTES or max(stop, end) - start > PART_BYTES):
            requests.append(Request(start, stop, tuple(pieces)))
            pieces = []
        if not pieces:
            start = stop = offset
        pieces.append((offset, memory))
        stop = max(stop, end)
    if pieces:
        requests.append(Request(start, stop, tuple(pieces)))
    return requests


def merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The (start, stop) spans in the order of the file, those near each other as one."""
    out: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if out and start - out[-1][1] <= GAP_BYTES:
            out[-1] = out[-1][0], max(out[-1][1], stop)
        else:
            out.append((start, stop))
    return out

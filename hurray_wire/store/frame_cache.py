"""A small store of inflated frames, least recently used out first: what neighbouring requests have in common.

Several threads may ask at once. A frame that one thread is inflating is waited for by the others, never inflated twice;
the thread that inflates waits for nobody, so this cannot deadlock. It may be interrupted anywhere (Ctrl-C): then one of
the others inflates.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .. import forks

__all__ = ["FrameCache"]

Bytes: TypeAlias = NDArray[np.uint8]

_PATIENCE = 1.0  # seconds, after which one who waits looks whether there still is somebody to wait for


class FrameCache:
    """Holds frames of ``capacity`` bytes together, or a single larger one. ``made`` counts those that were inflated."""

    def __init__(self, capacity: int) -> None:
        self.made = 0
        self._capacity = capacity
        self._size = 0
        self._held: OrderedDict[int, Bytes] = OrderedDict()
        self._coming: dict[int, Future[Bytes]] = {}
        self._lock = threading.Lock()
        forks.register(self)

    def __contains__(self, number: int) -> bool:
        with self._lock:
            return number in self._held

    def get(self, number: int, make: Callable[[int], Bytes]) -> Bytes:
        """Frame ``number``, inflated by ``make(number)`` if it is not here. Raises what ``make`` raises."""
        while True:
            mine: Future[Bytes] | None = None
            try:
                with self._lock:
                    held = self._held.get(number)
                    if held is not None:
                        self._held.move_to_end(number)
                        return held
                    coming = self._coming.get(number)
                    if coming is None:
                        mine = Future()
                        self._coming[number] = mine
                if mine is not None:
                    made = make(number)
                    with self._lock:
                        self.made += 1
                        self._keep(number, made)
                    mine.set_result(made)
                    return made
                assert coming is not None
                with contextlib.suppress(CancelledError, TimeoutError):
                    return coming.result(_PATIENCE)
            except Exception as error:
                if mine is not None:
                    mine.set_exception(error)
                raise
            finally:
                # An interrupt may come between any two calls. This pop is the first; whoever still waits looks again.
                # An interrupted thread leaves no error either, for it is no reason that others should not read.
                if mine is not None and self._coming.pop(number, None) is mine and not mine.done():
                    mine.cancel()

    def count(self) -> None:
        """One more frame was inflated, past this store."""
        with self._lock:
            self.made += 1

    def clear(self) -> None:
        """Let all frames go."""
        with self._lock:
            self._held.clear()
            self._size = 0

    def after_fork(self) -> None:
        # the threads that were about to bring frames are not here
        self._lock = threading.Lock()
        self._coming.clear()
        self.clear()

    def _keep(self, number: int, made: Bytes) -> None:
        self._held[number] = made
        self._size += made.nbytes
        # the newest stays in any case: of a file that is one great frame, every request would inflate all of it
        while self._size > self._capacity and len(self._held) > 1:
            _, dropped = self._held.popitem(last=False)
            self._size -= dropped.nbytes

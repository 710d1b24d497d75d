"""A small store of inflated frames, least recently used out first: what neighbouring requests have in common.

Several threads may ask at once. A frame that one thread is inflating is waited for by the others, never inflated twice;
the thread that inflates waits for nobody, so this cannot deadlock.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .. import forks

__all__ = ["FrameCache"]

Bytes: TypeAlias = NDArray[np.uint8]


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
        with self._lock:
            held = self._held.get(number)
            if held is not None:
                self._held.move_to_end(number)
                return held
            coming = self._coming.get(number)
            if coming is None:
                mine = self._coming[number] = Future()
        if coming is not None:
            return coming.result()
        try:
            made = make(number)
        except BaseException as error:
            with self._lock:
                del self._coming[number]
            mine.set_exception(error)
            raise
        with self._lock:
            self.made += 1
            self._keep(number, made)
            del self._coming[number]
        mine.set_result(made)
        return made

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

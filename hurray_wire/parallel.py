"""A shared pool of threads for work that leaves the interpreter: copies, checksums, compression.

Three ways to use it, all internal. ``run`` spreads independent items over the threads and takes part in the work;
``map_bounded`` keeps the order and a bounded number of results in memory; ``submit`` is for work that comes bit by bit.
NumPy, zstandard and crc32c release the interpreter lock, so threads are enough. What is worth spreading, and in what
portions, is for the caller to say.

The pool is made on first use and has one thread for each CPU that this process may use. A forked child makes its own.
Called from a thread of the pool, all three work inline: no thread of the pool ever waits for another one, which is why
nothing here can deadlock.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from itertools import islice
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

__all__ = ["cpu_count", "map_bounded", "result_of", "run", "settle", "submit"]

T = TypeVar("T")
R = TypeVar("R")


class _State:
    """The pool of one process. A fork replaces the whole object: the threads behind it do not exist in the child."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.executor: _Pool | None = None
        self.thread = threading.local()


_state = _State()


def _forget() -> None:
    global _state
    _state = _State()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def cpu_count() -> int:
    """The number of CPUs that this process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def run(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """``[function(item) for item in items]``, the calls spread over the threads and the calling thread.

    All calls have ended when this returns or raises. The exception of the earliest item that failed is raised; items
    after it may not have been called.
    """
    todo = list(items)
    helpers = min(cpu_count(), len(todo)) - 1
    if helpers < 1 or _is_alone():
        return [function(item) for item in todo]
    batch = _Batch(function, todo)
    try:
        with contextlib.suppress(RuntimeError):  # there are no more threads: the calling one does their share
            executor = _executor()
            for _ in range(helpers):
                executor.submit(batch.help)
        batch.work()
    finally:
        _undisturbed(batch.close)
    return batch.outcome()


def map_bounded(function: Callable[[T], R], items: Iterable[T], window: int) -> Iterator[R]:
    """Yield ``function(item)`` for each item, in order, at most ``window`` (>= 1) of them begun and not yet yielded.

    ``items`` is consumed lazily, in the caller's thread. An exception comes out in the place of its result. When the
    generator ends, closes or raises, no call is running any more.
    """
    if window < 2 or cpu_count() == 1 or _is_alone():
        yield from map(function, items)
        return
    source = iter(items)
    flying: deque[tuple[Future[R], T]] = deque()
    try:
        flying.extend((submit(function, item), item) for item in islice(source, window))
        while flying:
            result = result_of(*flying.popleft(), function)
            yield result
            del result  # the caller owns it now; keeping it would hold one more than the window
            flying.extend((submit(function, item), item) for item in islice(source, 1))
    finally:
        settle(future for future, _ in flying)


def submit(function: Callable[[T], R], item: T) -> Future[R]:
    """``function(item)`` on one of the threads; done when this returns if there is no thread to spare."""
    if cpu_count() > 1 and not _is_alone():
        with contextlib.suppress(RuntimeError):  # there are no more threads
            return _executor().submit(function, item)
    done: Future[R] = Future()
    try:
        done.set_result(function(item))
    except BaseException as error:
        done.set_exception(error)  # comes out where the result is asked for, as from a thread
    return done


def result_of(future: Future[R], item: T, function: Callable[[T], R]) -> R:
    """What ``submit(function, item)`` comes to. When the interpreter ends there are no threads any more to bring it."""
    if sys.is_finalizing() and not future.done():
        return function(item)
    return future.result()


def settle(futures: Iterable[Future[Any]]) -> None:
    """Return when none of these calls is running any more; those that have not begun will not."""
    begun = list(futures)
    for future in begun:
        future.cancel()
    if not sys.is_finalizing():
        _undisturbed(lambda: wait(begun))


def _undisturbed(action: Callable[[], Any]) -> None:
    """Repeat ``action`` until it ends, and raise after that what interrupted it.

    A caller whom Ctrl-C takes out of a wait gets back memory that other threads are still writing to.
    """
    interrupt: BaseException | None = None
    while True:
        try:
            action()
            break
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


class _Batch(Generic[T, R]):
    """One call of ``run``: what is still to do, what came out, and how many threads are at it."""

    def __init__(self, function: Callable[[T], R], todo: list[T]) -> None:
        self.function = function
        self.queue = deque(enumerate(todo))
        self.results: list[R | None] = [None] * len(todo)
        self.failures: dict[int, BaseException] = {}
        self.changed = threading.Condition()
        self.helping = 0
        self.closed = False

    def work(self) -> None:
        while True:
            try:
                position, item = self.queue.popleft()
            except IndexError:
                return
            try:
                self.results[position] = self.function(item)
            except BaseException as error:  # carried over to the calling thread, whatever it is
                self.failures[position] = error
                self.queue.clear()

    def help(self) -> None:
        """``work`` in another thread; nothing at all once the batch is closed, so nobody waits for a late start."""
        with self.changed:
            if self.closed:
                return
            self.helping += 1
        try:
            self.work()
        finally:
            with self.changed:
                self.helping -= 1
                self.changed.notify_all()

    def close(self) -> None:
        self.queue.clear()  # an interrupt of the calling thread leaves items here
        with self.changed:
            self.closed = True
            while self.helping:
                self.changed.wait()

    def outcome(self) -> list[R]:
        if self.failures:
            # Items are taken in order, so whatever stands before a failed one was called as well: the choice is stable.
            try:
                raise self.failures[min(self.failures)]
            finally:
                self.failures.clear()  # an exception that holds itself would keep the caller's arrays alive
        return cast("list[R]", self.results)


def _is_alone() -> bool:
    """True in a thread of the pool, which waits for no other, and when the interpreter ends, which ends its threads."""
    return getattr(_state.thread, "is_worker", False) or sys.is_finalizing()


def _mark_worker(thread: threading.local) -> None:
    thread.is_worker = True


class _Pool:
    """As many threads as there are CPUs, begun as work comes.

    They are daemons: a signal handler that raises while one is being started must not leave behind a thread that the
    interpreter waits for when it ends, as those of ``concurrent.futures`` do.
    """

    def __init__(self, size: int, mark: Callable[[], None]) -> None:
        self._size = size
        self._mark = mark
        self._begun = 0
        self._lock = threading.Lock()
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = SimpleQueue()

    def submit(self, function: Callable[..., R], *arguments: Any) -> Future[R]:
        """``function(*arguments)`` on one of the threads. RuntimeError if there are none and none can be had."""
        if sys.is_finalizing():
            raise RuntimeError("the interpreter is ending")
        self._begin()
        future: Future[R] = Future()
        self._tasks.put((future, function, arguments))
        return future

    def _begin(self) -> None:
        with self._lock:
            if self._begun == self._size:
                return
            self._begun += 1
            try:
                threading.Thread(target=self._work, name=f"hurray_wire_{self._begun}", daemon=True).start()
            except BaseException as error:
                self._begun -= 1
                if self._begun == 0 or not isinstance(error, RuntimeError):
                    raise

    def _work(self) -> None:
        self._mark()
        while True:
            self._do(*self._tasks.get())

    @staticmethod
    def _do(future: Future[Any], function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        # in a call of its own, so that an idle thread keeps nothing of the last one alive
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = function(*arguments)
        except BaseException as error:  # carried over to whoever asks for the result
            future.set_exception(error)
        else:
            future.set_result(result)


def _executor() -> _Pool:
    state = _state
    with state.lock:
        if state.executor is None:
            state.executor = _Pool(cpu_count(), lambda: _mark_worker(state.thread))
        return state.executor

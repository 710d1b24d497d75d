"""The shared threads: every call made once, order kept, errors carried, nothing waits for ever."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

import hurray_wire as hw
from hurray_wire import parallel

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(params=[1, 2, 4])
def cpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A pool of its own for a machine with so many CPUs."""
    state = parallel._State()
    monkeypatch.setattr(parallel, "_state", state)
    monkeypatch.setattr(parallel, "cpu_count", lambda: request.param)
    return request.param


def test_run_calls_each_item_once_and_keeps_their_order(cpus: int) -> None:
    called: list[int] = []

    def square(number: int) -> int:
        called.append(number)
        return number * number

    assert parallel.run(square, range(200)) == [number * number for number in range(200)]
    assert sorted(called) == list(range(200))


def test_run_of_nothing_is_nothing(cpus: int) -> None:
    assert parallel.run(abs, []) == []


@pytest.mark.parametrize("cpus", [2, 4], indirect=True)
def test_run_spreads_items_over_threads(cpus: int) -> None:
    together = threading.Barrier(2)

    def meet(_: int) -> int:
        together.wait(timeout=20)  # breaks unless two threads are here at once
        return threading.get_ident()

    assert len(set(parallel.run(meet, range(2)))) == 2


def test_run_raises_the_exception_of_the_earliest_item_that_failed(cpus: int) -> None:
    def check(number: int) -> int:
        if number >= 5:
            raise ValueError(f"item {number}")
        return number

    for _ in range(50):
        with pytest.raises(ValueError, match=r"^item 5$"):
            parallel.run(check, range(12))


def test_run_after_a_failure_works_as_before(cpus: int) -> None:
    def fail(_: int) -> int:
        raise KeyError("once")

    with pytest.raises(KeyError):
        parallel.run(fail, range(8))
    assert parallel.run(abs, [-1, -2, -3]) == [1, 2, 3]


def test_run_leaves_nothing_running_behind_an_exception(cpus: int) -> None:
    active = 0
    lock = threading.Lock()

    def work(number: int) -> None:
        nonlocal active
        with lock:
            active += 1
        try:
            if number == 0:
                raise ValueError("first")
            threading.Event().wait(0.01)
        finally:
            with lock:
                active -= 1

    for _ in range(20):
        with pytest.raises(ValueError, match="first"):
            parallel.run(work, range(10))
        assert active == 0


def test_a_caught_exception_does_not_keep_the_items_alive(cpus: int) -> None:
    class Item:
        pass

    def fail(item: Item) -> None:
        raise ValueError("no")

    items = [Item() for _ in range(4)]
    watched = [weakref.ref(item) for item in items]
    gc.disable()
    try:
        try:
            parallel.run(fail, items)
        except ValueError as error:
            error.__traceback__ = None
        del items
        # a helper that comes too late may still hold the batch: any later work pushes it out
        parallel.run(abs, range(64))
        deadline = threading.Event()
        for _ in range(200):
            if not any(ref() for ref in watched):
                break
            deadline.wait(0.01)
        assert not any(ref() for ref in watched)
    finally:
        gc.enable()


def test_run_within_run_ends(cpus: int) -> None:
    def outer(number: int) -> int:
        return sum(parallel.run(lambda inner: number * inner, range(10)))

    assert parallel.run(outer, range(20)) == [45 * number for number in range(20)]


def test_map_bounded_within_run_ends(cpus: int) -> None:
    def outer(number: int) -> int:
        return sum(parallel.map_bounded(lambda inner: number * inner, range(10), 3))

    assert parallel.run(outer, range(20)) == [45 * number for number in range(20)]


def test_run_from_many_threads_at_once_gives_each_its_own(cpus: int) -> None:
    results: dict[int, list[int]] = {}

    def caller(base: int) -> None:
        for _ in range(20):
            results[base] = parallel.run(lambda number: base + number, range(30))

    threads = [threading.Thread(target=caller, args=(base,)) for base in range(0, 800, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert results == {base: [base + number for number in range(30)] for base in range(0, 800, 100)}


@pytest.mark.parametrize("window", [1, 2, 3, 100])
def test_map_bounded_keeps_the_order(cpus: int, window: int) -> None:
    def later_items_sooner(number: int) -> int:
        threading.Event().wait(0.002 * (5 - number % 5))
        return number

    assert list(parallel.map_bounded(later_items_sooner, range(20), window)) == list(range(20))


@pytest.mark.parametrize("window", [1, 2, 5])
def test_map_bounded_begins_no_more_than_its_window(cpus: int, window: int) -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(40):
            taken += 1
            yield number

    for yielded, _ in enumerate(parallel.map_bounded(abs, items(), window)):
        assert taken - yielded <= window  # the one just yielded counts until the next is asked for


def test_map_bounded_raises_in_the_place_of_the_result(cpus: int) -> None:
    def check(number: int) -> int:
        if number == 3:
            raise ValueError("item 3")
        return number

    results = parallel.map_bounded(check, range(10), 4)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="item 3"):
        next(results)
    assert list(results) == []


def test_map_bounded_closed_early_leaves_nothing_running(cpus: int) -> None:
    active = 0
    lock = threading.Lock()

    def work(number: int) -> int:
        nonlocal active
        with lock:
            active += 1
        threading.Event().wait(0.01)
        with lock:
            active -= 1
        return number

    results = parallel.map_bounded(work, range(100), 8)
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
    assert active == 0


def test_submit_gives_the_result_where_it_is_asked_for(cpus: int) -> None:
    assert [future.result(timeout=20) for future in [parallel.submit(abs, -number) for number in range(9)]] == list(
        range(9)
    )


def test_submit_gives_the_exception_where_the_result_is_asked_for(cpus: int) -> None:
    future = parallel.submit(int, "no number")
    with pytest.raises(ValueError, match="no number"):
        future.result(timeout=20)


def test_submit_within_run_ends(cpus: int) -> None:
    def outer(number: int) -> int:
        return sum(parallel.submit(abs, -inner).result(timeout=20) for inner in range(number))

    assert parallel.run(outer, range(10)) == [number * (number - 1) // 2 for number in range(10)]


FORKED = """
import os, signal, sys, threading
from hurray_wire import parallel
parallel.cpu_count = lambda: 3
together = threading.Barrier(2)

def meet(number):
    together.wait(timeout=20)
    return number

assert parallel.run(meet, range(2)) == [0, 1]           # the parent has threads now
parallel._state.lock.acquire()                          # as if another thread were making the pool
child = os.fork()
if child == 0:
    signal.alarm(30)
    assert parallel.run(meet, range(2)) == [0, 1]       # threads of its own
    assert list(parallel.map_bounded(abs, range(5), 2)) == [0, 1, 2, 3, 4]
    os._exit(7)
parallel._state.lock.release()
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""

AT_EXIT = """
import atexit
from hurray_wire import parallel
parallel.cpu_count = lambda: 3
parallel.run(abs, range(4))
atexit.register(lambda: print(parallel.run(abs, range(4))))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork on this system")
def test_a_forked_child_makes_its_own_threads() -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 7, ended.stderr


def test_run_while_the_interpreter_shuts_down_works_inline() -> None:
    ended = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout.strip(), ended.returncode) == ("[0, 1, 2, 3]", 0), ended.stderr


@pytest.mark.parametrize("cpus", [2, 4], indirect=True)
def test_an_interrupt_comes_out_when_nobody_works_any_more(cpus: int) -> None:
    """Ctrl-C while the calling thread works or waits for another one: what that writes to is in use till then."""
    begun = threading.Event()
    ended: list[int] = []

    def work(number: int) -> None:
        if threading.current_thread() is threading.main_thread():
            begun.wait(20)
            return
        begun.set()
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
        ended.append(number)

    for _ in range(5):
        begun.clear()
        ended.clear()
        with pytest.raises(KeyboardInterrupt):
            parallel.run(work, range(2))
        assert len(ended) == 1


EXIT = """
import sys
sys.path.insert(0, "tests")
import numpy as np
import hurray_wire as hw
from hurray_wire import parallel

n = 4 << 20
numbers = np.random.default_rng(0).integers(0, 4, n, dtype=np.uint8)
descriptor = hw.TensorDescriptor.build(hw.uint8, (n,), hw.RowMajorLayout(), (n,))

def abandoned():
    with hw.create(sys.argv[1] + "/a.zst") as writer:
        writer.add("a", descriptor, [numbers])
        yield

class Late:
    def __init__(self):
        self.writer = hw.create(sys.argv[1] + "/b.zst")
        self.writer.add("a", descriptor, [numbers])
    def __del__(self):
        self.writer.close()

kept = [abandoned(), parallel.map_bounded(lambda k: sum(range(10**6)), range(99), 4)]
for generator in kept:
    next(generator)
late = Late()
print("ends")
"""


def test_what_is_left_open_does_not_keep_the_interpreter_from_ending(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXIT, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "ends\n"
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) in ([], ["b.zst"])
    if (tmp_path / "b.zst").exists():
        hw.open(tmp_path / "b.zst").verify()

"""Readers in forked and spawned workers, and many threads on one reader, all see the same."""

from __future__ import annotations

import hashlib
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fixtures.corpus import FIXTURES, entry

import hurray_wire as hw
from hurray_wire import errors

from .programs import run

GOLDEN = ("accepted/smollm2-layers-0-1.hrry", "accepted/compressed-planes.hrry.zst")


def digest(file: Any) -> str:
    """SHA-256 over what every block-paged tensor holds."""
    return hashlib.sha256(b"".join(tensor.ragged().tobytes() for tensor in file.paged)).hexdigest()


# Forking a process in which threads run is discouraged, so each of these is a program of its own.
PROGRAM = """
import json, multiprocessing, sys
import hurray_wire as hw
from hostile.test_workers import digest

def opened(path):
    with hw.open(path) as file:
        return digest(file)

def inherited(_):
    return digest(FILE)

def failing(path):
    return hw.open(path)

if __name__ == "__main__":
    method, path, broken = sys.argv[1:]
    FILE = hw.open(path)
    here = digest(FILE)                    # threads of the parent's pool run by now
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        found = pool.map(opened, [path] * 4)
        if method == "fork":
            found += pool.map(inherited, range(4))
        try:
            pool.map(failing, [broken])
        except hw.ChecksumError as error:
            raised = [error.rule, type(error.__cause__).__name__]
    print(json.dumps({"here": here, "found": found, "raised": raised}))
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("name", GOLDEN)
def test_workers_read_what_their_parent_reads(method: str, name: str, tmp_path: Any) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    code = f"import runpy, sys; sys.argv[:1] = [{str(program)!r}]; runpy.run_path(sys.argv[0], run_name='__main__')"
    if method == "spawn":  # a spawned worker imports the program by its path
        printed = _output(str(program), method, str(FIXTURES / name), str(FIXTURES / "refused/index.crc.hrry"))
    else:
        printed = run(code, method, str(FIXTURES / name), str(FIXTURES / "refused/index.crc.hrry"))
    result = json.loads(printed)
    assert set(result["found"]) == {result["here"]}
    assert len(result["found"]) == (8 if method == "fork" else 4)
    assert result["raised"][0] == "index.crc"


def _output(*arguments: str) -> str:
    from .programs import output, start

    return output(start(*arguments))


@pytest.mark.parametrize("mmap", [True, False], ids=["mapped", "read"])
@pytest.mark.parametrize("name", GOLDEN)
def test_eight_threads_on_one_reader_see_the_same(name: str, mmap: bool) -> None:
    with hw.open(entry(name).path, mmap=mmap) as alone:
        expected = digest(alone)
    with hw.open(entry(name).path, mmap=mmap) as shared, ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda _: digest(shared), range(32))) == {expected}
        reports = set(threads.map(lambda _: shared.verify(), range(8)))
    assert len(reports) == 1


@pytest.mark.parametrize("kind", [getattr(errors, name) for name in errors.__all__])
def test_an_error_with_a_cause_of_another_library_travels(kind: type[hw.HurrayError]) -> None:
    """The causes we keep are those of construct, zstandard and NumPy; some of them do not pickle as they are."""
    import construct
    import zstandard

    for cause in (construct.ConstError("path", "x"), zstandard.ZstdError("broken"), OSError(2, "gone"), MemoryError()):
        error = kind("a thing is wrong", rule="a.b", found=b"\0")
        error.__cause__ = cause
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.found) == (kind, str(error), b"\0")
        assert copy.__cause__ is not None

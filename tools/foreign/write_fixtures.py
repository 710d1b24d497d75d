#!/usr/bin/env python3
"""Has each program of this folder write every case into ``fixtures/foreign/``, or says what would change there.

    python tools/foreign/write_fixtures.py            build the programs, write every file
    python tools/foreign/write_fixtures.py --check    write nothing; exit 1 if anything differs

It takes a C compiler, rustc, Node.js and a JDK.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from build_programs import CASES, FOREIGN, STREAM, WRITERS, ProgramError, build

FIXTURES = FOREIGN.parents[1] / "fixtures" / "foreign"


def name_of(program: str, case: str) -> str:
    """The path of what a program writes for a case, within ``fixtures/foreign/``."""
    return f"{WRITERS[program]}/{case}.{'stream' if CASES[case] == STREAM else 'hrry'}"


def write_all() -> dict[str, bytes]:
    """What every program writes, by its path within ``fixtures/foreign/``."""
    written = {}
    with tempfile.TemporaryDirectory() as folder:
        for program in WRITERS:
            built = build(program, Path(folder))
            for case in CASES:
                written[name_of(program, case)] = built.write(case, Path(folder) / "case")
    return written


def differences(written: dict[str, bytes], fixtures: Path = FIXTURES) -> list[str]:
    """In words, how the folder differs from what was written."""
    there = {path.relative_to(fixtures).as_posix() for path in fixtures.glob("*/*")}
    found = [f"{name} is written by no program" for name in sorted(there - written.keys())]
    for name, data in written.items():
        if name not in there:
            found.append(f"{name} is missing")
        elif (fixtures / name).read_bytes() != data:
            found.append(f"{name} differs")
    return found


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Write the golden files of the programs in other languages.")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if anything differs")
    options = parser.parse_args(argv)
    try:
        written = write_all()
    except ProgramError as error:
        print(error, file=sys.stderr)
        return 1
    if options.check:
        found = differences(written)
        for line in found:
            print(line, file=sys.stderr)
        print(f"{len(written)} files, {len(found)} differences")
        return 1 if found else 0
    for name, data in written.items():
        (FIXTURES / name).parent.mkdir(parents=True, exist_ok=True)
        (FIXTURES / name).write_bytes(data)
    print(f"{len(written)} files, {sum(map(len, written.values()))} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

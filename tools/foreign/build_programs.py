"""How the programs of this folder are built and run, and what they write. Standard library only.

One table for `write_fixtures.py` and for the tests: a program's name, what it takes to build it, and the command that
runs it. Cases and commands are described in the README beside this file.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOREIGN = Path(__file__).resolve().parent

FILE, STREAM, DESCRIPTOR = "file", "stream", "descriptor"
OPTIONS = {FILE: (), STREAM: ("--stream",), DESCRIPTOR: ("--descriptor",)}

# case: what is written for it
CASES = {
    "spec_example": FILE,
    "multi": FILE,
    "empty_batch": FILE,
    "int8_page_slot": FILE,
    "unflagged_metadata": FILE,
    "stream": STREAM,
    "group_stream": STREAM,
}

# program: the language's folder in fixtures/foreign/
WRITERS = {"c": "c", "rust": "rust", "js": "javascript", "java": "java"}


class ProgramError(Exception):
    """A program could not be built, or ended with a status that it should not have."""


@dataclass(frozen=True)
class Program:
    """A program that can be run: ``command`` is what comes before its own arguments."""

    name: str
    command: tuple[str, ...]

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *arguments], input=stdin, capture_output=True, text=True, encoding="utf-8", check=False
        )

    def lines(self, *arguments: str, stdin: str = "") -> list[str]:
        """Standard output of a run that must succeed."""
        done = self.run(*arguments, stdin=stdin)
        if done.returncode != 0:
            raise ProgramError(f"{self.name} {arguments[0]}: status {done.returncode}: {done.stderr}")
        return done.stdout.splitlines()

    def write(self, case: str, path: Path) -> bytes:
        self.lines("write", case, str(path))
        return path.read_bytes()

    def dump(self, paths: Sequence[Path], *, form: str = FILE) -> list[Any]:
        """What the program finds in each of the inputs."""
        return [json.loads(line) for line in self.lines("dump", *OPTIONS[form], *map(str, paths))] if paths else []

    def cuts(self, paths: Sequence[Path], *, form: str = FILE) -> list[list[int]]:
        """For each input, the lengths of its prefixes that the program accepts."""
        return [json.loads(line) for line in self.lines("cuts", *OPTIONS[form], *map(str, paths))]

    def check(self, paths: Sequence[Path], *, form: str = FILE) -> list[str]:
        """For each input "ok", "unsupported", or "refused: " and why."""
        return self.lines("check", *OPTIONS[form], stdin="".join(f"{path}\n" for path in paths))


def _compile(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ProgramError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")


def _build_c(out: Path) -> tuple[str, ...]:
    _compile("cc", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(out / "c"), str(FOREIGN / "c/hurray.c"))
    return (str(out / "c"),)


def _build_rust(out: Path) -> tuple[str, ...]:
    # A debug build: it compiles faster, and a sum that wraps stops the program.
    _compile("rustc", "--edition", "2021", "-D", "warnings", "-o", str(out / "rust"), str(FOREIGN / "rust/hurray.rs"))
    return (str(out / "rust"),)


def _build_js(out: Path) -> tuple[str, ...]:
    return ("node", str(FOREIGN / "js/hurray.js"))


def _build_java(out: Path) -> tuple[str, ...]:
    _compile("javac", "-Xlint:all", "-Werror", "-d", str(out / "java"), str(FOREIGN / "java/Hurray.java"))
    return ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", str(out / "java"), "Hurray")


def _build_kaitai(out: Path) -> tuple[str, ...]:
    return ("node", str(FOREIGN / "kaitai/dump.js"))


# program: what must be on the path, and what builds it
BUILDERS: dict[str, tuple[tuple[str, ...], Callable[[Path], tuple[str, ...]]]] = {
    "c": (("cc",), _build_c),
    "rust": (("rustc",), _build_rust),
    "js": (("node",), _build_js),
    "java": (("javac", "java"), _build_java),
    "kaitai": (("node",), _build_kaitai),
}


def missing(name: str) -> str | None:
    """Why the program cannot be built here, or None."""
    absent = [tool for tool in BUILDERS[name][0] if shutil.which(tool) is None]
    if absent:
        return f"{' and '.join(absent)} not found"
    if name == "kaitai" and not (FOREIGN / "kaitai/node_modules").is_dir():
        return "npm install was not run in tools/foreign/kaitai"
    return None


def build(name: str, out: Path) -> Program:
    """The program, built into the folder ``out``."""
    reason = missing(name)
    if reason is not None:
        raise ProgramError(f"no {name} program: {reason}")
    return Program(name, BUILDERS[name][1](out))

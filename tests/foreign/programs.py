"""Builds the programs of ``tools/foreign`` and runs them.

A program whose compiler or runtime is not there is skipped with a reason, or fails if HURRAY_WIRE_REQUIRE_FOREIGN=1.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOREIGN = ROOT / "tools" / "foreign"
REQUIRED = os.environ.get("HURRAY_WIRE_REQUIRE_FOREIGN") == "1"


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
        assert done.returncode == 0, f"{self.name} {arguments}: {done.stderr}"
        return done.stdout.splitlines()

    def write(self, case: str, path: Path) -> bytes:
        self.lines("write", case, str(path))
        return path.read_bytes()

    def dump(self, paths: Sequence[Path], *, stream: bool) -> list[Any]:
        """What the program finds in each of the files."""
        return [json.loads(line) for line in self.lines("dump", *_form(stream), *map(str, paths))]

    def cuts(self, paths: Sequence[Path], *, stream: bool) -> list[list[int]]:
        """For each file, the lengths of its prefixes that the program accepts."""
        return [json.loads(line) for line in self.lines("cuts", *_form(stream), *map(str, paths))]

    def check(self, paths: Sequence[Path], *, stream: bool) -> list[str]:
        """For each file "ok", "unsupported", or "refused: " and why."""
        return self.lines("check", *_form(stream), stdin="".join(f"{path}\n" for path in paths))


def _form(stream: bool) -> list[str]:
    return ["--stream"] if stream else []


def _build_c(out: Path) -> tuple[str, ...]:
    compile_with(
        "cc", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(out / "c"), str(FOREIGN / "c/hurray.c")
    )
    return (str(out / "c"),)


def _build_rust(out: Path) -> tuple[str, ...]:
    # A debug build: it compiles faster, and a sum that wraps stops the program.
    options = ("--edition", "2021", "-D", "warnings")
    compile_with("rustc", *options, "-o", str(out / "rust"), str(FOREIGN / "rust/hurray.rs"))
    return (str(out / "rust"),)


def _build_js(out: Path) -> tuple[str, ...]:
    return ("node", str(FOREIGN / "js/hurray.js"))


def _build_java(out: Path) -> tuple[str, ...]:
    compile_with("javac", "-Xlint:all", "-Werror", "-d", str(out / "java"), str(FOREIGN / "java/Hurray.java"))
    return ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", str(out / "java"), "Hurray")


def _build_kaitai(out: Path) -> tuple[str, ...]:
    return ("node", str(FOREIGN / "kaitai/dump.js"))


def compile_with(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[0]} failed:\n{done.stdout}{done.stderr}"


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
    """The program, built into ``out``; skips or fails the test that asks if it cannot be."""
    reason = missing(name)
    if reason is not None and REQUIRED:
        pytest.fail(f"the {name} program is required: {reason}")
    if reason is not None:
        pytest.skip(f"no {name} program: {reason}")
    return Program(name, BUILDERS[name][1](out))

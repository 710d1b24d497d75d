"""What the README shows runs as it stands there, from top to bottom, and prints what it says."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^\$ (.*)$", README, re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readme")


def spaced(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def test_the_examples_print_what_their_comments_say(folder: Path) -> None:
    out = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out):
        names: dict[str, object] = {}
        for block in PYTHON:
            exec(compile(block, "README.md", "exec"), names)  # noqa: S102
    said = [match[1] for block in PYTHON for match in re.finditer(r"^ *print\(.*\)  # (.*)$", block, re.MULTILINE)]
    assert len(said) >= 4
    assert spaced(out.getvalue()) == " ".join(spaced(line.partition(": ")[0]) for line in said)


def test_the_commands_end_well(folder: Path) -> None:
    """They read the files of the examples, and of each other."""
    assert (folder / "cache.hrry").exists(), "the examples come first"
    assert len(COMMANDS) >= 9
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for command in COMMANDS:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert done.stderr == ""

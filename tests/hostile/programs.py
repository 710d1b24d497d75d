"""Programs that tests run beside themselves: to be watched, to be killed, or to be told apart by their surroundings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Python with these arguments, in the project, its output captured."""
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]), **environment}
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT, env=surroundings, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def output(process: subprocess.Popen[str]) -> str:
    """What the program printed, after it has ended well."""
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


def run(program: str, *arguments: str, **environment: str) -> str:
    """What a program, given as text, prints."""
    return output(start("-c", program, *arguments, **environment))

"""The demo does what it shows, and says so by its exit code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_cases import ROOT

DEMO = ROOT / "tools" / "demo.py"


def test_the_demo_ends_well_and_finds_the_damage_it_did():
    if not (Path(sys.executable).parent / "hurray-pack").exists():
        pytest.skip("the package is not installed, so its commands are not there")
    done = subprocess.run([sys.executable, DEMO], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "808 tokens, in all layers, keys and values: each is the one of the dump" in done.stdout
    assert "of 'layers.1.value' has CRC-32C" in done.stdout
    assert done.stdout.endswith("All of it as it should be.\n")


def test_the_demo_ends_badly_where_a_command_does(tmp_path):
    """Commands of the same names that do nothing stand in for broken ones."""
    (tmp_path / "python").symlink_to(sys.executable)
    for name in ("hurray-pack", "hurray-unpack"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    run = f"runpy.run_path({str(DEMO)!r}, run_name='__main__')"
    code = f"import runpy, sys; sys.executable = {str(tmp_path / 'python')!r}; {run}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False, env={**os.environ}
    )
    assert done.returncode == 1
    assert done.stderr == "demo: the command ended with 1 instead of 0\n"

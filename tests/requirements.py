"""What a test needs from its surroundings, and what happens where that is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REQUIRE_ALL = "HURRAY_WIRE_REQUIRE_ALL"
REFERENCE = Path(__file__).resolve().parents[2] / "shared" / "reference"


def require(condition: object, reason: str) -> None:
    """Skip the test with this reason unless the condition holds; fail it where HURRAY_WIRE_REQUIRE_ALL=1 is set.

    Called while a module is imported, it does so for all tests of the module. So a machine that is meant to have
    everything (a program, a folder of foreign files, a file system that can hold sparse files) does not lose a test in
    silence.
    """
    __tracebackhide__ = True  # so that the report names the test
    if condition:
        return
    if os.environ.get(REQUIRE_ALL) == "1":
        pytest.fail(f"{REQUIRE_ALL}=1, but {reason}", pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def reference() -> Path:
    """The folder with the files that the Rust implementation wrote."""
    __tracebackhide__ = True
    require(REFERENCE.is_dir(), "the files of the Rust implementation are not beside this project")
    return REFERENCE

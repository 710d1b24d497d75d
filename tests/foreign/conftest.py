"""One set of programs for all tests of this folder: building them takes most of the time."""

from __future__ import annotations

import pytest

from .programs import Bench


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("foreign"))

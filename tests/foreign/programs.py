"""The programs of ``tools/foreign``, and the plain decoder that judges them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from requirements import require

ROOT = Path(__file__).resolve().parents[2]


def load(folder: str, name: str) -> Any:
    """A module of a folder of ``tools``, which is no package."""
    path = str(ROOT / folder)
    if path not in sys.path:
        sys.path.append(path)
    return importlib.import_module(name)


plain = load("tools", "plain_decoder")
building = load("tools/foreign", "build_programs")

CASES: dict[str, str] = building.CASES
FILES = [case for case, form in CASES.items() if form == building.FILE]
STREAMS = [case for case, form in CASES.items() if form == building.STREAM]
WRITERS = list(building.WRITERS)
READERS = list(building.BUILDERS)


def decode(data: bytes, form: str) -> Any:
    """The plain decoder's document; raises its ``Refused``."""
    if form == building.DESCRIPTOR:
        return {"form": "descriptor", "descriptor": plain.decode_descriptor(data)}
    return plain.decode_stream(data) if form == building.STREAM else plain.decode_file(data)


class Bench:
    """Programs, built when first asked for, and what they wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs: dict[str, Any] = {}
        self.written: dict[tuple[str, str], bytes] = {}

    def program(self, name: str) -> Any:
        """The program; the test that asks is skipped, or fails, where it cannot be built."""
        if name not in self.programs:
            reason = building.missing(name)
            require(reason is None, f"there is no {name} program: {reason}")
            self.programs[name] = building.build(name, self.folder)
        return self.programs[name]

    def path(self, writer: str, case: str) -> Path:
        return self.folder / f"{writer}.{case}"

    def case(self, writer: str, case: str) -> bytes:
        """What the writer writes for the case, which then also lies at `path`."""
        if (writer, case) not in self.written:
            self.written[writer, case] = self.program(writer).write(case, self.path(writer, case))
        return self.written[writer, case]

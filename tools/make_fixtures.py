#!/usr/bin/env python3
"""Makes the golden corpus in ``fixtures/``, or says whether what lies there is what it would make.

    python tools/make_fixtures.py                 write every file and the manifest
    python tools/make_fixtures.py --check         write nothing; exit 1 if anything differs
    python tools/make_fixtures.py --slice SOURCE  cut the slice of a real cache out of the whole file first

The bytes come from ``fixture_cases/`` (struct packing, nothing of the library), the expected values from
``plain_decoder.py`` (the standard library, nothing of the library), and neither depends on the machine or the day.
What the manifest holds is told in ``fixtures/README.md``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import plain_decoder as plain  # noqa: E402
from fixture_cases import (  # noqa: E402
    compressed,
    descriptors,
    files,
    real,
    refused_descriptors,
    refused_files,
    refused_streams,
    streams,
    values,
)
from fixture_cases.api_only import API_ONLY  # noqa: E402
from fixture_cases.cases import Case  # noqa: E402
from fixture_cases.zstd import Compressed  # noqa: E402

FIXTURES = ROOT / "fixtures"
MADE = ("accepted", "refused")  # the folders that are ours alone

Json = dict[str, Any]


def accepted_cases(fixtures: Path = FIXTURES) -> list[Case]:
    """Every case that readers must take."""
    return [*descriptors.cases(), *files.cases(), *real.cases(fixtures), *streams.cases(), *compressed.accepted()]


def refused_cases() -> list[Case]:
    """Every case that readers must refuse."""
    return [*refused_descriptors.cases(), *refused_files.cases(), *refused_streams.cases(), *compressed.refused()]


def decode(case: Case, data: bytes) -> Json:
    """The plain decoder's document of a case."""
    permissive = bool(case.options.get("permissive", False))
    if case.kind == "descriptor":
        return {"form": "descriptor", "descriptor": plain.decode_descriptor(data, permissive)}
    if isinstance(case.subject, Compressed):  # the plain decoder knows no zstd; what it inflates to is known
        data = case.subject.inflated()
    return plain.decode_stream(data) if case.kind == "stream" else plain.decode_file(data, permissive)


def accepted_entry(case: Case, data: bytes) -> Json:
    """What the manifest says of an accepted file."""
    document = decode(case, data)
    accepted: Json = {"dump": plain.dump(document)}
    if case.kind != "descriptor":
        accepted["values"] = values.of_tensors(document["tensors"], case.options.get("seq_lens"))
    return {
        "file": case.file,
        "kind": case.kind,
        "description": case.description,
        **({"options": dict(case.options)} if case.options else {}),
        "rewrite": case.rewrite(),
        "accepted": accepted,
    }


def refused_entry(case: Case, data: bytes) -> Json:
    """What the manifest says of a refused file, the plain decoder's verdict beside our rule."""
    judge = None
    if case.judged:
        try:
            document = decode(case, data)
            if case.kind != "descriptor":
                values.of_tensors(document["tensors"], case.options.get("seq_lens"))
        except plain.Refused as refused:
            judge = refused.rule
    return {
        "file": case.file,
        "kind": case.kind,
        "description": case.description,
        **({"options": dict(case.options)} if case.options else {}),
        "keeps": case.keeps,
        "refused": {"rule": case.rule, "when": case.when, "words": case.description, "judge": judge},
    }


def make(fixtures: Path = FIXTURES) -> dict[str, bytes]:
    """Every file that is made, by its path within the fixtures folder; the manifest is one of them."""
    made: dict[str, bytes] = {}
    entries = []
    accepted, refused = accepted_cases(fixtures), refused_cases()
    for case in (*accepted, *refused):
        if case.file in made:
            raise ValueError(f"two cases make {case.file}")
        data, _ = case.emit()
        made[case.file] = data
        entries.append(refused_entry(case, data) if case.rule else accepted_entry(case, data))
    missing = {entry["keeps"] for entry in entries if "refused" in entry} - {case.file for case in accepted}
    if missing:
        raise ValueError(f"refused cases are compared with what is not accepted: {missing}")
    source = (fixtures / real.SLICE).read_bytes()
    top = {
        "counts": {"accepted": len(accepted), "refused": len(refused)},
        "slice": {"file": real.SLICE, "sha256": hashlib.sha256(source).hexdigest()},
        "api_only": dict(sorted(API_ONLY.items())),
    }
    made["manifest.json"] = _manifest(top, entries)
    return made


def _manifest(top: Json, entries: Sequence[Json]) -> bytes:
    """JSON with one line for each part of an entry, so that a difference shows where it is."""
    lines = ["{"]
    lines += [f"  {json.dumps(key)}: {_indented(value)}," for key, value in top.items()]
    lines.append('  "entries": [')
    for number, entry in enumerate(entries):
        lines.append("    {")
        parts = [f"      {json.dumps(key)}: {_one_line(value)}" for key, value in entry.items()]
        lines.append(",\n".join(parts))
        lines.append("    }" + ("," if number + 1 < len(entries) else ""))
    lines += ["  ]", "}", ""]
    return "\n".join(lines).encode()


def _indented(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False).replace("\n", "\n  ")


def _one_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def differences(made: dict[str, bytes], fixtures: Path = FIXTURES) -> list[str]:
    """In words, how the folder differs from what would be made."""
    found = []
    for name, data in made.items():
        path = fixtures / name
        if not path.is_file():
            found.append(f"{name} is missing")
        elif path.read_bytes() != data:
            found.append(f"{name} differs")
    for folder in MADE:
        for path in sorted((fixtures / folder).glob("**/*")):
            name = path.relative_to(fixtures).as_posix()
            if path.is_file() and name not in made:
                found.append(f"{name} is not made by any case")
    return found


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Make the golden corpus, or check it.")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if anything differs")
    parser.add_argument("--slice", metavar="SOURCE", type=Path, help="the whole cache, a safetensors file")
    parser.add_argument("--fixtures", metavar="FOLDER", type=Path, default=FIXTURES, help="where the corpus lies")
    options = parser.parse_args(argv)
    fixtures: Path = options.fixtures
    if options.slice is not None:
        (fixtures / real.SLICE).write_bytes(real.cut_slice(options.slice.read_bytes()))
    made = make(fixtures)
    if options.check:
        found = differences(made, fixtures)
        for line in found:
            print(line, file=sys.stderr)
        print(f"{len(made)} files, {len(found)} differences")
        return 1 if found else 0
    for folder in MADE:
        for path in (fixtures / folder).glob("**/*"):
            if path.is_file() and path.relative_to(fixtures).as_posix() not in made:
                path.unlink()
    for name, data in made.items():
        path = fixtures / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    print(f"{len(made)} files, {sum(map(len, made.values()))} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

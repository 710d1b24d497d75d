"""Reads the written specification: its sections, rule definitions, tables and worked examples.

The pages are the data of the tests beside this file. What is parsed here is only what the pages promise about their own
form (spec/README.md): an id defined by a list item, an example by a fence, a field by a comment.
"""

from __future__ import annotations

import ast
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SPEC = ROOT / "spec"

_DEFINITION = re.compile(r"- `([a-z]+(?:-[a-z]+)*\.[a-z0-9]+(?:-[a-z0-9]+)*)`: ")
_MENTION = re.compile(r"`([a-z]+(?:-[a-z]+)*\.[a-z0-9]+(?:-[a-z0-9]+)*)`")
_FENCE = re.compile(r"^```(\w+) (.+)$")


@dataclass(frozen=True, slots=True)
class Field:
    """One commented line of an example: where it starts, its bytes, and what it is said to hold."""

    offset: int
    raw: bytes
    name: str | None
    value: Any


@dataclass(frozen=True, slots=True)
class Example:
    """A worked example: ``hex KIND NAME``."""

    page: str
    kind: str
    name: str
    raw: bytes
    fields: tuple[Field, ...]


@dataclass(slots=True)
class Section:
    """A heading and what stands under it, up to the next heading of any level."""

    page: str
    anchor: str
    lines: list[str] = field(default_factory=list)
    fences: list[tuple[str, str, list[str]]] = field(default_factory=list)

    def tables(self) -> list[list[dict[str, str]]]:
        """Every table of the section, as rows from column title to cell."""
        found: list[list[dict[str, str]]] = []
        titles: list[str] | None = None
        for line in [*self.lines, ""]:
            if not line.startswith("|"):
                titles = None
                continue
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if titles is None:
                titles = cells
                found.append([])
            elif not set(line) <= set("|-: "):
                found[-1].append(dict(zip(titles, cells, strict=True)))
        return found


def sections(page: Path) -> list[Section]:
    found = [Section(page.name, "")]
    fence: list[str] | None = None
    for line in page.read_text(encoding="utf-8").splitlines():
        if fence is not None:
            if line == "```":
                fence = None
            else:
                fence.append(line)
        elif line.startswith("```"):
            fence = []
            match = _FENCE.match(line)
            found[-1].fences.append((match[1], match[2], fence) if match else (line[3:], "", fence))
        elif match := re.match(r"#+ (.+)", line):
            found.append(Section(page.name, anchor_of(match[1])))
        else:
            found[-1].lines.append(line)
    return found


def anchor_of(heading: str) -> str:
    """The fragment by which a heading is linked, as the usual renderers make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def all_sections() -> list[Section]:
    return [section for page in sorted(SPEC.glob("*.md")) for section in sections(page)]


def section(page: str, anchor: str) -> Section:
    return next(part for part in sections(SPEC / page) if part.anchor == anchor)


def definitions() -> list[tuple[str, str, str]]:
    """(rule, page, anchor) for every list item that defines a rule."""
    return [
        (match[1], part.page, part.anchor)
        for part in all_sections()
        for line in part.lines
        if (match := _DEFINITION.match(line))
    ]


def mentions() -> Iterator[tuple[str, str]]:
    """(word, page) for everything in code type that has the form of a rule id."""
    for part in all_sections():
        for line in part.lines:
            for word in _MENTION.findall(line):
                yield word, part.page


def examples() -> list[Example]:
    found = []
    for part in all_sections():
        for language, words, lines in part.fences:
            if language == "hex":
                kind, name = words.split()
                found.append(_example(part.page, kind, name, lines))
    return found


def example(name: str) -> Example:
    return next(one for one in examples() if one.name == name)


def fence(language: str, words: str) -> list[str]:
    """The lines of the only fence with these words."""
    (lines,) = [
        lines for part in all_sections() for lang, said, lines in part.fences if (lang, said) == (language, words)
    ]
    return lines


def _example(page: str, kind: str, name: str, lines: list[str]) -> Example:
    raw = b""
    fields = []
    for line in lines:
        digits, _, comment = line.partition("#")
        piece = _bytes(digits.strip())
        offset, _, words = comment.strip().partition(" ")
        said, equals, value = words.partition(" = ")
        plain = equals and " " not in said
        fields.append(
            Field(int(offset), piece, said if plain else None, _value(value.split(";")[0]) if plain else None)
        )
        raw += piece
    return Example(page, kind, name, raw, tuple(fields))


def _bytes(digits: str) -> bytes:
    if match := re.fullmatch(r"([0-9a-f]{2}) \* (\d+)", digits):
        return bytes.fromhex(match[1]) * int(match[2])
    return bytes.fromhex(digits)


def _value(text: str) -> Any:
    return ast.literal_eval(text.strip())


def read_as(raw: bytes, value: Any) -> Any:
    """What the bytes of a line hold, read as the kind of thing that ``value`` is."""
    if isinstance(value, str):
        return raw.decode("utf-8")
    if isinstance(value, list):
        width = len(raw) // len(value)
        return [read_as(raw[k * width : (k + 1) * width], one) for k, one in enumerate(value)]
    if isinstance(value, float):
        return struct.unpack("<f" if len(raw) == 4 else "<d", raw)[0]
    return int.from_bytes(raw, "little", signed=value < 0)

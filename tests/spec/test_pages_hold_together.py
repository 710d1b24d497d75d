"""The pages agree with each other and with the tables of the code: links, tags, names, what docstrings point to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from spec_pages import ROOT, SPEC, all_sections, anchor_of, section, sections

from hurray_wire.errors import InvalidDescriptorError
from hurray_wire.limits import Limits
from hurray_wire.model import quantization
from hurray_wire.model import sections as model
from hurray_wire.model.element_types import ALL
from hurray_wire.model.layouts import KNOWN_TAGS

PAGES = sorted(SPEC.glob("*.md"))
ANCHORS = {(part.page, part.anchor) for part in all_sections()}
_LINK = re.compile(r"\[[^\]]+\]\(([^)]+)\)")
_POINTER = re.compile(r"spec/([a-z-]+\.md)(?:, \"([^\"]+)\")?")


def first_table(page: str, anchor: str, column: str) -> list[dict[str, str]]:
    return next(table for table in section(page, anchor).tables() if column in table[0])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for part in sections(page):
        for target in _LINK.findall("\n".join(part.lines)):
            name, _, anchor = target.partition("#")
            is_other_file = bool(name) and not anchor and not name.endswith(".md") and (SPEC / name).is_file()
            assert is_other_file or (name or part.page, anchor) in ANCHORS, f"{part.page}: {target}"


def test_every_page_is_in_the_map() -> None:
    named = set(_LINK.findall((SPEC / "README.md").read_text(encoding="utf-8")))
    assert {page.name for page in PAGES} - {"README.md"} <= named


def test_headings_of_a_page_have_anchors_of_their_own() -> None:
    places = [(part.page, part.anchor) for part in all_sections()]
    assert len(places) == len(set(places))


def test_docstrings_point_to_sections_that_exist() -> None:
    pointers = {
        (path.name, match[1], match[2])
        for folder in ("hurray_wire", "tools")
        for path in (ROOT / folder).rglob("*.py")
        for match in _POINTER.finditer(path.read_text(encoding="utf-8"))
    }
    assert pointers
    strays = [
        pointer for pointer in pointers if (pointer[1], anchor_of(pointer[2]) if pointer[2] else "") not in ANCHORS
    ]
    assert strays == []


def test_element_types_are_those_of_the_code() -> None:
    rows = first_table("descriptor.md", "element-types", "tag")
    told = [(int(row["tag"], 16), row["name"], int(row["bits"])) for row in rows if row["bits"]]
    assert told == [(one.tag, one.name, one.bits) for one in ALL]


def test_layout_tags_are_those_of_the_code() -> None:
    rows = first_table("layouts.md", "layouts", "tag")
    assert [int(row["tag"], 16) for row in rows if " to " not in row["tag"]] == list(KNOWN_TAGS)


def test_devices_have_the_memory_classes_of_the_page() -> None:
    for row in first_table("descriptor.md", "buffer-handles", "memory classes"):
        if " to " in row["device_tag"]:
            continue
        device = next(word for word, tag in model.DEVICES.items() if tag == int(row["device_tag"]))
        told = {word.replace("-", "_") for word in row["memory classes"].split(", ")}
        sync = "producer_synced"
        accepted = set()
        for memory_class in model.MEMORY_CLASSES:
            try:
                model.BufferHandle(64, 64, device, sync, memory_class)
            except InvalidDescriptorError:
                continue
            accepted.add(memory_class)
        assert accepted == told, device


def test_schemes_take_the_storage_types_of_the_page() -> None:
    rows = first_table("quantization.md", "scheme-header", "storage types")
    classes = (
        quantization.PerTensorAffine,
        quantization.PerChannelAffine,
        quantization.PerBlockAffine,
        quantization.Nf4,
        quantization.Mxfp,
    )
    told: dict[str, set[str]] = {}
    for row, scheme in zip(rows, classes, strict=True):
        words = row["storage types"]
        told[row["scheme_tag"]] = told[words[3:]] if words.startswith("as ") else set(words.split(", "))
        assert int(row["scheme_tag"]) == scheme.tag
        assert {one.name for one in scheme.storage_types} == told[row["scheme_tag"]]


def test_every_limit_is_told() -> None:
    told = set(re.findall(r"`(max_\w+)`", "\n".join(section("calls.md", "limits").lines)))
    assert told == set(Limits.__dataclass_fields__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_are_plain_text_of_the_project_alone(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.isascii()
    assert not re.search(r"/(?:work|home|tmp|root)/|https?://", text)
    assert text.endswith("\n")
    assert not re.search(r"[ \t]+$", text, re.MULTILINE)


def test_threats_name_rules_modules_and_tests_that_exist() -> None:
    listed = {row["rule"].strip("`") for row in first_table("rules.md", "all-rules", "rule")}
    rows = [row for part in sections(SPEC / "threats.md") for table in part.tables() for row in table]
    assert rows
    for row in rows:
        assert set(words(row["rules"])) <= listed
        assert [path for path in words(row["where"]) if not (ROOT / "hurray_wire" / path).is_file()] == []
        assert [path for path in words(row["shown by"]) if not (ROOT / "tests" / path).is_file()] == []


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)

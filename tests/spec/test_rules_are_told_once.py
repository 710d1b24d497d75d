"""Every rule that the code can raise is defined on one page, in one place, and listed; and nothing else is."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from spec_code import error_classes, scan
from spec_pages import ROOT, definitions, mentions, section

DEFINED = definitions()
PLACES = {rule: (page, anchor) for rule, page, anchor in DEFINED}
AREAS = {rule.partition(".")[0] for rule in PLACES}
CODE = scan(AREAS)
LISTED = [row for table in section("rules.md", "all-rules").tables() for row in table]
MANIFEST = json.loads((ROOT / "fixtures" / "manifest.json").read_text(encoding="utf-8"))


def test_every_rule_of_the_code_is_defined() -> None:
    assert sorted(CODE.needed - set(PLACES)) == []


def test_every_defined_rule_is_raised_by_the_code() -> None:
    assert sorted(set(PLACES) - CODE.possible) == []


def test_no_rule_is_defined_twice() -> None:
    assert [rule for rule, count in Counter(rule for rule, _, _ in DEFINED).items() if count > 1] == []


def test_the_map_names_every_area() -> None:
    assert set(re.findall(r"`([a-z-]+)`", "\n".join(section("README.md", "rules").lines))) >= AREAS


def test_rules_are_literals_that_a_search_finds() -> None:
    assert CODE.computed == []


def test_every_mention_of_a_rule_is_of_a_defined_one() -> None:
    strays = {(word, page) for word, page in mentions() if word.partition(".")[0] in AREAS and word not in PLACES}
    assert {stray for stray in strays if not stray[0].endswith((".py", ".desc", ".hrry", ".stream"))} == set()


def test_the_table_lists_every_rule_once_in_order() -> None:
    rules = [row["rule"].strip("`") for row in LISTED]
    assert rules == sorted(rules)
    assert set(rules) == set(PLACES)
    assert len(rules) == len(set(rules))


@pytest.mark.parametrize("row", LISTED, ids=lambda row: row["rule"].strip("`"))
def test_a_row_points_to_the_definition(row: dict[str, str]) -> None:
    target = re.fullmatch(r"\[[^]]+\]\(([\w-]+\.md)(?:#([\w-]+))?\)", row["stands in"])
    assert target is not None
    assert (target[1], target[2] or "") == PLACES[row["rule"].strip("`")]


@pytest.mark.parametrize("row", LISTED, ids=lambda row: row["rule"].strip("`"))
def test_a_row_names_the_errors_that_the_code_raises(row: dict[str, str]) -> None:
    named = set(row["error"].replace("`", "").split(", "))
    assert named <= error_classes()
    assert CODE.literal.get(row["rule"].strip("`"), set()) <= named


@pytest.mark.parametrize("row", LISTED, ids=lambda row: row["rule"].strip("`"))
def test_a_row_names_fixtures_that_keep_and_break_its_rule(row: dict[str, str]) -> None:
    rule = row["rule"].strip("`")
    kept, broken = row["accepted fixture"].strip("`"), row["refused fixture"].strip("`")
    if rule in MANIFEST["api_only"]:
        assert (kept, broken) == ("none", "none")
        return
    assert broken, f"no fixture breaks {rule}"
    entries = {entry["file"]: entry for entry in MANIFEST["entries"]}
    entry = entries[f"refused/{broken}"]
    assert entry["refused"]["rule"] == rule
    assert entry["keeps"] == f"accepted/{kept}"
    assert "accepted" in entries[f"accepted/{kept}"]


def test_fixtures_break_only_rules_that_are_listed() -> None:
    broken = {entry["refused"]["rule"] for entry in MANIFEST["entries"] if "refused" in entry}
    assert broken | set(MANIFEST["api_only"]) <= set(PLACES)

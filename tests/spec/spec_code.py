"""Which rule ids the code can raise, and as which errors, read from its syntax trees.

A rule is a literal ``rule="area.slug"``, or one that the doorway makes of an area and a kind. An id that reaches its
error through a helper function (``check_int(..., "block-paged.page-size")``) belongs to the errors of that helper.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from spec_pages import ROOT

PACKAGE = ROOT / "hurray_wire"
ID = re.compile(r"[a-z]+(?:-[a-z]+)*\.[a-z0-9]+(?:-[a-z0-9]+)*")

# What the doorway appends to an area. A schema holds plain integers and constants only, so nothing else can fail there.
DOORWAY_KINDS = ("truncated", "magic", "reserved")


@dataclass(slots=True)
class Rules:
    """``literal``: ids in the code, with the error classes beside them. ``areas``: first words of the doorway's ids."""

    literal: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    areas: set[str] = field(default_factory=set)
    computed: list[str] = field(default_factory=list)

    @property
    def possible(self) -> set[str]:
        return set(self.literal) | {f"{area}.{kind}" for area in self.areas for kind in DOORWAY_KINDS}

    @property
    def needed(self) -> set[str]:
        """Ids that a page must define: the literal ones, and that of an early end in every area."""
        return set(self.literal) | {f"{area}.truncated" for area in self.areas}


def error_classes() -> set[str]:
    tree = ast.parse((PACKAGE / "errors.py").read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef)}


def scan(known_areas: set[str]) -> Rules:
    """All rules of the package. A string of the form of an id counts if its first word is a known area."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
    errors = error_classes()
    helpers = _helpers(trees, errors)
    rules = Rules()
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and _is_id(node.value, known_areas):
                rules.literal.setdefault(str(node.value), set())
            if isinstance(node, ast.Call):
                _note_call(node, path, rules, known_areas, errors, helpers)
    return rules


def _note_call(
    node: ast.Call, path: Path, rules: Rules, areas: set[str], errors: set[str], helpers: dict[str, set[str]]
) -> None:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    raised = {called} if called in errors else helpers.get(called, set())
    for argument in node.args:
        if isinstance(argument, ast.Constant) and _is_id(argument.value, areas):
            rules.literal[str(argument.value)] |= raised
    for keyword in node.keywords:
        if keyword.arg == "area" and isinstance(keyword.value, ast.Constant):
            rules.areas.add(keyword.value.value)
        if keyword.arg == "rule":
            for rule in _strings(keyword.value):
                rules.literal[rule] |= raised
            if isinstance(keyword.value, ast.JoinedStr) and path.name != "doorway.py":
                rules.computed.append(f"{path.name}:{node.lineno}")


def _helpers(trees: dict[Path, ast.Module], errors: set[str]) -> dict[str, set[str]]:
    """Functions that take a rule, and the errors they raise with it, directly or through another of them."""
    takers = {
        node.name: node
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and "rule" in [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)]
    }
    raised: dict[str, set[str]] = {name: set() for name in takers}
    for _ in takers:  # a helper may hand its rule to another: as many rounds as the longest chain could have
        for name, function in takers.items():
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and _passes_rule(node):
                    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                    raised[name] |= {called} if called in errors else raised.get(called, set())
    return raised


def _passes_rule(node: ast.Call) -> bool:
    values = [*node.args, *(keyword.value for keyword in node.keywords)]
    return any(isinstance(value, ast.Name) and value.id == "rule" for value in values)


def _strings(node: ast.expr) -> list[str]:
    if isinstance(node, ast.IfExp):
        return [*_strings(node.body), *_strings(node.orelse)]
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def _is_id(value: object, areas: set[str]) -> bool:
    return isinstance(value, str) and ID.fullmatch(value) is not None and value.partition(".")[0] in areas

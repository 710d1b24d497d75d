"""Imports point one way, along the byte path; and what else the shape of the tree promises."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "hurray_wire"

# The byte path: a module may import what stands in its own row or above. A package stands for all its modules.
STAGES: tuple[tuple[str, ...], ...] = (
    ("errors", "limits", "_version", "forks", "lazy", "parallel"),
    ("model",),
    ("adapters", "arrays", "addressing", "buffers", "page_copy", "page_fetch", "gather_room", "gather"),
    ("tensors", "paged_tensor", "composites"),
    ("wire",),
    ("store",),
    (
        "selection", "quantizing", "token_pages", "identity", "companions", "element_names", "preparing", "resaving",
        "saving", "snapshot", "framing", "received", "transfer", "export_pages", "export_parts", "exported", "export",
        "diff", "annotate",
    ),
    ("jax", "torch"),
    ("cli", "__init__"),
)  # fmt: skip
STAGE = {name: number for number, names in enumerate(STAGES) for name in names}
# Imported when it is needed, for what it costs and not for a cycle: a URL alone pays for fsspec.
LATE = {"store/target": "remote"}
OPTIONAL = {"fsspec", "jax", "scipy", "torch"}  # may be absent, so they are imported where they are needed
LIBRARIES = {
    "numpy",
    "ml_dtypes",
    "construct",
    "crc32c",
    "zstandard",
    "xxhash",
    "safetensors",
    "click",
    "rich",
} | OPTIONAL

MODULES = {path.relative_to(PACKAGE).with_suffix("").as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
every = pytest.mark.parametrize("module", MODULES)


def own_imports(module: str) -> Iterator[str]:
    """Modules of the package that this one imports, by their paths within it."""
    folder = module.split("/")[:-1]
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import) and not module.startswith("cli/"):  # the commands are clients like any other
            assert not any(alias.name.partition(".")[0] == "hurray_wire" for alias in node.names), module
        if not isinstance(node, ast.ImportFrom):
            continue
        if not node.level:
            assert (node.module or "").partition(".")[0] != "hurray_wire", f"{module} imports by the absolute name"
            continue
        base = folder[: len(folder) - node.level + 1]
        target = base + (node.module.split(".") if node.module else [])
        for alias in node.names:
            path = "/".join([*target, alias.name])
            whole = "/".join(target)
            yield next(name for name in (path, f"{path}/__init__", whole, f"{whole}/__init__" if whole else "__init__")
                       if name in MODULES)  # fmt: skip


def other_imports(module: str) -> set[str]:
    """First words of everything else that is imported."""
    found: set[str] = set()
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


def stage(module: str) -> int:
    return STAGE[module.partition("/")[0]]


def called(tree: ast.AST) -> Iterator[str]:
    """Names of everything that is called: ``open`` and ``path.open`` alike are "open" and ".open"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.func.id
            elif isinstance(node.func, ast.Attribute):
                yield "." + node.func.attr


def test_every_module_has_its_stage() -> None:
    assert {module.partition("/")[0] for module in MODULES} - set(STAGE) == set()


@every
def test_a_module_imports_only_what_comes_before_it(module: str) -> None:
    later = [other for other in own_imports(module) if stage(other) > stage(module)]
    assert later == []


def test_no_modules_import_each_other() -> None:
    packages = {name for name in MODULES if name.endswith("__init__")}
    graph = {module: set(own_imports(module)) - packages for module in MODULES}
    assert len(list(TopologicalSorter(graph).static_order())) >= len(MODULES) - len(packages)


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("adapters/")])
def test_adapters_know_errors_numpy_and_threads_alone(module: str) -> None:
    assert {other for other in own_imports(module) if not other.startswith("adapters")} <= {"errors", "parallel"}
    assert other_imports(module) & LIBRARIES <= {"numpy", "ml_dtypes", "torch"}


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("model/")])
def test_the_model_knows_neither_bytes_nor_files(module: str) -> None:
    assert other_imports(module) & LIBRARIES <= {"numpy", "ml_dtypes"}
    assert not other_imports(module) & {"os", "io", "pathlib", "mmap"}


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("wire/")])
def test_the_wire_never_touches_a_file(module: str) -> None:
    assert not other_imports(module) & {"os", "io", "pathlib", "mmap", "tempfile", "shutil"}
    assert not {"open", ".open"} & set(called(TREES[module]))


@every
def test_only_the_doorway_parses_and_builds(module: str) -> None:
    uses = {".parse", ".build", ".parse_stream", ".build_stream", ".compile"} & set(called(TREES[module]))
    if module == "wire/doorway":
        assert {".parse", ".build"} == uses
    elif module.startswith("wire/"):
        assert uses == set()
    assert ("construct" in other_imports(module)) == (module in ("wire/doorway", "wire/structs"))


def test_only_the_frames_know_zstandard_and_only_the_store_opens() -> None:
    knowing = {module for module in MODULES if "zstandard" in other_imports(module)}
    assert knowing <= {"store/frames", "store/plain_zstd"}
    opening = {module for module in MODULES if "mmap" in other_imports(module)}
    assert all(module.startswith("store/") for module in opening)
    assert "store/source" in opening


@every
def test_nothing_is_imported_inside_a_function(module: str) -> None:
    """Our own modules never, since that dodges a cycle; others only where they may be absent."""
    for function in ast.walk(TREES[module]):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.ImportFrom):
                if node.level and node.module == LATE.get(module):
                    continue
                assert not node.level, f"{module}:{node.lineno}"
                assert (node.module or "").partition(".")[0] in OPTIONAL, f"{module}:{node.lineno}"
            elif isinstance(node, ast.Import):
                assert {alias.name.partition(".")[0] for alias in node.names} <= OPTIONAL, f"{module}:{node.lineno}"


@pytest.mark.parametrize(
    "path", [path for folder in ("hurray_wire", "tools") for path in sorted((ROOT / folder).rglob("*.py"))],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)  # fmt: skip
def test_a_long_file_says_why(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if text.count("\n") > 400:
        assert " because " in (ast.get_docstring(ast.parse(text)) or ""), f"{text.count(chr(10))} lines"


@every
def test_a_module_says_what_it_holds(module: str) -> None:
    if MODULES[module].stat().st_size and module != "_version":
        assert (ast.get_docstring(TREES[module]) or "").count(" ") >= 4


def test_the_library_never_prints() -> None:
    printing = {module for module in MODULES if "print" in set(called(TREES[module])) and not module.startswith("cli/")}
    assert printing == set()

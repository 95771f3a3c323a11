"""No module imports itself by way of others, at its top, in a function or under TYPE_CHECKING; nor does any folder."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class _Imports(ast.NodeVisitor):
    """Names of all imported modules; those of `if TYPE_CHECKING`, which are never executed, only if they are wanted."""

    def __init__(self, for_types: bool) -> None:
        self.names: set[str] = set()
        self.for_types = for_types

    def visit_If(self, node: ast.If) -> None:
        if self.for_types or "TYPE_CHECKING" not in ast.unparse(node.test):
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.names |= {alias.name for alias in node.names}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module and not node.level:
            self.names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}


@cache
def imports(package: str, root: Path = ROOT, for_types: bool = False) -> dict[str, set[str]]:
    """Module -> the modules of the package that it imports; `from a import b` counts as a.b if that is a module."""
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (root / package).rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        visitor = _Imports(for_types)
        visitor.visit(ast.parse(path.read_text(encoding="utf-8")))
        names = visitor.names & files.keys()
        inner = {name.rpartition(".")[0] for name in names}
        graph[module] = {name for name in names if name not in inner} - {module}
    return graph


def imports_between(package: str, other: str) -> dict[str, set[str]]:
    """Module -> the modules of another package that it imports."""
    within, modules = imports(package), imports(other).keys()
    texts = {module: (ROOT / f"{module.replace('.', '/')}.py") for module in within}
    between: dict[str, set[str]] = {}
    for module, path in texts.items():
        visitor = _Imports(for_types=True)
        visitor.visit(ast.parse((path if path.is_file() else path.with_suffix("") / "__init__.py").read_text()))
        between[module] = visitor.names & modules
    return between


def folders(graph: dict[str, set[str]], depth: int) -> dict[str, set[str]]:
    """Return the same imports between packages of that depth (2: `dtk.record`); modules above it stand for themselves.

    A package and what lies in it are one thing at its depth, so no import between them counts.
    """
    between: dict[str, set[str]] = {}
    for module, names in graph.items():
        source = ".".join(module.split(".")[:depth])
        targets = {".".join(name.split(".")[:depth]) for name in names}
        outside = {t for t in targets if not f"{t}.".startswith(f"{source}.") and not f"{source}.".startswith(f"{t}.")}
        between.setdefault(source, set()).update(outside)
        for target in outside:
            between.setdefault(target, set())
    return between


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of two modules or more (Tarjan)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    stacks: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = low[module] = len(number)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in number:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], number[other])
        if low[module] == number[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                stacks.append(sorted(stack[at:]))
            del stack[at:]

    for module in sorted(graph):
        if module not in number:
            visit(module)
    return stacks


@pytest.mark.parametrize("package", ["diagnostics", "dtk"])
def test_there_are_no_import_circles(package: str) -> None:
    graph = imports(package)
    assert sum(map(len, graph.values())) > 500, "the imports were not read"
    assert circles(graph) == []


@pytest.mark.parametrize("depth", [2, 3, 9])
@pytest.mark.parametrize("package", ["diagnostics", "dtk"])
def test_there_are_no_circles_of_types_or_folders(package: str, depth: int) -> None:
    graph = imports(package, for_types=True)
    assert sum(map(len, graph.values())) >= sum(map(len, imports(package).values())), "imports for types were not read"
    assert circles(folders(graph, depth)) == []


@pytest.mark.parametrize("package", ["diagnostics", "dtk"])
def test_the_files_of_a_folder_and_those_of_its_subfolders_import_one_way(package: str) -> None:
    """Files directly below `dtk` are programs above all folders, or what every folder may use."""
    graph = imports(package, for_types=True)
    packages = {module.rpartition(".")[0] for module in graph}
    between: dict[str, set[str]] = {folder: set() for folder in packages}
    for module, names in graph.items():
        source = module if module in packages else module.rpartition(".")[0]
        targets = {name if name in packages else name.rpartition(".")[0] for name in names}
        between[source] |= targets - {source, package} if source != package else set()
    assert sum(map(len, between.values())) > 50, "the imports were not read"
    assert circles(between) == []


@pytest.mark.parametrize(
    ("lower", "higher"),
    [
        ("diagnostics.contract", ("diagnostics.evidence", "diagnostics.runs", "diagnostics.analysis")),
        ("diagnostics.runs", ("diagnostics.evidence", "diagnostics.analysis", "diagnostics.report")),
        ("diagnostics.evidence", ("diagnostics.analysis", "diagnostics.causes", "diagnostics.report")),
    ],
)
def test_lower_layers_do_not_know_higher_ones(lower: str, higher: tuple[str, ...]) -> None:
    graph = imports("diagnostics")
    up = {(module, name) for module in graph if module.startswith(lower) for name in graph[module]}
    assert sorted(pair for pair in up if pair[1].startswith(higher)) == []


def imports_of_a_cause(graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Return the imports of causes: what they share is in a module whose name has an underscore, or below them."""
    is_cause = re.compile(r"diagnostics\.causes\.\w+\.(?!_)\w+$").match
    return sorted((module, name) for module, names in graph.items() for name in names if is_cause(name))


def test_no_module_imports_a_cause() -> None:
    graph = {module: names for package in ("diagnostics", "dtk") for module, names in imports(package).items()}
    graph |= {module: names | graph[module] for module, names in imports_between("dtk", "diagnostics").items()}
    assert imports_of_a_cause(graph) == []
    graph["dtk.doctor.xid"] = {"diagnostics.causes.hardware.gpu_fault", "diagnostics.causes.hardware._devices"}
    assert imports_of_a_cause(graph) == [("dtk.doctor.xid", "diagnostics.causes.hardware.gpu_fault")]


def test_a_circle_is_found_at_the_top_and_in_a_function(tmp_path: Path) -> None:
    package = tmp_path / "p"
    package.mkdir()
    texts = {
        "__init__": "", "a": "from p import b", "b": "def f():\n    from p.c import x\n", "c": "import p.a\nx = 1",
        "d": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p import e\n", "e": "from p import d",
    }  # fmt: skip
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    assert circles(imports("p", tmp_path)) == [["p.a", "p.b", "p.c"]]
    assert circles(imports("p", tmp_path, for_types=True)) == [["p.a", "p.b", "p.c"], ["p.d", "p.e"]]


def test_folders_that_import_each_other_are_a_circle_though_no_modules_are() -> None:
    graph = {"p.a.x": {"p.b.x"}, "p.b.x": set(), "p.b.y": {"p.a.y"}, "p.a.y": set(), "p.a": {"p.a.y"}}
    assert circles(graph) == []
    assert circles(folders(graph, 2)) == [["p.a", "p.b"]]
    assert circles(folders(graph, 3)) == []

"""No module imports itself by way of others, at its top or in a function; one under TYPE_CHECKING does not count."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class _Imports(ast.NodeVisitor):
    """Names of all imported modules, those of `if TYPE_CHECKING` excluded: they are never executed."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.names |= {alias.name for alias in node.names}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module and not node.level:
            self.names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}


def imports(package: str, root: Path = ROOT) -> dict[str, set[str]]:
    """Module -> the modules of the package that it imports; `from a import b` counts as a.b if that is a module."""
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (root / package).rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        found = _Imports()
        found.visit(ast.parse(path.read_text(encoding="utf-8")))
        names = found.names & files.keys()
        inner = {name.rpartition(".")[0] for name in names}
        graph[module] = {name for name in names if name not in inner} - {module}
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of two modules or more (Tarjan)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

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
                found.append(sorted(stack[at:]))
            del stack[at:]

    for module in sorted(graph):
        if module not in number:
            visit(module)
    return found


@pytest.mark.parametrize("package", ["diagnostics", "dtk"])
def test_there_are_no_import_circles(package: str) -> None:
    graph = imports(package)
    assert sum(map(len, graph.values())) > 500, "the imports were not read"
    assert circles(graph) == []


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

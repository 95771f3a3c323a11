"""No module of dtk imports itself over others; an import inside a function counts, one under TYPE_CHECKING does not."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import dtk

ROOT = Path(dtk.__file__).parent


def imported(node: ast.AST) -> Iterator[str]:
    """Every name that the code below imports, a module's attributes included."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imported(child)


def test_no_import_circles():
    modules = {
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in ROOT.rglob("*.py")
    }
    graph = {
        name: {
            other
            for other in imported(ast.parse(path.read_text(encoding="utf-8")))
            # `from package import module` runs the package's empty __init__ as well: that is no circle.
            if other in modules and other != name and modules[other].name != "__init__.py"
        }
        for name, path in modules.items()
    }
    assert sum(map(len, graph.values())) > 500, "the imports were not read"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None

"""Names say what a value holds: a rank, a line, a dump. Participles and pronouns in their place are refused."""

import ast
from collections.abc import Iterator
from pathlib import Path

import diagnostics
import dtk

_REFUSED = {
    "asked", "blamed", "found", "gone", "known", "meets", "mend", "odd", "one", "parted", "recognised", "say", "told",
    "usual",
}  # fmt: skip
_REFUSED_IN_DIAGNOSTICS = _REFUSED | {"held", "made", "wanted"}
_NAMED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler | ast.MatchAs | ast.MatchStar


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of everything that a module names: variables, parameters, fields, functions, imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, _NAMED):
            yield node.lineno, node.name or ""
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((node.lineno, alias.asname or alias.name.rpartition(".")[2]) for alias in node.names)


def refused(source: str, words: set[str]) -> list[tuple[int, str]]:
    """Return the refused names of a source text; case and leading underscores make no difference."""
    return [(line, name) for line, name in names(ast.parse(source)) if name.strip("_").lower() in words]


def remainders(source: str) -> list[tuple[int, str]]:
    """Return each `left` in a module that names no `right`: it is what is left of something, or who has left."""
    named = list(names(ast.parse(source)))
    sides = {name.strip("_").lower() for _, name in named} >= {"left", "right"}
    return [] if sides else [(line, name) for line, name in named if name.strip("_").lower() == "left"]


def test_names_say_what_they_hold() -> None:
    roots = [Path(str(package.__file__)).parent for package in (dtk, diagnostics)]
    texts = {path: path.read_text(encoding="utf-8") for root in roots for path in sorted(root.rglob("*.py"))}
    places = [f"{path}:{line} {name}" for path, text in texts.items() for line, name in refused(text, _REFUSED)]
    own = {path: text for path, text in texts.items() if path.is_relative_to(roots[1])}
    for path, text in own.items():
        riddles = [*refused(text, _REFUSED_IN_DIAGNOSTICS), *remainders(text)]
        places += [f"{path}:{line} {name}" for line, name in riddles]
    assert own and not places, "rename them to what they hold"


def test_every_way_to_make_a_name_is_seen() -> None:
    source = """
import say
from told import found
class Odd:
    usual: int = 1
def _known(one, *, gone=None):
    self.blamed = [asked for asked in one]
    try:
        pass
    except ValueError as told:
        pass
    match one:
        case {"a": mend}:
            pass
meets = recognised = parted = 1
"""
    assert {name.strip("_").lower() for _, name in refused(source, _REFUSED)} == _REFUSED
    assert not refused("import told.names\nranks = one.known(told=found)\nas_found = 1", _REFUSED)
    assert refused("def f(made): self.held = 1", _REFUSED_IN_DIAGNOSTICS) == [(1, "made"), (1, "held")]


def test_left_is_a_side_and_no_remainder() -> None:
    assert not remainders("left, right = 1, 2\nleft -= 1")
    assert remainders("left = total - used") == [(1, "left")]

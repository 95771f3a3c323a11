"""Names say what a value holds: a rank, a line, a dump. Participles and pronouns in their place are refused."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_REFUSED = {
    "asked", "at_parting", "blamed", "found", "gone", "held", "known", "made", "meets", "mend", "odd", "one", "parted",
    "parting", "recognised", "say", "told", "usual", "wanted",
}  # fmt: skip
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
    roots = [ROOT / folder for folder in ("dtk", "diagnostics", "benchmarks", "tests")]
    texts = {path: path.read_text(encoding="utf-8") for root in roots for path in sorted(root.rglob("*.py"))}
    riddles = {path: [*refused(text, _REFUSED), *remainders(text)] for path, text in texts.items()}
    places = [f"{path.relative_to(ROOT)}:{line} {name}" for path, rows in riddles.items() for line, name in rows]
    assert len(texts) > len(roots) and not places, "rename them to what they hold"


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
meets = recognised = parted = parting = 1
def at_parting(wanted): self.held, made = 1, 2
"""
    assert {name.strip("_").lower() for _, name in refused(source, _REFUSED)} == _REFUSED
    assert not refused("import told.names\nranks = one.known(told=found)\nas_found = 1", _REFUSED)


def test_left_is_a_side_and_no_remainder() -> None:
    assert not remainders("left, right = 1, 2\nleft -= 1")
    assert remainders("left = total - used") == [(1, "left")]

"""Which rank's calls differ, and which ranks are the minority, is decided in one place each."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OWNER = ROOT / "diagnostics" / "analysis" / "divergence"
VOTES = ROOT / "diagnostics" / "analysis" / "vote.py"
RESULTS = {"Divergence", "Explanation"}
COMPARE_RANKS = ("diagnostics/analysis", "diagnostics/causes", "diagnostics/report", "dtk/record", "dtk/preflight")
ORDERED = {
    "diagnostics/analysis/divergence/from_watchdogs.py": "groups are searched, those with most waits first",
    "diagnostics/analysis/printed_steps.py": "trainers, the one with most printed steps first",
    "diagnostics/analysis/stall/explain.py": "waits are shown, those of most ranks first",
    "diagnostics/analysis/stall/late.py": "of several calls, the one that most ranks miss",
}
"""Files that order something by its size which is no side of a vote."""
SORTS = {"sort", "sorted", "min", "max"}
LARGEST = re.compile(r"^max\(.*key=len\)$|key=len, reverse=True\)$")
MOST = re.compile(r"\.most_common\([12]\)$|^max\(map\(len, .*\.values\(\)\)\)$")


def calls(path: Path) -> Counter[str]:
    """Return how often a file calls each name, as a function or as a method."""
    named = (node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return Counter(str(getattr(func, "id", getattr(func, "attr", ""))) for func in named)


def files(*parts: str) -> list[Path]:
    return sorted(path for part in parts for path in (ROOT / part).rglob("*.py"))


def own_majorities(source: str) -> Iterator[int]:
    """Yield the lines that decide on a majority: twice a number compared, or the most frequent or largest part."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            doubled = [ast.unparse(side) for side in (node.left, *node.comparators)]
            doubled = [text for text in doubled if text.startswith("2 * ") and ("len(" in text or "sum(" in text)]
            if doubled and "len(" in ast.unparse(node):
                yield node.lineno
        elif isinstance(node, ast.Call) and MOST.search(ast.unparse(node)):
            yield node.lineno


def own_orders(source: str) -> Iterator[int]:
    """Yield the lines that put the largest first: a sort, or a minimum, whose key begins with `-len(...)`, or alike."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in SORTS:
            keys = [item.value.body for item in node.keywords if isinstance(item.value, ast.Lambda)]
            first = [ast.unparse(key.elts[0] if isinstance(key, ast.Tuple) else key) for key in keys]
            is_largest = LARGEST.search(ast.unparse(node)) is not None
            if is_largest or any(text.startswith("-len(") for text in first):
                yield node.lineno


def own_ties(source: str) -> Iterator[int]:
    """Yield the lines that compare the sizes of two items of one list, as the two largest sides of a vote are."""
    for scope in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.Module)):
        of_list = dict(taken(scope))
        for node in ast.walk(scope):
            sizes = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            measured = [
                size.args[0] for size in sizes if isinstance(size, ast.Call) and ast.unparse(size.func) == "len"
            ]
            lists = [of_list.get(ast.unparse(item), item_of(item)) for item in map(whole, measured)]
            if len(lists) > 1 and lists[0] == lists[1] is not None and isinstance(node.ops[0], ast.Eq | ast.NotEq):
                yield node.lineno


def taken(scope: ast.AST) -> Iterator[tuple[str, str | None]]:
    """Yield each name to which an item of a list is assigned, and the list."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and not isinstance(node.value, ast.Tuple):
                    yield from ((ast.unparse(name), ast.unparse(node.value)) for name in target.elts)
                elif isinstance(target, ast.Name):
                    yield target.id, item_of(whole(node.value))


def whole(item: ast.expr) -> ast.expr:
    """Return the item without the attributes that are read of it, such as `.ranks`."""
    return whole(item.value) if isinstance(item, ast.Attribute) else item


def item_of(item: ast.expr) -> str | None:
    """Return the list of which this is an item."""
    return ast.unparse(item.value) if isinstance(item, ast.Subscript) else None


def test_only_the_owner_makes_results() -> None:
    outside = [path for path in files("diagnostics", "dtk") if OWNER not in path.parents]
    assert {path: names for path in outside if (names := RESULTS & calls(path).keys())} == {}
    assert {path for path in files("diagnostics", "dtk") if calls(path)["Vote"]} == {VOTES}


def test_the_owner_has_one_constructor() -> None:
    assert sum((calls(path) for path in OWNER.glob("*.py")), Counter())["Divergence"] == 1


@pytest.mark.parametrize("part", COMPARE_RANKS)
def test_no_majority_is_decided_elsewhere(part: str) -> None:
    every = [path for path in files(part) if path != VOTES]
    assert every and {path: lines for path in every if (lines := [*own_majorities(path.read_text())])} == {}
    assert {path: lines for path in every if (lines := [*own_ties(path.read_text())])} == {}
    ordered = {path.relative_to(ROOT).as_posix(): [*own_orders(path.read_text())] for path in every}
    assert {path for path, lines in ordered.items() if lines} == {path for path in ORDERED if path.startswith(part)}


@pytest.mark.parametrize(
    "second",
    [
        "counts = Counter(hashes[rank] for rank in group).most_common(2)",
        "few = 2 * len([*outside, *silent]) <= len([*places, *silent])",
        "culprits = most if len(members) > 2 * len(most) else every",
        "few = 2 * (len(outside) + len(silent)) <= size",
        "most = max(map(len, by_value.values()))",
        "mostly = 2 * sum(passed) > len(passed)",
    ],
)
def test_a_second_owner_is_refused(second: str) -> None:
    assert [*own_majorities(second)] == [1]


@pytest.mark.parametrize(
    "second",
    [
        "sides.sort(key=lambda side: (-len(side.ranks), side.iterations != steps, side.ranks))",
        "majority, second = sorted(by_call.values(), key=lambda ranks: -len(ranks))[:2]",
        "most = min(sides, key=lambda side: -len(side))",
        "most = sorted(sides, key=len, reverse=True)[0]",
        "most = max(sides, key=len)",
    ],
)
def test_a_second_order_of_sides_is_refused(second: str) -> None:
    assert [*own_orders(second)] == [1]


@pytest.mark.parametrize(
    "second",
    [
        "tie = len(groups[0]) == len(groups[1])",
        "first = groups[0]; tie = len(groups[1].ranks) == len(first.ranks) and not early",
        "first, second = by_size(groups)[:2]; tie = len(first) == len(second) > 1",
        "first, second, *_ = groups; clear = len(first) != len(second)",
    ],
)
def test_a_second_tie_is_refused(second: str) -> None:
    assert {*own_ties(second)} == {1}


def test_other_equal_sizes_are_no_tie() -> None:
    source = "first, second = own(a), own(b); whole = len(first) == len(second) and len(sides[0]) == len(members)"
    assert [*own_ties(source)] == [] and [
        *own_orders("sorted(waits, key=lambda wait: (wait.seq, -len(wait.ranks)))")
    ] == []


def test_the_owner_is_recognised_by_its_definition() -> None:
    tree = ast.parse(VOTES.read_text())
    doubled = [node for node in ast.walk(tree) if isinstance(node, ast.Compare) and "2 *" in ast.unparse(node)]
    assert [ast.unparse(node) for node in doubled] == ["2 * count > size"]

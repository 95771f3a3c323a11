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


def test_only_the_owner_makes_results() -> None:
    outside = [path for path in files("diagnostics", "dtk") if OWNER not in path.parents]
    assert {path: names for path in outside if (names := RESULTS & calls(path).keys())} == {}
    assert {path for path in outside if calls(path)["Vote"]} == {VOTES}


def test_the_owner_has_one_constructor() -> None:
    assert sum((calls(path) for path in OWNER.glob("*.py")), Counter())["Divergence"] == 1


@pytest.mark.parametrize("part", COMPARE_RANKS)
def test_no_majority_is_decided_elsewhere(part: str) -> None:
    every = [path for path in files(part) if path != VOTES]
    assert every and {path: lines for path in every if (lines := [*own_majorities(path.read_text())])} == {}


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


def test_the_owner_is_recognised_by_its_definition() -> None:
    tree = ast.parse(VOTES.read_text())
    doubled = [node for node in ast.walk(tree) if isinstance(node, ast.Compare) and "2 *" in ast.unparse(node)]
    assert [ast.unparse(node) for node in doubled] == ["2 * count > size"]

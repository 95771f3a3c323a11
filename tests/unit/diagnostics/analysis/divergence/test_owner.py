"""Which rank's calls differ, and how, is decided in one place: elsewhere nobody makes a result or counts a vote."""

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[5]
OWNER = ROOT / "diagnostics" / "analysis" / "divergence"
RESULTS = {"Divergence", "Explanation", "Vote"}
COMPARE_RANKS = ("analysis/stall", "analysis/wait_graph", "causes/suspicions.py", "report/symptoms.py")


def calls(path: Path) -> Counter[str]:
    """Return how often a file calls each name, as a function or as a method."""
    named = (node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return Counter(str(getattr(func, "id", getattr(func, "attr", ""))) for func in named)


def test_only_the_owner_makes_results() -> None:
    outside = [
        path for part in ("diagnostics", "dtk") for path in (ROOT / part).rglob("*.py") if OWNER not in path.parents
    ]
    assert {path: names for path in outside if (names := RESULTS & calls(path).keys())} == {}


def test_the_owner_has_one_constructor() -> None:
    assert sum((calls(path) for path in OWNER.glob("*.py")), Counter())["Divergence"] == 1


@pytest.mark.parametrize("part", COMPARE_RANKS)
def test_no_majority_is_counted_elsewhere(part: str) -> None:
    place = ROOT / "diagnostics" / part
    files = [place] if place.is_file() else [*place.rglob("*.py")]
    assert files and not [path for path in files if "most_common" in calls(path)]

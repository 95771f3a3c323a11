"""Where calls stand that a loop does not make in every round: in a branch of the loop, or behind it?

python benchmarks/loop_calls.py [PACKAGE ...]   (default: torch, datasets, huggingface_hub)

Counts, in the source of installed packages, for every loop that makes calls in each round: the conditional calls of
the loop, and the first calls behind it. The logarithms of the ratios are the weights of the corresponding evidence
terms in `diagnostics/analysis/divergence/place.py`.
"""

import ast
import importlib.util
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from diagnostics.analysis.divergence.place import BEHIND_NAMES

LOOPS = (ast.For, ast.AsyncFor, ast.While)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
BRANCHES = (ast.If, ast.Try, ast.With)


def calls(statements: list[ast.stmt], conditional: bool, wanted: bool) -> Iterator[ast.Call]:
    """Calls made in every round (`wanted` False) or under a condition only (`wanted` True), nested loops left out."""
    todo: list[tuple[ast.AST, bool]] = [(one, conditional) for one in statements]
    while todo:
        node, under = todo.pop()
        if isinstance(node, (*LOOPS, *SCOPES)):
            continue
        if isinstance(node, ast.Call) and under == wanted:
            yield node
        for name, value in ast.iter_fields(node):
            if name in {"test", "items", "decorator_list"}:
                continue  # A condition is no place for a collective.
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    todo.append((child, under or isinstance(node, ast.If)))


def called(call: ast.Call) -> str:
    return getattr(call.func, "id", None) or getattr(call.func, "attr", None) or ""


def bucket(distance: int) -> str:
    for last in (0, 1, 2, 3, 4, 6, 8, 16):
        if distance <= last:
            return f"<= {last}"
    return "> 16"


def main() -> None:
    """Print the counts, and what they weigh."""
    counts: Counter[tuple[str, str, str]] = Counter()
    loops = 0
    for package in sys.argv[1:] or ["torch", "datasets", "huggingface_hub"]:
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.origin is not None
        for path in sorted(Path(spec.origin).parent.rglob("*.py")):
            try:
                tree = ast.parse(path.read_bytes())
            except (SyntaxError, ValueError):
                continue
            for node in ast.walk(tree):
                for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
                    if not isinstance(block, list):
                        continue
                    for place, loop in enumerate(block):
                        if not isinstance(loop, LOOPS):
                            continue
                        always = [one.lineno for one in calls(loop.body, False, False)]
                        if not always:
                            continue
                        loops += 1
                        behind = next((found for one in block[place + 1 :] if (found := list(calls([one], False, False)))), [])
                        for where, group in (("within", list(calls(loop.body, False, True))), ("behind", behind[:1])):
                            for call in group:
                                counts["line", bucket(call.lineno - max(always)), where] += 1
                                if re.search(BEHIND_NAMES, called(call)):
                                    counts["name", "matches", where] += 1
                                counts["name", "all", where] += 1
    print(f"{loops} loops with calls in every round\n\n| term | value | within | behind | ln(behind / within) |\n|---|---|---|---|---|")
    total = {where: counts["name", "all", where] for where in ("within", "behind")}
    for term, value in sorted({(term, value) for term, value, _ in counts}):
        within, behind_ = counts[term, value, "within"], counts[term, value, "behind"]
        weight = math.log(((behind_ + 1) / total["behind"]) / ((within + 1) / total["within"]))
        print(f"| {term} | {value} | {within} | {behind_} | {weight:+.1f} |")


if __name__ == "__main__":
    main()

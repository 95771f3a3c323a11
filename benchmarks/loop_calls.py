"""Where calls stand that a loop does not make in every round: in a branch of the loop, or behind it?

python benchmarks/loop_calls.py [PACKAGE ...]   (default: torch, datasets, huggingface_hub)

Counts, in the source of installed packages, for every loop that makes calls in each round: the conditional calls of
the loop, and the first calls behind it. The logarithms of the ratios are the weights of the corresponding evidence
terms in `diagnostics/analysis/divergence/evidence_terms.py`.
"""

import argparse
import ast
import importlib.util
import math
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

LOOPS = (ast.For, ast.AsyncFor, ast.While)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
BRANCHES = (ast.If, ast.Try, ast.With)


def calls(statements: list[ast.stmt], conditional: bool, branched: bool) -> Iterator[ast.Call]:
    """Yield the calls of a loop body that run under a condition (`branched`) or in every round (not `branched`).

    Calls in nested loops are left out.
    """
    todo: list[tuple[ast.AST, bool]] = [(statement, conditional) for statement in statements]
    while todo:
        node, under = todo.pop()
        if isinstance(node, (*LOOPS, *SCOPES)):
            continue
        if isinstance(node, ast.Call) and under == branched:
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


def around(block: list[ast.stmt]) -> Iterator[tuple[str, ast.Call, int]]:
    """Yield `within` or `behind`, a call, and the last line of the loop's calls in every round."""
    for place, loop in enumerate(block):
        if not isinstance(loop, LOOPS) or not (lines := [item.lineno for item in calls(loop.body, False, False)]):
            continue
        for call in calls(loop.body, False, True):
            yield "within", call, max(lines)
        behind = (item for statement in block[place + 1 :] for item in calls([statement], False, False))
        for call in islice(behind, 1):
            yield "behind", call, max(lines)


def main() -> None:
    """Print the counts, and what they weigh."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", default=["torch", "datasets", "huggingface_hub"], metavar="PACKAGE")
    counts: Counter[tuple[str, str, str]] = Counter()
    for package in parser.parse_args().packages:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            parser.error(f"the package {package} is not installed")
        for path in sorted(Path(spec.origin).parent.rglob("*.py")):
            try:
                tree = ast.parse(path.read_bytes())
            except (SyntaxError, ValueError):
                continue
            blocks = (getattr(node, name, None) for node in ast.walk(tree) for name in ("body", "orelse", "finalbody"))
            for where, call, last in (item for block in blocks if isinstance(block, list) for item in around(block)):
                counts["all", "", where] += 1
                counts["line", bucket(call.lineno - last), where] += 1
    total = {where: counts["all", "", where] for where in ("within", "behind")}
    print("| term | value | within | behind | ln(behind / within) |\n|---|---|---|---|---|")
    for term, value in sorted({(term, value) for term, value, _ in counts}):
        within, behind = counts[term, value, "within"], counts[term, value, "behind"]
        weight = math.log(((behind + 1) / total["behind"]) / ((within + 1) / total["within"]))
        print(f"| {term} | {value} | {within} | {behind} | {weight:+.1f} |")


if __name__ == "__main__":
    main()

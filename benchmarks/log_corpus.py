"""Accuracy of `dtk diagnose` on folders of logs whose truth is known. Prints a table and how well it is calibrated.

    python benchmarks/log_corpus.py FOLDER                        verdicts against benchmarks/log_truth.json
    python benchmarks/log_corpus.py FOLDER --truth truth.json     of another corpus
    python benchmarks/log_corpus.py A B --truth a.json b.json --fit   the `fit` of suspicions.yaml, from counts

Each folder below FOLDER is one job. `causes` of ["healthy"]: nothing is wrong with it, and whatever is confirmed is a
false alarm. A truth file maps its name to `causes` (each of them is a right answer; absent:
the log does not decide it, and UNDECIDED is right), to `ranks` where the truth names the ranks to blame, and to `known`
where the cause became known otherwise: then suspicions count as right or wrong too.
"""

import argparse
import collections
import itertools
import json
import math
from pathlib import Path
from typing import Any

from diagnostics.causes import suspicions
from diagnostics.contract.errors import DiagnosticsError
from diagnostics.diagnose import diagnose
from diagnostics.report.jsonform import as_json
from diagnostics.report.model import Report

TRUTH = Path(__file__).with_name("log_truth.json")
BINS = (0.0, 0.2, 0.35, 0.5, 0.7, 0.9, 1.01)
"""Probabilities that are counted together."""


def grade(truth: dict[str, Any], report: dict[str, Any]) -> str:
    """Compare every root cause with the truth: a wrong one beside the right one is a wrong confirmation too."""
    causes, ranks = truth.get("causes", []), truth.get("ranks")
    if causes == ["healthy"] and report["root_causes"]:
        return "false alarm"
    if report["outcome"] == "healthy":
        return "right" if causes == ["healthy"] else "false HEALTHY"
    if not report["root_causes"]:
        return "missed" if causes else "undecided rightly"
    right = true_causes(truth)
    if any(root["cause"] not in right for root in report["root_causes"][1:]):
        return "wrong"
    first = report["root_causes"][0]
    if not causes and first["cause"] in right:
        return "right"
    same = ranks is None or first["ranks"] == ranks
    if first["cause"] in causes and same:
        return "right"
    return "right ranks only" if causes and ranks and same else "wrong"


def true_causes(truth: dict[str, Any]) -> list[str]:
    """Return the causes that turned out to be right."""
    return [*truth.get("causes", []), *truth.get("known", [])]


def claims(truth: dict[str, Any], named: list[dict[str, Any]], said: str) -> list[tuple[float, float]]:
    """Return (probability, how right it is) of what is confirmed or suspected, where the truth is known.

    Of suspicions at most one is the cause: where a truth leaves several open, each of them is right by its share.
    """
    right = true_causes(truth)
    if said == "confidence" or not right:
        return [(item[said], float(item["cause"] in right)) for item in named] if right else []
    right = truth.get("known", right)
    alike = {item["cause"]: [cause for cause in right if _family(cause) == _family(item["cause"])] for item in named}
    return [(item[said], (item["cause"] in right) / max(len(alike[item["cause"]]), 1)) for item in named]


def _family(cause: str) -> bool:
    """Whether a cause is one of those that memory is suspected of."""
    return cause.startswith("memory.")


def calibration(title: str, said: list[tuple[float, float]]) -> None:
    """Print how often what is said with a probability is right."""
    print(f"\n| {title} with | claims | said | right |\n|---|---|---|---|")
    for low, high in itertools.pairwise(BINS):
        inside = [(probability, right) for probability, right in said if low <= probability < high]
        if inside:
            stated, right = (sum(column) / len(inside) for column in zip(*inside, strict=True))
            print(f"| {low:.0%}-{min(high, 1):.0%} | {len(inside)} | {stated:.0%} | {right:.0%} |")


def fit(cases: list[tuple[list[str], list[str]]]) -> None:
    """Print the exponent and the share of other causes under which the known causes are likeliest."""

    def likelihood(exponent: float, other: float) -> float:
        suspicions.TABLE["fit"] |= {"exponent": exponent, "other": other}
        total = 0.0
        for shown, right in cases:
            result = suspicions.probabilities(shown)
            named = sum(result.get(cause, 0.0) for cause in right)
            total += math.log(named or 1 - sum(result.values()))
        return total

    grid = [(round(0.4 + 0.05 * a, 2), round(0.01 * b, 2)) for a in range(33) for b in range(1, 31)]
    best = max(grid, key=lambda pair: likelihood(*pair))
    print(f"\nfit: {{exponent: {best[0]:g}, other: {best[1]:g}}}, from {len(cases)} logs without a confirmed cause")


def main() -> int:
    """Diagnose every job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--truth", type=Path, nargs="+", default=[TRUTH])
    parser.add_argument("--fit", action="store_true", help="print the figures that suspicions.yaml needs")
    options = parser.parse_args()
    truths = {name: truth for file in options.truth for name, truth in json.loads(file.read_text()).items()}
    counts: collections.Counter[str] = collections.Counter()
    confirmed: list[tuple[float, float]] = []
    suspected: list[tuple[float, float]] = []
    cases: list[tuple[list[str], list[str]]] = []
    print("| log | grade | answer | suspicions |\n|---|---|---|---|")
    for folder in sorted(path for root in options.folders for path in root.iterdir() if path.name in truths):
        truth, whole = truths[folder.name], None
        try:
            whole = diagnose(folder)
            report = as_json(whole)
        except DiagnosticsError as error:
            report = {"outcome": f"unusable: {error}"[:40], "root_causes": []}
        result = grade(truth, report)
        counts[result] += 1
        confirmed += claims(truth, report["root_causes"], "confidence")
        suspected += claims(truth, report.get("suspicions", []), "probability")
        cases += case(truth, whole)
        answer = "; ".join(
            f"{root_cause['cause']} {root_cause['confidence']:.0%} {root_cause['ranks']}"
            for root_cause in report["root_causes"]
        )
        maybe = "; ".join(
            f"{suspicion['cause']} {suspicion['probability']:.0%}" for suspicion in report.get("suspicions", [])
        )
        print(f"| {folder.name} | {result} | {report['outcome']} {answer} | {maybe} |")
    print(f"\n{sum(counts.values())} logs: " + ", ".join(f"{count} {name}" for name, count in counts.most_common()))
    calibration("confirmed", confirmed)
    calibration("suspected", suspected)
    if options.fit:
        fit(cases)
    return 0


def case(truth: dict[str, Any], report: Report | None) -> list[tuple[list[str], list[str]]]:
    """Return the clues of a log without a confirmed cause, and the causes that turned out to be right."""
    right = true_causes(truth)
    if report is None or report.root_causes or report.waiting is None or not right:
        return []
    shown = list(suspicions.clues(report.waiting))
    return [(shown, right)] if shown else []


if __name__ == "__main__":
    raise SystemExit(main())

"""Accuracy of `dtk diagnose` on a folder of logs whose truth is known. Prints a table and how well it is calibrated.

    python benchmarks/log_corpus.py FOLDER                        verdicts against benchmarks/log_truth.json
    python benchmarks/log_corpus.py FOLDER --truth truth.json     of another corpus

Each folder below FOLDER is one job. The truth file maps its name to `causes` (each of them is a right answer; absent:
the log does not decide it, and UNDECIDED is right), and to `ranks` where the truth names the ranks to blame.
"""

import argparse
import collections
import itertools
import json
from pathlib import Path
from typing import Any

from diagnostics.contract.errors import DiagnosticsError
from diagnostics.diagnose import diagnose
from diagnostics.report.jsonform import as_json

TRUTH = Path(__file__).with_name("log_truth.json")
BINS = (0.0, 0.2, 0.35, 0.5, 0.7, 0.9, 1.01)
"""Probabilities that are counted together."""


def grade(truth: dict[str, Any], report: dict[str, Any]) -> str:
    """Compare the first root cause with the truth."""
    causes, ranks = truth.get("causes", []), truth.get("ranks")
    if report["outcome"] == "healthy":
        return "right" if causes == ["healthy"] else "false HEALTHY"
    if not report["root_causes"]:
        return "missed" if causes else "undecided rightly"
    first = report["root_causes"][0]
    same = ranks is None or first["ranks"] == ranks
    if first["cause"] in causes and same:
        return "right"
    return "right ranks only" if causes and ranks and same else "wrong"


def claims(truth: dict[str, Any], report: dict[str, Any]) -> list[tuple[float, bool]]:
    """Return (probability, whether it is right) of all that is confirmed or suspected, where the truth is known."""
    causes = truth.get("causes", [])
    named = [(one["confidence"], one["cause"]) for one in report["root_causes"]]
    named += [(one["probability"], one["cause"]) for one in report.get("suspicions", [])]
    return [(said, cause in causes) for said, cause in named] if causes else []


def main() -> int:
    """Diagnose every job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--truth", type=Path, default=TRUTH)
    options = parser.parse_args()
    truths = json.loads(options.truth.read_text())
    counts: collections.Counter[str] = collections.Counter()
    said: list[tuple[float, bool]] = []
    print("| log | grade | answer | suspicions |\n|---|---|---|---|")
    for folder in sorted(path for path in options.folder.iterdir() if path.name in truths):
        truth = truths[folder.name]
        try:
            report = as_json(diagnose(folder))
        except DiagnosticsError as error:
            report = {"outcome": f"unusable: {error}"[:40], "root_causes": []}
        result = grade(truth, report)
        counts[result] += 1
        said += claims(truth, report)
        answer = "; ".join(f"{one['cause']} {one['confidence']:.0%} {one['ranks']}" for one in report["root_causes"])
        maybe = "; ".join(f"{one['cause']} {one['probability']:.0%}" for one in report.get("suspicions", []))
        print(f"| {folder.name} | {result} | {report['outcome']} {answer} | {maybe} |")
    print(f"\n{sum(counts.values())} logs: " + ", ".join(f"{count} {name}" for name, count in counts.most_common()))
    print("\n| said | claims | right |\n|---|---|---|")
    for low, high in itertools.pairwise(BINS):
        right = [is_right for probability, is_right in said if low <= probability < high]
        if right:
            print(f"| {low:.0%}-{min(high, 1):.0%} | {len(right)} | {sum(right) / len(right):.0%} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

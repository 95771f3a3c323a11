"""Right, missed and wrong answers of `dtk diagnose` over everything whose truth is known, in one table.

    python benchmarks/corpus.py [--dumps FOLDER] [--logs FOLDER] [--live] [--faults]

Composes what the scripts of each kind measure: flight-recorder dumps (hang_accuracy.py, with torchfrtrace beside), logs
(log_corpus.py, with the calibration of all claims), and, as they take minutes, live jobs that hang under `dtk attach`
(`--live`, attach_accuracy.py) and the faults of the library (`--faults`, diagnosis_accuracy.py; those without a right
answer are named on stderr).
A row counts: right, right ranks only, undecided rightly, missed, wrong, false HEALTHY, and innocent ranks blamed.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import diagnosis_accuracy, hang_accuracy, log_corpus
from diagnostics.diagnose import diagnose
from diagnostics.report.jsonform import as_json
from tests.cli.attaching import look
from tests.cli.stuck import TRUTH as STUCK
from tests.faults.truth import TRUTH as FAULTS

GRADES = ("right", "right ranks only", "undecided rightly", "missed", "wrong", "false HEALTHY", "innocents")
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def graded(cause: str, ranks: set[int], causes: set[str], truth: set[int]) -> Counter[str]:
    """Grade one answer; an empty cause is none, no causes: nothing is to blame."""
    innocents = Counter({"innocents": len(ranks - truth)} if cause else {})
    if not cause:
        return Counter(["missed" if causes else "undecided rightly"])
    if cause in causes and ranks == truth:
        return Counter(["right"])
    return Counter(["right ranks only" if truth and ranks == truth else "wrong"]) + innocents


def dumps(folder: Path) -> tuple[Counter[str], Counter[str]]:
    """Of dtk and of torchfrtrace, which names ranks and no causes."""
    own, other = Counter[str](), Counter[str]()
    for name, (causes, truth) in hang_accuracy.TRUTH.items():
        found = hang_accuracy.dtk(folder / name)
        first = found[0].cause.removeprefix("hang.") if found else ""
        own += graded(first, {rank for one in found for rank in one.ranks}, causes, truth)
        said = hang_accuracy.torchfrtrace(folder / name)
        named = set(json.loads(said[: said.index("]") + 1])) if said.startswith("[") else set()
        other += graded("named" if named else "", named, {"named"} if truth else set(), truth)
    return own, other


def logs(folder: Path) -> tuple[Counter[str], list[tuple[float, float]], list[tuple[float, float]]]:
    """Grades, and the claims that are confirmed and suspected."""
    counts, confirmed, suspected = Counter[str](), list[tuple[float, float]](), list[tuple[float, float]]()
    for name, truth in json.loads(log_corpus.TRUTH.read_text()).items():
        report = as_json(diagnose(folder / name))
        counts[log_corpus.grade(truth, report)] += 1
        confirmed += log_corpus.claims(truth, report["root_causes"], "confidence")
        suspected += log_corpus.claims(truth, report.get("suspicions", []), "probability")
        blamed = report["root_causes"][0]["ranks"] if report["root_causes"] else []
        counts["innocents"] += len(set(blamed) - set(truth["ranks"])) if truth.get("ranks") else 0
    return counts, confirmed, suspected


def live() -> Counter[str]:
    """Of `dtk attach` on live torchrun jobs."""
    counts = Counter[str]()
    with tempfile.TemporaryDirectory() as kept:
        for name, (ranks, causes) in STUCK.items():
            seen = look(name, Path(kept) / name)
            counts += graded(seen.cause, set(seen.ranks), set(causes), set(ranks))
    return counts


def faults() -> Counter[str]:
    """Of every fault that dtk injects."""
    counts = Counter[str]()
    for name, truth in FAULTS.items():
        with tempfile.TemporaryDirectory() as folder:
            result = diagnosis_accuracy.run([f"fault={name}", "data.max_bytes=300000"], Path(folder))
        cause, ranks = result.causes[0] if result.causes else ("", ())
        grades = graded(cause, set(ranks), set(truth.causes), set(truth.ranks))
        counts += grades
        if not grades["right"] and not grades["undecided rightly"]:
            told = f"{cause or result.outcome} {[*ranks]} for {'/'.join(truth.causes)} {[*truth.ranks]}"
            print(f"{name}: {told}", file=sys.stderr, flush=True)
    return counts


def main() -> int:
    """Print the table; exit code 1 when anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dumps", type=Path, default=SHARED / "flight")
    parser.add_argument("--logs", type=Path, default=SHARED / "logs")
    parser.add_argument("--live", action="store_true", help="about a minute for each job")
    parser.add_argument("--faults", action="store_true", help="about ten minutes")
    options = parser.parse_args()
    hang_accuracy.check_folder(parser, "--dumps", options.dumps, next(iter(hang_accuracy.TRUTH)))
    hang_accuracy.check_folder(parser, "--logs", options.logs, next(iter(json.loads(log_corpus.TRUTH.read_text()))))
    own, other = dumps(options.dumps)
    of_logs, confirmed, suspected = logs(options.logs)
    rows = {"dumps": own, "dumps, torchfrtrace": other, "logs": of_logs}
    rows |= {"live jobs": live()} if options.live else {}
    rows |= {"faults": faults()} if options.faults else {}
    print(f"| evidence | {' | '.join(GRADES)} |\n|{'---|' * (1 + len(GRADES))}")
    for name, counts in rows.items():
        print(f"| {name} | {' | '.join(str(counts[grade]) for grade in GRADES)} |")
    log_corpus.calibration("confirmed", confirmed)
    log_corpus.calibration("suspected", suspected)
    mine = [counts for name, counts in rows.items() if "torchfrtrace" not in name]
    return int(any(counts["wrong"] + counts["false HEALTHY"] for counts in mine))


if __name__ == "__main__":
    sys.exit(main())

"""Right, missed and wrong answers of dtk over everything whose truth is known, in one table, with their calibration.

    python benchmarks/corpus.py [--dumps FOLDER] [--layouts NUMBER] [--logs FOLDER] [--traces FOLDER]
                                [--live [NAME ...]] [--faults] [--analysers PYTHON ...]

Composes what the scripts of each kind measure, and grades all answers by `log_corpus.grade`: flight-recorder dumps
(hang_accuracy.py, with torchfrtrace beside), those of simulated NCCL jobs with a planted fault (hang_layouts.py), logs
(log_corpus.py), traces (trace_truth.json) and, as they take minutes, live jobs under `dtk attach` (`--live`: plain
scripts, gloo, and DDP, FSDP2, TP, PP, Accelerate, HF Trainer, Lightning and DeepSpeed, also healthy ones) and the
faults of the library (`--faults`). `--analysers` adds a second table: other public analysers on the same traces
(analysers.py). What is not here is skipped, and why is told on stderr, as are the answers that are missed or wrong.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import Struct, field

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import analysers, diagnosis_accuracy, hang_accuracy, hang_layouts, log_corpus
from benchmarks.attach_accuracy import JOBS
from diagnostics.contract.errors import DiagnosticsError
from diagnostics.diagnose import diagnose
from diagnostics.report.jsonform import as_json
from tests.cli.attaching import look
from tests.faults.truth import TRUTH as FAULTS

GRADES = (
    "right", "right ranks only", "undecided rightly", "missed", "wrong", "false alarm", "false HEALTHY", "innocents",
)  # fmt: skip
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
TRACES = Path(__file__).with_name("trace_truth.json")
NEEDS = {"accelerate": "accelerate", "trainer": "transformers", "lightning": "lightning", "deepspeed": "deepspeed"}
"""First word of a job's name -> package that it needs."""


class Row(Struct):
    """The grades of one kind of evidence, and what was claimed with which probability."""

    counts: Counter[str] = field(default_factory=Counter)
    confirmed: list[tuple[float, float]] = field(default_factory=list)
    suspected: list[tuple[float, float]] = field(default_factory=list)

    def take(self, name: str, truth: dict[str, Any], report: dict[str, Any]) -> None:
        """Grade one answer. Of an `open` truth only HEALTHY is wrong, and nothing else counts."""
        grade = log_corpus.grade(truth, report)
        if truth.get("open") and grade != "false HEALTHY":
            self.counts["open"] += 1
            return
        roots = report["root_causes"]
        self.counts[grade] += 1
        self.confirmed += log_corpus.claims(truth, roots, "confidence")
        self.suspected += log_corpus.claims(truth, report.get("suspicions", []), "probability")
        if roots and "ranks" in truth:
            self.counts["innocents"] += len({*roots[0]["ranks"]} - {*truth["ranks"]})
        if grade not in ("right", "undecided rightly"):
            said = "; ".join(f"{root['cause']} {root['ranks']}" for root in roots) or report["outcome"]
            meant = f"{'/'.join(truth.get('causes', [])) or 'undecided'} {truth.get('ranks', '')}"
            print(f"{name}: {grade}: {said} for {meant}", file=sys.stderr, flush=True)


def answer(roots: list[tuple[str, list[int], float]], outcome: str = "undecided") -> dict[str, Any]:
    """Return (cause, ranks, confidence) in the form of a report."""
    named = [{"cause": cause, "ranks": ranks, "confidence": sure} for cause, ranks, sure in roots]
    return {"outcome": outcome, "root_causes": named}


def dumps(folder: Path) -> dict[str, Row]:
    """Of dtk and of torchfrtrace, which names ranks and no causes."""
    own, other = Row(), Row()
    for name, (causes, ranks) in hang_accuracy.TRUTH.items():
        named = [f"hang.{cause}" for cause in sorted(causes)]
        truth = {"causes": named, "ranks": sorted(ranks)} if causes else {}
        findings = hang_accuracy.dtk(folder / name)
        output = sorted({rank for finding in findings for rank in finding.ranks})
        own.take(name, truth, answer([(finding.cause, output, finding.confidence) for finding in findings]))
        said = hang_accuracy.torchfrtrace(folder / name)
        output = json.loads(said[: said.index("]") + 1]) if said.startswith("[") else []
        truth |= {"causes": ["named"]} if causes else {}
        other.take(f"torchfrtrace, {name}", truth, answer([("named", output, 1.0)] if output else []))
    return {"dumps": own, "dumps, torchfrtrace": other}


def layouts(number: int) -> Row:
    """Of the dumps of simulated jobs of five layouts; where a transport fails, no rank is to blame."""
    row = Row()
    with tempfile.TemporaryDirectory() as kept:
        for seed in range(number):
            folder = Path(kept) / str(seed)
            fault, layout, ranks, hangs = hang_layouts.case(seed, folder)
            truth = {"causes": [f"hang.{cause}" for cause in sorted(hang_layouts.FAULTS[fault])], "ranks": [*ranks]}
            truth = truth if hangs else {"causes": ["healthy"], "open": True}
            row.take(f"layouts {seed} ({fault}, {layout})", truth, as_json(diagnose(folder)))
    return row


def diagnosed(folder: Path, truths: Path) -> Row:
    """Of `dtk diagnose` on folders whose truth a file holds."""
    row = Row()
    for name, truth in json.loads(truths.read_text()).items():
        try:
            report = as_json(diagnose(folder / name))
        except DiagnosticsError as error:
            report = answer([], f"unusable: {error}")
        row.take(name, truth, report)
    return row


def live(which: str, names: list[str]) -> Row:
    """Of `dtk attach` on the live torchrun jobs of one module, healthy ones among them."""
    row, jobs = Row(), JOBS[which]
    with tempfile.TemporaryDirectory() as kept:
        for name in [*jobs.TRUTH, *jobs.HEALTHY]:
            package = NEEDS.get(name.partition("_")[0]) if which == "frameworks" else None
            if names and name not in names:
                continue
            if package is not None and find_spec(package) is None:
                print(f"{name}: skipped: {package} is not installed", file=sys.stderr, flush=True)
                continue
            seen = look(name, Path(kept) / name, jobs=jobs)
            if not seen.report:
                print(f"{name}: skipped: it ended by itself before it was looked at", file=sys.stderr, flush=True)
                continue
            ranks, causes = jobs.TRUTH.get(name, ((), ("healthy",)))
            result = answer([(seen.cause, [*seen.ranks], seen.confidence)] if seen.cause else [])
            # Of a job that trains, an answer without a cause is right.
            truth = {"causes": [*causes], "ranks": [*ranks]} if seen.cause or name in jobs.TRUTH else {}
            row.take(name, truth, result)
    return row


def faults() -> Row:
    """Of every fault that dtk injects."""
    row = Row()
    for name, truth in FAULTS.items():
        with tempfile.TemporaryDirectory() as folder:
            result = diagnosis_accuracy.run([f"fault={name}", "data.max_bytes=300000"], Path(folder))
        roots = [
            (cause, [*ranks], sure) for (cause, ranks), sure in zip(result.causes, result.confidences, strict=True)
        ]
        graded = {"causes": [*truth.causes], "ranks": [*truth.ranks]} if truth.causes else {}
        row.take(name, graded, answer(roots, result.outcome))
    return row


def here(folder: Path, truths: list[str]) -> bool:
    """Return whether a folder holds the data of a table of truth; tell on stderr why it is skipped if not."""
    absent = [name for name in truths if not (folder / name).exists()]
    if absent:
        print(f"{folder}: skipped: it holds no {absent[0]}", file=sys.stderr, flush=True)
    return not absent


def main() -> int:
    """Print the table; exit code 1 when anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dumps", type=Path, default=SHARED / "flight")
    parser.add_argument("--layouts", type=int, default=60, metavar="NUMBER", help="simulated NCCL jobs (60)")
    parser.add_argument("--logs", type=Path, default=SHARED / "logs")
    parser.add_argument("--traces", type=Path, default=SHARED / "traces")
    parser.add_argument("--live", nargs="*", metavar="NAME", help="all live jobs, or these: about a minute for each")
    parser.add_argument("--faults", action="store_true", help="about ten minutes")
    text = "second table: analysers that are installed in the environments of these interpreters"
    parser.add_argument("--analysers", nargs="+", default=[], metavar="PYTHON", help=text)
    options = parser.parse_args()
    rows: dict[str, Row] = {}
    rows |= dumps(options.dumps) if here(options.dumps, [*hang_accuracy.TRUTH]) else {}
    rows |= {"dumps of simulated NCCL jobs": layouts(options.layouts)} if options.layouts else {}
    for kind, folder, truths in (("logs", options.logs, log_corpus.TRUTH), ("traces", options.traces, TRACES)):
        rows |= {kind: diagnosed(folder, truths)} if here(folder, [*json.loads(truths.read_text())]) else {}
    if options.live is not None:
        rows |= {f"live jobs: {which}": live(which, options.live) for which in JOBS}
    rows |= {"faults": faults()} if options.faults else {}
    print(f"| evidence | {' | '.join(GRADES)} |\n|{'---|' * (1 + len(GRADES))}")
    for name, row in rows.items():
        print(f"| {name} | {' | '.join(str(row.counts[grade]) for grade in GRADES)} |")
    opened = sum(row.counts["open"] for row in rows.values())
    print(f"\n{opened} more, of which only HEALTHY would be known to be wrong, were not called so")
    mine = [row for name, row in rows.items() if "torchfrtrace" not in name]
    log_corpus.calibration("confirmed", [claim for row in mine for claim in row.confirmed])
    log_corpus.calibration("suspected", [claim for row in mine for claim in row.suspected])
    truths = json.loads(TRACES.read_text())
    if options.analysers and here(options.traces, [*truths]):
        print()
        analysers.table(options.traces, truths, options.analysers)
    return int(any(row.counts[grade] for row in mine for grade in ("wrong", "false alarm", "false HEALTHY")))


if __name__ == "__main__":
    sys.exit(main())

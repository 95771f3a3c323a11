"""Whom `dtk attach` blames on live torchrun jobs that hang, and how long it takes.

    python benchmarks/attach_accuracy.py [--jobs stuck|gloo|frameworks|all] [NAME ...]

The jobs are plain scripts (tests/cli/stuck.py), the gloo scenarios (stuck_gloo.py), and jobs of DDP, FSDP2, tensor and
pipeline parallelism, Accelerate, HF Trainer, Lightning and DeepSpeed (stuck_frameworks.py). Prints one row for each
fault: the ranks and the cause that were found, whether both are right, and the seconds that the command took. A job
that gloo or an exception ends at once leaves no process to look at, and counts in no sum.
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.cli import stuck, stuck_frameworks, stuck_gloo
from tests.cli.attaching import look

JOBS = {"stuck": stuck, "gloo": stuck_gloo, "frameworks": stuck_frameworks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", choices=(*JOBS, "all"), default="stuck")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    kept = Path(tempfile.mkdtemp(prefix="attach-accuracy-"))
    for which in JOBS if options.jobs == "all" else [options.jobs]:
        table(which, options.names, kept / which)


def table(which: str, names: list[str], kept: Path) -> None:
    """Look at each job of one module, and print the rows and their sums."""
    module = JOBS[which]
    counts, longest_s = Counter[str](), 0.0
    print(f"{which + ': fault':24} {'truth':14} {'blamed':14} {'cause':30} {'sure':5} time", flush=True)
    for name in names or [*module.TRUTH, *module.HEALTHY]:
        seen = look(name, kept / name, jobs=module)
        truth, causes = module.TRUTH.get(name, ((), ("",)))
        if not seen.report:
            verdict = "ended by itself"
        elif seen.ranks == truth and seen.cause in causes:
            verdict = "right"
        elif not seen.cause:
            verdict = "undecided"
        else:
            verdict = "ranks right" if seen.ranks == truth else "WRONG"
        counts[verdict] += 1
        longest_s = max(longest_s, seen.took_s)
        said = f"{name:24} {truth!s:14} {seen.ranks!s:14} {seen.cause:30} {seen.confidence:4.2f}"
        print(f"{said}  {seen.took_s:5.1f} s {verdict}", flush=True)
    live = counts.total() - counts["ended by itself"]
    sums = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    print(f"{which}: {live} live jobs: {sums}; at most {longest_s:.0f} s; folders: {kept}")


if __name__ == "__main__":
    main()

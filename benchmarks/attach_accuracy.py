"""Whom `dtk attach` blames on live torchrun jobs that hang (tests/cli/stuck.py), and how long it takes.

    python benchmarks/attach_accuracy.py [NAME ...]

Prints one row for each fault: the ranks and the cause that were found, whether both are right, and the seconds that the
command took.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.cli.attaching import look
from tests.cli.stuck import HEALTHY, TRUTH


def main() -> None:
    names = sys.argv[1:] or [*TRUTH, *HEALTHY]
    kept = Path(tempfile.mkdtemp(prefix="attach-accuracy-"))
    right = fitting = 0
    print(f"{'fault':18} {'truth':14} {'blamed':14} {'cause':30} {'sure':5} time", flush=True)
    for name in names:
        seen = look(name, kept / name)
        truth, causes = TRUTH.get(name, ((), ("",)))
        found = seen.ranks == truth
        fits = found and seen.cause in causes
        right, fitting = right + found, fitting + fits
        verdict = "right" if fits else "ranks right" if found else "WRONG"
        said = f"{name:18} {truth!s:14} {seen.ranks!s:14} {seen.cause:30} {seen.confidence:4.2f}"
        print(f"{said}  {seen.took_s:5.1f} s {verdict}", flush=True)
    print(f"{right} of {len(names)} name exactly the right ranks, {fitting} with a fitting cause; folders: {kept}")


if __name__ == "__main__":
    main()

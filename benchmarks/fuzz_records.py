"""Diagnoses very many jobs with absurd values in valid files, and counts what escapes.

Run it: `nice -n 19 python benchmarks/fuzz_records.py --seconds 1200 --seed 1`. An input is named by its seed and
number: `--only NUMBER` repeats it and keeps its files.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.fuzz.records import drawn, edited, explained, write


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", type=int)
    chosen = parser.parse_args()
    escapes: Counter[str] = Counter()
    began_s, slowest_s, count = time.monotonic(), 0.0, 0
    numbers = range(chosen.inputs) if chosen.only is None else (chosen.only,)
    for number in numbers:
        if time.monotonic() - began_s > chosen.seconds:
            break
        with tempfile.TemporaryDirectory() as folder:
            write(edited(*drawn(f"{chosen.seed}/{number}")), Path(folder))
            used_s = time.process_time()
            escape = explained(Path(folder), number)
            slowest_s = max(slowest_s, time.process_time() - used_s)
            if chosen.only is not None:
                print(f"kept: {Path(folder).rename(Path(tempfile.gettempdir()) / f'fuzz-{chosen.seed}-{number}')}")
                Path(folder).mkdir()
        count += 1
        if escape:
            key = escape.rpartition(" at ")[2][:60] if " at " in escape else escape
            if not escapes[key]:
                print(f"seed {chosen.seed}, input {number}: {escape}", flush=True)
            escapes[key] += 1
    took_s = time.monotonic() - began_s
    used = f"slowest {slowest_s:.1f} s, {time.process_time():.0f} s of processor time in {took_s:.0f} s"
    print(f"{count:,} inputs, seed {chosen.seed}: {escapes.total()} escapes {dict(escapes)}, {used}", flush=True)
    return 1 if escapes else 0


if __name__ == "__main__":
    sys.exit(main())

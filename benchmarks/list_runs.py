"""Seconds of `dtk ls` on many runs, start-up included, and of the first page of `dtk ui`. Prints medians and ranges.

python benchmarks/list_runs.py [--runs 10000]
Of a hundred folders 80 hold a finished run, 15 a failed one, 3 one that is going or lost, 2 a damaged one.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from diagnostics.report.html import render
from dtk.ui.pages import runs_page

REPEATS = 7
DEFINITION = "wall-clock seconds per optimizer step in the window since the last record, without evaluation"
COMMANDS = (["ls"], ["ls", "--limit", "20"], ["ls", "--failed", "--sort", "loss"], ["ls", "--json"])


def record(i: int) -> str:
    """One line of metrics.jsonl, as long as those of a run."""
    figures = {"time_s": 1.79e9 + i, "step": i, "loss": 4.6 - i / 1e5, "lr": 6e-4, "grad_norm": 4.09, "tokens": 512 * i}
    return json.dumps({**figures, "tokens_per_s": 6149.454, "mfu": None, "mfu_reason": "no peak", "spare": "x" * 150})


def make(root: Path, i: int) -> None:
    """One run folder."""
    kind = i % 100
    state = "finished" if kind < 80 else "failed" if kind < 95 else "running"
    folder = root / f"20260101-{i:06d}-gpt2_tiny-fsdp-w2-{i % 65536:04x}"
    folder.mkdir()
    started = f"2026-01-{1 + i % 28:02d}T00:{i % 60:02d}:00+00:00"
    status = {"state": state, "attempt": 0, "exit_code": 0, "reason": "", "step": 500, "started": started}
    text = json.dumps({**status, "updated": started, "failure": None, "schema_version": 1}, indent=2)
    (folder / "status.json").write_text(text[:20] if kind >= 98 else text)
    (folder / "manifest.json").write_text(
        json.dumps({"run_id": folder.name, "pid": 4_000_000 + i, "host": os.uname()[1]})
    )
    (folder / "metrics.jsonl").write_text("".join(record(j) + "\n" for j in range(1, 21)))
    if state == "finished":
        figures = {"step": 500, "loss": 4.6 - i / 1e5, "tokens_per_s": 6149.454, "step_time_s": 0.083}
        definitions = {f"figure_{n}": DEFINITION for n in range(16)}
        (folder / "summary.json").write_text(json.dumps({"figures": figures, "definitions": definitions}, indent=2))


def command_s(*arguments: str) -> float:
    """Wall seconds of a command."""
    began_s = time.perf_counter()
    subprocess.run([sys.executable, "-m", "dtk", *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began_s


def page_s(root: Path) -> float:
    """Wall seconds to make the page of all runs."""
    began_s = time.perf_counter()
    render(runs_page(root, {}))
    return time.perf_counter() - began_s


def main() -> None:
    """Make the folders, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "runs"
        root.mkdir()
        for i in range(runs):
            make(root, i)
        print(f"| on {runs:,} runs | seconds (median) | range |\n|---|---|---|")
        for first, *rest in COMMANDS:
            seconds = [command_s(first, str(root), *rest) for _ in range(REPEATS)]
            row = f"| `dtk {' '.join([first, *rest])}` | {statistics.median(seconds):.2f} |"
            print(f"{row} {min(seconds):.2f} - {max(seconds):.2f} |", flush=True)
        seconds = [page_s(root) for _ in range(REPEATS)]
        middle = statistics.median(seconds)
        print(f"| first page of `dtk ui` | {middle:.2f} | {min(seconds):.2f} - {max(seconds):.2f} |")


if __name__ == "__main__":
    main()

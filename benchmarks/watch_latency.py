"""Live watch: seconds from the planted mismatch to the printed cause, on two CPU ranks. Prints median and worst.

    python benchmarks/watch_latency.py --runs 20

Each run is the whole command in processes of its own; the ranks say when they go wrong, the parent's output is
read line by line and the first line that names both calls stops the clock.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FAULTS = ("operation", "size", "extra", "reduce_op")
OVERRIDES = [
    "model=custom",
    "model._target_=tests.cli.hanging.Hanging",
    "model.vocab_size=256",
    "model.context_length=64",
    "allow_targets=[tests.cli.hanging.*]",
    "data.max_bytes=300000",
    "data.sequence_length=32",
    "checkpoint=off",
]


def once(fault: str, strategy: str) -> tuple[float, float]:
    """Seconds from the fault to the cause on the terminal, and to the end of the command."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "dtk.run", f"runs_folder={folder}", *OVERRIDES, f"strategy={strategy}"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [*command, f"+model.arguments.fault={fault}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        planted_s = printed_s = None
        assert process.stdout is not None
        for line in process.stdout:
            if match := re.match(r"planted at ([\d.]+)", line):
                planted_s = float(match[1])
            if "different collectives" in line and printed_s is None:
                printed_s = time.time()
        process.wait()
        if planted_s is None or printed_s is None:
            raise SystemExit(f"{fault} under {strategy}: no cause was printed")
        return printed_s - planted_s, time.time() - planted_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    printed, ended = [], []
    for i in range(runs):
        to_print_s, to_end_s = once(FAULTS[i % len(FAULTS)], ("ddp", "fsdp")[i // len(FAULTS) % 2])
        printed.append(to_print_s)
        ended.append(to_end_s)
    print(f"{runs} runs, 2 ranks, faults {', '.join(FAULTS)} under ddp and fsdp")
    print("| seconds from the mismatch to | median | worst |\n|---|---|---|")
    print(f"| the printed cause | {statistics.median(printed):.2f} | {max(printed):.2f} |")
    print(f"| the end of the command | {statistics.median(ended):.2f} | {max(ended):.2f} |")


if __name__ == "__main__":
    main()

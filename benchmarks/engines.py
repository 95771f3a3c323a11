"""dtk's strategies beside DeepSpeed's stages and Accelerate on the same work: step time, peak memory, bytes sent.

    python benchmarks/engines.py --rounds 5
    python benchmarks/engines.py --rounds 3 --rows zero2 --overrides model.width=512 model.heads=8   (blocks of 12.6 MB)

Every round starts each side once, as a run of 2 ranks on the CPU, one after the other, so that noise of the machine
hits all alike. Ratios to dtk's side of the same row are taken round by round; their median is printed, and the range of
the rounds where they differ. Every other round takes the sides in the reverse order. Where others use the machine, the
step time is that of waiting for a core; the processor time of rank 0 from step to step, all its threads, says what a
side itself takes. The bytes are those that a step declares; tests hold them against what is sent.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from dtk.train.callbacks import Callback

ROWS = {
    "zero1": ["deepspeed_zero1"],
    "zero2": ["deepspeed_zero2", "deepspeed_zero3", "zero2 engine=accelerate"],
    "zero2 strategy.blocks_per_unit=0": ["deepspeed_zero2"],
    "fsdp": ["deepspeed_zero3", "fsdp engine=accelerate"],
    "ddp": ["ddp engine=accelerate"],
}
"""dtk's own side -> others that keep states alike, or send alike: stage 3 gathers small models once, as zero2 does."""
FIGURES = {
    "step_time_s": "step time",
    "processor_s": "processor time",
    "peak_memory_bytes": "peak memory",
    "communicated_bytes_per_step": "bytes",
}


class ProcessorTime(Callback):
    """Logs the processor time of a step on rank 0, the median of all but the first two."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    def after_step(self, training: Any, step: int, record: Any) -> None:
        """Take the time."""
        self.taken.append(time.process_time())

    def at_end(self, training: Any) -> None:
        """Log the median."""
        each = [after - before for before, after in pairwise(self.taken[1:])]
        training.log(len(self.taken), processor_s=statistics.median(each))


def measured(side: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Figures of one run."""
    with tempfile.TemporaryDirectory() as folder:
        job = [f"strategy={side.split()[0]}", *side.split()[1:], f"model={arguments.model}", "launcher.nproc=2"]
        job += ["data=synthetic", f"train.steps={arguments.steps}", "checkpoint=off", "train.evaluate_every=-1"]
        job += ["data.sequence_length=128", "train.global_batch_size=16", "train.micro_batch_size=8"]
        job += ["launcher.device=cpu", "launcher.threads=1", f"runs_folder={folder}"]
        job += ["callbacks=[{_target_: engines.ProcessorTime}]", "allow_targets=[engines.*]", *arguments.overrides]
        here = Path(__file__).parent  # Where a rank finds the callback.
        subprocess.run([sys.executable, "-m", "dtk.run", *job], cwd=here, check=True, capture_output=True, timeout=600)
        (run,) = Path(folder).iterdir()
        figures = json.loads((run / "summary.json").read_text())["figures"]
        logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    figures |= next(record for record in logged if "processor_s" in record)
    return {name: float(figures[name]) for name in FIGURES}


def compared(ratios: list[float]) -> str:
    """Return the median, and the range where the rounds differ."""
    low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    return f"{statistics.median(ratios):.2f}" + (f" ({low} - {high})" if low != high else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2_tiny")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--overrides", nargs="+", default=[], help="of every side")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    arguments = parser.parse_args()
    rows = {own: ROWS[own] for own in arguments.rows}
    sides = list(dict.fromkeys(side for own, others in rows.items() for side in (own, *others)))
    rounds = []
    for number in range(arguments.rounds):
        order = reversed(sides) if number % 2 else sides
        rounds.append({side: measured(side, arguments) for side in order})
        print(f"round {number + 1} of {arguments.rounds}", rounds[-1], file=sys.stderr, flush=True)
    print("| other | dtk | " + " | ".join(f"{title}, dtk / other" for title in FIGURES.values()) + " |")
    print("|---|---|" + "---|" * len(FIGURES))
    for own, others in rows.items():
        for other in others:
            ratios = [compared([each[own][name] / each[other][name] for each in rounds]) for name in FIGURES]
            print(f"| {other} | {own} | " + " | ".join(ratios) + " |")
    print("\n| side | " + " | ".join(f"{name}, median" for name in FIGURES) + " |\n|---|" + "---|" * len(FIGURES))
    for side in sides:
        print(
            f"| {side} | "
            + " | ".join(f"{statistics.median(r[side][name] for r in rounds):.4g}" for name in FIGURES)
            + " |"
        )


if __name__ == "__main__":
    main()

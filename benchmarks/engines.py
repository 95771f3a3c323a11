"""dtk's strategies beside DeepSpeed's stages and Accelerate on the same work: step time, peak memory, bytes sent.

    python benchmarks/engines.py --rounds 5

Every round starts each side once, as a run of 2 ranks on the CPU, one after the other, so that noise of the machine
hits all alike. Ratios to dtk's side of the same row are taken round by round, and their median is printed. The bytes
are those that a step declares, which tests hold against what is sent.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROWS = {
    "zero1": ["deepspeed_zero1"],
    "zero2": ["deepspeed_zero2"],
    "fsdp": ["deepspeed_zero3"],
    "ddp": ["ddp engine=accelerate"],
}
"""dtk's own side -> others that keep states alike."""
FIGURES = {"step_time_s": "step time", "peak_memory_bytes": "peak memory", "communicated_bytes_per_step": "bytes"}


def measured(side: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Figures of one run."""
    with tempfile.TemporaryDirectory() as folder:
        job = [f"strategy={side.split()[0]}", *side.split()[1:], f"model={arguments.model}", "launcher.nproc=2"]
        job += ["data=synthetic", f"train.steps={arguments.steps}", "checkpoint=off", "train.evaluate_every=-1"]
        job += ["data.sequence_length=128", "train.global_batch_size=16", "train.micro_batch_size=8"]
        job += ["launcher.device=cpu", "launcher.threads=1", f"runs_folder={folder}"]
        subprocess.run([sys.executable, "-m", "dtk.run", *job], check=True, capture_output=True, timeout=600)
        (summary,) = Path(folder).glob("*/summary.json")
        figures = json.loads(summary.read_text())["figures"]
    return {name: float(figures[name]) for name in FIGURES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2_tiny")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    sides = [side for own, others in ROWS.items() for side in (own, *others)]
    rounds = [{side: measured(side, arguments) for side in sides} for _ in range(arguments.rounds)]
    print("| other | dtk | " + " | ".join(f"{title}, dtk / other" for title in FIGURES.values()) + " |")
    print("|---|---|" + "---|" * len(FIGURES))
    for own, others in ROWS.items():
        for other in others:
            ratios = [statistics.median(each[own][name] / each[other][name] for each in rounds) for name in FIGURES]
            print(f"| {other} | {own} | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")


if __name__ == "__main__":
    main()

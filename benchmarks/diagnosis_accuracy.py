"""Accuracy of `dtk diagnose` on real runs: every fault= run, and healthy runs of all strategies. Prints tables.

    python benchmarks/diagnosis_accuracy.py faults            every fault: cause and exact ranks against the truth
    python benchmarks/diagnosis_accuracy.py healthy --runs 200 --seed 1

A healthy run is drawn at random: strategy (sub-groups by hsdp among them), ranks, batch, precision, record level,
checkpoints, and now and then a straggler, who is late but not stuck. Any confirmed cause in it is a false alarm, and
UNDECIDED is none: a profiled run of so small a model spends more than a tenth of its step in Python, which is said;
for a straggler `hang.straggler` and `overlap.skew` are right, and `overlap.pause` where every second step saves.
"""

import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtk.sharding.registry import CONFIG_TYPES

ROOT = Path(__file__).resolve().parents[1]
LATE = {"hang.straggler", "overlap.skew"}
MODEL = ["model=gpt2_tiny", "model.layers=2", "data.max_bytes=300000", "data.sequence_length=32"]
LIMIT_S = 180


@dataclass(frozen=True, slots=True)
class Result:
    """One run and its diagnosis."""

    state: str
    exit_code: int
    outcome: str
    causes: list[tuple[str, tuple[int, ...]]]
    """Root causes with their ranks."""
    confidences: list[float]
    """Those of the root causes."""
    seconds: float


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["faults", "healthy"])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="draw as many of the healthy runs without running them")
    return parser.parse_args()


def run(overrides: list[str], folder: Path) -> Result:
    """Run dtk as a user would, diagnose what it left."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    began_s = time.monotonic()
    command = [sys.executable, "-m", "dtk.run", f"runs_folder={folder}", *overrides]
    job = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    seconds = time.monotonic() - began_s
    paths = [path for path in folder.iterdir() if (path / "status.json").exists()]
    if not paths:
        raise SystemExit(f"no run folder: {' '.join(overrides)}\n{job.stderr}")
    command = [sys.executable, "-m", "dtk", "diagnose", str(paths[0]), "--json"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    report: dict[str, Any] = json.loads(done.stdout)
    causes = [(root_cause["cause"], tuple(root_cause["ranks"])) for root_cause in report["root_causes"]]
    state = json.loads((paths[0] / "status.json").read_text())["state"]
    sure = [root_cause["confidence"] for root_cause in report["root_causes"]]
    return Result(state, job.returncode, report["outcome"], causes, sure, seconds)


def faults() -> int:
    """Every fault once."""
    sys.path.insert(0, str(ROOT))
    from tests.faults.truth import TRUTH

    print("| fault | truth | ranks | found | ranks | right | run s |\n|---|---|---|---|---|---|---|")
    right = 0
    for name, truth in TRUTH.items():
        with tempfile.TemporaryDirectory() as folder:
            result = run([f"fault={name}", "data.max_bytes=300000"], Path(folder))
        cause, ranks = result.causes[0] if result.causes else ("none", ())
        good = cause in truth.causes and ranks == truth.ranks
        right += good
        truth_ranks, found_ranks = (" ".join(map(str, some)) for some in (truth.ranks, ranks))
        row = f"| {name} | {truth.causes[0]} | {truth_ranks} | {cause} | {found_ranks} "
        print(f"{row}| {'yes' if good else 'NO'} | {result.seconds:.0f} |", flush=True)
    print(f"\n{right} of {len(TRUTH)} right")
    return 0 if right == len(TRUTH) else 1


def draw(random_: random.Random) -> tuple[list[str], bool]:
    """Return the overrides of one healthy run, and whether one of its ranks is a straggler."""
    if random_.random() < 0.05:
        return ["fault=straggler", f"fault.delay_s={random_.choice([0.2, 0.4])}", *MODEL[2:3]], True
    own = {name: kind.traits for name, kind in CONFIG_TYPES.items() if not kind.traits.library}
    strategy = random_.choice([name for name, traits in own.items() if traits.least_cuda_devices < 2])
    fixed = 1 if own[strategy].one_process else 4 if own[strategy].replicated_over == "dp_replicate" else None
    ranks = fixed or random_.choice([2, 2, 4])
    micro = random_.choice([1, 2])
    overrides = [
        *MODEL,
        f"strategy={strategy}",
        f"launcher.nproc={ranks}",
        f"train.micro_batch_size={micro}",
        f"train.global_batch_size={ranks * micro * random_.choice([1, 2, 3])}",
        f"train.steps={random_.choice([2, 4, 6, 12])}",
        f"precision={random_.choice(['fp32', 'bf16'])}",
        f"record={random_.choice(['light', 'light', 'full'])}",
        f"train.log_every={random_.choice([1, 3])}",
        f"train.evaluate_every={random_.choice([-1, 0, 2])}",
        f"checkpoint.every={random_.choice([0, 2])}",
        f"train.activation_checkpoint_every={random_.choice([0, 1])}",
        f"seed={random_.randrange(1000)}",
    ]
    if own[strategy].gradients_in == "buckets":
        overrides.append(f"strategy.bucket_cap_mb={random_.choice([1, 25])}")
    return overrides, False


def healthy(count: int, seed: int, first: int) -> int:
    """Of `count` runs drawn at random those from number `first` on."""
    random_ = random.Random(seed)
    alarms, undecided, kinds = 0, 0, collections.Counter[str]()
    for number in range(count):
        overrides, late = draw(random_)
        if number < first:
            continue
        with tempfile.TemporaryDirectory() as folder:
            result = run(overrides, Path(folder))
        # A save after every second step of some milliseconds does cost, and that is said.
        right = LATE if late else {"overlap.pause"} if "checkpoint.every=2" in overrides else set()
        false = [cause for cause, _ in result.causes if cause not in right]
        kinds["straggler" if late else overrides[len(MODEL)].removeprefix("strategy=")] += 1
        undecided += result.outcome == "undecided"
        if result.state != "finished" or false or (result.outcome not in ("healthy", "undecided") and not right):
            alarms += 1
            print(
                f"ALARM {number}: {result.state}, {result.outcome}, {result.causes}: {' '.join(overrides)}", flush=True
            )
        if number % 10 == 9:
            print(f"{number + 1 - first} runs, {alarms} false alarms", file=sys.stderr, flush=True)
    drawn = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    print(f"{count - first} healthy runs ({drawn}): {alarms} false alarms, {undecided} undecided")
    return 1 if alarms else 0


if __name__ == "__main__":
    options = parse()
    sys.exit(faults() if options.what == "faults" else healthy(options.runs, options.seed, options.first))

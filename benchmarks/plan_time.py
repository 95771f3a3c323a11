"""Step time predicted by the plan after calibration, against the step time of real runs on this machine.

    python benchmarks/plan_time.py                     (about a minute and a half)
    python benchmarks/plan_time.py --no-calibrate      with what was measured before

Every rank has the same number of threads in the calibration and in the runs. Predicted by the closed form.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RANKS = 2
JOBS = [("single", 1), ("ddp", 1), ("ddp", 2), ("zero1", 2), ("fsdp", 1), ("fsdp", 2), ("zero2", 2)]


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2_tiny")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--micro", type=int, default=8, help="micro-batch size")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches per step")
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--no-calibrate", action="store_true")
    return parser.parse_args()


def overrides(arguments: argparse.Namespace, strategy: str, ranks: int, threads: int) -> list[str]:
    """Return the overrides of the job, for both the plan and the run."""
    return [
        f"model={arguments.model}",
        f"strategy={strategy}",
        "experiment=bench",
        "launcher.device=cpu",
        f"launcher.nproc={ranks}",
        f"launcher.threads={threads}",
        f"data.sequence_length={arguments.sequence_length}",
        f"train.micro_batch_size={arguments.micro}",
        f"train.global_batch_size={arguments.micro * ranks * arguments.accumulate}",
        f"train.steps={arguments.steps}",
    ]


def measured_ms(job: list[str]) -> float:
    """Median step of a real run, milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "dtk.run", *job, f"runs_folder={folder}"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
        summary = next(Path(folder).glob("*/summary.json"))
        return 1000 * float(json.loads(summary.read_text())["figures"]["step_time_s"])


def main() -> None:
    """Calibrate, then one row per job."""
    sys.path.insert(0, str(ROOT))
    from dtk.bench.calibrate import calibrate
    from dtk.plan.job import Machine, planned_job, predict
    from dtk.plan.timing.hardware import load_hardware

    arguments = parse()
    threads = max(1, len(os.sched_getaffinity(0)) // RANKS)
    if not arguments.no_calibrate:
        calibrate(on_cpu=True, show=lambda line: print(f"calibration: {line}", file=sys.stderr))
    hardware = load_hardware("measured")
    link = hardware.intra_node
    cores = len(os.sched_getaffinity(0))
    print(f"load {os.getloadavg()[0]:.1f} on {cores} cores; ", end="")
    print(f"float32 products {hardware.matmul_rate('float32') / 1e9:.1f} GFLOP/s, ", end="")
    print(f"copies {hardware.memory_rate / 1e9:.1f} GB/s, ", end="")
    print(f"all_reduce {link.latency_s * 1e6:.0f} us per step and {link.bytes_per_s / 1e9:.2f} GB/s\n")
    print(f"{arguments.model}, micro-batch {arguments.micro} x {arguments.accumulate}, {threads} thread(s) a rank\n")
    print("| strategy | ranks | predicted ms | of it exposed | measured ms | predicted / measured |")
    print("|---|---|---|---|---|---|")
    for strategy, ranks in JOBS:
        job = overrides(arguments, strategy, ranks, threads)
        config = planned_job(job).config
        time = predict(config, ranks, Machine(RANKS, hardware)).time
        assert time is not None
        real_ms = measured_ms(job)
        print(
            f"| {strategy} | {ranks} | {1000 * time.step_s:.1f} | {1000 * time.exposed_s:.1f} | {real_ms:.1f} "
            f"| {1000 * time.step_s / real_ms:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""Runs every benchmark and prints the tables of docs/benchmarks.md, with the machine and the versions.

python benchmarks/run_all.py        (needs the extra `bench`; about an hour and a half on two cores)
plan_accuracy.py --deepspeed and memory_table.py need the extra `deepspeed` too. corpus.py, hang_accuracy.py and
trace_speed.py need dumps and traces of real jobs, slow_link.py needs root, engines.py the extras `deepspeed` and
`accelerate`: they are run by hand.
"""

import argparse
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).parent
PARTS = [
    ["startup.py"],
    ["step_time.py", "--model", "gpt2_tiny", "--strategy", "ddp"],
    ["step_time.py", "--model", "gpt2_tiny", "--strategy", "fsdp"],
    # Five replicas of gpt2 with their optimizer state on two ranks do not fit into 24 GB: two runs under ddp.
    ["step_time.py", "--model", "gpt2", "--strategy", "ddp", "--sides", "plain,dtk off,dtk light,accelerate"],
    ["step_time.py", "--model", "gpt2", "--strategy", "ddp", "--sides", "plain,dtk light,fabric"],
    ["step_time.py", "--model", "gpt2", "--strategy", "fsdp"],
    ["ring_cost.py"],
    ["watch_latency.py"],
    ["memory_cases.py"],
    ["plan_accuracy.py"],
    ["plan_accuracy.py", "--settings", "--ranks", "2"],
    ["plan_accuracy.py", "--deepspeed", "--ranks", "2", "--batches", "4", "--sequence-length", "32"],
    ["tiers.py", "--limit-mb", "640"],
    ["tiers.py", "--layers", "4", "--rounds", "20"],
    ["memory_table.py"],
    ["compression.py"],
    ["compression.py", "--memory"],
    ["compression.py", "--zeropp", "--steps", "200"],
    ["plan_time.py"],
    ["search_time.py"],
    ["preflight_speed.py"],
    ["amplifiers.py"],
    ["hang_scale.py", "64", "1024"],
    ["diagnosis_accuracy.py", "faults"],
    ["diagnosis_accuracy.py", "healthy", "--runs", "200"],
]
LARGE = ["--steps", "1", "--batch", "4", "--micro", "2", "--rounds", "6"]


def cpu() -> str:
    """Name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def main() -> None:
    """Print the machine, then run the parts one after another."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"Machine: {cpu()}, {len(os.sched_getaffinity(0))} cores, no GPU used; {platform.platform()}")
    for package in ("torch", "accelerate", "lightning", "hydra-core"):
        try:
            print(f"{package} {version(package)}")
        except PackageNotFoundError:
            print(f"{package} is not installed")
    for script, *arguments in PARTS:
        more = LARGE if "gpt2" in arguments else []
        print(f"\n$ python benchmarks/{' '.join([script, *arguments, *more])}", flush=True)
        subprocess.run([sys.executable, str(HERE / script), *arguments, *more], check=True)


if __name__ == "__main__":
    main()

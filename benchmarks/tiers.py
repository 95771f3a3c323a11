"""States in memory, on the host and in files: peak memory, step time, bytes moved, the largest model. Prints Markdown.

    python benchmarks/tiers.py --layers 12
    python benchmarks/tiers.py --layers 12 --limit-mb 900      (also the largest number of blocks under that limit)
    python benchmarks/tiers.py --layers 4 --rounds 20          (only step times, which can be compared)

Two gloo ranks under fsdp, one thread each. Peak: VmHWM of the fullest rank from the second step on, above what its
process had before set-up. Limit: RLIMIT_DATA of each rank, which the kernel refuses memory by; a number of blocks fits
if three steps end. Rounds: all tiers are set up in the same two processes and take a step in turn, every other round in
the reverse order, so that what else the machine does meets all of them; ratios to `none` are taken round by round.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from dtk.plan.formulas.closed_form import closed_form  # noqa: E402
from dtk.plan.job import planned_job  # noqa: E402
from tests.dist.ranks import run_ranks  # noqa: E402

RANKS = 2
MODEL = [
    *("model=gpt2_tiny", "model.width=512", "model.heads=8", "model.vocab_size=4096", "data=synthetic"),
    *("data.vocab_size=4096", "data.sequence_length=64", "model.context_length=64", "strategy=fsdp"),
    *("train.global_batch_size=2", "train.micro_batch_size=1", "train.activation_checkpoint_every=1"),
    *("train.evaluate_every=-1", "checkpoint=off", "record=off", "launcher.device=cpu", "train.clip_norm=null"),
]
FILE = ["strategy.offload_to=nvme"]
TIERS = {
    "none": [],
    "parameters on the host (no-op on a CPU)": ["strategy.offload=parameters"],
    "optimizer in a file": ["strategy.offload=optimizer", *FILE],
    "parameters in a file": ["strategy.offload=parameters", *FILE],
    "none, update in backward": ["optimizer.in_backward=true"],
    "parameters in a file, update in backward": ["strategy.offload=parameters", *FILE, "optimizer.in_backward=true"],
}


def run(tier: list[str], layers: int, folder: str, steps: int, limit_bytes: int = 0) -> tuple[Any, list[Any]]:
    """Return the job, and what its ranks measured."""
    place = [f"strategy.offload_folder={folder}"] if FILE[0] in tier else []
    job = planned_job([*MODEL, *tier, *place, f"model.layers={layers}"], None, RANKS)
    ranks = run_ranks("tests.dist.tier_ranks:measure", RANKS, job.plain, folder, steps, limit_bytes, timeout_s=1800)
    return job, ranks


def times(layers: int, folder: str, rounds: int) -> None:
    """Print the table of step times."""
    plain = {}
    for name, tier in TIERS.items():
        place = [f"strategy.offload_folder={folder}"] if FILE[0] in tier else []
        plain[name] = planned_job([*MODEL, *tier, *place, f"model.layers={layers}"], None, RANKS).plain
    timed = run_ranks("tests.dist.tier_ranks:alternate", RANKS, plain, folder, rounds, timeout_s=1800)[0]
    print("| tier | step ms, median | ratio to none, median of rounds | quartiles | processor time, ratio to none |")
    print("|---|---|---|---|---|")
    for name in TIERS:
        wall, cpu = ([took[name][i] / took["none"][i] for took in timed] for i in (0, 1))
        first, _, third = quantiles(wall, n=4)
        step_ms = 1e3 * median(took[name][0] for took in timed)
        print(f"| {name} | {step_ms:.0f} | {median(wall):.2f} | {first:.2f} - {third:.2f} | {median(cpu):.2f} |")


def largest(tier: list[str], folder: str, limit_bytes: int, most: int) -> tuple[int, int]:
    """Most blocks that train under the limit, and the parameters of that model: doubled up to `most`, then bisected."""

    def fits(layers: int) -> bool:
        try:
            run(tier, layers, folder, 2, limit_bytes)
        except subprocess.TimeoutExpired:  # A thread of gloo that gets no memory ends without a word.
            print(f"{layers} blocks: no answer in half an hour, counted as no memory", file=sys.stderr)
            return False
        except AssertionError as error:
            if (
                "allocate memory" not in str(error)
                and "MemoryError" not in str(error)
                and "errno: 12" not in str(error)
            ):
                raise
            return False
        return True

    low, high = 0, 8
    while fits(high):
        low, high = high, 2 * high
        if low >= most:
            break
    while low < most and high - low > max(1, low // 8):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    job = planned_job([*MODEL, f"model.layers={max(1, low)}"], None, RANKS)
    return low, closed_form(job.config, RANKS).parameters


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=0, help="of step times; nothing else is measured then")
    parser.add_argument("--folder", default=None, help="on the disk to measure; default: the temporary folder's")
    parser.add_argument("--limit-mb", type=int, default=0)
    parser.add_argument("--most", type=int, default=64, help="blocks from which on no larger model is tried")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        if arguments.rounds:
            times(arguments.layers, folder, arguments.rounds)
            return
        print(
            "| tier | peak MiB | step ms | processor ms per step | MiB moved per step | planned |\n"
            "|---|---|---|---|---|---|"
        )
        for name, tier in TIERS.items():
            job, ranks = run(tier, arguments.layers, folder, arguments.steps)
            moved, planned = ranks[0]["moved_bytes"], closed_form(job.config, RANKS).memory.paged_bytes
            peak = max(rank["peak_bytes"] for rank in ranks) / 2**20
            step_ms, cpu_ms = 1e3 * ranks[0]["step_s"], 1e3 * ranks[0]["cpu_s"]
            print(f"| {name} | {peak:.0f} | {step_ms:.0f} | {cpu_ms:.0f} ", end="")
            print(f"| {moved / 2**20:.1f} | {planned / 2**20:.1f} |")
            sys.stdout.flush()
        if arguments.limit_mb:
            print(f"\n| tier | most blocks under {arguments.limit_mb} MiB per rank | parameters |\n|---|---|---|")
            for name, tier in TIERS.items():
                layers, parameters = largest(tier, folder, arguments.limit_mb * 2**20, arguments.most)
                print(f"| {name} | {layers} | {parameters:,} |", flush=True)


if __name__ == "__main__":
    main()

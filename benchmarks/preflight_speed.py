"""What a preflight costs: seconds for each simulated rank and the memory of all its processes.

Use: python benchmarks/preflight_speed.py            64, 256 and 1,024 ranks, and 4,096 by classes
     python benchmarks/preflight_speed.py --ranks 64 --strategies fsdp
Prints a Markdown table. Each row is a process of its own; memory is the peak of that process and of its largest rank.
"""

import argparse
import json
import os
import subprocess
import sys

CODE = """
import json, resource, sys, time
began = time.monotonic()
from dtk.preflight.run import Request, preflight
loaded = time.monotonic()
overrides, world_size, ranks = json.loads(sys.argv[1])
found = preflight(Request(overrides=tuple(overrides), world_size=world_size, ranks=ranks))
peak = [resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([found.verdict.ends, found.simulated, time.monotonic() - loaded, cpu.ru_utime + cpu.ru_stime, *peak]))
"""


def row(strategy: str, world_size: int, ranks: str) -> str:
    """One measurement as a row of the table."""
    overrides = [
        "model=gpt2_tiny",
        "launcher.device=cpu",
        f"strategy={strategy}",
        f"train.global_batch_size={world_size}",
    ]
    if strategy == "hsdp":
        overrides += ["strategy.dp_shard=8", f"strategy.dp_replicate={world_size // 8}"]
    process = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps([overrides, world_size, ranks])],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    if process.returncode:
        return f"| {strategy} | {world_size:,} | {ranks} | failed: {process.stderr.strip().splitlines()[-1]} |"
    ends, simulated, seconds, cpu_s, own, rank = json.loads(process.stdout.splitlines()[-1])
    assert ends, (strategy, world_size)
    each = f"{seconds / simulated:.3f} | {cpu_s / simulated:.3f}"
    return f"| {strategy} | {world_size:,} | {simulated:,} | {seconds:.1f} | {each} | {own:.0f} | {rank:.0f} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[64, 256, 1024])
    parser.add_argument("--strategies", nargs="*", default=["ddp", "fsdp"])
    parser.add_argument("--by-classes", type=int, nargs="*", default=[4096])
    arguments = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} at the start\n")
    print("| strategy | ranks | simulated | s | s per simulated rank | CPU s per rank | MiB, parent | MiB per rank |")
    print("|---|---|---|---|---|---|---|---|")
    for strategy in arguments.strategies:
        for ranks in arguments.ranks:
            print(row(strategy, ranks, "all"), flush=True)
        for ranks in arguments.by_classes:
            print(row(strategy, ranks, "classes"), flush=True)


if __name__ == "__main__":
    main()

"""What the record of collectives costs a call: microseconds with it, less without it, on one gloo rank.

    python benchmarks/ring_cost.py

Rounds with and without alternate in one process; the median of the differences is printed, for calls made
directly and from deep below the user's frame.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from dtk.record import collectives, wrappers
from dtk.record.ring import Ring


def per_call_us(call: Callable[[], object], calls: int) -> float:
    """Processor time of one call in this thread, in microseconds: other processes do not count."""
    began_s = time.thread_time()
    for _ in range(calls):
        call()
    return (time.thread_time() - began_s) / calls * 1e6


def deep(frames: int, call: Callable[[], float]) -> float:
    """Run `call` below so many frames."""
    return call() if frames == 0 else deep(frames - 1, call)


def measure(name: str, make: Callable[[], Callable[[], object]], log: collectives.CollectiveLog, rounds: int) -> None:
    """Print one line: the call without the record, and what the record adds."""
    plain, added = [], []
    for _ in range(rounds):
        wrappers.remove()
        without = deep(40, lambda: per_call_us(make(), 300))
        wrappers.install(log)
        with_it = deep(40, lambda: per_call_us(make(), 300))
        plain.append(without)
        added.append(with_it - without)
    print(f"| {name} | {statistics.median(plain):.1f} | {statistics.median(added):.1f} | {max(added):.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        ring = Ring(Path(folder) / "rank_00000.ring", 0, 1, 0)
        ring.start()
        log = collectives.CollectiveLog(ring)
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        value, out = torch.zeros(1024), torch.zeros(1024)
        print("| call | without, us | added, median us | added, worst us |\n|---|---|---|---|")
        measure("all_reduce", lambda: lambda f=dist.all_reduce: f(value), log, rounds)
        measure("all_reduce, async", lambda: lambda f=dist.all_reduce: f(value, async_op=True).wait(), log, rounds)
        measure("all_gather", lambda: lambda f=dist.all_gather: f([out], value), log, rounds)
        measure("broadcast", lambda: lambda f=dist.broadcast: f(value, 0), log, rounds)
        world, operators = dist.group.WORLD.group_name, torch.ops._c10d_functional
        wait, all_reduce = operators.wait_tensor, operators.all_reduce
        measure("functional all_reduce, operator", lambda: lambda: wait(all_reduce(value, "sum", world)), log, rounds)
        measure(
            "the same by its Python function",
            lambda: lambda: wait(functional.all_reduce(value, "sum", world)),
            log,
            rounds,
        )
        wrappers.remove()
        dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()

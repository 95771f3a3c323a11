"""What recording costs a rank: the record of collectives, the live watch and the black box, on one gloo rank.

    python benchmarks/ring_cost.py

A call with the record, less the call without it: rounds with and without alternate in one process, and the median of
the differences is printed. Then the processor time of one sample of the main thread, of one rank's report that the
judge of the live watch reads, and of one refresh of the black box with 2,000 entries in torch's flight recorder.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from dtk.record import collectives, flight, wrappers
from dtk.record.ring import Ring
from dtk.record.verdict import Judge, Report
from dtk.record.watch import RECENT

RANKS, ENTRIES = 1000, 2000


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


def periodic(log: collectives.CollectiveLog, rounds: int) -> None:
    """Print what the threads of recording do between steps."""
    frame = sys._getframe()
    print("\n| what a thread does at intervals | median us | worst us |\n|---|---|---|")
    store, judge = dist.HashStore(), Judge(RANKS)
    number = 0

    def judged_us() -> float:
        nonlocal number
        for rank in range(RANKS):
            number += 1
            groups = {"0" * 16: (number, tuple((number + n) << 32 for n in range(RECENT)))}
            report = Report(number, stepping=True, groups=groups)
            store.set(f"rank/{rank}", msgspec.json.encode(report).decode())
        return per_call_us(lambda: (judge.read(store, 0.5, 0.0), judge.find(60.0, 600.0)), 1) / RANKS

    for name, cost_us in (
        ("sample of the main thread", lambda: per_call_us(lambda: log.sample(frame), 1000)),
        (f"report of one of {RANKS} ranks, judged", judged_us),
        (f"black box with {ENTRIES} entries", lambda: per_call_us(flight.last_collectives, 1)),
    ):
        times_us = [cost_us() for _ in range(rounds)]
        print(f"| {name} | {statistics.median(times_us):,.1f} | {max(times_us):,.1f} |")


def main() -> None:
    """Print the tables."""
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
        for _ in range(ENTRIES):
            dist.all_reduce(value)
        periodic(log, rounds)
        dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(ENTRIES))
    main()

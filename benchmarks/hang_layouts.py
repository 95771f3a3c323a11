"""Dumps of simulated NCCL jobs of five layouts with one planted fault each: which cause and which ranks are named?

python benchmarks/hang_layouts.py [NUMBER] [--seed S] [--keep FOLDER] [--logs]

`right`: an accepted cause and exactly the ranks; `ranks`: another cause, the right ranks; `innocents`: ranks that did
nothing wrong are blamed. Where only dumps are left, some faults look alike: each row accepts what its dumps can show.
`--logs` leaves the log of the job instead, as torchrun prints it: the lines of NCCL's watchdogs and the summary.
"""

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.hang_accuracy import dtk
from benchmarks.nccl_jobs import (
    END,
    EVALUATE,
    LAYOUTS,
    STATISTICS,
    SYNC,
    Call,
    Collective,
    Compute,
    Host,
    Job,
    Messages,
)
from diagnostics.diagnose import diagnose

ASYMMETRIC = {"conditional_collective", "uneven_iterations"}
FAULTS: dict[str, set[str]] = {
    "a host stops": {"host_stall"},
    "a process is gone, without a dump": {"host_stall", "rank_killed", "rank_exited", "rank_raised"},
    "a device is stuck": {"device_stall"},
    "a group's transport fails": {"network"},
    "a call is left out": ASYMMETRIC | {"collective_mismatch"},
    "a call is added": {"conditional_collective"},
    "another operation": {"collective_mismatch"},
    "another size": {"signature_mismatch"},
    "another branch": {"collective_mismatch", "conditional_collective", "signature_mismatch"},
    "two calls swapped": {"collective_mismatch", "group_order", "signature_mismatch"},
    "one step less": {"uneven_iterations"},
    "one step less, and the process waits outside": {"uneven_iterations", "host_stall"},
    "an evaluation on rank 0": {"conditional_collective"},
    "a stage with fewer micro-batches": {"pipeline_mismatch", "p2p_cycle"},
    "a slow rank, no hang": set(),
}
"""Fault -> causes that its dumps can show."""


def changed(calls: list[Call], fault: str, at: float) -> list[Call]:
    """Return the calls of the step in which a fault strikes, `at` being where in the step, from 0 to 1."""
    places = [number for number, call in enumerate(calls) if isinstance(call, Collective | Messages)]
    collectives = [number for number in places if isinstance(calls[number], Collective)]
    any_call, place = places[int(at * len(places))], collectives[int(at * len(collectives))]
    call, first = calls[place], calls[any_call]
    assert isinstance(call, Collective)
    before, after = calls[:place], calls[place + 1 :]
    early, rest = calls[:any_call], [first, *calls[any_call + 1 :]]
    other = "broadcast" if call.op != "broadcast" else "all_reduce"
    swapped = next((two for two in pairwise(collectives) if _differ(calls, *two)), None)
    match fault:
        case "a host stops" | "a process is gone, without a dump":
            return [*early, Host("stop"), *rest]
        case "a device is stuck":
            return [*early, Host("stick"), Compute(1), *rest]
        case "a call is left out":
            return [*before, *after]
        case "a call is added":
            return [*before, Collective("0", "all_reduce", 7, "Float", STATISTICS), SYNC, call, *after]
        case "another operation":
            return [*before, replace(call, op=other), *after]
        case "another size":
            return [*before, replace(call, size=call.size + 128), *after]
        case "another branch":
            return [*before, replace(call, op=other, size=33, site=STATISTICS), *after]
        case "two calls swapped" if swapped is not None:
            calls[swapped[0]], calls[swapped[1]] = calls[swapped[1]], calls[swapped[0]]
        case "an evaluation on rank 0":
            return [*calls, *[Collective("0", "all_reduce", 2, "Float", EVALUATE), SYNC] * 2]
        case "a slow rank, no hang":
            return [*early, Host("sleep", 3.0), *rest]
    return calls


def _differ(calls: list[Call], first: int, second: int) -> bool:
    call, other = calls[first], calls[second]
    assert isinstance(call, Collective) and isinstance(other, Collective)
    return (call.group, call.op, call.size) != (other.group, other.op, other.size)


def case(seed: int, folder: Path, *, as_log: bool = False) -> tuple[str, str, set[int], bool]:
    """Play a job, write its dumps or log, and return its fault, layout, the ranks to blame, and whether it hangs."""
    draw = random.Random(seed)
    fault = draw.choice([*FAULTS])
    layout = "pp x dp" if "micro-batches" in fault else draw.choice([*LAYOUTS])
    world, size, steps = draw.choice([4, 8, 16]), draw.randint(2, 5), draw.randint(20, 70)
    groups, step = LAYOUTS[layout](world, size)
    rank, at, where = draw.randrange(world), draw.randint(5, steps - 3), draw.random()
    rank = 0 if "rank 0" in fault else rank
    culprits = {rank}
    if "micro-batches" in fault:
        culprits = set(next(ranks for desc, ranks in groups.values() if desc == "dp" and rank in ranks))
    stopped = draw.randint(5, 40) if "transport" in fault else 0
    broken = (draw.choice([name for name, (_, ranks) in groups.items() if rank in ranks]), stopped)

    def program(own: int) -> Iterator[Call]:
        jitter = random.Random(seed * 1000 + own)
        is_short = "one step less" in fault and own in culprits
        for number in range(steps - is_short):
            yield Host("sleep", 0.002 + jitter.random() * 0.003)
            is_culprit = own in culprits and number >= at
            calls = [*step(own, number, int(is_culprit and "micro-batches" in fault))]
            yield from changed(calls, fault, where) if is_culprit and number == at else calls
        if is_short and "outside" in fault:
            return
        yield from (Collective("0", "all_reduce", 1, "Byte", END), SYNC)

    job = Job(groups, {own: program(own) for own in range(world)}, broken if stopped else ("", 0)).play()
    options = {"stacks": draw.random() < 0.7, "timed": draw.random() < 0.4, "ring": draw.choice([2000, 2000, 300])}
    absent = sorted(culprits) if "gone" in fault else ()
    if as_log and job.hangs:
        job.write_log(folder, stacks=options["stacks"], heeds_signal=options["timed"], without=absent)
    elif not as_log:
        job.write(folder, **options, without=absent)
    return fault, layout, set() if stopped or not FAULTS[fault] else culprits, job.hangs


def grade(folder: Path, fault: str, ranks: set[int], *, hangs: bool, as_log: bool = False) -> str:
    """Return how the answer of `dtk diagnose` compares with the truth."""
    root_causes = list(diagnose(folder).root_causes) if as_log else dtk(folder)
    sure = [finding for finding in root_causes if finding.confidence >= 0.5]
    if not hangs:
        return "false alarm" if sure else "right"
    if not sure:
        return "suspicion" if root_causes else "undecided"
    if any(set(finding.ranks) - ranks for finding in sure):
        return "innocents"
    if not any(set(finding.ranks) == ranks for finding in sure):
        return "some ranks"
    # Logs show that calls do not match, not whether one is left out, added or ends a loop: the texts say so.
    causes = FAULTS[fault] | (ASYMMETRIC | {"collective_mismatch"} if as_log and FAULTS[fault] & ASYMMETRIC else set())
    return "right" if any(finding.cause.removeprefix("hang.") in causes for finding in sure) else "ranks"


def main() -> None:
    """Print a table by fault, and each case that is not right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", type=int, nargs="?", default=150, metavar="NUMBER")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder in which the dumps stay")
    parser.add_argument("--logs", action="store_true", help="leave logs instead of dumps")
    options = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as name:
        for seed in range(options.seed, options.seed + options.number):
            folder = (options.keep or Path(name)) / str(seed)
            fault, layout, ranks, hangs = case(seed, folder, as_log=options.logs)
            if options.logs and not hangs:
                continue
            answer = grade(folder, fault, ranks, hangs=hangs, as_log=options.logs)
            counts[fault, answer] += 1
            if options.keep:
                print(f"{seed} {fault} {layout} {sorted(ranks)} {answer}", file=sys.stderr)
            elif answer not in {"right", "suspicion", "undecided"}:
                print(f"case {seed}: {fault}, {layout}, ranks {sorted(ranks)}: {answer}", file=sys.stderr, flush=True)
    answers = ["right", "ranks", "some ranks", "suspicion", "undecided", "innocents", "false alarm"]
    print(f"| fault | {' | '.join(answers)} |\n|{'---|' * (1 + len(answers))}")
    for fault in FAULTS:
        print(f"| {fault} | {' | '.join(str(counts[fault, answer]) for answer in answers)} |")
    print(f"| all | {' | '.join(str(sum(counts[fault, answer] for fault in FAULTS)) for answer in answers)} |")


if __name__ == "__main__":
    main()

"""Synthetic flight dumps of many ranks with one injected fault: is the answer right, in what time and memory?

python benchmarks/hang_scale.py 64 1024 [--entries 2000]
The dumps have stacks, a world group, groups of 8 neighbours, and rings that wrapped; one rank leaves a call out.
"""

import argparse
import json
import pickle
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NEIGHBOURS = 8
START_NS = 1_790_000_000_000_000_000
STEP = [
    ("_all_gather_base", "neighbours", [4096, 1024], [32768, 1024], 31),
    ("_all_gather_base", "neighbours", [1024, 1024], [8192, 1024], 33),
    ("_reduce_scatter_base", "neighbours", [32768, 1024], [4096, 1024], 36),
    ("_reduce_scatter_base", "neighbours", [8192, 1024], [1024, 1024], 38),
    ("all_reduce", "world", [25_000_000], [25_000_000], 41),
    ("all_reduce", "world", [1], [1], 44),
]
"""One training step: operation, group, sizes, line."""


def frames(line: int) -> list[dict[str, Any]]:
    """Return a stack as torch records it, innermost first."""
    torch = "/opt/venv/lib/python3.11/site-packages/torch/"
    places = [("all_reduce", torch + "distributed/distributed_c10d.py", 3245)]
    places += [("wrapper", torch + "distributed/c10d_logger.py", 83)]
    places += [("train_step", "/job/train.py", line), ("main", "/job/train.py", 90), ("<module>", "/job/train.py", 97)]
    return [{"name": name, "filename": file, "line": number} for name, file, number in places]


def dump(rank: int, world: int, entries: int, culprit: int, shared: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    """Build the ring of one rank after thousands of steps.

    In the last step, the culprit skips the second all_gather.
    """
    first = rank - rank % NEIGHBOURS
    ids = {"world": ("0", "default_pg", 0), "neighbours": (str(1 + rank // NEIGHBOURS), "tp", 1)}
    steps = entries // len(STEP) + 50
    calls = STEP * steps
    same = rank // NEIGHBOURS == culprit // NEIGHBOURS
    tail = STEP[:1] if rank == culprit else STEP[:2] if same else STEP[:5]
    calls = calls + list(tail) + ([STEP[2]] if rank == culprit else [])
    counts = {"world": 7000, "neighbours": 21000}
    listed = []
    for number, (op, group, inputs, outputs, line) in enumerate(calls):
        counts[group] += 1
        name, desc, pg_id = ids[group]
        listed.append(
            {
                "frames": [dict(frame) for frame in shared[line]],
                "record_id": number,
                "pg_id": pg_id,
                "process_group": (name, desc),
                "thread_name": "python",
                "thread_id": "1",
                "collective_seq_id": counts[group],
                "p2p_seq_id": 0,
                "op_id": counts[group],
                "profiling_name": f"nccl:{op}",
                "time_created_ns": START_NS + number * 1_000_000 + rank,
                "input_sizes": [inputs],
                "input_dtypes": ["BFloat16"],
                "output_sizes": [outputs],
                "output_dtypes": ["BFloat16"],
                "state": "completed",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": START_NS + number * 1_000_000 + 900_000,
                "retired": True,
                "timeout_ms": 600_000,
                "is_p2p": False,
            }
        )
    listed[-1].update(state="scheduled", retired=False, time_discovered_completed_ns=None)
    kept = listed[-(entries - random.Random(rank).randrange(40)) :]
    status = {
        str(ids[group][2]): {
            "last_enqueued_collective": counts[group], "last_started_collective": -1,
            "last_completed_collective": counts[group] - (1 if kept[-1]["pg_id"] == ids[group][2] else 0),
        }
        for group in counts
    }  # fmt: skip
    config = {
        "0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))},
        ids["neighbours"][0]: {
            "name": ids["neighbours"][0],
            "desc": "tp",
            "ranks": str(list(range(first, first + NEIGHBOURS))),
        },
    }
    return {"version": "2.10", "pg_config": config, "comm_lib_version": "2.27.3", "pg_status": status, "entries": kept}


def write(folder: Path, world: int, entries: int) -> int:
    """Write all dumps; the rank to blame."""
    culprit = world * 5 // 8 + 3
    shared = {line: frames(line) for *_, line in STEP}
    for rank in range(world):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(
            pickle.dumps(dump(rank, world, entries, culprit, shared), protocol=2)
        )
    return culprit


def diagnose(folder: Path) -> None:
    """In a fresh process: print cause, ranks, seconds and peak memory as JSON."""
    from diagnostics.causes.registry import Registry, built_in
    from diagnostics.contract.findings import text_of
    from diagnostics.diagnose import decide
    from diagnostics.evidence.limits import Limits
    from diagnostics.evidence.model import Evidence, rank_in_name
    from diagnostics.evidence.readers.flight import FlightFile

    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    limits = Limits()
    files = [FlightFile(path, path.name, rank_in_name(path), limits) for path in folder.iterdir()]
    causes = tuple(cause for cause in built_in() if cause.id.startswith("hang."))
    findings, _ = decide(Registry(causes), Evidence(folder, limits, files={"flight": files}), lambda _: None)
    roots = [finding for finding in findings if finding.status == "confirmed"]
    workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        json.dumps(
            {
                "causes": [[finding.cause, list(finding.ranks)] for finding in roots],
                "summary": text_of(roots[0]).summary if roots else "",
                "seconds": time.perf_counter() - began_s,
                "cpu_s": time.process_time() - began_cpu_s + workers.ru_utime + workers.ru_stime,
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                "worker_mb": workers.ru_maxrss / 1024,
                "before_mb": before_mb,
            }
        )
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ranks", nargs="*", type=int, default=[64, 1024])
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--diagnose", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.diagnose:
        diagnose(options.diagnose)
        return
    print(
        "| ranks | entries each | MB of dumps | right | seconds | CPU s, workers included | CPU ms per rank | peak MB "
        "|\n|---|---|---|---|---|---|---|---|"
    )
    for world in options.ranks:
        with tempfile.TemporaryDirectory() as name:
            culprit = write(Path(name), world, options.entries)
            size_mb = sum(path.stat().st_size for path in Path(name).iterdir()) / 1e6
            command = [sys.executable, __file__, "--diagnose", name]
            answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            right = answer["causes"] == [["hang.conditional_collective", [culprit]]]
            print(
                f"| {world:,} | {options.entries:,} | {size_mb:,.0f} | {'yes' if right else answer['causes']} "
                f"| {answer['seconds']:.1f} | {answer['cpu_s']:.1f} | {answer['cpu_s'] / world * 1e3:.1f} | "
                f"{answer['peak_mb']:.0f} (Python {answer['before_mb']:.0f}, a worker {answer['worker_mb']:.0f}) |",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""Diagnoses small files that stand for very much, and measures what each takes: seconds and peak memory.

Run it: `python benchmarks/amplifiers.py`. Each file lies in a folder of its own beside an honest log; `dtk diagnose`
must end with a report (exit code 0 or 1) or one line (2), within the budget of one reader. Exit code 1 when one
does not.
"""

import argparse
import gzip
import json
import os
import pickle
import resource
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.ring.format import HEADER
from tests.unit.diagnostics.evidence.readers.test_flight import HONEST as FLIGHT
from tests.unit.diagnostics.evidence.readers.test_ring import HONEST as RING

CPU_S, PEAK_BYTES = Limits().seconds + 10, Limits().memory_bytes + (256 << 20)
"""The budget of a reader or cause, and what the command takes without evidence."""
ENDS_BYTES = 8 << 30
"""Address space at which the child ends, so that a hole in the budgets does not take the machine."""
HUGE = 10**15
KERNELS = (
    "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, globalPid, demangledName)"
)
NSYS_ROWS = [f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({n}, {n + 1}, 0, 7, {n}, 0, {n})" for n in range(20)]
RECURSION = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n LIMIT 1000000000000)"


def sqlite(path: Path, *statements: str) -> None:
    """Make a database."""
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def shared_tuples(_: Path) -> bytes:
    """Return a pickle of tuples that each hold the one before twice: 2^60 leaves."""
    value: Any = (1, "x")
    for _ in range(60):
        value = (value, value)
    return pickle.dumps({"version": "2.4", "entries": [{"frames": value}], "pg_config": value}, protocol=4)


def aliases(_: Path) -> bytes:
    """Return the YAML of 10^20 leaves."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join(10 * [f'*a{n - 1}'])}]" for n in range(1, 20)]
    return "\n".join([*lines, "model: *a19"]).encode()


def ring(_: Path) -> bytes:
    """Return a ring of a job with four billion ranks."""
    magic, version, rank, _, *rest = HEADER.unpack_from(RING)
    return HEADER.pack(magic, version, rank, 2**32 - 1, *rest) + RING[HEADER.size :]


def groups(_: Path) -> bytes:
    """Return a flight record whose groups name very many ranks, and one very large one."""
    record = pickle.loads(FLIGHT)  # noqa: S301 - made above
    record["pg_config"] = {str(n): {"name": str(n), "desc": "x", "ranks": f"[0, {HUGE + n}]"} for n in range(2000)}
    return pickle.dumps(record, protocol=4)


def sparse(path: Path) -> None:
    """Write a log of 1 TB, of which the disk holds the first block."""
    path.write_text("[rank0]: ValueError: x\n" * 50)
    os.truncate(path, 1 << 40)


def generated(path: Path) -> None:
    """Write an export whose column of names is computed: 800 MB a row."""
    column = "ALTER TABLE StringIds ADD COLUMN value TEXT GENERATED ALWAYS AS (hex(zeroblob(400000000)) || id) VIRTUAL"
    rows = [f"INSERT INTO StringIds (id) VALUES ({n})" for n in range(20)]
    sqlite(path, "CREATE TABLE StringIds (id)", KERNELS, *rows, column, *NSYS_ROWS)


def viewed(path: Path) -> None:
    """Write an export whose table of names is a view without end."""
    view = f"CREATE VIEW StringIds AS {RECURSION} SELECT x id, 'name' value FROM n"
    sqlite(path, KERNELS, view, *NSYS_ROWS)


def devices(path: Path) -> None:
    """Write an export with a kernel on each of very many devices."""
    rows = [
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({n}, {n + 1}, {n * HUGE}, {n}, {n}, {n}, 0)"
        for n in range(9000)
    ]
    sqlite(path, KERNELS, "CREATE TABLE StringIds (id, value)", *rows)


def run_of(world_size: int) -> dict[str, bytes]:
    """Return a run folder that claims so many ranks, in every record that can."""
    layout = {"world_size": world_size, "nodes": world_size, "local_world_size": world_size}
    manifest = {"schema_version": 1, "run_id": "x", "topology": layout, "mesh": {"dp_shard": world_size}}
    config = f"model: {{name: gpt2_tiny}}\nstrategy: {{name: fsdp}}\nlauncher: {{name: local, nproc: {world_size}}}\n"
    config += (
        f"parallel: {{dp_shard: {world_size}, tp: {world_size}, pp: {world_size}}}\ntrain: {{steps: {world_size}}}\n"
    )
    status = {
        "schema_version": 1,
        "state": "failed",
        "step": world_size,
        "failure": {"rank": world_size, "reason": "x"},
    }
    return {
        "manifest.json": json.dumps(manifest).encode(), "config.yaml": config.encode(), "overrides.yaml": b"[]",
        "status.json": json.dumps(status).encode(),
        "metrics.jsonl": "".join(json.dumps({"step": n * world_size, "loss": 1.0}) + "\n" for n in range(9)).encode(),
    }  # fmt: skip


def log(*lines: str) -> Callable[[Path], bytes]:
    """Return what makes a log of these lines."""
    return lambda _: "\n".join(lines).encode()


FILES: dict[str, dict[str, Callable[[Path], bytes | None]]] = {
    "pickle of shared tuples": {"rank_0.pickle": shared_tuples},
    "YAML of aliases": {"config.yaml": aliases, "status.json": log('{"schema_version": 1, "state": "failed"}')},
    "ring of 4 billion ranks": {"ring/rank_00000.ring": ring},
    "groups with ranks beyond 10^15": {"rank_0.pickle": groups},
    "run folder of 10^15 ranks": {name: (lambda _, c=content: c) for name, content in run_of(HUGE).items()},
    "sparse log of 1 TB": {"job.log": sparse},
    "Nsight export, 800 MB per row": {"rank_0.sqlite": generated},
    "Nsight export, names without end": {"rank_0.sqlite": viewed},
    "Nsight export, 9,000 devices": {"rank_0.sqlite": devices},
    "log with digits that are not ASCII": {
        "job.log": log(
            "vm:1:1 [\u00b2] NCCL INFO comm 0x1 rank \u0663 nranks \u00b2 cudaDev \u2462 - Init COMPLETE",
            f"[rank{'9' * 4000}]: ValueError: x", "[rank\u0663]: RuntimeError: x",
            "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=\u00b2, OpType=ALLREDUCE, "
            "NumelIn=1, NumelOut=1, Timeout(ms)=1000) ran for 1001 milliseconds",
        )
    },
    "log of 10^15 ranks": {
        "job.log": log(*(f"[rank{HUGE + n}]: ValueError: x" for n in range(20000)), f"world_size={HUGE}")
    },
    "gzip of 4 GB of zeros": {"rank0.trace.json.gz": lambda _: gzip.compress(bytes(1 << 22)) * 1000},
    "JSON nested 10 million deep": {"rank_0.json": lambda _: b"[" * 10_000_000},
    "log of one line of 200 MB": {"job.log": lambda _: b"[rank0]: ValueError: " + b"x" * 200_000_000},
}  # fmt: skip


def measured(folder: Path) -> tuple[int, float, float, int, str]:
    """Diagnose a folder in a process of its own; exit code, seconds, seconds of processor time, peak bytes, output."""
    read, write = os.pipe()
    began_s = time.monotonic()
    if not (pid := os.fork()):
        os.dup2(write, 1)
        os.dup2(write, 2)
        resource.setrlimit(resource.RLIMIT_AS, (ENDS_BYTES, ENDS_BYTES))
        os.execv(sys.executable, [sys.executable, "-m", "dtk", "diagnose", str(folder)])
    os.close(write)
    with os.fdopen(read, errors="replace") as pipe:
        output = pipe.read()
    _, status, usage = os.wait4(pid, 0)
    used_s = usage.ru_utime + usage.ru_stime
    return os.waitstatus_to_exitcode(status), time.monotonic() - began_s, used_s, usage.ru_maxrss << 10, output


def main() -> int:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    failed = 0
    print("| evidence | bytes on disk | exit code | processor seconds | peak MiB |\n|---|---|---|---|---|")
    for name, files in FILES.items():
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            for file, make in files.items():
                (folder / file).parent.mkdir(exist_ok=True)
                if (content := make(folder / file)) is not None:
                    (folder / file).write_bytes(content)
            size = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
            code, _, used_s, peak, output = measured(folder)
        print(f"| {name} | {size:,} | {code} | {used_s:.1f} | {peak / 2**20:,.0f} |", flush=True)
        if code not in (0, 1, 2) or "Traceback" in output or used_s > CPU_S or peak > PEAK_BYTES:
            failed += 1
            print(f"FAIL {name}: {output[-600:]}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

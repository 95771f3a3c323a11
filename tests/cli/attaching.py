"""Live jobs that hang, and `dtk attach` on them, as a user types it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.cli import stuck
from tests.cli.command import environment

START_S = 120.0


def cpu_s(pids: list[int]) -> float:
    """CPU time of all these processes."""
    stats = [Path(f"/proc/{pid}/stat") for pid in pids]
    fields = [stat.read_text().rpartition(")")[2].split() for stat in stats if stat.exists()]
    return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")


@contextmanager
def job(name: str, log: Path, jobs: ModuleType = stuck) -> Iterator[int]:
    """Start a job of one of the modules `stuck*`, and wait until its ranks have done what they do before they hang."""
    ranks = getattr(jobs, "WORLD", {}).get(name, 4)
    argv = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--rdzv-backend=c10d",
            "--rdzv-endpoint=localhost:0", str(jobs.__file__), name]  # fmt: skip
    with log.open("w") as out:
        texts = environment(OMP_NUM_THREADS="1")
        process = subprocess.Popen(argv, env=texts, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        ends_s, quiet, before = time.monotonic() + START_S, 0, -1.0
        while quiet < 3 and time.monotonic() < ends_s and process.poll() is None:
            time.sleep(1.0)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            spent_s = cpu_s([int(child) for child in children])
            running = name in (*jobs.HEALTHY, "computes", "ddp_tokenizer")
            least_s = (6.0 if running else 0.5) * ranks  # Importing torch and its compiler takes up to 6 s here.
            started = spent_s > least_s and len(children) >= ranks - 1
            quiet = quiet + 1 if started and (running or spent_s - before < 0.05) else 0
            before = spent_s
        yield process.pid
    finally:
        for pid in reversed(tree(process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def tree(pid: int) -> list[int]:
    """The process and all that it started; torch's agent gives each rank a session of its own."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [
        pid,
        *(item for child in (children.read_text().split() if children.exists() else ()) for item in tree(int(child))),
    ]


@dataclass(frozen=True)
class Seen:
    """What `dtk attach` said."""

    report: dict[str, Any]
    said: str
    """On standard error."""
    took_s: float
    code: int

    @property
    def first(self) -> dict[str, Any]:
        return (self.report.get("root_causes") or [{}])[0]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(self.first.get("ranks", ()))

    @property
    def cause(self) -> str:
        return self.first.get("cause", "")

    @property
    def confidence(self) -> float:
        return self.first.get("confidence", 0.0)


def attach(pid: int, folder: Path, *options: str, **more: str) -> Seen:
    began_s = time.monotonic()
    argv = [sys.executable, "-m", "dtk", "attach", str(pid), "--folder", str(folder), "--json", *options]
    done = subprocess.run(argv, env=environment(**more), capture_output=True, text=True, timeout=200, check=False)
    report = json.loads(done.stdout) if done.stdout.strip() else {}
    return Seen(report, done.stderr, time.monotonic() - began_s, done.returncode)


def look(name: str, folder: Path, *options: str, jobs: ModuleType = stuck, **more: str) -> Seen:
    """Start the job, look at it once it stands still, and end it. Of a job that ended by itself nothing is seen."""
    folder.mkdir(parents=True, exist_ok=True)
    with job(name, folder / "job.log", jobs) as pid:
        if not tree(pid)[1:]:
            return Seen({}, "the job ended by itself", 0.0, 2)
        return attach(pid, folder / "look", *options, **more)

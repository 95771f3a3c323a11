"""The flight recorder of torch.distributed (`FlightRecorder.hpp`): its environment, its dump, and the black box. The
dump functions are private API, so each is looked up and guarded. Host (gloo) and NCCL rings are separate.
"""

import faulthandler
import json
import os
import pickle
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from diagnostics.contract.artifacts import SCHEMA_VERSION, RunPaths, read_heartbeat
from diagnostics.contract.files import replacing
from diagnostics.evidence import flight_entries
from diagnostics.evidence.calls import Call
from dtk.config.schema import RecordConfig
from dtk.record.guard import STOP_S, guarded

ENTRIES_PER_GROUP = 64  # Chosen: several steps of most jobs, in a file that is rewritten every few seconds.
FIRST_S = 0.2  # Chosen: a job that dies immediately leaves a snapshot too.
_TORCH = f"{os.sep}torch{os.sep}"
SHARE = 0.0015  # Chosen: of one core. With 2,000 entries a refresh holds the GIL for 51 ms (benchmarks/ring_cost.py).
MAX_EVERY_S = 60.0  # Chosen: a snapshot older than a minute explains little.

Dump = Callable[..., bytes]


def environment(record: RecordConfig, paths: RunPaths) -> dict[str, str]:
    """Return the variables that must be set before torch creates the first process group; empty at level off.

    `flight_entries=0` switches the ring off; torch's own watchdog writes its dumps to the run folder.
    """
    if record.level == "off":
        return {}
    watchdog = str(paths.watchdog_prefix.absolute())
    variables = {"TORCH_FR_BUFFER_SIZE": str(record.flight_entries), "TORCH_FR_DUMP_TEMP_FILE": watchdog}
    variables |= {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_INCLUDE_STACK_TRACE": "1", "TORCH_INCLUDE_ONLY_ACTIVE": "0"}
    if record.level == "full":
        variables["TORCH_NCCL_ENABLE_TIMING"] = "1"
    return variables


def dump(path: Path) -> None:
    """Write this rank's ring with Python stacks: NCCL's, or the host's without NCCL; nothing if no call is recorded.

    If both hold collectives, the host's is next to it: `rank_00000.host.pickle`. OSError if it cannot be written.
    """
    with _without_inductor():
        rings = {name: ring for name, function in _dumps().items() if _load(ring := function()).get("entries")}
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, ring in rings.items():
        beside = name == "host" and "nccl" in rings
        with replacing(path.with_suffix(".host.pickle") if beside else path) as aside:
            aside.write_bytes(ring)


@contextmanager
def _without_inductor() -> Iterator[None]:
    """Keep torch from importing its compiler, which takes seconds, only to check for compiled code on a stack."""
    import torch

    if "torch._inductor" in sys.modules:
        yield
        return
    stand_in: Any = SimpleNamespace()
    torch._inductor = stand_in
    try:
        yield
    finally:
        if torch._inductor is stand_in:
            del torch._inductor


def _dumps() -> dict[str, Dump]:
    """Return the dump functions by ring; a build of torch without NCCL has the host's only."""
    import torch._C._distributed_c10d as c10d

    names = {"nccl": "_dump_nccl_trace", "host": "_dump_fr_trace"}
    return {ring: getattr(c10d, name) for ring, name in names.items() if hasattr(c10d, name)}


def _load(ring: bytes) -> dict[str, Any]:
    """Load a ring; unpickling it is safe, as it comes from torch in this very process."""
    value = pickle.loads(ring)  # noqa: S301
    return value if isinstance(value, dict) else {}


def last_collectives(stacks: bool = False) -> dict[str, dict[str, Any]]:
    """Return ring -> content, the last 64 entries of each group, oldest first; `stacks` adds the program's frames."""
    rings = {}
    for name, function in _dumps().items():
        ring = _load(function(includeCollectives=True, includeStackTraces=stacks, onlyActive=False))
        of_group: Counter[int] = Counter()
        entries = []
        for entry in reversed(ring.get("entries") or []):
            of_group[entry["pg_id"]] += 1
            if of_group[entry["pg_id"]] <= ENTRIES_PER_GROUP:
                entry["frames"] = [frame for frame in entry.get("frames") or [] if _TORCH not in frame["filename"]]
                entries.append(entry)
        if entries:
            rings[name] = {**ring, "entries": entries[::-1]}
    return rings


def unfinished(rank: int) -> Call | None:
    """Return the first call in progress according to torch, which also sees calls from C++; None if there is none.

    ValueError if an entry of the ring is invalid.
    """
    dumps = [flight_entries.dump(ring, rank, "") for ring in last_collectives().values()]
    return next((call for dump in dumps for call in dump.calls if not call.done), None)


def group_status() -> dict[str, Any]:
    """Return ring -> last enqueued, started and completed collective of each group; costs microseconds."""
    return {name: _load(function(includeCollectives=False)).get("pg_status") for name, function in _dumps().items()}


def dump_stacks(path: Path) -> None:
    """Write the Python stacks of all threads, newest frames first; OSError if the folder is full or read-only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        print(f"# stacks at {time.time():.3f} s since 1970", file=file, flush=True)
        faulthandler.dump_traceback(file, all_threads=True)


def last_dumps(paths: RunPaths, rank: int, black_box: "BlackBox | None") -> dict[str, Callable[[], None]]:
    """Return the writers of evidence on a hang or a failure, by topic; the slowest is last."""
    dumps: dict[str, Callable[[], None]] = {"stacks": partial(dump_stacks, paths.stacks(rank))}
    if black_box is not None:
        dumps["black box"] = black_box.snapshot
    return {**dumps, "flight recorder": partial(dump, paths.flight(rank))}


class BlackBox:
    """Thread that saves the last collectives to a file, so that they survive a SIGKILL.

    Every `every_s` seconds it writes step, region and each group's counters. The entries themselves are expensive, so
    they are refreshed as often as SHARE allows, and at once when the counters stop: training is then blocked anyway.
    """

    def __init__(self, paths: RunPaths, rank: int, attempt: int, every_s: float) -> None:
        self.path = paths.black_box(rank)
        self.heartbeat = paths.heartbeat(rank)
        self.rank, self.attempt, self.every_s = rank, attempt, every_s
        self.cost_s = 0.0  # CPU time of the last refresh of the entries.
        self._status: dict[str, Any] = {}
        self._rings: dict[str, dict[str, Any]] = {}
        self._rings_status: dict[str, Any] | None = None
        self._rings_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dtk-black-box", daemon=True)

    def start(self) -> None:
        """Start the thread, which first writes after `FIRST_S`; OSError if the folder is full or read-only."""
        self.path.parent.mkdir(parents=True, exist_ok=True)  # torch's watchdog writes there but does not create it.
        self._thread.start()

    def close(self) -> None:
        """Let the thread write the last box, for at most STOP_S seconds."""
        self._stop.set()
        self._thread.join(STOP_S)

    def entries_every_s(self) -> float:
        """Return the seconds between refreshes of the entries during training."""
        return max(self.every_s, min(MAX_EVERY_S, self.cost_s / SHARE))

    def tick(self) -> None:
        """Write the box if it is due or there is no progress; OSError if the folder is full or read-only."""
        status = group_status()
        still, self._status = status == self._status, status
        due = time.monotonic() - self._rings_s >= self.entries_every_s()
        if due or (still and status != self._rings_status):
            self._renew(status)
        self._write(status)

    def snapshot(self, stacks: bool = False) -> None:
        """Write the box with new entries now.

        With `stacks`, torch must not be importing its compiler meanwhile. OSError if the folder is full or read-only.
        """
        self._renew(status := group_status(), stacks)
        self._write(status)

    def _renew(self, status: dict[str, Any], stacks: bool = False) -> None:
        began_s = time.thread_time()
        with _without_inductor() if stacks else nullcontext():
            self._rings, self._rings_status = last_collectives(stacks), status
        self.cost_s = time.thread_time() - began_s
        self._rings_s = time.monotonic()

    def _write(self, status: dict[str, Any]) -> None:
        beat = read_heartbeat(self.heartbeat)
        about = {"schema_version": SCHEMA_VERSION, "rank": self.rank, "attempt": self.attempt, "pid": os.getpid()}
        age_s = time.monotonic() - self._rings_s
        record = {**about, "host": socket.gethostname(), "time_s": time.time(), "entries_age_s": age_s}
        record |= {"step": beat and beat.step, "region": beat and beat.region}
        record["recorders"] = {name: {**ring, "pg_status": status.get(name)} for name, ring in self._rings.items()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.path) as aside:
            aside.write_text(json.dumps(record), encoding="utf-8")

    def _run(self) -> None:
        wait_s = min(FIRST_S, self.every_s)
        while not self._stop.wait(wait_s):
            wait_s = self.every_s
            with guarded("black box"):
                self.tick()
        with guarded("black box"):
            self.snapshot(stacks=True)  # A rank that exits normally leaves no other record of torch's own calls.

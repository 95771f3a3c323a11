"""Names the first rank that failed, from exit codes, error.json files and heartbeats.

The rank that an elastic launcher shows is often a peer of the one that failed: its collective broke
because the other was gone. So ranks are ordered by what happened to them, and only then by time.
"""

import json
import re
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from diagnostics.contract.artifacts import ENDED_BY_WATCH, Failure, RunPaths, State, read_heartbeat, read_verdict
from dtk.record.desync import find_desync

PEER_GONE = re.compile(
    r"connection (was )?(closed|reset|refused)|closed by peer|broken pipe|socket timeout|timed out|timeout"
    r"|remote process exited|nccl communicator was aborted|unhandled system error|processgroup.*abort"
    r"|failed to (send|recv)|store.*(closed|shut)|no such process group",
    re.IGNORECASE,
)
"""Messages of a rank that lost a peer, from gloo, NCCL and the store."""
EXCEPTION_LINE = re.compile(r"[\w.]*(Error|Exception|Interrupt)\b")
OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|cannot allocate memory", re.IGNORECASE)
LOST_A_PEER = 3
"""Order of a rank whose communication broke because another was gone; see `_case`."""
COMMUNICATION_ERRORS = {"RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError", "DistError"}


@dataclass(frozen=True, slots=True)
class _Case:
    """What is known of one failed rank."""

    rank: int
    exit_code: int | None
    error: dict[str, Any] | None
    order: int
    time_s: float


def find_failure(paths: RunPaths, attempt: int, world_size: int, exit_codes: dict[int, int]) -> tuple[Failure, State]:
    """The first failing rank, and whether the run is `failed`, `oom` or `hung`.

    Ranks that called different collectives are `hung` also where gloo aborted one of them for it before the
    watch could: what the others report is then not their own failure.

    Args:
        paths: the run folder.
        attempt: attempt that failed.
        world_size: ranks of the run.
        exit_codes: of the ranks that failed, as far as the launcher knows.
    """
    verdict = read_verdict(paths.verdict(attempt))
    cases = []
    for rank in range(world_size):
        error = _read_error(paths.error(attempt, rank))
        if error is not None or rank in exit_codes:
            cases.append(_case(rank, exit_codes.get(rank), error))
    if verdict is None and cases and all(_by_communication(case) for case in cases):
        verdict = find_desync(paths, attempt, world_size, time.time())
    if verdict is not None and (verdict.kind == "desync" or all(case.order for case in cases)):
        return verdict.failure(), "hung"
    if cases and all(case.order >= LOST_A_PEER for case in cases):
        known = {case.rank for case in cases}
        cases += [
            _Case(rank, 0 if where_it_was(paths, rank)[1] == "end" else None, None, 1, 0.0)
            for rank in range(world_size)
            if rank not in known and _vanished(paths, rank)
        ]
    if not cases:
        return Failure(rank=0, reason="the ranks could not be started", log="logs"), "failed"
    first = min(cases, key=lambda case: (case.order, case.time_s))
    victims = sorted(case.rank for case in cases if case.rank != first.rank)
    step, region = where_it_was(paths, first.rank)
    reason = _reason(first, paths, attempt)
    failure = Failure(
        rank=first.rank,
        reason=reason,
        step=step,
        region=(first.error or {}).get("region") or region,
        log=_log(paths, attempt, first.rank),
        exit_code=first.exit_code,
        victims=victims,
    )
    return failure, "oom" if OUT_OF_MEMORY.search(reason) or "OutOfMemory" in reason else "failed"


def user_error(paths: RunPaths, attempt: int, world_size: int) -> str | None:
    """The one line of a problem that the user can mend, if that is what ended the ranks."""
    for rank in range(world_size):
        error = _read_error(paths.error(attempt, rank))
        if error is not None and error.get("user_error"):
            return str(error["message"])
    return None


def where_it_was(paths: RunPaths, rank: int) -> tuple[int | None, str | None]:
    """Step and open region in the rank's last heartbeat, if it kept one."""
    beat = read_heartbeat(paths.heartbeat(rank))
    return (None, None) if beat is None else (beat.step, beat.region)


def _case(rank: int, exit_code: int | None, error: dict[str, Any] | None) -> _Case:
    """Order: own exception, killed, aborted, lost a peer, ended by the launcher."""
    killed = {-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE}
    if error is not None:
        order = LOST_A_PEER if _lost_a_peer(error) else 0
    elif exit_code in killed:
        order = 1
    elif exit_code == -signal.SIGABRT:
        order = 2
    elif exit_code == -signal.SIGTERM:
        order = 5
    else:
        order = 1 if exit_code is not None else 4
    return _Case(rank, exit_code, error, order, float((error or {}).get("time_s", 0.0)))


def _by_communication(case: _Case) -> bool:
    """Whether a failure may come of ranks that called different collectives: a communication error, an abort."""
    if case.error is not None:
        return case.error.get("type") in COMMUNICATION_ERRORS and not case.error.get("user_error")
    return case.exit_code in (None, ENDED_BY_WATCH, -signal.SIGABRT, -signal.SIGTERM)


def _vanished(paths: RunPaths, rank: int) -> bool:
    """Whether the rank's process on this host is gone or a zombie, by the heartbeat it kept."""
    beat = read_heartbeat(paths.heartbeat(rank))
    if beat is None or beat.host != socket.gethostname():
        return False
    try:
        return bool(psutil.Process(beat.pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _log(paths: RunPaths, attempt: int, rank: int) -> str | None:
    """What there is to read about the rank, relative to the run folder."""
    for name in ("stderr.log", "error.json"):
        path = paths.logs(attempt, rank) / name
        if path.is_file():
            return str(path.relative_to(paths.root))
    return None


def _lost_a_peer(error: dict[str, Any]) -> bool:
    """A communication error whose text speaks of the other side."""
    return error.get("type") in COMMUNICATION_ERRORS and bool(PEER_GONE.search(str(error.get("message"))))


def _reason(case: _Case, paths: RunPaths, attempt: int) -> str:
    """One line that says what happened to the rank."""
    if case.error is not None:
        message = " ".join(str(case.error.get("message")).split())
        place = f" ({Path(str(case.error['file'])).name}:{case.error['line']})" if case.error.get("file") else ""
        return f"{case.error.get('type')}: {message[:300]}{place}"
    if case.exit_code == 0:
        return "it ended in order with exit code 0 while others went on"
    if case.exit_code is None:
        return "its process is gone without a word (killed, or aborted in native code)"
    if case.exit_code < 0:
        name = signal.Signals(-case.exit_code).name
        hint = " (the kernel does this when memory runs out: see dmesg)" if name == "SIGKILL" else ""
        return f"killed by {name}{hint}"
    last = _last_error(paths.logs(attempt, case.rank) / "stderr.log")
    return f"exited with code {case.exit_code}" + (f": {last}" if last else "")


def _read_error(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _last_error(path: Path) -> str:
    """The last line of the log that reads like an exception; warnings and source lines do not."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 65536))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if EXCEPTION_LINE.match(line)), "")

"""Finds the first rank that failed, from exit codes, error.json files and heartbeats. Peers of that rank may exit
before it, so ranks are ordered by how they ended, and only then by time.
"""

import socket
import time
from dataclasses import dataclass
from typing import Any

import psutil
from msgspec.structs import replace

from diagnostics.contract.artifacts import ENDED_BY_WATCH, Failure, RunPaths, State, read_heartbeat, read_verdict
from diagnostics.contract.formatting import ranks_spoken
from diagnostics.evidence import endings
from diagnostics.evidence.model import RankError
from diagnostics.evidence.readers import error as error_file
from diagnostics.runs.records import last_lines, mapping
from dtk.launch.processes import killed_by
from dtk.record.run_folder import failure_reason
from dtk.record.verdict import find_desync

MESSAGE = 2000  # Chosen: bytes of an exception's message in status.json, some twenty lines; error.json has all of it.
_TAIL_BYTES = 65536  # Chosen: bytes of a log that are searched; the last exception is among its last few hundred lines.


@dataclass(frozen=True, slots=True)
class _Case:
    ending: endings.Ending
    reason: str
    """One line for the user."""
    type: str = ""
    """Class of its exception, even if only its log has it."""
    message: str = ""

    @property
    def order(self) -> tuple[int, float]:
        """Sort key, first failure first: an exception before an abort before a lost peer; then by time."""
        return max(endings.ORDER[self.ending.kind], endings.ORDER["raised"]), self.ending.time_s or 0.0

    @property
    def by_communication(self) -> bool:
        """Whether different collectives on the ranks may be the reason: a communication error or an abort."""
        if self.ending.type:
            return self.ending.type in endings.COMMUNICATION_ERRORS
        return self.ending.exit_code == ENDED_BY_WATCH or self.ending.kind in ("aborted", "stopped")


def find_failure(paths: RunPaths, attempt: int, world_size: int, exit_codes: dict[int, int]) -> tuple[Failure, State]:
    """Return the first rank that failed, and whether the run is `failed`, `oom` or `hung`.

    Ranks that called different collectives are `hung` also where gloo aborted one of them for it before the
    watch could: what the others report is then not their own failure.
    """
    verdict = read_verdict(paths.verdict(attempt))
    cases = []
    for rank in range(world_size):
        record = mapping(str(paths.error(attempt, rank)), []) or None
        if record is not None or rank in exit_codes:
            cases.append(_case(paths, attempt, rank, exit_codes.get(rank), record))
    if verdict is None and cases and all(case.by_communication for case in cases):
        verdict = find_desync(paths, attempt, world_size, time.time())
    own_error = any(case.ending.kind in ("raised", "oom") for case in cases)
    if verdict is not None and (verdict.kind == "desync" or not own_error):
        return verdict.failure(), "hung"
    if cases and all(case.ending.victim for case in cases):
        failed = {case.ending.rank for case in cases}
        others = {rank: read_heartbeat(paths.heartbeat(rank)) for rank in range(world_size) if rank not in failed}
        beats = {rank: beat for rank, beat in others.items() if beat is not None}
        here = {rank: beat for rank, beat in beats.items() if beat.host == socket.gethostname()}
        cases += [_vanished(rank, beat.region) for rank, beat in here.items() if _is_gone(beat.pid)]
        silent = sorted({*beats} - {*here})  # How a process of another host ended cannot be seen from here.
        if silent and all(case.ending.victim for case in cases):
            hosts = ", ".join(sorted({beats[rank].host for rank in silent}))
            why = f"{ranks_spoken(silent)} on {hosts} left no error, and the others lost a connection"
            reason = f"{why}: killed there, or {hosts} was lost"
            return Failure(rank=-1, reason=reason, log="logs", victims=sorted(failed)), "failed"
    if not cases:
        return Failure(rank=0, reason="the ranks could not be started", log="logs"), "failed"
    first = min(cases, key=lambda case: case.order)
    rank, ending = first.ending.rank, first.ending
    beat = read_heartbeat(paths.heartbeat(rank))
    step, region = (beat.step, beat.region) if beat is not None else (None, None)
    logs = [paths.logs(attempt, rank) / name for name in ("stderr.log", "error.json")]
    failure = Failure(
        rank=rank, reason=first.reason, step=step, region=ending.region or region,
        log=next((str(log.relative_to(paths.root)) for log in logs if log.is_file()), None),
        victims=sorted(case.ending.rank for case in cases if case.ending.rank != rank),
        exit_code=ending.exit_code, kind=ending.kind, type=first.type, message=first.message, signal=ending.signal,
    )  # fmt: skip
    return failure, "oom" if ending.kind == "oom" else "failed"


def user_error(paths: RunPaths, attempt: int, world_size: int) -> str | None:
    """Return the line of a problem that the user can fix if it ended the ranks, else None."""
    for rank in range(world_size):
        error = mapping(str(paths.error(attempt, rank)), [])
        if error.get("user_error"):
            return str(error["message"])
    return None


def _case(paths: RunPaths, attempt: int, rank: int, exit_code: int | None, record: dict[str, Any] | None) -> _Case:
    """Return the case of a rank that left an error.json, an exit code, or both."""
    if record is not None:
        error = replace(error_file.decode(record, "error.json", rank), rank=rank, exit_code=exit_code)
        return _Case(endings.of_error(error, rank), failure_reason(record), error.type, error.message[:MESSAGE])
    ending = endings.of_error(RankError(rank, "", 0, "", "", exit_code=exit_code), rank)
    if ending.signal is not None:
        return _Case(ending, killed_by(ending.signal))
    lines = last_lines(paths.logs(attempt, rank) / "stderr.log", _TAIL_BYTES)
    last = endings.last_exception_line([line.decode("utf-8", "replace") for line in lines])[:300]
    # A dtk rank writes an error.json for every Python exception, so a bare exit code is the process's own end.
    if not last:
        return _Case(replace(ending, kind="exited"), f"exited with code {exit_code}")
    type_, message = endings.exception_of_line(last)
    kind = endings.kind_of_exception(type_, message)
    return _Case(replace(ending, kind=kind), f"exited with code {exit_code}: {last}", type_, message)


def _vanished(rank: int, region: str | None) -> _Case:
    """Return the case of a rank that is gone without an error or exit code; `region` was its last one."""
    if region == "end":
        ending = endings.of_error(RankError(rank, "", 0, "", "", exit_code=0), rank)
        return _Case(ending, "it ended with exit code 0 while the others continued")
    ending = endings.of_error(RankError(rank, "", 0, "", ""), rank)
    return _Case(ending, f"{endings.VANISHED} (killed, or aborted in native code)")


def _is_gone(pid: int) -> bool:
    """Whether a process of this host has exited or is a zombie."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True

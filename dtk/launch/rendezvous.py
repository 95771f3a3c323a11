"""Ranks of a watched command that others wait for in init_process_group, where no rank can judge yet."""

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from diagnostics.contract.artifacts import RunPaths, Verdict
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import LogFact
from diagnostics.evidence.readers import start
from dtk.record.verdict_text import named

FRESH_S = 5.0
"""A rank that has not told for longer is gone, or native code holds Python's lock: nothing is known of it."""


def missing_ranks(paths: RunPaths, limit_s: float) -> Verdict | None:
    """Return a verdict if ranks waited for `limit_s` while all missing ranks of this node stood still, else None."""
    attempt, starts = _starts(paths)
    if not starts:
        return None
    now_s, here = time.time(), socket.gethostname()
    waiting = {rank: fact for rank, fact in starts.items() if fact.fields["state"] == "meets" and _runs(fact, here)}
    missing = {rank: fact for rank, fact in starts.items() if fact.fields["state"] == "started"}
    own = {rank: fact for rank, fact in missing.items() if fact.fields["host"] == here}
    if not waiting or not own or any(fact.fields["state"] == "met" for fact in starts.values()):
        return None
    waited_s = min(now_s - fact.fields["since_s"] for fact in waiting.values())
    still = all(
        _runs(fact, here) and now_s - fact.fields["alive_s"] < FRESH_S and now_s - fact.fields["worked_s"] >= limit_s
        for fact in own.values()
    )
    if waited_s < limit_s or not still:
        return None
    first = own[min(own)]
    frame = start.own_frame(first) or next(iter(first.fields["frames"]), None)
    place = "an unknown place" if frame is None else f"{Path(frame.file).name}:{frame.line} in {frame.function}"
    late, others = sorted(own), sorted(waiting)
    waited = f"{named(others)} waited in init_process_group for {waited_s:.0f} s for {named(late)}"
    return Verdict("stall", f"{waited}, which stood still at {place}", late, others, attempt=attempt, time_s=now_s)


def pids_on_their_way(paths: RunPaths) -> set[int]:
    """Return the ids of the processes on this host that reported their start."""
    here = socket.gethostname()
    pids = (fact.fields["pid"] for fact in _starts(paths)[1].values() if fact.fields["host"] == here)
    return {pid for pid in pids if isinstance(pid, int)}


def _starts(paths: RunPaths) -> tuple[int, dict[int, LogFact]]:
    """Return the number of the last attempt, and the starts that its ranks reported."""
    folders = [folder for folder in paths.start(0, 0).parent.parent.glob("attempt_*") if folder.name[8:].isdecimal()]
    last = max(folders, key=lambda folder: int(folder.name[8:]), default=None)
    starts: dict[int, LogFact] = {}
    for path in last.glob("rank_*.json") if last else ():
        with suppress(OSError, ValueError):  # It is being written for the first time.
            fact = start.read(path, path.name, Limits())
            if fact.rank is not None:
                starts[fact.rank] = fact
    return int(last.name[8:]) if last else 0, starts


def _runs(fact: LogFact, here: str) -> bool:
    """Whether its process is there; of another host that is not known, so it counts."""
    if fact.fields["host"] != here:
        return True
    try:
        os.kill(fact.fields["pid"], 0)
    except (OSError, TypeError, OverflowError):  # The file may hold anything.
        return False
    return True

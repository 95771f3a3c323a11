"""Chooses among several files of a rank, leaves out other attempts and times, and rejects folders of several jobs."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice, pairwise
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.errors import DiagnosticsError, ErrorRows
from diagnostics.contract.files import open_regular, table_beside
from diagnostics.contract.formatting import UNNAMED, command, first_of
from diagnostics.contract.grouping import grouped
from diagnostics.evidence.budget import disk_bytes
from diagnostics.evidence.dump_agreement import Moments
from diagnostics.evidence.endings import ORDER, ends_a_rank, of_error
from diagnostics.evidence.job.rank_endings import NOTICED_S
from diagnostics.evidence.limits import BLOCK_BYTES, Limits, head, tail
from diagnostics.evidence.logs.patterns import OF_KERNEL, moment, moments
from diagnostics.evidence.model import EarlierAttempt, Evidence, Owner, Problem, RankError
from diagnostics.evidence.reader import Contents, Reader
from diagnostics.evidence.readers import watch
from diagnostics.evidence.readers.error import read as read_error
from diagnostics.evidence.readers.flight import FlightFile
from diagnostics.evidence.readers.log import AFTER_THE_END, ENDED, training_ended
from diagnostics.evidence.readers.nsys import NsysFile
from diagnostics.evidence.readers.ring import RingFile

ERRORS = ErrorRows(__file__, DiagnosticsError)
JOB_S = 90 * 86_400.0
"""Maximum duration of a job: records of different kinds further apart are from different jobs."""
WINDOWS_S = 86_400.0
"""Profiler windows further apart are from one job only if a process is in both."""
APART_S = 12 * 3600.0
"""Lines of a kernel further before or after a job are left out: less may be due to zones that no line tells."""
_FINE_MS = 0.01  # No two ranks make a call in one nanosecond. Coarse clocks, and dumps without calls, show no copy.
_AFTERMATH_S = 1800.0  # Training that goes on for longer after a fault does not end by it.
_NAMED = 4  # Chosen: files, or files of one job, that a message names.
_DIGESTED = 64  # Chosen: blocks of a file that its hash covers, so that traces of gigabytes take no minute.
_ZONE_STEP_S = 1800.0  # Chosen: zones of whole and half hours, of which fewer than of quarters fit by chance.
_HEAD_BYTES = 64 << 10
_ATTEMPT = re.compile(r"(?:^|(.*)/)attempt_(\d{1,6})/")
MOST_REPORTED = 3  # Maximum number of reported attempts before the last one.
_MOST_RANKS = 1024  # Maximum number of error files read per earlier attempt.
_EVENT, _BASE, _RANK = (re.compile("".join(parts).encode()) for parts in table_beside(__file__)["head"].values())
_OF_HOST = re.compile(table_beside(__file__)["of_host"])
_EPOCH_US = 1e15
"""Smaller times are relative to the boot time."""


class Moment(Struct, frozen=True):
    """Time of writing of a file."""

    kind: str
    file: str
    at_s: float
    """Seconds since 1970."""
    rank: int | None = None
    pid: int | None = None


def refuse_mixed(evidence: Evidence, handles: Iterable[Any], last_calls: Iterable[tuple[str, float]]) -> None:
    """Raise DiagnosticsError if two files cannot be from one job.

    `handles` are those of all traces, `last_calls` file and time (s since 1970) of the last call of flight dumps.
    """
    traces = [moment for handle in handles if (moment := _trace(handle)) is not None]
    began = ((file.file, file.began_s()) for file in evidence.handles(NsysFile))
    nsys = [Moment("Nsight export", file, at) for file, at in began if at is not None]
    flight = [Moment("flight dump", file, at) for file, at in last_calls if at > 0]
    first: dict[int, Moment] = {}
    for moment in sorted(traces, key=attrgetter("at_s", "file")):
        if moment.rank is not None and (earlier := first.setdefault(moment.rank, moment)).pid != moment.pid:
            figures = {"rank": moment.rank, "first": earlier.pid, "second": moment.pid}
            raise _of_two(evidence, "several_processes", earlier, moment, **figures)
    _windows(evidence, [*traces, *nsys])
    everything = sorted([*traces, *nsys, *flight], key=attrgetter("at_s", "file"))
    if everything and everything[-1].at_s - everything[0].at_s > JOB_S:
        raise _of_two(evidence, "days_apart", everything[0], everything[-1])


def _trace(handle: Any) -> Moment | None:
    """Return the time of a trace's first event, or None if its clock is unknown."""
    try:
        start = head(handle.path, _HEAD_BYTES)
    except OSError:
        return None
    event, base, stated = _EVENT.search(start), _BASE.search(start), _RANK.search(start)
    if event is None:
        return None
    at_s = float(event[2]) / 1e6 + (int(base[1]) / 1e9 if base else 0.0)
    rank = int(stated[1]) if stated else handle.rank
    return Moment("trace", handle.file, at_s, rank, int(event[1])) if at_s * 1e6 >= _EPOCH_US else None


def _windows(evidence: Evidence, moments: Sequence[Moment]) -> None:
    """Check windows days apart, which are from one job if a process is in both."""
    ordered = sorted(moments, key=attrgetter("at_s", "file"))
    for n, (early, late) in enumerate(pairwise(ordered)):
        if late.at_s - early.at_s <= WINDOWS_S:
            continue
        earlier, later = ({m.pid for m in part if m.pid is not None} for part in (ordered[: n + 1], ordered[n + 1 :]))
        if not earlier & later:
            raise _of_two(evidence, "days_apart", early, late)


def _of_two(evidence: Evidence, row: str, early: Moment, late: Moment, **figures: object) -> DiagnosticsError:
    figures |= {"files": [early.file, late.file], "kinds": [*dict.fromkeys((early.kind, late.kind))]}
    return ERRORS(row, root=evidence.root, days=(late.at_s - early.at_s) / 86_400, **figures)


def one_per_rank(reader: Reader, handles: list[Any], evidence: Evidence) -> list[Any]:
    """Return at most one handle for each rank and group of `Reader.groups`: the largest file.

    DiagnosticsError if several folders contain the same ranks; choosing for each rank would mix jobs.
    """
    if reader.groups is None:
        return handles
    by_rank = grouped((handle.rank, handle) for handle in handles if handle.rank is not None)
    chosen = [handle for handle in handles if handle.rank is None]
    # Two ranks with different files in different folders are not one job with copies.
    spread = (group for group in by_rank.values() if len({handle.path.parent for handle in group}) > 1)
    differ = [group for group in spread if len({_digest(handle.path) for handle in group}) > 1]
    if len(differ) >= 2:
        names = sorted({evidence.relative(handle.path.parent) for group in differ for handle in group})
        own = command("diagnose", evidence.root / names[0])
        raise ERRORS("several_folders", count=len(names), kind=reader.kind, names=first_of(names, _NAMED), command=own)
    for rank in sorted(by_rank):
        for group in reader.groups(by_rank[rank], evidence.run is not None):
            chosen += _choose(group, evidence, reader)
    return _without_copies(chosen, evidence) if reader.has_calls else chosen


def _without_copies(handles: list[Any], evidence: Evidence) -> list[Any]:
    """Return the dumps without those that are copies of another rank's, of which the first is kept."""
    sizes, first, kept = Counter(disk_bytes(handle.path) for handle in handles), dict[str, Any](), list[Any]()
    for handle in sorted(handles, key=lambda file: (file.path.stat().st_mtime, file.rank or 0)):
        own = first.setdefault(_digest(handle.path), handle) if sizes[disk_bytes(handle.path)] > 1 else handle
        times_ms = [last_s * 1e3 for _, last_s in Moments([own]).last_calls] if own.rank != handle.rank else []
        if any(abs(at_ms - round(at_ms)) > _FINE_MS for at_ms in times_ms):
            figures = {"rank": handle.rank, "first": own.rank, "used": own.file}
            evidence.problems.append(Problem(handle.kind, handle.file, "copy_of_rank", figures=figures))
        else:
            kept.append(handle)
    return kept


def refuse_mixed_times(evidence: Evidence, traces: list[Any]) -> None:
    """Raise DiagnosticsError if files cannot be from one job. Add a problem if it is only doubtful.

    Folders that dtk created for a run or a watched command are not checked, as each contains a single job. The traces
    include those replaced by another one of the same rank.
    """
    # With `dtk watch` all dumps are next to the rings of their ranks.
    ringed = {(ring.path.parent, ring.rank) for ring in evidence.handles(RingFile)}
    watched = bool(ringed) and all((dump.path.parent, dump.rank) in ringed for dump in evidence.handles(FlightFile))
    if evidence.run is not None or watched:
        return
    moments = Moments(evidence.handles(FlightFile))
    refuse_mixed(evidence, traces, moments.last_calls)
    evidence.doubt = moments.doubt()


def of_other_times(evidence: Evidence) -> dict[int, str]:
    """Return the kernel's lines that are dated long before or after the job, or long before its last step.

    Others outside of its time are marked as `apart` and decide nothing alone, unless they are of its end in some zone.
    """
    kernel = [fact for fact in evidence.facts if fact.kind in OF_KERNEL]
    if not kernel:
        return {}
    calls = Moments(evidence.handles(FlightFile)).last_calls
    times = [at for fact in evidence.facts if fact.kind == "steps" for at in fact.fields.get("times", ())]
    began, ended = ([last_s for _, last_s in calls if last_s > 0] for _ in range(2))
    began += [min(times)] if times else []
    own = {fact.file for fact in evidence.facts if fact.rank is not None or fact.kind == "steps"}
    for file in (own | {error.file for error in evidence.errors}) - {fact.file for fact in kernel}:
        with suppress(OSError, ValueError):
            dates = moments(head(evidence.root / file, _HEAD_BYTES).decode("utf-8", "replace"))
            is_dated = len({*dates}) > 1  # A single time may be that of the job's begin or end.
            began += [min(dates)] if is_dated else []
            dates = moments(tail(evidence.root / file).decode("utf-8", "replace")) if is_dated else []
            ended.append(max(dates, default=inf))  # Without any, this file may have been written until much later.
    first_s, last_s = min(began, default=0.0), max(ended, default=inf)
    began_s, step_s = (min(times), max(times)) if times and not training_ended(evidence) else (inf, 0.0)
    end_s = max([step_s, *(at for at in ended if at < inf)])
    rows, lists = dict[int, str](), (fact.fields for fact in evidence.facts if fact.kind == "torchrun_list")
    pids = {pid for fields in lists for pid in fields["pids"]}
    for fact in kernel:
        if (at := moment(fact.fields.get("last", fact).text, first_s)) is None:
            continue
        near = [(at - last + NOTICED_S) % _ZONE_STEP_S for last in {step_s, end_s} if last]
        is_of_end = min(near, default=inf) <= 2 * NOTICED_S  # In another zone.
        survived = began_s <= at < step_s - _AFTERMATH_S and not is_of_end
        if survived or not first_s - APART_S <= at <= last_s + APART_S:
            rows[id(fact)] = "survived" if survived else "before" if at < first_s else "after"
        elif (
            began
            and fact.fields.get("pid") not in pids
            and not (first_s - NOTICED_S <= at <= last_s + _AFTERMATH_S or is_of_end)
        ):
            fact.fields["apart"] = True
    return rows


def of_other_hosts(evidence: Evidence) -> dict[int, str]:
    """Return the kernel's lines of hosts on which no rank failed, where ranks failed by themselves on known ones.

    Only names that differ in their numbers alone are compared: a container's is not that of its host. Where a rank was
    killed, only memory that ran out is compared: another node may have failed.
    """
    lists = (fact.fields["host_of"].items() for fact in evidence.facts if fact.kind == "torchrun_list")
    host_of: dict[int | None, str] = dict(chain.from_iterable(lists))
    seen = {*host_of.values(), *(str(fact.fields.get("process", "")).partition(":")[0] for fact in evidence.facts)}
    own = [e for e in evidence.errors if ends_a_rank(e) and of_error(e, UNNAMED).by_itself]
    rows = dict[int, str]()
    for fact in (fact for fact in evidence.facts if fact.kind in OF_KERNEL):
        failed = {host_of.get(e.rank, "") for e in own if e.type or fact.kind == "kernel_oom"}
        if failed and (of := _OF_HOST.match(fact.text)):
            names = {name.partition(".")[0].lower() for name in (seen if "" in failed else failed)} - {""}
            host = of[1].partition(".")[0].lower()
            forms = {re.sub(r"\d+", "0", name) for name in (host, *names)}
            rows |= {id(fact): "elsewhere"} if names and len(forms) == 1 and host not in names else {}
    return rows


def of_after_end(evidence: Evidence) -> dict[int, str]:
    """Return the lines about what ends a job that are below its own line about the end of the training."""
    ended = {fact.file: fact.line for fact in evidence.facts if fact.kind == ENDED}
    is_running = not ended or any(fact.kind == "steps" and fact.file not in ended for fact in evidence.facts)
    ends, after = (fact for fact in evidence.facts if fact.kind in AFTER_THE_END), inf if is_running else 0
    return {id(fact): "ended" for fact in ends if fact.line > ended.get(fact.file, after)}


def leave(evidence: Evidence, rows: Mapping[int, str]) -> None:
    """Remove facts, by their `id`, each with the problem that notes why."""
    for fact in [fact for fact in evidence.facts if id(fact) in rows]:
        figures = {"line": fact.line, "text": fact.text}
        evidence.problems.append(Problem("log", fact.file, rows[id(fact)], harmless=True, figures=figures))
    evidence.facts = [fact for fact in evidence.facts if id(fact) not in rows]


def _choose(group: list[Any], evidence: Evidence, reader: Reader) -> list[Any]:
    """Choose the largest of several files of a rank, or the one with the smallest hash if sizes are equal."""
    if len(group) == 1:
        return group
    digests = {handle.file: _digest(handle.path) for handle in group}
    best, *rest = sorted(group, key=lambda handle: (-disk_bytes(handle.path), digests[handle.file], handle.file))
    others = [handle for handle in rest if digests[handle.file] != digests[best.file]]
    for other in others if evidence.run is None else ():
        if why := reader.contradiction(best, other):
            files = sorted((best.file, other.file))
            raise ERRORS("contradict", root=evidence.root, files=files, rank=best.rank, why=why)
    if others:
        names = sorted(handle.file for handle in others)[:_NAMED]
        figures = {"rank": best.rank, "count": len(others) + 1, "used": best.file, "others": names}
        evidence.problems.append(Problem(reader.kind, best.file, "several_of_rank", figures=figures))
    return [best]


def _digest(path: Path) -> str:
    """Return the hash of a file's raw bytes; for very large files, of the beginning only."""
    import hashlib  # Imported here, as it loads OpenSSL, and few jobs have two files for one rank.

    digest = hashlib.sha256()
    try:
        with open_regular(path) as file:
            for block in islice(iter(partial(file.read, BLOCK_BYTES), b""), _DIGESTED):
                digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()


def set_aside(
    evidence: Evidence, files: Iterable[str], read: list[tuple[Contents, Owner]]
) -> list[tuple[Contents, Owner]]:
    """Return the contents of the last attempt; move errors of earlier ones to `evidence.earlier`.

    Nothing is set aside if no content of the last attempt was read, as its result is then unknown.
    """
    for contents, _ in read:
        by = contents.offset  # Without torchrun's list, local ranks stay local: -1 is local rank 0.
        for number, errors in enumerate(contents.earlier):
            ranked = [e if by is None or (at := e.rank or 0) >= 0 else replace(e, rank=by - 1 - at) for e in errors]
            evidence.earlier.append(EarlierAttempt(number, _first(ranked)))
    if evidence.run is not None:
        evidence.earlier = _of_run(evidence.run.root, evidence.run.attempt, evidence.limits)
        return read
    last = dict(sorted(filter(None, map(_place, files))))
    if not any(last.values()):
        return read
    ended_well = any(fact.kind == watch.ENDED_WELL for contents, _ in read for fact in contents.facts)
    speak = {place[0] for contents, _ in read if (place := _place(contents.file)) and place[1] == last[place[0]]}
    of_last: list[tuple[Contents, Owner]] = []
    earlier: dict[int, list[RankError]] = {}
    for contents, owner in read:
        place = _place(contents.file)
        if place is not None and place[1] < last[place[0]] and (ended_well or place[0] in speak):
            earlier.setdefault(place[1], []).extend(contents.errors)
        elif place is None and ended_well and contents.errors:
            # All attempts write to the launcher's log, which states at the end that the last one succeeded.
            earlier.setdefault(max(last.values()) - 1, []).extend(contents.errors)
        else:
            of_last.append((contents, owner))
    evidence.earlier += [EarlierAttempt(attempt, _first(errors)) for attempt, errors in sorted(earlier.items())]
    return of_last


def _place(file: str) -> tuple[str, int] | None:
    match = _ATTEMPT.match(file)
    return None if match is None else ((match[1] or "").rpartition("/")[0], int(match[2]))


def _of_run(root: Path, attempt: int, limits: Limits) -> list[EarlierAttempt]:
    """Return how the attempts of a dtk run before the last one ended, from their error files."""
    earlier = []
    for number in range(max(0, attempt - MOST_REPORTED), attempt):
        errors, silent = [], []
        for rank in range(_MOST_RANKS):
            path = RunPaths(root).error(number, rank)
            if not path.parent.is_dir() or path.parent.is_symlink():
                break
            silent += [] if path.exists() else [rank]
            with suppress(OSError, ValueError):
                errors.append(read_error(path, str(path.relative_to(root)), rank, limits))
        earlier.append(EarlierAttempt(number, _first(errors), tuple(silent) if errors else ()))
    return earlier


def _first(errors: Iterable[RankError]) -> RankError | None:
    """Return the error of the rank that failed first: causes before consequences, named ranks first, then by time."""

    def order(error: RankError) -> tuple[int, bool, float]:
        rank = UNNAMED if error.rank is None else error.rank
        return ORDER[of_error(error, rank).kind], error.rank is None, error.time_s or 0.0

    return min(filter(ends_a_rank, errors), key=order, default=None)

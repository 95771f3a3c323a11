"""Settles what several files say about the same rank: which dump counts, which errors are one, whose a line is.

Every choice depends on contents only, never on names or the order of a listing.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from diagnostics.errors import DiagnosticsError
from diagnostics.evidence.limits import BLOCK_BYTES
from diagnostics.evidence.logs import LogRead
from diagnostics.evidence.model import Evidence, LogFact, Problem, RankError, Stacks
from diagnostics.evidence.names import Owner
from diagnostics.evidence.same_job import contradiction, far_apart
from diagnostics.invocation import command

_BACKEND = re.compile(rb"\b(nccl|gloo|xccl|hccl|ucc|mpi):[a-z_]")
_BLACK_BOX = b'"recorders"'


class Handle(Protocol):
    """What all handles of large files have."""

    path: Path
    file: str
    rank: int | None


def one_per_rank(name: str, handles: list[Any], heads: dict[str, bytes], evidence: Evidence) -> list[Any]:
    """At most one handle of a kind for each rank; for flight dumps one for each backend.

    A dump with stacks (pickle) is preferred to the same in JSON, both to a black box; then the larger file.

    Raises:
        DiagnosticsError: several folders hold the same ranks: a choice for each rank would mix jobs.
    """
    groups: defaultdict[tuple[int, str], list[Any]] = defaultdict(list)
    kept = []
    for handle in handles:
        if handle.rank is None:
            kept.append(handle)
        else:
            groups[handle.rank, ""].append(handle)
    _refuse_several_jobs(name, groups, evidence)
    for key in sorted(groups):
        kept += _flight(groups[key], heads, evidence) if name == "flight" else _choose(groups[key], evidence, name)
    return kept


def _refuse_several_jobs(kind: str, groups: dict[tuple[int, str], list[Any]], evidence: Evidence) -> None:
    """Raises DiagnosticsError where two or more ranks have different files in different folders."""
    folders: set[Path] = set()
    ranks = 0
    for group in groups.values():
        parents = {handle.path.parent for handle in group}
        if len(parents) > 1 and len({_digest(handle.path) for handle in group}) > 1:
            ranks += 1
            folders |= parents
    if ranks >= 2:
        names = sorted(evidence.relative(folder) for folder in folders)
        shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        what = f"{len(names)} folders hold {kind} files of the same ranks ({shown}): of different jobs or moments"
        raise DiagnosticsError(what, f"name one: {command('diagnose', evidence.root / names[0])}")


def refuse_mixed_times(evidence: Evidence) -> None:
    """Raises DiagnosticsError where the dumps of different ranks are from different days.

    dtk's own folders are not looked at: they are of one job by the way they are made.
    """
    jobs = far_apart(evidence.flight) if evidence.run is None else []
    if len(jobs) > 1:
        parts = " and ".join(f"{job[0].file}{f' and {len(job) - 1} more' if len(job) > 1 else ''}" for job in jobs[:4])
        what = f"{evidence.root} holds files of {len(jobs)} jobs: {parts} issued the same collective over an hour apart"
        raise DiagnosticsError(what, "put each job into a folder of its own")


def _flight(group: list[Any], heads: dict[str, bytes], evidence: Evidence) -> list[Any]:
    """Dumps of one rank: pickles by backend, else JSON, else the black box."""
    if len(group) == 1:
        return group
    forms: defaultdict[int, list[Any]] = defaultdict(list)
    for handle in group:
        start = heads.get(handle.file, b"")
        is_json = start.lstrip()[:1] == b"{"
        forms[2 if is_json and _BLACK_BOX in start else 1 if is_json else 0].append(handle)
    best = forms[min(forms)]
    if evidence.run is not None:  # torch's own watchdog dumps beside dtk's: the same ring, written twice
        best = [handle for handle in best if "watchdog" not in handle.path.name] or best
    backends: defaultdict[bytes, list[Any]] = defaultdict(list)
    for handle in best:
        match = _BACKEND.search(heads.get(handle.file, b""))
        backends[match[1] if match else b""].append(handle)
    return [handle for key in sorted(backends) for handle in _choose(backends[key], evidence, "flight")]


def _choose(group: list[Any], evidence: Evidence, kind: str) -> list[Any]:
    """The larger of several files, then the one with the smaller hash; copies are no contradiction."""
    if len(group) == 1:
        return group
    sized = sorted(
        ((_size(handle.path), _digest(handle.path), handle.file, handle) for handle in group), key=_by_content
    )
    best = sized[0]
    others = sorted(item[2] for item in sized[1:] if item[1] != best[1])
    if kind == "flight" and evidence.run is None:
        for item in sized[1:]:
            if item[1] != best[1] and (why := contradiction(best[3], item[3])):
                files = " and ".join(sorted((best[2], item[2])))
                raise DiagnosticsError(
                    f"{evidence.root} holds files of 2 jobs: {files} are both of rank {best[3].rank}, and {why}",
                    "put each job into a folder of its own",
                )
    if others:
        what = (
            f"rank {best[3].rank} has {len(others) + 1} different files: {best[2]} is used, {', '.join(others[:3])} not"
        )
        evidence.problems.append(Problem(kind.rstrip("s"), best[2], what))
    return [best[3]]


def _by_content(item: tuple[int, str, str, Any]) -> tuple[int, str, str]:
    return -item[0], item[1], item[2]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _digest(path: Path) -> str:
    """Hash of a file's bytes as they lie on disk; of very large ones of their beginning."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            for _ in range(64):
                block = file.read(BLOCK_BYTES)
                if not block:
                    break
                digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()


def settle_ranks(
    evidence: Evidence,
    logs: list[tuple[LogRead, Owner]],
    errors: list[tuple[RankError, Owner]],
    stacks: list[tuple[Stacks, Owner]],
) -> None:
    """Moves records into the evidence, with local ranks made global and NCCL's processes made ranks."""
    owners = [of for _, of in (*logs, *errors, *stacks)]
    newest: dict[str, int] = {}
    for of in owners:
        if of.attempt is not None:
            newest[of.node] = max(newest.get(of.node, 0), of.attempt)
    nodes = {of.node for of in owners if of.local_rank is not None}
    single = len(nodes) <= 1 and _one_node([read for read, _ in logs])
    processes = _processes(logs)
    for read, of in logs:
        if of.attempt is not None and of.attempt < newest[of.node]:
            continue
        offset = read.offset if read.offset is not None else 0 if single else None
        settle = _Settle(offset, of, processes)
        evidence.facts += [replace(fact, rank=settle.rank(fact.rank, fact)) for fact in read.facts]
        evidence.errors += [replace(error, rank=settle.rank(error.rank)) for error in read.errors]
        evidence.stacks += [replace(dump, rank=settle.rank(dump.rank)) for dump in read.stacks]
    whole = 0 if single else None
    for error, of in errors:
        if of.attempt is None or of.attempt >= newest[of.node]:
            evidence.errors.append(replace(error, rank=_Settle(whole, of, {}).rank(error.rank)))
    for dump, of in stacks:
        if of.attempt is None or of.attempt >= newest[of.node]:
            evidence.stacks.append(replace(dump, rank=_Settle(whole, of, {}).rank(dump.rank)))


def _one_node(reads: list[LogRead]) -> bool:
    """Whether torchrun's `[default3]:` can be taken for rank 3: no second node, no rank beyond those of this one."""
    prefixed = [read for read in reads if read.local]
    stated = [fact.fields.get("nranks", 0) for read in reads for fact in read.facts if "nranks" in fact.fields]
    return len(prefixed) <= 1 and all(max(stated, default=0) <= read.local for read in prefixed)


class _Settle:
    """From the rank that a record states to the global one."""

    def __init__(self, offset: int | None, of: Owner, processes: dict[str, int]) -> None:
        self.offset = offset
        self.of = of
        self.processes = processes

    def rank(self, stated: int | None, fact: LogFact | None = None) -> int | None:
        """Stated ones below zero are local: -1 is local rank 0 (see `logs`)."""
        if stated is None and self.of.local_rank is not None:
            stated = -1 - self.of.local_rank
        if stated is None and fact is not None:
            return self.processes.get(str(fact.fields.get("process", "")))
        if stated is not None and stated < 0:
            return None if self.offset is None else -1 - stated + self.offset
        return stated


def _processes(logs: Iterable[tuple[LogRead, Owner]]) -> dict[str, int]:
    """NCCL's `host:pid` -> rank, from the communicators with the most ranks in the whole evidence."""
    known: dict[str, tuple[int, int]] = {}
    for read, _ in logs:
        for process, world in read.processes.items():
            known[process] = max(known.get(process, (0, 0)), world)
    largest = max((ranks for ranks, _ in known.values()), default=0)
    ranked = {process: rank for process, (ranks, rank) in known.items() if ranks == largest}
    return ranked if len(set(ranked.values())) == len(ranked) else {}


def adopt_single(evidence: Evidence) -> None:
    """Gives what a log without any rank says to rank 0 where nothing tells of a second process."""
    told: list[RankError | LogFact] = [*evidence.errors, *evidence.facts]
    others: list[Any] = [*evidence.flight, *evidence.rings, *evidence.traces, *evidence.snapshots, *evidence.stacks]
    ranks = {one.rank for one in (*others, *told)} - {None, 0}
    files = {one.file for one in told if one.rank is None}
    if evidence.run is not None or (evidence.world_size or 1) > 1 or ranks or len(files) != 1:
        return
    if not any(error.rank is None and error.type for error in evidence.errors):
        return
    evidence.errors = merge_errors([replace(error, rank=0) for error in evidence.errors])
    evidence.facts = [replace(fact, rank=0) for fact in evidence.facts]


def merge_errors(errors: list[RankError]) -> list[RankError]:
    """One record where several files tell of the same end; by rank, then by time.

    A traceback in a log repeats the error file, torchrun's list and dtk's status repeat both: the fullest is
    kept and given the exit code, signal, step and time that only another has.
    """
    by_rank: defaultdict[int | None, list[RankError]] = defaultdict(list)
    for error in sorted(errors, key=_fullness):
        if error.rank is None:
            alike = (other for other in by_rank[None] if (other.type, other.signal) == (error.type, error.signal))
            if not any(_words(other.message) == _words(error.message) for other in alike):
                by_rank[None].append(error)
            continue
        known = by_rank[error.rank]
        index = next((i for i, other in enumerate(known) if _same(error, other)), None)
        if index is None:
            known.append(error)
        else:
            known[index] = _joined(known[index], error)
    merged = [error for group in by_rank.values() for error in group]
    return sorted(
        merged,
        key=lambda e: (
            e.rank is None,
            e.rank or 0,
            e.time_s is None,
            e.time_s or 0.0,
            e.file,
            e.line,
            e.type,
            e.message,
        ),
    )


def adopt(evidence: Evidence) -> None:
    """Gives the last words of an aborting process, which carry no prefix, to the one rank that died by that signal."""
    signals: defaultdict[str, set[int]] = defaultdict(set)
    for error in evidence.errors:
        if error.rank is not None and error.signal is not None:
            signals[error.signal].add(error.rank)
    only = {signal: ranks.copy().pop() for signal, ranks in signals.items() if len(ranks) == 1}
    homeless = [error for error in evidence.errors if error.rank is None and error.signal in only]
    if not homeless:
        return
    ranks = {(error.file, error.signal): only[error.signal] for error in homeless if error.signal}
    evidence.errors = merge_errors(
        [replace(e, rank=only[e.signal]) if e in homeless and e.signal else e for e in evidence.errors]
    )
    frames = {error.frames: only[error.signal] for error in homeless if error.frames and error.signal}
    evidence.stacks = [
        replace(dump, rank=next((frames[t.frames] for t in dump.threads if t.frames in frames), None))
        if dump.rank is None
        else dump
        for dump in evidence.stacks
    ]
    evidence.facts = [
        replace(fact, rank=ranks.get((fact.file, "SIGABRT")))
        if fact.rank is None and fact.kind == "gloo_mismatch"
        else fact
        for fact in evidence.facts
    ]


def _fullness(error: RankError) -> tuple[Any, ...]:
    """Fullest first: with a type, with frames, from a file of its own."""
    own_file = error.line == 0 and error.file != "status.json"
    return (not error.type, not error.frames, not own_file, error.file, error.line, error.type, error.message)


def _same(error: RankError, other: RankError) -> bool:
    """Whether two records may tell of one end: the same exception, or one says only how the process ended."""
    if error.type and other.type:
        one, two = _words(error.message), _words(other.message)
        return error.type == other.type and (one.startswith(two[:60]) or two.startswith(one[:60]))
    if error.type or other.type:
        bare = other if error.type else error
        return bare.signal is None or bare.signal == "SIGABRT"
    return error.signal == other.signal or not (error.signal and other.signal)


def _words(text: str) -> str:
    return " ".join(text.split())


def _joined(full: RankError, other: RankError) -> RankError:
    return replace(
        full,
        frames=full.frames or other.frames,
        signal=full.signal or other.signal,
        exit_code=other.exit_code if full.exit_code is None else full.exit_code,
        time_s=other.time_s if full.time_s is None else full.time_s,
        step=other.step if full.step is None else full.step,
        region=full.region or other.region,
    )

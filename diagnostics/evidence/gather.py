"""Walks a path and builds the Evidence: what is there, whose it is, what could not be used, how many ranks there are.

Large files are only recognised here; their readers load them later. Decides nothing about the job.
"""

import difflib
import stat
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from diagnostics.contract.errors import DiagnosticsError
from diagnostics.contract.invocation import command
from diagnostics.evidence import run_folder, safe_pickle
from diagnostics.evidence.job import world_size
from diagnostics.evidence.job.assign_ranks import adopt, adopt_listed, adopt_single, launched, settle_ranks
from diagnostics.evidence.job.choose import one_per_rank, refuse_mixed_times
from diagnostics.evidence.job.merge_errors import merge_errors
from diagnostics.evidence.job.owner import Owner, owner
from diagnostics.evidence.limits import Limits, head, is_deeper, whole
from diagnostics.evidence.model import Evidence, Problem, RankError, Stacks, rank_in_name
from diagnostics.evidence.readers import error as error_file
from diagnostics.evidence.readers import log as logs
from diagnostics.evidence.readers import start as start_file
from diagnostics.evidence.readers import watch
from diagnostics.evidence.readers.flight import FlightFile
from diagnostics.evidence.readers.nsys import NsysFile
from diagnostics.evidence.readers.ring import RingFile
from diagnostics.evidence.readers.snapshot import SnapshotFile
from diagnostics.evidence.readers.timeline import TimelineFile
from diagnostics.evidence.recognise import LOOKED_FOR, Kind, kind_of, named_like_a_log
from diagnostics.evidence.stacks import dumps as stacks
from diagnostics.evidence.trace.model import TraceFile
from diagnostics.evidence.walk import Walk
from diagnostics.runs.find import NoSuchRunError, find_run

QUIET_S = 2.0
"""Nothing is said about the progress of a shorter gathering."""
EVERY_S = 0.5
NAMED = 8
"""Files without evidence that are named; the others are counted."""
MAX_FOREIGN_PICKLE_BYTES = 16 << 20
"""Pickles that no reader knows are looked into only to say what they would have run."""

_HANDLES = {
    "flight": ("flight", FlightFile),
    "ring": ("rings", RingFile),
    "nsys": ("nsys", NsysFile),
    "trace": ("traces", TraceFile),
    "snapshot": ("snapshots", SnapshotFile),
    "timeline": ("timelines", TimelineFile),
    "telemetry": ("telemetry", TimelineFile),
}


def gather(path: Path, limits: Limits, progress: Callable[[str], None] | None = None) -> Evidence:
    """Everything below a path (a folder or one file) that is evidence.

    Args:
        path: a run folder of dtk, any other folder, or one file.
        limits: on untrusted files.
        progress: told what was found so far, twice a second once it takes over two seconds.

    Raises:
        DiagnosticsError: there is no such path, or nothing in it can be used.
    """
    target = _target(path)
    is_folder = target.is_dir()
    root = target if is_folder else target.parent
    evidence = Evidence(root=root, limits=limits)
    if is_folder and run_folder.is_run(root):
        evidence.run = run_folder.read(root, limits, evidence.problems)
    elif is_folder and (runs := run_folder.runs_in(root)):
        named = command("diagnose", path / runs[-1])
        raise DiagnosticsError(f"{path} holds {len(runs)} run{'s' if len(runs) > 1 else ''}", f"name one: {named}")
    gathering = _Gathering(evidence, progress)
    if is_folder:
        walk = Walk(root, limits, evidence.problems, _skipped(evidence))
        for file in walk.files():
            gathering.take(file)
    else:
        walk = Walk(root, limits, evidence.problems, seen=Counter({target.suffix.lower() or "without an ending": 1}))
        gathering.take(target)
    gathering.finish()
    _refuse_nothing(path, evidence, walk.seen, gathering.counts["log"], gathering.empty)
    gathering.tell_foreign()
    return evidence


def _target(path: Path) -> Path:
    """The path without links, if it is a folder or a regular file.

    Raises:
        DiagnosticsError: it is not.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as problem:
        if isinstance(problem, PermissionError):
            raise DiagnosticsError(f"{path} cannot be read: {problem.strerror}") from problem
        raise DiagnosticsError(f"{path} does not exist", _did_you_mean(path)) from problem
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise DiagnosticsError(f"{path} is neither a folder nor a file")
    target = path.resolve()
    try:
        next(target.iterdir(), None) if stat.S_ISDIR(mode) else target.open("rb").close()
    except OSError as problem:
        raise DiagnosticsError(f"{path} cannot be read: {problem.strerror or problem}") from problem
    return target


def _did_you_mean(path: Path) -> str:
    try:
        return f"did you mean {find_run(str(path))}?"
    except (NoSuchRunError, OSError, ValueError):
        pass
    for folder in (path.parent, Path("runs")):
        try:
            names = [entry.name for entry in folder.iterdir()]
        except (OSError, ValueError):
            continue
        close = difflib.get_close_matches(path.name, sorted(names), n=1)
        if close:
            return f"did you mean {folder / close[0]}?"
    return ""


def _skipped(evidence: Evidence) -> frozenset[str]:
    """Folders of a run that are read otherwise, and the logs of earlier attempts."""
    if evidence.run is None:
        return frozenset()
    earlier = (f"logs/attempt_{attempt}" for attempt in range(min(evidence.run.attempt, 10_000)))
    return run_folder.SKIPPED | frozenset(earlier)


def _refuse_nothing(path: Path, evidence: Evidence, seen: Counter[str], logs_read: int, empty: int) -> None:
    """Raises DiagnosticsError when there is nothing to go by."""
    lists = (evidence.flight, evidence.rings, evidence.traces, evidence.nsys, evidence.snapshots, evidence.timelines)
    if evidence.run is not None or any(lists) or evidence.stacks or evidence.errors or evidence.facts:
        return
    if evidence.problems:
        hint = f"looked for {LOOKED_FOR}" if all(one.what == "it is empty" for one in evidence.problems) else ""
        first = sorted(evidence.problems, key=lambda problem: problem.file)[0]
        more = f" (and {len(evidence.problems) - 1} more files)" if len(evidence.problems) > 1 else ""
        raise DiagnosticsError(f"nothing in {path} can be used: {first.file}: {first.what}{more}", hint)
    if not seen:
        raise DiagnosticsError(f"{path} is empty", f"looked for {LOOKED_FOR}")
    if logs_read:
        few = "1 log was" if logs_read == 1 else f"{logs_read:,} logs were"
        raise DiagnosticsError(
            f"no evidence in {path}: found {_found(seen, empty)}; {few} read, and no line of "
            f"{'it' if logs_read == 1 else 'them'} is known to be trouble; that alone does not show what a run did",
            f"add other evidence: {LOOKED_FOR.replace(', logs', '')}",
        )
    raise DiagnosticsError(f"no evidence in {path}: found {_found(seen, empty)}", f"looked for {LOOKED_FOR}")


def _found(seen: Counter[str], empty: int) -> str:
    """`5 .log, 2 without an ending, all of them empty`"""
    ordered = sorted(seen.items(), key=lambda item: (-item[1], item[0]))
    parts = [f"{count:,} {ending}" for ending, count in ordered[:6]]
    rest = sum(count for _, count in ordered[6:])
    parts += [f"{rest:,} others"] if rest else []
    if empty:
        whole = empty == seen.total()
        parts.append(("which is empty" if empty == 1 else "all of them empty") if whole else f"{empty:,} of them empty")
    return ", ".join(parts)


@dataclass(slots=True)
class _Gathering:
    """Takes file after file and settles at the end what needs all of them."""

    evidence: Evidence
    progress: Callable[[str], None] | None
    read: list[tuple[logs.LogRead, Owner]] = field(default_factory=list)
    ends: list[tuple[RankError, Owner]] = field(default_factory=list)
    dumps: list[tuple[Stacks, Owner]] = field(default_factory=list)
    owners: set[Owner] = field(default_factory=set)
    claims: world_size.Claims = field(default_factory=world_size.Claims)
    heads: dict[str, bytes] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    foreign: list[str] = field(default_factory=list)
    """Files that hold no evidence, though their names allow it."""
    looked: int = 0
    empty: int = 0
    began_s: float = field(default_factory=time.monotonic)
    said_s: float = 0.0

    def take(self, path: Path) -> None:
        """One file; whatever is wrong with it ends as a problem."""
        self._say()
        self.looked += 1
        file = self.evidence.relative(path)
        kind: Kind = "none"
        try:
            start = head(path)
            kind = kind_of(path, start)
            self._take(path, file, kind, start)
        except (OSError, ValueError) as problem:
            what = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
            self._problem("file" if kind in ("none", "pickle") else kind, file, what or type(problem).__name__)

    def _take(self, path: Path, file: str, kind: Kind, start: bytes) -> None:
        limits = self.evidence.limits
        of = owner(Path(file))
        self.owners.add(of)
        if kind in _HANDLES:
            name, handle = _HANDLES[kind]
            rank = rank_in_name(path) if kind != "trace" or "rank" in path.name.lower() else None
            getattr(self.evidence, name).append(handle(path=path, file=file, rank=rank, limits=limits))
            self.claims.of_head(kind, file, start)
            self.heads[file] = start[:4096] if kind == "flight" else b""
        elif kind == "error":
            self.ends.append((error_file.read(path, file, of.rank, limits), of))
        elif kind == "stacks":
            self.dumps += [(dump, of) for dump in stacks.read(path, file, of.rank, limits)]
        elif kind == "start":
            self.read.append((logs.LogRead(file, [start_file.read(path, file, limits)]), of))
        elif kind == "watch":
            self.read.append((logs.LogRead(file, [watch.read(path, file, limits)]), of))
        elif kind == "log":
            self._log(path, file, of, start)
        elif kind == "pickle":
            self._foreign_pickle(path, file)
        elif kind == "none" and is_deeper(start, limits):
            self._problem("file", file, f"JSON nested over {limits.depth} levels: not read")
        self.empty += kind == "empty"
        if kind in ("none", "empty") and path.parent.name not in run_folder.SKIPPED:
            self.foreign.append(file)
        if kind == "empty" and path.suffix.lower() in (".pickle", ".pkl", ".json", ".gz", ".sqlite", ".ring"):
            self._problem("file", file, "it is empty")
        if kind not in ("none", "empty", "pickle"):
            self.counts[kind] += 1

    def _log(self, path: Path, file: str, of: Owner, start: bytes) -> None:
        limits = self.evidence.limits
        size = path.stat().st_size
        if size > limits.whole_bytes and not named_like_a_log(path):
            self._problem("log", file, f"text of {size >> 20} MiB that is not named like a log: not read")
            return
        read = logs.read(path, file, of.rank, limits, start)
        if read.problem and (read or named_like_a_log(path)):
            self._problem("log", file, read.problem)
        if read.dropped:
            self._problem("log", file, f"{read.dropped:,} more lines of known kinds were not kept")
        if read:
            self.read.append((read, of))
        elif not named_like_a_log(path):
            self.foreign.append(file)

    def _foreign_pickle(self, path: Path, file: str) -> None:
        """Of no kind that is known; a refusal is worth a line."""
        if path.stat().st_size > MAX_FOREIGN_PICKLE_BYTES:
            return
        try:
            safe_pickle.loads(whole(path, self.evidence.limits), self.evidence.limits)
        except ValueError as problem:
            if "refused" not in str(problem) and path.suffix.lower() not in (".pickle", ".pkl", ""):
                return
            raise
        self._problem("file", file, "a pickle of something else")

    def finish(self) -> None:
        """Ranks, duplicates, world size and environment, in an order that no name and no listing decides."""
        evidence = self.evidence
        traces = list(evidence.traces)
        for name, _ in _HANDLES.values():
            handles = getattr(evidence, name)
            chosen = one_per_rank(name, handles, self.heads, evidence) if name != "nsys" else handles
            chosen.sort(key=lambda handle: (handle.rank is None, handle.rank or 0, handle.file))
            setattr(evidence, name, chosen)
        settle_ranks(evidence, self.read, self.ends, self.dumps)
        evidence.launched = launched(self.owners, self.read)
        failure = run_folder.failure_error(evidence.run.status) if evidence.run else None
        evidence.errors = merge_errors([*evidence.errors, *([failure] if failure else [])])
        adopt(evidence)
        adopt_listed(evidence)
        evidence.facts.sort(key=lambda fact: (fact.rank is None, fact.rank or 0, fact.file, fact.line, fact.kind))
        evidence.stacks.sort(key=lambda dump: (dump.rank is None, dump.rank or 0, dump.file, dump.time_s or 0.0))
        refuse_mixed_times(evidence, traces)
        world_size.settle(evidence, self.claims)
        adopt_single(evidence)
        world_size.environment(evidence)
        evidence.problems.sort(key=lambda problem: (problem.kind, problem.file, problem.what))

    def tell_foreign(self) -> None:
        """One note on all files that hold no evidence; a run of dtk has such files of its own."""
        told = {problem.file for problem in self.evidence.problems}
        files = sorted(set(self.foreign) - told)
        if files and self.evidence.run is None:
            some = f" and {len(files) - NAMED:,} more" if len(files) > NAMED else ""
            what = f"no evidence in {', '.join(files[:NAMED])}{some}"
            self.evidence.problems.append(Problem("file", "", what, harmless=True))

    def _problem(self, kind: str, file: str, what: str) -> None:
        self.evidence.problems.append(Problem(kind, file, what))

    def _say(self) -> None:
        now = time.monotonic()
        if self.progress is None or now - self.began_s < QUIET_S or now - self.said_s < EVERY_S:
            return
        self.said_s = now
        found = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.counts.items())) or "no evidence yet"
        self.progress(f"looked at {self.looked:,} files: {found}")

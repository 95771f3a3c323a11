"""Walks a path and builds the Evidence: files, their ranks, the unusable ones, and the number of ranks."""

import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from diagnostics.contract.errors import DiagnosticsError, ErrorRows
from diagnostics.contract.files import open_regular, table_beside
from diagnostics.contract.formatting import command
from diagnostics.contract.suggest import nearest
from diagnostics.evidence import safe_pickle
from diagnostics.evidence.budget import budget, disk_bytes, failure
from diagnostics.evidence.job import assign_ranks, choose, pairs, run_folder
from diagnostics.evidence.job.assign_ranks import Claims
from diagnostics.evidence.job.registry import LOG, Unreadable, reader_of, readers, suffixes, titles
from diagnostics.evidence.limits import EmptyFileError, Limits, head, is_deeper, whole
from diagnostics.evidence.model import Evidence, LogFact, Owner, Problem, owner
from diagnostics.evidence.reader import Contents, Reader, Source
from diagnostics.evidence.readers.log import is_named_like_a_log
from diagnostics.evidence.readers.trace import TraceFile
from diagnostics.runs.find import NoSuchRunError, find_run

_errors = ErrorRows(__file__, DiagnosticsError)
QUIET_S = 2.0
"""Progress is not reported for shorter gathering."""
EVERY_S = 0.5
NAMED = 8
"""Number of files without evidence that are named; the others are counted."""
LONG_HEAD_BYTES = 1 << 20
"""Bytes read to identify a JSON object: exporters may write other tables before the events of a trace."""
_LOOSE = {"non_finite_loss", "host_work", "host_progress"}  # Kinds of lines that a sentence about training may match.
MAX_FOREIGN_PICKLE_BYTES = 16 << 20
"""Unknown pickles up to this size are inspected, only to report what they would have executed."""
SKIPPED_FOLDERS, _NEVER = (frozenset[str](table_beside(__file__)[name]) for name in ("skipped_folders", "never"))
_NEVER_NAMES = re.compile(r"events\.out\.tfevents|^\.|^(?:merges|vocab)\.txt$|^requirements.*\.txt$|^LICENSE|^README")
_TEXT = frozenset({".log", ".txt"})
_NUMBER = re.compile(r"\d+")


def gather(path: Path, limits: Limits, progress: Callable[[str], None] | None = None) -> Evidence:
    """Read all evidence below a path; `progress` is called twice a second after the first two seconds.

    DiagnosticsError if the path does not exist, or has no usable evidence.
    """
    target = _target(path)
    is_folder = target.is_dir()
    root = target if is_folder else target.parent
    evidence = Evidence(root=root, limits=limits)
    if is_folder and run_folder.is_run(root):
        evidence.run = run_folder.read(root, limits, evidence.problems)
    elif is_folder and (runs := run_folder.runs_in(root)):
        named = command("diagnose", path / runs[-1])
        raise _errors("several_runs", path=path, count=len(runs), named=named)
    gathering = _Gathering(evidence, progress)
    if is_folder:
        skipped: frozenset[str] = frozenset()
        if evidence.run is not None:  # Folders that are read separately, and the logs of earlier attempts.
            earlier = min(evidence.run.attempt, 10_000)
            skipped = run_folder.SKIPPED.union(f"logs/attempt_{attempt}" for attempt in range(earlier))
        walk = Walk(root, limits, evidence.problems, skipped)
        for file in walk.files():
            gathering.take(file)
    else:
        walk = Walk(root, limits, evidence.problems, seen=Counter({target.suffix.lower() or "without an ending": 1}))
        gathering.take(target)
    with budget(limits, evidence.disk_bytes):
        gathering.finish()
    _refuse_nothing(path, evidence, walk.seen, gathering.counts[LOG], gathering.empty)
    gathering.tell_foreign()
    return evidence


def _target(path: Path) -> Path:
    """Return the resolved path if it is a folder or a regular file."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as problem:
        if isinstance(problem, PermissionError):
            raise _errors("unreadable", path=path, why=problem.strerror) from problem
        near = _near(path)
        raise _errors("absent_near" if near else "absent", path=path, near=near) from problem
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise _errors("neither", path=path)
    target = path.resolve()
    try:
        next(target.iterdir(), None) if stat.S_ISDIR(mode) else open_regular(target).close()
    except OSError as problem:
        raise _errors("unreadable", path=path, why=problem.strerror or str(problem)) from problem
    return target


def _near(path: Path) -> str:
    """Return the path that was meant, probably; empty if there is none like it."""
    with suppress(NoSuchRunError, OSError, ValueError):
        return str(find_run(str(path)))
    for folder in (path.parent, Path("runs")):
        with suppress(OSError, ValueError):
            if near := nearest(path.name, [entry.name for entry in folder.iterdir()], limit=1, dot="/"):
                return str(folder / near[0])
    return ""


def _refuse_nothing(path: Path, evidence: Evidence, counts: Counter[str], logs_read: int, empty: int) -> None:
    if evidence.run is not None or any(evidence.files.values()) or evidence.stacks or evidence.errors or evidence.facts:
        return
    if evidence.problems:
        first, *more = sorted(evidence.problems, key=lambda problem: problem.file)
        row = "all_empty" if all(problem.reason == "empty" for problem in evidence.problems) else "unusable"
        raise _errors(f"{row}_more" if more else row, path=path, first=first, more=len(more), titles=titles())
    if not counts:
        raise _errors("empty", path=path, titles=titles())
    if logs_read:
        evidence.facts.append(LogFact("nothing_known", None, path.name, 0, "", {"logs": logs_read}))
        return
    row = "not_recognized" if path.is_file() and not empty else "no_evidence"
    raise _errors(row, path=path, found=_contents_text(counts, empty), titles=titles())


def _contents_text(counts: Counter[str], empty: int) -> str:
    """Summarize the files: `5 .log, 2 without an ending, all of them empty`."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    parts = [f"{count:,} {ending}" for ending, count in ordered[:6]]
    rest = sum(count for _, count in ordered[6:])
    parts += [f"{rest:,} others"] if rest else []
    if empty:
        whole = empty == counts.total()
        parts.append(("which is empty" if empty == 1 else "all of them empty") if whole else f"{empty:,} of them empty")
    return ", ".join(parts)


class _Gathering(Struct):
    """Collects file by file; resolves at the end what depends on all of them."""

    evidence: Evidence
    progress: Callable[[str], None] | None
    read: list[tuple[Contents, Owner]] = field(default_factory=list)
    owners: set[Owner] = field(default_factory=set)
    claims: Claims = field(default_factory=Claims)
    counts: Counter[str] = field(default_factory=Counter)
    foreign: list[str] = field(default_factory=list)
    """Files without evidence, though their names match."""
    files: list[str] = field(default_factory=list)
    """Every file, relative to the root."""
    empty: int = 0
    began_s: float = field(default_factory=time.monotonic)
    reported_s: float = 0.0

    def take(self, path: Path) -> None:
        """Read one file; errors become problems."""
        now_s = time.monotonic()
        if self.progress is not None and now_s - self.began_s >= QUIET_S and now_s - self.reported_s >= EVERY_S:
            self.reported_s = now_s
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.counts.items())) or "no evidence yet"
            self.progress(f"looked at {len(self.files):,} files: {kinds}")
        file = self.evidence.relative(path)
        self.files.append(file)
        kind = "file"
        size_bytes = disk_bytes(path)
        self.evidence.disk_bytes += size_bytes
        try:
            with budget(self.evidence.limits, size_bytes):
                start = head(path)
                reader = reader_of(path, start)
                if reader == "none" and start.startswith(b"{"):
                    start = head(path, LONG_HEAD_BYTES)
                    reader = reader_of(path, start)
                if isinstance(reader, Reader):
                    kind = reader.kind
                    self._read(reader, Source(path, file, start, self.evidence.limits, owner(Path(file))))
                else:
                    self._cannot_read(path, file, reader, start)
        except (OSError, ValueError) as problem:
            what = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
            reason: Literal["", "empty"] = "empty" if isinstance(problem, EmptyFileError) else ""
            self._problem(kind, file, what or type(problem).__name__, reason)
        except Exception as problem:
            self._problem(kind, file, "reader_failed", why=failure(problem))

    def _read(self, reader: Reader, source: Source) -> None:
        self.owners.add(source.owner)
        size = reader.world_size(source.head)
        contents = reader.open(source)
        self.evidence.files.setdefault(reader.kind, []).extend(contents.handles)
        if size is not None:
            self.claims.add_of_rank(size, source.file)
        if contents.problem:
            self._problem(reader.kind, source.file, contents.problem)
        if contents.dropped:
            self._problem(reader.kind, source.file, "not_kept", count=contents.dropped)
        named, prose = is_named_like_a_log(source.path), is_ruled_out(source.path)
        loose = {fact.kind for fact in contents.facts} <= _LOOSE and not (contents.errors or contents.handles)
        if (loose and prose) or not (contents or named):
            self.foreign.append(source.file)
            return
        if contents.facts or contents.errors or contents.stacks:
            self.read.append((contents, source.owner))
        self.counts[reader.kind] += 1

    def _cannot_read(self, path: Path, file: str, what: Unreadable, start: bytes) -> None:
        self.owners.add(owner(Path(file)))
        if what == "pickle":
            self._foreign_pickle(path, file)
            return
        if what == "none" and is_deeper(start, self.evidence.limits):
            self._problem("file", file, "too_deep", depth=self.evidence.limits.depth)
        self.empty += what == "empty"
        if path.parent.name not in run_folder.SKIPPED:
            self.foreign.append(file)
        if what == "empty" and path.suffix.lower() in suffixes():
            self._problem("file", file, str(EmptyFileError()), "empty")

    def _foreign_pickle(self, path: Path, file: str) -> None:
        """Inspect a pickle of unknown kind; report rejected content."""
        if path.stat().st_size > MAX_FOREIGN_PICKLE_BYTES:
            return
        try:
            safe_pickle.loads(whole(path, self.evidence.limits), self.evidence.limits)
        except ValueError as problem:
            if not isinstance(problem, safe_pickle.RefusedError) and path.suffix.lower() not in (".pickle", ".pkl", ""):
                return
            raise
        self._problem("file", file, "other_pickle")

    def finish(self) -> None:
        """Resolve ranks, duplicates, world size and environment, independent of the order of names and listings."""
        evidence = self.evidence
        traces = list(evidence.handles(TraceFile))
        for reader in readers():
            if handles := evidence.files.get(reader.kind):
                chosen = choose.one_per_rank(reader, handles, evidence)
                chosen.sort(key=lambda handle: (handle.rank is None, handle.rank or 0, handle.file))
                evidence.files[reader.kind] = chosen
        self.read = choose.set_aside(evidence, self.files, self.read)
        pairs.take_back([contents for contents, _ in self.read])
        assign_ranks.assign_ranks(evidence, self.read)
        evidence.launched = assign_ranks.launched(self.owners, self.read)
        failure = run_folder.failure_error(evidence.run.status) if evidence.run else None
        evidence.errors = assign_ranks.merge_errors([*evidence.errors, *([failure] if failure else [])])
        assign_ranks.adopt(evidence)
        assign_ranks.adopt_listed(evidence)
        assign_ranks.adopt_spied(evidence)
        evidence.facts.sort(key=lambda fact: (fact.rank is None, fact.rank or 0, fact.file, fact.line, fact.kind))
        evidence.stacks.sort(key=lambda dump: (dump.rank is None, dump.rank or 0, dump.file, dump.time_s or 0.0))
        choose.refuse_mixed_times(evidence, traces)
        rows = choose.of_other_times(evidence) | choose.of_other_hosts(evidence) | choose.of_after_end(evidence)
        choose.leave(evidence, rows)
        assign_ranks.settle_world_size(evidence, self.claims)
        assign_ranks.adopt_single(evidence)
        assign_ranks.take_environment(evidence)
        evidence.problems.sort(key=lambda problem: (problem.kind, problem.file, problem.what))

    def tell_foreign(self) -> None:
        """Add one note on all files without evidence, except for those that dtk's runs write."""
        files = sorted(set(self.foreign) - {problem.file for problem in self.evidence.problems})
        if files and self.evidence.run is None:
            about, figures = "foreign_more" if len(files) > NAMED else "foreign_files", {"files": files[:NAMED]}
            self.evidence.problems.append(
                Problem("file", "", about, harmless=True, figures={**figures, "more": len(files) - NAMED})
            )

    def _problem(self, kind: str, file: str, about: str, reason: Literal["", "empty"] = "", **figures: object) -> None:
        self.evidence.problems.append(Problem(kind, file, about, reason=reason, figures=figures))


def is_ruled_out(path: Path) -> bool:
    """Whether the name alone says that a file is no evidence."""
    return path.suffix.lower() in _NEVER or bool(_NEVER_NAMES.search(path.name))


class Walk(Struct):
    """One pass over all files below `root`."""

    root: Path
    limits: Limits
    problems: list[Problem]
    skipped: frozenset[str] = frozenset()
    """Paths relative to the root that are not entered."""
    seen: Counter[str] = field(default_factory=Counter)
    """Files by ending, those included that the name ruled out."""

    def files(self) -> Iterator[Path]:
        """Every file that may be evidence."""
        folders = [self.root]
        while folders:
            folder = folders.pop()
            inner = []
            try:
                with os.scandir(folder) as listing:
                    entries = sorted(listing, key=lambda entry: entry.name)
            except OSError as problem:
                self._problem(folder, "cannot_list", why=problem.strerror or str(problem))
                continue
            files: set[str] = set()
            for entry in entries:
                with suppress(OSError):
                    files |= {_NUMBER.sub("#", entry.name)} if entry.is_file(follow_symlinks=False) else set()
            for entry in entries:
                path = Path(entry.path)
                kind = self._kind(entry, path)
                if kind == "folder":
                    inner.append(path)
                    if path.suffix.lower() in suffixes() | _TEXT or (
                        "#" in (like := _NUMBER.sub("#", entry.name)) and like in files
                    ):
                        self._problem(path, "folder_for_file")
                elif kind == "file":
                    if self.seen.total() >= self.limits.files:
                        self._problem(self.root, "too_many_files", most=self.limits.files)
                        return
                    self.seen[path.suffix.lower() or "without an ending"] += 1
                    if not is_ruled_out(path):
                        yield path
            folders += reversed(inner)

    def _kind(self, entry: os.DirEntry[str], path: Path) -> str:
        """`folder`, `file`, or `""` for what is left out."""
        try:
            if entry.is_symlink():
                # A link that stays within the folder is no loss: its target is found without it.
                try:
                    if not path.resolve(strict=True).is_relative_to(self.root):
                        self._problem(path, "link_out")
                except (OSError, RuntimeError):
                    self._problem(path, "link_nowhere")
                return ""
            if entry.is_dir(follow_symlinks=False):
                name = str(path.relative_to(self.root))
                return "" if entry.name in SKIPPED_FOLDERS or name in self.skipped else "folder"
            mode = entry.stat(follow_symlinks=False).st_mode
            if not stat.S_ISREG(mode):
                if not stat.S_ISSOCK(mode):  # Sockets lie about in many folders, and nobody writes evidence into one.
                    self._problem(path, "named_pipe" if stat.S_ISFIFO(mode) else "device_file")
                return ""
            return "file"
        except OSError as problem:
            self._problem(path, "cannot_read", why=problem.strerror or str(problem))
            return ""

    def _problem(self, path: Path, about: str, **figures: object) -> None:
        self.problems.append(Problem("file", str(path.relative_to(self.root)), about, figures=figures))

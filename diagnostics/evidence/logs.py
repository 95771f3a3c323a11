"""Reads a log of any size once: known facts, tracebacks, stacks and the launcher's list of failures.

Streams with bounded memory; what repeats is counted. Which rank a line is about comes from its prefix, else
from the text, else from NCCL's process names, else from the file. Decides nothing.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnostics.evidence import stacks as stack_dumps
from diagnostics.evidence import tracebacks
from diagnostics.evidence.errors_files import FailureTable, fatal_error, launcher_only, signal_of
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.log_fields import Pattern, decode
from diagnostics.evidence.log_lines import Line, LineReader, is_labelled, split
from diagnostics.evidence.log_patterns import TABLE
from diagnostics.evidence.model import LogFact, RankError, Stacks, shortened

PER_KIND_AND_RANK = 64
PER_KIND = 20_000
"""Different facts that are kept; the rest is only counted."""
MAX_ERRORS = 2000
MAX_STACKS = 4096
MAX_STREAMS = 4096
"""Writers in one log whose tracebacks are followed at the same time."""
TEXT = 400
"""Characters of a line that a fact keeps."""
MATCHED = 4096
"""Characters of a line that patterns see: what they take is at most quadratic in it."""

_STRUCTURE = (
    b"Traceback (most recent call last)",
    b"(most recent call first)",
    b"Fatal Python error",
    b"  exitcode  :",
    b"  time      :",
    b" (active",
    b" (idle",
    b"terminated with the following error",
    b"# stacks at ",
    b"Last error:",
)
WORDS = tuple(dict.fromkeys((*(pattern.word for pattern in TABLE), *_STRUCTURE)))
_PROGRESS = re.compile(
    r"\b(?:step|iter(?:ation)?|epoch|batch)\b\W{0,3}(\d{1,9})|\b(\d{1,9})/\d{1,9}\b.{0,40}(?:it/s|s/it)", re.IGNORECASE
)
_FINISHED = re.compile(r"\b(?:training|run|job) (?:is )?(?:finished|complete[d]?|done)\b", re.IGNORECASE)
GOES_ON = 3
"""Different steps told behind a traceback by which the process has survived it; where ranks share a log without
prefixes, the peers of a rank that died tell one more step at most."""
FOLLOWED = 64
"""Lines behind a traceback in which they are looked for."""
_GLOO_CHECK = re.compile(
    r"^.*\[enforce fail at [^\]]*\] (?:op\.[\w. <=>]+\. )?(?=\d+ vs \d+)|\. Is there a distributed .*$"
)
"""What gloo's C++ puts around the sizes that differ."""
_PROCESS = re.compile(r"(?:\[[^\]]{1,40}\] )?([\w.-]{1,255}:\d+):\d+ ")
"""How NCCL begins its lines: host, process, thread."""
_BY_WORD: dict[str, list[Pattern]] = {}
for _pattern in TABLE:
    _BY_WORD.setdefault(_pattern.word.decode(), []).append(_pattern)


@dataclass(slots=True)
class LogRead:
    """What one log says."""

    file: str
    facts: list[LogFact] = field(default_factory=list)
    errors: list[RankError] = field(default_factory=list)
    stacks: list[Stacks] = field(default_factory=list)
    processes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """NCCL's `host:pid` -> ranks in the largest communicator, rank in it."""
    dropped: int = 0
    """Facts beyond the limits."""
    local: int = 0
    """Ranks within the node that torchrun's prefixes name; 0 when there are none. Records that only such a prefix
    gives a rank have -1 - local rank instead, until `merge.settle_ranks` knows the node."""
    offset: int | None = None
    """Global minus local rank on this node, where torchrun's list of failures says so."""
    problem: str = ""
    """Why it was not read to its end."""

    def __bool__(self) -> bool:
        """Whether it says anything."""
        return bool(self.facts or self.errors or self.stacks)


@dataclass(slots=True)
class _Stream:
    """What is under way in the lines of one writer."""

    traceback: tracebacks.Assembler = field(default_factory=tracebacks.Assembler)
    stack: stack_dumps.Assembler = field(default_factory=stack_dumps.Assembler)
    rank: int | None = None
    number: int = 0
    spawned: int | None = None
    """Rank of a process whose traceback torch.multiprocessing repeats."""
    fatal: RankError | None = None
    raised: list[RankError] = field(default_factory=list)
    """The last ones, until it is clear whether the process went on."""
    steps: set[str] = field(default_factory=set)
    """Told since the last traceback."""
    finished: bool = False


@dataclass(slots=True)
class _Scan:
    """The state of one pass over one log."""

    read: LogRead
    rank: int | None
    streams: dict[str, _Stream] = field(default_factory=dict)
    table: FailureTable = field(default_factory=FailureTable)
    counts: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    per_kind: dict[tuple[str, int | None], int] = field(default_factory=dict)
    exits: list[RankError] = field(default_factory=list)
    """As torchrun tells them before its list; only that list has global ranks."""
    following: int = 0
    """Lines that are wanted whatever they hold."""
    last_error: bool = False

    def wanted(self) -> bool:
        return self.following > 0

    def feed(self, line: Line) -> None:
        """One line of interest."""
        rank = self.rank if line.rank is None else line.rank
        if line.rank is None and line.local_rank is not None:
            rank = -1 - line.local_rank
            self.read.local = max(self.read.local, line.local_rank + 1)
        self.following -= 1
        if self.table.feed(line.text, line.number):
            self.following = max(self.following, 40)
            rank = self.table.row.rank if self.table.row else rank
        else:
            self._structure(line, rank)
        if self.last_error and line.text.strip():
            self.last_error = False
            self._add("nccl_last_error", rank, line, {"error": line.text.strip()[:TEXT]})
        if line.text.startswith("Last error:"):
            rest = line.text.removeprefix("Last error:").strip()
            if rest:
                self._add("nccl_last_error", rank, line, {"error": rest[:TEXT]})
            else:
                self.last_error, self.following = True, max(self.following, 3)
        for word, patterns in _BY_WORD.items():
            if word in line.text:
                self._match(patterns, line, rank)

    def _match(self, patterns: list[Pattern], line: Line, rank: int | None) -> None:
        for pattern in patterns:
            match = pattern.regex.search(line.text)
            if match is None:
                continue
            fields = decode(pattern.kind, match)
            if rank is None and pattern.rank_group:
                stated = fields.get(pattern.rank_group)
                rank = stated if isinstance(stated, int) else None
            if pattern.kind == "watchdog_status" and rank is None and "default_pg" in str(fields.get("desc")):
                rank = fields.get("group_rank")
            process = _PROCESS.match(line.text) if pattern.kind.startswith("nccl_") else None
            if process:
                fields["process"] = process[1]
                self._process(pattern, fields)
            self._add(pattern.kind, rank, line, fields)
            return

    def _process(self, pattern: Pattern, fields: dict[str, Any]) -> None:
        """NCCL names processes; its init lines say which rank a process is."""
        if pattern.kind != "nccl_init" or len(self.read.processes) > PER_KIND:
            return
        known = self.read.processes.get(fields["process"], (0, 0))
        self.read.processes[fields["process"]] = max(known, (fields["nranks"], fields["comm_rank"]))

    def _add(self, kind: str, rank: int | None, line: Line, fields: dict[str, Any]) -> None:
        key = (kind, rank, *sorted((name, str(value)) for name, value in fields.items()))
        known = self.counts.get(key)
        if known is not None:
            known["count"] = known.get("count", 1) + 1
            return
        kept = self.per_kind.get((kind, rank), 0)
        if kept >= PER_KIND_AND_RANK or len(self.counts) >= PER_KIND:
            self.read.dropped += 1
            return
        self.per_kind[kind, rank] = kept + 1
        self.counts[key] = fields
        text = _GLOO_CHECK.sub("", line.text) if kind == "gloo_mismatch" else line.text
        self.read.facts.append(LogFact(kind, rank, self.read.file, line.number, shortened(text.strip(), TEXT), fields))
        if kind == "torchrun_failed":
            self._exit(line, fields)

    def _exit(self, line: Line, fields: dict[str, Any]) -> None:
        """What torchrun says at once about the first process that failed; its list may not follow."""
        code, local = fields.get("exit_code"), fields.get("local_rank")
        if isinstance(code, int) and isinstance(local, int) and code != 0:
            signal = signal_of(code) if code < 0 else None
            what = f"killed by {signal}" if signal else f"exit code {code}"
            self.exits.append(
                RankError(-1 - local, self.read.file, line.number, "", what, signal=signal, exit_code=code)
            )

    def _structure(self, line: Line, rank: int | None) -> None:
        """Feeds tracebacks and stacks, each by its writer."""
        stream = self.streams.get(line.stream)
        if stream is None:
            if len(self.streams) >= MAX_STREAMS:
                self.finish()
                self.streams.clear()
            stream = self.streams[line.stream] = _Stream(rank=rank)
        spawned = tracebacks.SPAWNED.match(line.text)
        if spawned:
            stream.spawned, self.following = int(spawned[1]), max(self.following, 4)
        fatal = fatal_error(line.text, rank, self.read.file, line.number)
        if fatal is not None:
            self._keep(stream)
            stream.fatal, self.following = fatal, max(self.following, 8)
        begins = tracebacks.START.match(line.text)
        if begins and not stream.traceback.active:
            stream.number = line.number
            stream.raised, stream.steps, stream.finished = [], set(), False
        stream.traceback.feed(line.text)
        stream.stack.feed(line.text)
        if stream.traceback.active or stream.stack.active:
            # With many writers the next line of this one may be far away.
            self.following = max(self.following, 40 + 8 * len(self.streams))
        if stream.traceback.done or stream.stack.done:
            self._keep(stream)
        if stream.number and not stream.traceback.inside:
            self._goes_on(stream, line)

    def _goes_on(self, stream: _Stream, line: Line) -> None:
        """Notes progress behind an exception in the same log: it was handled."""
        if progress := _PROGRESS.search(line.text):
            stream.steps.add(progress[1] or progress[2])
        # A sentence of the end counts only where no other rank can have written it.
        stream.finished |= bool(_FINISHED.search(line.text)) and (self.rank is not None or bool(line.stream))
        self._take_back(stream)

    def _take_back(self, stream: _Stream) -> None:
        """Makes facts of errors that were handled."""
        if not stream.raised or not (stream.finished or len(stream.steps) >= GOES_ON):
            return
        for error in stream.raised:
            if error in self.read.errors:
                self.read.errors.remove(error)
            at = f"{error.frames[0].file}:{error.frames[0].line}" if error.frames else ""
            fields = {"type": error.type, "message": error.message[:TEXT], "at": at}
            text = f"{error.type}: {error.message}"[:TEXT]
            self.read.facts.append(LogFact("handled_error", error.rank, error.file, error.line, text, fields))
        stream.raised = []

    def _keep(self, stream: _Stream, end: bool = False) -> None:
        """Takes over what a writer has completed."""
        if end:
            stream.stack.close()
        done, stream.stack.done = stream.stack.done, []
        for threads, time_s, local in done:
            rank = stream.rank if stream.rank is not None else local
            if len(self.read.stacks) < MAX_STACKS:
                self.read.stacks.append(Stacks(rank, self.read.file, threads, time_s))
        if stream.fatal is not None and (done or end):
            dying = [thread for threads, _, _ in done for thread in threads if thread.name == "current" or thread.main]
            main = min(dying, key=lambda thread: thread.name != "current", default=None)
            frames = main.frames if main else ()
            fatal, stream.fatal = stream.fatal, None
            self._error(RankError(fatal.rank, fatal.file, fatal.line, "", fatal.message, frames, fatal.signal))
        for raised in stream.traceback.take(end):
            rank = stream.rank if stream.spawned is None else stream.spawned
            stream.spawned = None
            if not launcher_only(raised.type):
                error = RankError(rank, self.read.file, stream.number, raised.type, raised.message, raised.frames)
                self._error(error)
                stream.raised.append(error)
                self.following = max(self.following, FOLLOWED + 8 * len(self.streams))

    def _error(self, error: RankError) -> None:
        if len(self.read.errors) < MAX_ERRORS and error not in self.read.errors[-8:]:
            self.read.errors.append(error)

    def finish(self) -> None:
        """The log has ended: what is under way is complete."""
        for stream in self.streams.values():
            self._keep(stream, end=True)
            self._take_back(stream)


def read(path: Path, file: str, rank: int | None, limits: Limits, head: bytes) -> LogRead:
    """Everything a log says; what was read before damage is kept, with the reason in `problem`.

    Args:
        path: plain or gzip.
        file: relative to the evidence's root.
        rank: whose log it is, when its name says so.
        limits: on untrusted files.
        head: its first bytes.
    """
    result = LogRead(file)
    scan = _Scan(result, rank)
    labelled = is_labelled(head)
    try:
        for number, raw in LineReader(path, limits, WORDS, scan.wanted).lines():
            scan.feed(split(number, raw[:MATCHED], labelled))
    except (OSError, ValueError) as problem:
        result.problem = str(problem) or type(problem).__name__
    scan.finish()
    result.errors += scan.table.errors(file) or scan.exits[:MAX_ERRORS]
    result.offset = scan.table.offset()
    return result

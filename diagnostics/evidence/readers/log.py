"""Reads a log of any size once: known facts, tracebacks, stacks and the launcher's list of failures."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from io import DEFAULT_BUFFER_SIZE
from math import inf
from pathlib import Path
from statistics import median_low
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from diagnostics.contract.files import patterns_beside, table_beside
from diagnostics.evidence.calls import is_library
from diagnostics.evidence.endings import is_victim, kind_of_exception, repeated, signal_name
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.logs import tracebacks
from diagnostics.evidence.logs.launcher import ROW, TRAINS, FailureTable
from diagnostics.evidence.logs.lines import MATCHED, Line, LineReader, has_utf16_mark, label_of, split, widths_of
from diagnostics.evidence.logs.nccl import PER_KIND_AND_RANK, WATCHDOGS, NcclCalls, Watchdogs
from diagnostics.evidence.logs.patterns import OF_KERNEL, TABLE, ZONE_S, Pattern, decode, moment, moments
from diagnostics.evidence.logs.steps import LEAST, MAX_POINTS, Steps
from diagnostics.evidence.logs.streams import GOES_ON, MAX_ERRORS, PEERS_GO_ON, STRUCTURE, TEXT, Streams
from diagnostics.evidence.model import Evidence, LogFact, RankError, shortened
from diagnostics.evidence.reader import Contents, Reader, Source

_TABLE = table_beside(__file__)
HEAD, _RESTARTS, _ESCAPED, _SIDES, *_MISSING = _TABLE["words"]
MAX_FRAMES = 256
_TEXT = patterns_beside(__file__, "texts")
"""Patterns by name. The table describes what each one matches."""
_LONG, _LASTS = re.compile(_TEXT["long"].pattern.encode()), [word.encode() for word in _TABLE["lasts"]]
_MAX_LONG = 8  # Last durations of a block of lines that are read.
_WRITTEN_S = -180 * 86_400.0
"""A date without a year is of the year before the file was written, or of the two days after; the middle of that."""
_OF_RANK = re.compile(rb"(?m)^\[(?:rank|1,)(\d{1,7})\][:<]")  # How most prefixes begin: torch's, mpirun's.


class CollectiveStack(Struct):
    """Collects the lines after a stack's heading; a line out of order, such as another rank's, ends the stack."""

    number: int = 0
    """Line number of its start; 0 if no stack is being read."""
    rank: int | None = None
    frames: int = 0
    op: str = ""
    """torch function called by the user's line."""

    def feed(self, text: str) -> dict[str, Any] | None:
        """Read the next line; return the innermost frame outside torch once it is known, with the `op` in it."""
        match = _TEXT["frame"].match(text.strip())
        if match is None or int(match[1]) != self.frames or self.frames >= MAX_FRAMES:
            self.number = 0 if text.strip() else self.number  # A line that was folded leaves an empty one.
            return None
        self.frames += 1
        if is_library(match[3]):
            self.op = self.op or match[2].strip()
            return None
        self.number = 0
        return {"function": match[2].strip(), "file": match[3], "line": int(match[4]), "op": self.op}


PER_KIND = 20_000
"""Maximum number of different facts that are kept of lines of other writers than watchdogs; others are only counted."""
_KINDS: dict[str, frozenset[str]] = {name: frozenset(kinds) for name, kinds in _TABLE["kinds"].items()}
_OF_THE_JOB, WAITED, _SURVIVED, _OF_PODS = (_KINDS[name] for name in ("of_the_job", "waited", "survived", "of_pods"))
_SEVERAL, FAILURES = _KINDS["several"], _KINDS["failures"]
_BEFORE_THE_END, _OUTLIVED = _SURVIVED | _KINDS["before_the_end"], _KINDS["outlived"]
"""Kinds of lines, documented in the table."""
ENDED, AFTER_THE_END = "training_ended", _KINDS["after_the_end"]
_OTHERS = (*STRUCTURE, *_MISSING, HEAD, _RESTARTS, '"MESSAGE":[')
WORDS = tuple(dict.fromkeys((*(pattern.word for pattern in TABLE), *(word.encode() for word in _OTHERS))))
_BY_WORD: dict[str, list[Pattern]] = {}
for _pattern in TABLE:
    _BY_WORD.setdefault(_pattern.word.decode(), []).append(_pattern)
_PATTERN_WORDS = [*_BY_WORD]  # The first of `WORDS`.


class _Scan(Struct):
    read: Contents
    rank: int | None
    streams: Streams
    table: FailureTable = field(default_factory=FailureTable)
    collective: CollectiveStack = field(default_factory=CollectiveStack)
    counts: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    per_kind: Counter[tuple[str, object]] = field(default_factory=Counter)
    watchdogs: Watchdogs = field(default_factory=Watchdogs)
    exits: list[RankError] = field(default_factory=list)
    """Failures that launchers report; torchrun does so before its list, which alone has global ranks."""
    of_hydra: list[RankError] = field(default_factory=list)
    """Those that Hydra reports: beside the first one, SIGKILL is how it ends the others."""
    failed: dict[int, tuple[int, Any, int]] = field(default_factory=dict)
    """Process id of a torchrun -> line of its last failed attempt, process that failed, number of stacks until then."""
    work: LogFact | None = None
    """The last line about work outside of the steps, such as an evaluation, or about the end of the training."""
    beside: dict[int | None, LogFact] = field(default_factory=dict)
    """Rank -> its last progress bar, or stated duration of minutes, of any work that is no step and no evaluation."""
    ended: LogFact | None = None
    """The last line about the end of the training."""
    ended_in_order: dict[int, LogFact] = field(default_factory=dict)
    """Process id -> line of a launcher that says that the process ended in order."""
    restarted: int = 0
    """Last line of the attempts before the last one."""
    aside: Contents | None = None
    """Contents from the attempt before the last restart."""
    last_error: bool = False
    missing: bool = False
    """Whether the next line may name a rank that Horovod reports as missing."""
    position: int = 0
    """Position of the rows in torch's desync report."""
    steps: Steps = field(default_factory=Steps)
    calls: NcclCalls = field(default_factory=NcclCalls)
    prefix: re.Pattern[str] | None = None
    """Prefix of the last traceback."""
    named: str = ""
    """Class and message of the last exception in a record of torch's error handler."""
    wrapped: Line | None = None
    """A line of torch's watchdog that matches no pattern yet: it may be folded and continue in the next line."""

    def feed_steps(self, data: bytes, number: int) -> None:
        """Read the steps in a block of whole lines, the first of which is `number`."""
        self.steps.feed(data, number)
        self.calls.feed(data, number)
        skip = min(max(0, self.steps.last + 1 - number), data.count(b"\n"))
        tail = data.split(b"\n", skip)[-1]  # Below the last step.
        places = [match.start() for match in _LONG.finditer(tail)] if any(word in tail for word in _LASTS) else []
        for at in sorted([tail.rfind(b"%|"), *places[-_MAX_LONG:]]):
            begin = tail.rfind(b"\n", 0, at) + 1
            line = split(number + skip + tail.count(b"\n", 0, begin), tail[begin:].partition(b"\n")[0])
            text, rank = (line.before, None) if line.before else (line.text, line.rank)
            if at >= 0 and (said := _TEXT["work"].search(text)) and not _TEXT["of_all"].search(text, 0, said.end()):
                fields = decode("", said) | {"what": text[: said.start()].strip(" :.-")[-80:], "any": True}
                rank = self.rank if rank is None else rank
                self.beside[rank] = LogFact("host_progress", rank, self.read.file, line.number, text[:TEXT], fields)
        if b"[rank" in data or b"[1," in data:
            self.read.speak |= {*map(int, _OF_RANK.findall(data))}
        whole, first = b"\n" in data, self.streams.first  # The last line may have no end.
        self.streams.block, self.streams.first = (data, number) if whole else (self.streams.block + data, first)

    def needs_next_line(self) -> bool:
        return self.streams.following > 0 or self.collective.number > 0

    def feed(self, line: Line, indices: Sequence[int] = range(len(WORDS))) -> None:
        """Process one line of interest; `indices` are those of `WORDS` that it may contain."""
        if (named := _TEXT["named"].search(line.text)) is not None:
            self.named = named[1]
        if _ESCAPED in line.text.replace("\n", "\\n"):
            *stack, end = line.text.replace("\\n", "\n").replace('\\"', '"').splitlines()
            missing = self.named if end[:1] == " " else ""  # The last line of a traceback that is cut.
            for text in (*stack, end.partition('", "')[0], missing):
                self.feed(line._replace(text=text))
            return
        last, folded = line, False
        if self.wrapped is not None and line.stream in ("", self.wrapped.stream) and len(self.wrapped.text) < MATCHED:
            before = self.wrapped.text
            folded = _SIDES in before
            texts = f"{before.rstrip()} {line.text.strip()}".replace("( ", "("), before + line.text
            rows = ((text, row) for text in texts for word in _PATTERN_WORDS if word in text for row in _BY_WORD[word])
            matching = (text for text, row in rows if row.regex.search(text))
            text = texts[0] if folded else next(matching, texts[0])  # Terminals fold in the middle of a word.
            line, indices = self.wrapped._replace(text=text), range(len(WORDS))
        self.wrapped = None
        line = self._without_prefix(line)
        rank = self.rank if line.rank is None else line.rank
        if line.rank is None and line.local_rank is not None:
            rank = -1 - line.local_rank
            self.read.local = max(self.read.local, line.local_rank + 1)
        self.streams.following -= 1
        if self.table.feed(line.text, line.number):
            self.streams.follow(40)
            row = self.table.row
            rank = rank if row is None else row.rank if row.rank >= 0 else None
        else:
            self.streams.feed(last if folded else line, rank)
        missed = _TEXT["missed"].match(line.text) if self.missing else None
        if missed is not None:
            self._add("missing_ranks", rank, line, decode("missing_ranks", missed))
        self.missing = missed is not None or line.text.rstrip().endswith(tuple(_MISSING))
        self.streams.follow(int(self.missing))
        if _RESTARTS in line.text:
            self._restarted(line.number, len(self.read.stacks))
        self._last_error(line, rank)
        if HEAD in line.text:
            self.collective = CollectiveStack(line.number, rank)
        elif self.collective.number and (place := self.collective.feed(line.text)) is not None:
            # The frames of a collective that timed out are on lines without a prefix.
            self._add("collective_stack", self.collective.rank, line, place)
        behind = [(line._replace(text=line.before), None)] if line.before else []
        words = sorted((_PATTERN_WORDS[index] for index in indices if index < len(_PATTERN_WORDS)), key=line.text.find)
        for part, whose in [*behind, (line, rank)]:  # Words in the order of the line: a bar may stand in front.
            text = "".join(part.text.split()) if folded else part.text
            matched = [self._match(_BY_WORD[word], part, text, whose) for word in words if word in text]
        if matched and not any(matched) and _TEXT["folded"].search(line.text):
            self.wrapped = line
            self.streams.follow(1)

    def _without_prefix(self, line: Line) -> Line:
        """Remove the prefix of a logger or a progress bar from the lines of a traceback, as seen in its first line."""
        head = tracebacks.HEAD.search(line.text)
        if head is not None and line.text[: head.start()].strip(" |+-") and not ROW.match(line.text):
            # Times and line numbers differ from line to line.
            self.prefix = re.compile(re.sub(r"\d+", r"\\d+", re.escape(line.text[: head.start()].rstrip())) + " ?")
            line = line._replace(text=head.group(), before=line.text[: head.start()])
        elif self.prefix is not None and (begin := self.prefix.match(line.text)) is not None:
            line = line._replace(text=line.text[begin.end() :], before=begin.group())
        else:
            return line
        if line.rank is None and (said := _TEXT["rank_of_logger"].search(line.before)):
            line = line._replace(rank=int(said[1]), stream=f"[rank{said[1]}]:")
        return line

    def _last_error(self, line: Line, rank: int | None) -> None:
        begins, words = line.text.startswith("Last error:"), line.text.removeprefix("Last error:").strip()
        if words and (begins or self.last_error):
            self._add("nccl_last_error", rank, line, {"error": words[:TEXT]})
        self.last_error = begins and not words  # The line after it may be empty.
        self.streams.follow(int(self.last_error))

    def _match(self, patterns: list[Pattern], line: Line, text: str, rank: int | None) -> bool:
        for pattern in patterns:
            match = pattern.regex.search(text)
            if match is None:
                continue
            fields = decode(pattern.kind, match)
            if not TRAINS.match(str(fields.pop("command", ""))):
                return True
            if pattern.kind in ("desync_at", "desync_state"):
                self.position = fields.setdefault("seq", self.position)
            if rank is None and pattern.rank_group:
                rank = fields.get(pattern.rank_group)
                fields["only_in_group"] = pattern.rank_group == "group_rank"
            if pattern.kind.startswith(("watchdog_", "monitor_")) and "default_pg" in str(fields.get("desc")):
                rank = fields.get("pg_rank", rank)  # In front of the line may stand a launcher's role and local rank.
            process = _TEXT["process"].match(line.text) if pattern.kind.startswith("nccl_") else None
            if process:
                fields["process"] = process[1]
                if pattern.kind == "nccl_init" and len(self.read.processes) <= PER_KIND:  # States the rank.
                    largest = self.read.processes.get(process[1], (0, 0))
                    self.read.processes[process[1]] = max(largest, (fields["nranks"], fields["comm_rank"]))
            self._add(pattern.kind, rank, line, fields)
            return True
        return False

    def _add(self, kind: str, rank: int | None, line: Line, fields: dict[str, Any]) -> None:
        if kind == "resume":
            self.steps.resumes.extend([line.number][: MAX_POINTS - len(self.steps.resumes)])
            return
        text = _TEXT["gloo_check"].sub("", line.text) if kind == "gloo_mismatch" else line.text
        fact = LogFact(kind, rank, self.read.file, line.number, shortened(text.strip(), TEXT), fields)
        if kind == "process_left":
            self.ended_in_order[fields["pid"]] = fact
        elif kind in ("host_progress", "host_work"):
            self.work, self.ended = fact, fact if "ended" in fields else self.ended
            return
        elif kind in _KINDS["caught"] and rank is not None and line.stream in self.streams.streams:
            self.streams.watch(line)
        if kind in _KINDS["leaving"] and self.work is not None and "ended" in self.work.fields:
            return
        beside = sorted(self.beside.values(), key=lambda work: -work.line)
        works = [work for work in (*filter(None, [self.work]), *beside) if self.steps.last < work.line]
        work = max(works, key=lambda work: work.line, default=None)
        is_over = work is not None and work.fields.get("done", 0) == work.fields.get("total", 1)
        if work is not None and kind in ({"gloo_closed"} if is_over else WAITED):
            self.read.facts += works if "any" in work.fields else [work]
            self.work, self.beside = None, {}
        if kind == "store_key_timeout" and not self.restarted:  # The store is also used after the start-up.
            fields["trained"] = 0 < self.steps.first < line.number
        fields |= {"trained": True} if kind == "nccl_rank_count" and self.steps.first else {}  # Of a later group.
        if kind in WATCHDOGS:
            self.read.dropped += not self.watchdogs.take(fact, self.read.facts)
            return
        # What is repeated at each step: the first line of each rank is kept, the others are counted.
        shown = () if kind == "non_finite_loss" else sorted((name, str(value)) for name, value in fields.items())
        at_s = moment(text, 1e9) if kind in OF_KERNEL else None  # One may be of another job.
        key = (kind, rank, *shown, at_s and at_s // 3600)
        fields |= {"alive": self.streams.alive_above(line.number)} if kind == "job_stopped" else {}
        if (same := self.counts.get(key)) is not None:
            same["count"], same["last"] = same.get("count", 1) + 1, fact
            return
        who = fields.get("process") if rank is None else rank
        if self.per_kind[kind, who] >= PER_KIND_AND_RANK or len(self.read.facts) - self.watchdogs.kept >= PER_KIND:
            self.read.dropped += 1
            return
        self.per_kind[kind, who] += 1
        self.counts[key] = fields
        self.read.facts.append(fact)
        if kind == "torchrun_failed":
            self._exit(line, fields, rank)

    def _exit(self, line: Line, fields: dict[str, Any], rank: int | None) -> None:
        """Add a launcher's line about a process that failed. torchrun's list of failures may never follow."""
        code, local = fields.get("exit_code", -fields.get("signal", 0)), fields.get("local_rank")
        if isinstance(code, int) and code != 0:
            signal = signal_name(-(code := repeated(code)))
            what = f"killed by {signal}" if signal else f"exit code {code}"
            if (agent := fields.get("agent")) is not None:
                before = self.failed.get(agent)
                if before is not None and before[1] != fields.get("pid"):
                    self._restarted(before[0], before[2])
                self.failed[agent] = line.number, fields.get("pid"), len(self.read.stacks)
                self._forget()
            rank = -1 - local if isinstance(local, int) else rank
            exits = self.of_hydra if "hydra" in fields else self.exits
            exits.append(RankError(rank, self.read.file, line.number, "", what, signal=signal, exit_code=code))

    def _forget(self) -> None:
        self.counts, self.per_kind, self.watchdogs = {}, Counter(), Watchdogs()

    def _restarted(self, last: int, stacks: int) -> None:
        """Set aside the contents of an attempt that ended in line `last` and left the first `stacks` stacks."""
        read = self.read
        self.streams.finish()
        self.streams.streams.clear()
        ended = Contents(read.file)
        ended.errors = [error for error in (*read.errors, *self.exits) if error.line <= last]
        ended.facts = [fact for fact in read.facts if fact.line <= last and fact.kind not in _OF_THE_JOB]
        ended.stacks, read.stacks = read.stacks[:stacks], read.stacks[stacks:]
        read.errors = [error for error in read.errors if error.line > last]
        read.facts = [fact for fact in read.facts if fact.line > last or fact.kind in _OF_THE_JOB]
        self.exits = [error for error in self.exits if error.line > last]
        self._forget()
        self.restarted = last
        if ended:
            read.earlier.append(ended.errors[:MAX_ERRORS])
            self.aside = ended

    def _ended_well(self, end: LogFact) -> bool:
        """Return whether no rank failed: the line of the end is a launcher's, or nothing speaks of several ranks."""
        errors, facts = self.read.errors, self.read.facts
        lost = any(not error.type or is_victim(kind_of_exception(error.type, error.message)) for error in errors)
        several = any(self.streams.streams) or any(fact.rank or fact.kind in _SEVERAL for fact in facts)
        of_launcher = end.kind == "process_left" or "of_all" in end.fields
        return not lost and not any(fact.kind in FAILURES for fact in facts) and (of_launcher or not several)

    def buffered(self, line: int) -> bool | None:
        """Return whether the log ends with steps that may have been printed above a line; None if they were not.

        Python writes what a program prints into a file when its buffer is full, and the rest when the process ends.
        """
        rows = sorted(row for own in self.steps.series.values() for row in own.lines[bisect_right(own.lines, line) :])
        first, lines = self.streams.first, self.streams.block.split(b"\n")
        dated = any(own.at_s[-1] > 0 for own in self.steps.series.values()) or self.steps.restarted(line, GOES_ON)
        if dated or not rows or rows[0] < first or len(rows) <= rows[-1] - rows[0]:
            return None
        text = b"\n".join(lines[rows[0] - first : rows[-1] + 1 - first])
        return not b"".join(lines[rows[-1] + 1 - first :]).strip() if len(text) < DEFAULT_BUFFER_SIZE else None

    def _printed_before(self, error: RankError) -> bool:
        """Return whether dates show that the steps below an exception are older: programs print into a buffer."""
        series = self.steps.series.values()
        return error.after_s is not None and any(0 < error.after_s - each.at_s[-1] < ZONE_S for each in series)

    def _survival(self, failed: Sequence[int]) -> Callable[[int, int | None], bool]:
        """Return what says whether the job survived what a rank says in a line; `failed`: lines of others' ends."""
        steps, prefixed = self.steps, any(self.streams.streams)
        peers, progress = steps.line_before(PEERS_GO_ON), {error.line for error in self.streams.withdrawn}
        raised = {error.line: error for error in (*self.read.errors, *self.streams.withdrawn) if error.frames}
        own = [at for at, e in raised.items() if not is_victim(kind_of_exception(e.type, e.message, e.frames))]

        def survived(line: int, rank: int | None) -> bool:
            error, ends = raised.get(line), any(at > line for at in failed)
            # With prefixes, few steps count only where the same writer printed them.
            least = 1 if error and error.caught and not prefixed and 0 < steps.first < line else GOES_ON
            if error and self._printed_before(error):
                return False
            if error and ends and tracebacks.is_entry(error.frames) and self.buffered(line) is not None:
                return False
            again = steps.restarted(line, GOES_ON) and steps.further(line) >= GOES_ON
            if again or line < peers or (prefixed and rank is not None):  # Near it only steps of the rank itself count.
                below = self.streams.below.get(line, 0)
                of_rank = line in progress or below >= GOES_ON
                return again or line < peers or (of_rank and not (0 < below < GOES_ON and ends))
            # A process that raises something else later had survived this.
            others = [at for at in own if at > line and steps.further(line, at) >= least]
            first = min(at for at in (*steps.resumes, *others, inf) if at > line)
            went_on = (line in progress or steps.further(line) >= least) and not steps.fewer(line)
            return went_on and (self.rank is not None or not any(line < at < first for at in failed))

        return survived

    def _remove_outlived(self, in_order: bool, is_past: Callable[[int, int | None], bool]) -> list[LogFact]:
        """Remove facts that say nothing of the job's end: of others, or outlived; return the outlived ones.

        `in_order` is whether the training ended in order.
        """
        facts, outlived, kinds = self.read.facts, list[LogFact](), _BEFORE_THE_END if in_order else _SURVIVED
        for n, fact in enumerate(facts):
            if (fact.kind in kinds or "retried" in fact.fields) and is_past(fact.line, fact.rank):
                facts[n] = last = fact.fields.get("last", fact)  # Of what is repeated, the last line counts.
                outlived += [last] if is_past(last.line, fact.rank) else []
        finite = self.steps.line_before(LEAST)  # A single step may skip: it is no news where enough finite ones follow.
        below = (f for f in facts if f.line > self.steps.first)  # Above may stand a kernel's log of whatever time.
        outlived += [f for f in below if f.kind in _OUTLIVED and f.fields.get("last", f).line < finite]
        skips = (f for f in facts if f.kind == "non_finite_loss" and f.fields.get("last", f).line < finite)
        completed = next((f.line for f in facts if f.kind == "pod_completed"), inf)
        ended_pods = (f for f in facts if f.kind in _OF_PODS and f.line >= completed)
        jobs = [f.fields["job"] for f in facts if "job" in f.fields]  # The last row's is the job.
        others = (f for f in facts if f.kind == "job_row" or f.fields.get("job") not in (None, *jobs[-1:]))
        leave = {id(fact) for fact in (*outlived, *skips, *ended_pods, *others)}
        self.read.facts = [fact for fact in facts if id(fact) not in leave]
        return outlived

    def finish(self) -> Contents:
        """Complete the log and return its contents."""
        read, file = self.read, self.read.file
        self.streams.finish()
        of_hydra = [error for error in self.of_hydra if error.signal != "SIGKILL" or len(self.of_hydra) == 1]
        ended = self.table.errors(file) or [*self.exits, *of_hydra]
        # What enough steps follow ended nothing, or an earlier run in the same file.
        peers = [fact.fields.get("last", fact).line for fact in read.facts if fact.kind in _KINDS["of_peers"]]
        failed = [*peers, *(error.line for error in ended if error.signal is None)]
        survived, is_past = self.steps.line_before(GOES_ON), self._survival(failed)
        lost = {error.line: error for error in self.streams.withdrawn if not is_past(error.line, None)}
        read.errors = [*lost.values(), *read.errors]
        read.facts = [fact for fact in read.facts if fact.kind != "handled_error" or fact.line not in lost]
        self.streams.went_on(is_past)
        kills = next((fact.line for fact in read.facts if "kills" in fact.fields), inf)
        read.errors = [e for e in read.errors if e.signal != "SIGKILL" or e.frames or e.line <= kills]
        last_end = max([*failed, *(fact.line for fact in read.facts if fact.kind == "torchrun_signal")], default=0)
        for n, error in enumerate(read.errors):
            if error.type and (error.caught or last_end < error.line) and not self._printed_before(error):
                others = 0 if any(self.streams.streams) else self.steps.further(error.line)
                below = self.streams.below.get(error.line, 0), others
                followed = error.caught and last_end < error.line and self.streams.goes_on(error)
                read.errors[n] = replace(error, below=max(below), followed=followed)
        handled = [fact for fact in read.facts if fact.kind == "handled_error" and fact.fields["frames"]]
        first = handled[0].fields if len(handled) == 1 and not read.errors else {}  # Of several, some were caught.
        if first and tracebacks.is_entry(first["frames"]) and not first["type"].endswith("Warning"):
            first["buffered"] = self.buffered(handled[0].line)
        if any(f.kind == "world_size" and f.fields["nranks"] == len(self.ended_in_order) for f in read.facts):
            self.ended = [*self.ended_in_order.values()][-1]
        in_order = self.ended if self.ended is not None and not self.steps.further(self.ended.line) else None
        if in_order is not None:  # Of a shell: a helper, or a launcher that did not exit.
            read.errors = [e for e in read.errors if e.signal != "SIGKILL" or e.frames or e.line < in_order.line]
        else:
            self.streams.read_last(max(self.restarted, survived), alone=not ended)
        if in_order and not ended and self._ended_well(in_order):
            self.streams.went_on(lambda line, _: line < in_order.line)
        read.errors += [error for error in ended if error.line >= survived][:MAX_ERRORS]
        outlived = self._remove_outlived(in_order is not None, is_past)
        if (cut := self.wrapped) is not None:  # The last line, which is cut off.
            fields = decode("calls_differ", said) if (said := _TEXT["cut"].search(cut.text)) is not None else {}
            rank = fields.get("waiter") if cut.rank is None else cut.rank
            if "call_a" in fields or rank is not None:
                kind = "calls_differ" if "call_a" in fields else "cut_line"
                read.facts.append(LogFact(kind, rank, file, cut.number, cut.text[:TEXT], fields))
        if in_order is not None:
            read.facts.append(replace(in_order, kind=ENDED))
        speaks = read.errors or any(f.kind not in _OF_THE_JOB for f in read.facts) or self.steps.last > self.restarted
        if self.aside is not None and not speaks:
            # Nothing is known about the last attempt, so the one before it counts.
            read.errors, read.stacks = self.aside.errors, self.aside.stacks
            read.facts += self.aside.facts
            read.earlier.pop()
        # Of memory that ran out, already the first step tells that the model's states were in place.
        if self.steps or (self.steps.series and any(fact.kind == "cuda_oom" for fact in read.facts)):
            about = {"steps": self.steps, "times": self.steps.span_s, "alive": self.streams.alive_above()}
            read.facts.append(LogFact("steps", None, file, fields={**about, "survived": outlived[-1:]}))
        read.facts += self.calls.facts(file)
        read.offset = self.table.offset()
        if self.table.rows and self.table.rows[0].line >= survived:
            listed = self.table.listed(self.streams.block.decode("utf-8", "replace"))
            read.facts.append(LogFact("torchrun_list", None, file, self.table.rows[0].line, fields=listed))
        return read


def read(path: Path, file: str, rank: int | None, limits: Limits, head: bytes) -> Contents:
    """Read a log; if it is damaged, keep the part before the damage and store the reason in `problem`. Where prefixes
    or the launcher's list name other ranks than `rank`, lines without a prefix may be of any rank.
    """
    rank = None if {*map(int, _OF_RANK.findall(head))} - {rank} else rank  # If only its end names others: read again.
    scan = _Scan(contents := Contents(file), rank, Streams(contents, rank))
    scan.streams.label = label = label_of(head)
    try:
        reader = LineReader(path, limits, WORDS, scan.needs_next_line, scan.feed_steps, widths_of(head))
        dated = moments(head.decode("utf-8", "replace")) or [path.stat().st_mtime + _WRITTEN_S]
        scan.streams.near_s = scan.steps.near_s = median_low(dated)
        for number, raw in reader.lines():
            # Words may be inside escapes of JSON, and colours inside words.
            indices = range(len(WORDS)) if raw[:1] == b"{" or b"\x1b" in raw else reader.word_indices
            scan.feed(split(number, raw, label), indices)
    except (OSError, ValueError) as problem:
        scan.read.problem = str(problem) or type(problem).__name__
    of_others = {*contents.speak, *(row.rank for row in scan.table.rows)} - {rank}
    return scan.finish() if rank is None or not of_others else read(path, file, None, limits, head)


def read_text(text: str, file: str, rank: int | None) -> Contents:
    """Read a log from a text in memory, such as the standard error of a simulated rank."""
    scan = _Scan(contents := Contents(file), rank, Streams(contents, rank))
    for number, line in enumerate(text.splitlines(), 1):
        scan.feed(split(number, line.encode("utf-8", "replace")))
    return scan.finish()


_NOT_LOGS = frozenset({".json", ".jsonl", ".xml", ".sqlite", ".db", ".pickle", ".pkl", ".pt", ".pth", ".gz"})
_DAMAGED = 0.01  # Maximum share of characters of a log that no text has, as of a line that a crash cut off.
_CONTROL = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f]")


def recognise(head: bytes) -> bool:
    """Whether a file that starts with `head` is text: UTF-8 or marked UTF-16, with few control characters."""
    if has_utf16_mark(head):
        head = head[: len(head) & ~1].decode("utf-16", "replace").encode("utf-8", "replace")
    head = head.rstrip(b"\0") or head  # A node that crashed leaves blocks of zeros after what it had written.
    is_text = len(_CONTROL.findall(head)) <= _DAMAGED * len(head)
    return is_text and head.decode("utf-8", "replace").count("\ufffd") <= 1 + _DAMAGED * len(head)


def training_ended(evidence: Evidence, files: Collection[str] = ()) -> bool:
    """Return whether a log, of these `files` if there are any, says after its last step that the training ended."""
    return any(fact.kind == ENDED and (not files or fact.file in files) for fact in evidence.facts)


def last_progress(evidence: Evidence) -> dict[str, int]:
    """Return the line of each log about its last step, or the end of the training: what is above ended nothing."""
    steps = {fact.file: fact.fields["steps"].last for fact in evidence.facts if fact.kind == "steps"}
    return steps | {fact.file: fact.line for fact in evidence.facts if fact.kind == ENDED}


def is_named_like_a_log(path: Path) -> bool:
    """Whether the name is that of a log, so that a text without known lines, or of gigabytes, counts as a log."""
    return bool(_TEXT["log_name"].search(path.name))


def _open(source: Source) -> Contents:
    named = is_named_like_a_log(source.path)
    if source.path.stat().st_size > source.limits.whole_bytes and not named:
        return Contents(source.file, problem="large_text")
    contents = read(source.path, source.file, source.owner.rank, source.limits, source.head)
    if not (contents or named):
        contents.problem = ""  # It may be any text.
    return contents


READER = Reader(
    kind="log",
    title="logs",
    recognise=recognise,
    open=_open,
    order=2,  # After all other readers of text.
    not_suffixes=_NOT_LOGS,
)

"""Tracebacks and stacks in the lines of a log, assembled for each writer, and whether the log goes on below one."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise
from operator import methodcaller

from msgspec import Struct, field
from msgspec.structs import replace

from diagnostics.contract.files import patterns_beside, table_beside
from diagnostics.evidence.endings import is_victim, kind_of_exception
from diagnostics.evidence.logs import tracebacks
from diagnostics.evidence.logs.launcher import DRIVER_TYPE, LAUNCHER_TYPE, by_launcher, ended_child, fatal_error
from diagnostics.evidence.logs.lines import Line, split
from diagnostics.evidence.logs.patterns import moment
from diagnostics.evidence.model import Frame, LogFact, RankError
from diagnostics.evidence.reader import Contents
from diagnostics.evidence.stacks import dumps as stack_dumps

GOES_ON = 3
"""Chosen: different steps behind a traceback by which the process that printed both has survived it."""
PEERS_GO_ON = 50
"""Chosen: the same of any rank. Up to their next collective, the peers of a rank that died print one accumulation of
micro-batches at most."""
_TEXT = patterns_beside(__file__, "steps")  # Compiled patterns, documented in the table.
_LINE, _HEAD = 400, 80  # Characters of a line that are read, and of those in front of a number that are compared.
MAX_ERRORS = 2000
MAX_STACKS = 4096
MAX_FACTS = 20_000
TEXT = 400  # Maximum characters of a line stored in a fact.
MAX_STREAMS = 4096  # Maximum number of writers in one log whose tracebacks are assembled at the same time.
_ABOVE, _STAMP = 1000, 120  # Lines above a traceback, and characters of each, in which a time is looked for.
FOLLOWED = 64  # Lines after a traceback in which these steps are counted.
_lines = lru_cache(maxsize=1)(methodcaller("split", b"\n"))  # Only of blocks in which a time is looked for.
_TABLE = table_beside(__file__)
_ELAPSED = re.compile(rb"\[(?:(\d{1,3}):)?(\d{1,2}):(\d\d)<")  # For how long a progress bar has been drawn.
_FINISHED, _STATE, _ANNOUNCED = (re.compile(_TABLE[name]) for name in ("finished", "state", "announced"))
_THROWN = 4  # Lines above the message of a C++ exception in which its class stands.
_CLASS, _ERRNO = re.compile(r"instance of '([\w:]+)'"), re.compile("[A-Z][a-z]+(?: [a-z]+)*")
_RANKS, _UNASKED = re.compile(r"\b\d{1,7}\b"), frozenset(_TABLE["unasked"])
ASIDE = tuple(_TABLE["aside"])  # Python's announcements of exceptions that do not end the process.
STRUCTURE = (*_TABLE["structure"], *ASIDE)
"""Words of lines about a process's end or position, in addition to those of `patterns.yaml`."""
_MARK = re.compile(rb"\n\[rank\d{1,7}\]:")
_THREADS = "_bootstrap_inner", "_bootstrap"
"""Outermost frames of a side thread, in threading.py."""


class Counters(Struct):
    """The steps above a traceback and below it, by the text in front of them."""

    highest: dict[str, tuple[float, ...]] = field(default_factory=dict)
    rises: Counter[str] = field(default_factory=Counter)
    """Lines in which a step was higher than before."""
    above: Mapping[str, int] = field(default_factory=dict)  # The rises above the traceback.

    @property
    def below(self) -> int:
        """How many steps of one series were printed below the traceback; few count only where it also rose above.

        A monitor or a summary of the run goes on counting when a rank has ended, but the steps do not.
        """
        least = min(GOES_ON, max(self.above.values(), default=0) - 1)
        rose = {head for head, n in self.above.items() if n > max(least, 1)}
        return max((n for head, n in self.rises.items() if head in rose or (not rose and n >= GOES_ON)), default=0)

    def read(self, text: str) -> None:
        """Count the steps in a line."""
        text = _TEXT["time"].sub("@", _TEXT["beside"].sub("", text[:_LINE]))
        if steps := [*_TEXT["progress"].finditer(text)]:
            head = " ".join(_TEXT["changes"].sub("#", text[: steps[0].start()]).split())[-_HEAD:]
            value = tuple(float(next(filter(None, step.groups()))) for step in steps)
            if value > self.highest.get(head, ()):
                self.highest[head] = value
                self.rises[head] += 1


class _Stream(Struct):
    traceback: tracebacks.Assembler = field(default_factory=tracebacks.Assembler)
    box: tracebacks.Box = field(default_factory=tracebacks.Box)
    stack: stack_dumps.Assembler = field(default_factory=stack_dumps.Assembler)
    rank: int | None = None
    number: int = 0
    times: tuple[float | None, float | None] = None, None
    """Of the dated lines above and below the last traceback."""
    spawned: int | None = None
    """Rank of a process whose traceback torch.multiprocessing repeats."""
    outer: tracebacks.Raised | None = None
    """The last exception that lists those of ranks."""
    fatal: RankError | None = None
    raised: list[RankError] = field(default_factory=list)
    """The last exceptions, until it is clear whether the process continued."""
    counters: Counters = field(default_factory=Counters)
    """Of the last traceback."""
    by_handler: bool | None = None
    """Whether the line above the last traceback tells that a handler printed it; None if it does not tell."""
    said_s: float | None = None
    """Time of such a line of a handler, which is that of the traceback."""
    finished: bool = False
    aside: int = 0
    """Number of lines within which the traceback of a harmless exception begins."""


def fact_of(kind: str, rank: int | None, file: str, line: int, error: RankError | tracebacks.Raised) -> LogFact:
    """Return the fact that an exception in a line, such as one that was handled, is no error of a rank."""
    at = f"{error.frames[0].file}:{error.frames[0].line}" if error.frames else ""
    fields = {"type": error.type, "message": error.message[:TEXT], "at": at, "frames": error.frames}
    return LogFact(kind, rank, file, line, f"{error.type}: {error.message}"[:TEXT].removesuffix(": "), fields)


class Streams(Struct):
    """All writers of one log; completed records are added to `read`."""

    read: Contents
    rank: int | None
    """Rank according to the log's name."""
    following: int = 0
    """Number of further lines to read, whatever their content."""
    near_s: float = 0.0
    """A time (s since 1970) in the year of the log, for lines that do not state theirs; 0 if unknown."""
    label: re.Pattern[str] | None = None
    """What `label_of` found in front of the lines."""
    block: bytes = b""
    """The lines around the current one, of which the first has the number `first`."""
    first: int = 1
    streams: dict[str, _Stream] = field(default_factory=dict)
    taken: int = 0
    """The last line that a traceback or a stack took."""
    below: dict[int, int] = field(default_factory=dict)
    """Line of an exception, or one that is watched -> steps that its own writer printed below it."""
    writers: set[str] = field(default_factory=set)
    """Prefixes without a rank around tracebacks, such as services of docker compose."""
    withdrawn: list[RankError] = field(default_factory=list)
    """Errors withdrawn for steps that followed; without prefixes another rank may have printed them."""

    def feed(self, line: Line, rank: int | None) -> None:
        """Read one line of a rank."""
        stream = self.streams.get(line.stream)
        if stream is None:
            if len(self.streams) >= MAX_STREAMS:
                self.finish()
                self.streams.clear()
            stream = self.streams[line.stream] = _Stream(rank=rank)
        texts = stream.box.lines(line.text)
        if (ended := tracebacks.WHAT.match(line.text)) is not None:  # C++'s last words; behind an own error an effect.
            self._keep(stream, end=True)
            at = max(0, line.number - self.first)
            above = b"\n".join(_lines(self.block)[max(0, at - _THROWN) : at]).decode("utf-8", "replace")
            # The text of an error number does not say what failed: the class of another library's exception does.
            by = _CLASS.findall(above)[-1:] if _ERRNO.fullmatch(ended[1].strip()) else []
            foreign = next((f"{name}: " for name in by if not name.startswith("std::")), "")
            texts = () if self._own_errors() else (f"RuntimeError: {foreign}{ended[1]}",)
        for text in texts:
            self._feed(stream, line._replace(text=text), rank)
        if stream.box.inside:
            self.follow(8 * (1 + len(self.streams)))

    def _feed(self, stream: _Stream, line: Line, rank: int | None) -> None:
        if spawned := tracebacks.SPAWNED.match(line.text):
            if (first := stream.traceback.first) and spawned["rank"]:
                stream.outer = first if first.type == "CheckpointException" else stream.outer
                self._keep(stream, end=first is not stream.outer)  # Of the rank before it in the list.
            stream.spawned = int(spawned["process"] or spawned["rank"])
            stream.traceback = tracebacks.Assembler()  # That of the parent repeats it.
            self.follow(4)
        fatal = fatal_error(line.text, rank, self.read.file, line.number)
        if fatal is not None:
            self._keep(stream, end=stream.fatal is not None)  # Of several processes.
            stream.fatal = fatal
            self.follow(8)
        stream.aside = 3 if line.text.lstrip().startswith(ASIDE) else stream.aside - 1
        if stream.aside == 3:
            self._keep(stream, end=True)
            self.follow(3)
        begins = tracebacks.START.match(line.text)
        if begins and not stream.traceback.active:
            stream.raised, stream.finished = [], False
        elif begins and stream.traceback.separate(line.text):
            self._keep(stream, end=True)
        was_active, was_inside = stream.traceback.active, stream.traceback.inside
        if begins and not was_active:
            stream.number = line.number
        if not was_active:
            stream.traceback.aside = stream.aside >= 0
        stream.traceback.feed(line.text)
        if stream.traceback.active and not (was_active or begins):  # A traceback without its head.
            stream.number, stream.raised, stream.finished = line.number, [], False
        if stream.traceback.active and not was_active:
            stream.times = self.time_above(line.number, line.stream), self.time_above(line.number)
            self._read_above(stream, line)
        elif was_active and not was_inside and stream.times[1] is None:
            stream.times = stream.times[0], self.time_above(line.number)
        if was_inside and (of := stream.traceback).message_open and not of.quiet and not of.inside:
            stream.number = line.number  # Of the exception that is kept, which says more than the head.
        stream.stack.feed(line.text)
        if stream.traceback.active or stream.stack.active:
            self.taken = line.number
            # With many writers the next line of this one may be far away.
            self.follow(40 + 8 * len(self.streams))
        if stream.traceback.done or stream.stack.done:
            self._keep(stream)
        if stream.number and not stream.traceback.inside:
            # Progress behind an exception shows that it was handled.
            states = [*line.drawn.split("\r"), *_STATE.split(line.text)]  # What was pasted has lost carriage returns.
            for state in states:
                stream.counters.read(state)
            # A sentence of the end counts only where no other rank can have written it.
            stream.finished |= bool(_FINISHED.search(line.text)) and (self.rank is not None or bool(line.stream))
            self._take_back(stream)

    def watch(self, line: Line) -> None:
        """Count the steps of a writer below a line, unless it is a traceback's or below one of which this is open."""
        stream = self.streams[line.stream]
        if not stream.traceback.active and not any(error in self.read.errors for error in stream.raised):
            self._read_above(stream, line)
            stream.number, stream.raised, stream.finished = line.number, [], False
            self.follow(FOLLOWED + 8 * len(self.streams))

    def _read_above(self, stream: _Stream, line: Line) -> None:
        """Read the lines of the same writer above a traceback: its steps, and what announces it."""
        at, counters, last = max(0, line.number - self.first), Counters(), ""
        for above in (split(0, raw, self.label) for raw in _lines(self.block)[max(0, at - FOLLOWED) : at]):
            if above.stream == line.stream:
                counters.read(last := above.text)
            self.writers |= {own.stream for own in (above, line) if own.stream and own.rank is own.local_rank is None}
        stream.counters = Counters(counters.highest, above=counters.rises)
        announced = _ANNOUNCED.search(last[:_LINE])
        stream.by_handler = announced["by_hook"] is None if announced else None
        stream.said_s = moment(last[:_STAMP], self.near_s) if stream.by_handler else None

    def time_above(self, number: int, writer: str | None = None) -> float | None:
        """Return the time of a line (s since 1970, as if it were UTC), or of the nearest one of its writer above it."""
        mark, lines = (writer or "").encode(), _lines(self.block)[max(0, number - self.first) :: -1]
        lines = lines[: 1 if writer is None else _ABOVE]
        own = (raw for raw in lines if (mark in raw[:_STAMP] if mark[:1] == b"[" else raw.lstrip().startswith(mark)))
        texts = (raw[: None if raw[:1] == b"{" else _STAMP].decode("utf-8", "replace") for raw in own)
        return next(filter(None, (moment(text, self.near_s) for text in texts)), None)

    def alive_above(self, number: int | None = None) -> LogFact | None:
        """Return the last dated line above a line, or of the log, and until when bars moved; None if others follow."""
        lines = _lines(self.block)
        end = len(lines) if number is None else min(len(lines), max(0, number - self.first))
        for at in range(end - 1, max(end - _ABOVE, 0) - 1, -1):
            text = lines[at][:TEXT].decode("utf-8", "replace")
            if (at_s := moment(text[:_STAMP], self.near_s)) is not None:
                silent = [raw for raw in lines[at + 1 : end] if raw.strip() and not _ELAPSED.search(raw)]
                if len(silent) > FOLLOWED:
                    break
                states = _ELAPSED.findall(b"\n".join(lines[at : end + 1]))
                drawn_s = [60 * (60 * int(hours or 0) + int(minutes)) + int(s) for hours, minutes, s in states]
                at_s += sum(b - a if b >= a else b for a, b in pairwise([0, *drawn_s]))
                line = split(self.first + at, lines[at], self.label)
                return LogFact("alive", line.rank, self.read.file, line.number, text, {"at_s": at_s})
        return None

    def goes_on(self, error: RankError) -> bool:
        """Return whether other lines than those of its message are below an exception."""
        below = error.line + 1 + error.message.count("\n") - self.first
        return any(raw.strip() for raw in _lines(self.block)[max(0, below) :])

    def finish(self) -> None:
        """Complete pending tracebacks at the end of the log."""
        if len(self.writers) > 1:
            self.read.facts.append(LogFact("several_processes", None, self.read.file))
        for stream in self.streams.values():
            cut = stream.traceback.frames[-1:] if stream.traceback.inside and not stream.traceback.first else []
            self._keep(stream, end=True)
            self._take_back(stream)
            started, outer = by_launcher(tuple(cut), ""), stream.outer
            if cut and outer is not None:  # The ranks that it lists raised, whatever it was.
                listed = {*map(int, _RANKS.findall(outer.message[:TEXT]))} - {error.rank for error in self.read.errors}
                what = self.read.file, stream.number, outer.type, outer.message, outer.frames
                self.read.errors += [RankError(each, *what) for each in sorted(listed)]
            elif cut and (started or not self.read.errors):
                rank = stream.rank if stream.spawned is None else stream.spawned
                text = f'File "{cut[0].file}", line {cut[0].line}, in {cut[0].function}'
                kind = "several_processes" if started else "cut_traceback"
                self.read.facts.append(LogFact(kind, rank, self.read.file, stream.number, text))
        # A last line alone is weak: beside a whole traceback of an own error, which may be of the same rank, it is what
        # somebody printed and handled, and above the word of a scheduler that ended a job which still ran.
        whole = {error.rank for error in self._own_errors() if error.frames}
        ran = max((fact.line for fact in self.read.facts if fact.fields.get("why") in _UNASKED), default=0)
        for error in [error for error in self.read.errors if error.type and not error.frames]:
            may_be_whole = whole and (error.rank is None or not whole.isdisjoint((error.rank, None)))
            if may_be_whole or (error.rank is None and error.line < ran):
                self._handled(error)

    def read_last(self, after: int, alone: bool) -> None:
        """Read the last line of each rank without an error, `after` a line, if only a cut traceback has such a line.

        The same of a log without any error, if it stands `alone`, without a word of a launcher.
        """
        handled = {fact.rank for fact in self.read.facts if fact.kind in ("handled_error", "side_error")}
        with_error = handled.union(error.rank for error in self.read.errors)
        lines_of_errors = {error.line for error in self.read.errors}
        block = b"\n" + self.block
        for mark in sorted({*_MARK.findall(block)}):
            at = block.rfind(mark) + 1
            line = split(self.first + block.count(b"\n", 1, at), block[at : at + _LINE].partition(b"\n")[0], self.label)
            is_told = line.rank in with_error or line.number in lines_of_errors or line.number <= after
            if not is_told and (end := tracebacks.LAST.match(line.text)):
                self._last(line.rank, line.number, end)
        lines = [(number, raw) for number, raw in enumerate(_lines(self.block), self.first) if raw.strip()][-2:]
        if not alone or self.read.errors or not lines or self.taken >= lines[-1][0]:
            return
        line, is_cut = split(*lines[-1]), tracebacks.CARETS.match(split(*lines[0]).text)
        end = tracebacks.CUT_END.match(line.text)
        # A logger begins many lines so.
        if end and (is_cut or not end["bare"]) and self.block.count(end["type"].encode() + b":") <= 1:
            self._last(self.rank if line.rank is None else line.rank, line.number, end)

    def _last(self, rank: int | None, number: int, end: re.Match[str]) -> None:
        stream = _Stream(rank=rank, number=number)
        stream.traceback.feed_end(end["type"], end["message"] or "")
        self._keep(stream, end=True)

    def _own_errors(self) -> list[RankError]:
        return [e for e in self.read.errors if not is_victim(kind_of_exception(e.type, e.message, e.frames))]

    def went_on(self, survived: Callable[[int, int | None], bool]) -> None:
        """Withdraw errors in lines of ranks that the job survived."""
        for error in [error for error in self.read.errors if survived(error.line, error.rank)]:
            self._handled(error)

    def _handled(self, error: RankError) -> None:
        self.read.errors.remove(error)
        self._fact("handled_error", error.rank, error.line, error)

    def follow(self, lines: int) -> None:
        """Request this number of further lines."""
        self.following = max(self.following, lines)

    def _take_back(self, stream: _Stream) -> None:
        self.below[stream.number] = below = stream.counters.below
        for error in [error for error in stream.raised if error in self.read.errors]:
            if stream.finished or below >= (1 if error.caught else GOES_ON):
                self._handled(error)
                self.withdrawn.append(error)

    def _fact(self, kind: str, rank: int | None, line: int, error: RankError | tracebacks.Raised) -> None:
        if len(self.read.facts) < MAX_FACTS:
            self.read.facts.append(fact_of(kind, rank, self.read.file, line, error))

    def _keep(self, stream: _Stream, end: bool = False) -> None:
        if end:
            stream.stack.close()
        done, stream.stack.done = stream.stack.done, []
        for dump in done[: max(0, MAX_STACKS - len(self.read.stacks))]:
            rank = stream.rank if stream.rank is not None else dump.rank
            self.read.stacks.append(replace(dump, rank=rank, file=self.read.file))
        if stream.fatal is not None and (done or end):
            dying = [thread for dump in done for thread in dump.threads if thread.name == "current" or thread.main]
            thread = min(dying, key=lambda thread: thread.name != "current", default=None)
            self._error(replace(stream.fatal, frames=thread.frames if thread else ()))
            stream.fatal = None
        for raised in stream.traceback.take(end):
            rank = stream.rank if stream.spawned is None else stream.spawned
            if rank is None and (stated := tracebacks.OWN_RANK.search(raised.message)):
                rank = int(stated[1])
            stream.spawned = None
            outer = raised.frames[-1] if raised.frames else Frame("", 0, "<module>")
            if raised.aside or (outer.function in _THREADS and outer.file.endswith("threading.py")):
                self._fact("side_error", rank, stream.number, raised)
                continue
            ended = ended_child(raised.message, self.read.file, stream.number)
            others = self._own_errors() if ended is not None else ()
            after = any(error.frames and error.type != raised.type for error in others)
            of_launcher = by_launcher(raised.frames, raised.message, after) or (
                ended is not None and raised.type == "RuntimeError"
            )
            if of_launcher or DRIVER_TYPE.match(raised.type) or LAUNCHER_TYPE.match(raised.type):
                if not LAUNCHER_TYPE.match(raised.type):
                    self._fact("launcher_error", None, stream.number, raised)
                if ended is not None:
                    self._error(ended)
            else:
                error = RankError(rank, self.read.file, stream.number, raised.type, raised.message, raised.frames)
                caught = raised.caught if stream.by_handler is None else stream.by_handler
                before_s = stream.times[1] or (stream.said_s if raised.caught else None)
                error = replace(error, after_s=stream.times[0], before_s=before_s, caught=caught)
                self._error(error)
                stream.raised.append(error)
                if raised.remote:
                    self._fact("launcher_error", None, stream.number, raised)
                self.follow(FOLLOWED + 8 * len(self.streams))

    def _error(self, error: RankError) -> None:
        recorded = ((other.type, other.rank, other.message[:TEXT]) for other in self.read.errors[-64:])
        if not error.frames and (error.type, error.rank, error.message[:TEXT]) in recorded:
            return  # Several processes print one exception without saying which of them it is.
        if len(self.read.errors) < MAX_ERRORS and error not in self.read.errors[-8:]:
            self.read.errors.append(error)

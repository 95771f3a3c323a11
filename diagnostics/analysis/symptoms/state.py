"""A job that stands still, as its log or observations show it: who waits in which call since when, who is elsewhere,
what the libraries report. They serve suspicions and the first screen; `divergence` decides which rank deviates.
"""

import re
from collections.abc import Callable
from functools import cache, partial
from math import inf

from msgspec import Struct

from diagnostics.analysis.histories.watchdog_lines import COUNTED, NEAR
from diagnostics.analysis.stall.job_state import JobState
from diagnostics.analysis.step_times import Silence, silence
from diagnostics.analysis.vote import OF_JOB, Vote, count_votes
from diagnostics.contract.files import table_beside
from diagnostics.contract.formatting import UNNAMED, Phrase
from diagnostics.evidence.calls import TRANSFERS
from diagnostics.evidence.endings import Ending, ends_a_rank, of_error
from diagnostics.evidence.model import LogFact
from diagnostics.evidence.readers.log import ENDED, last_progress

EVENTS = frozenset({"nccl_ib_async", "link_down"})
"""Kinds of lines about a port, which a job that goes on writes too."""
TRANSPORT = EVENTS | {"nccl_ib_error", "nccl_peer_closed", "nccl_connect"}
_TABLE = table_beside(__file__)
KINDS = {name: frozenset(kinds) for name, kinds in _TABLE["kinds"].items()}
OPENS = TRANSPORT | KINDS["opens"]
"""Kinds of lines that say that something waits, or why it may wait."""
MOST_SPECIFIC = ("nccl_last_error", "nccl_result", "dist_backend_error")
"""Kinds of lines in which NCCL gives up, the most specific first; the last one only gives a place in torch's source."""
FAILED = frozenset(MOST_SPECIFIC)
OF_PEERS = FAILED | KINDS["noticed"] | KINDS["closed"] | {"nccl_peer_closed", "store_closed"}
"""Kinds of lines that a rank also writes when its peers were stopped."""
_GAVE_UP = OF_PEERS | OPENS - EVENTS | {"nccl_returned"}
"""Kinds of lines by which a rank waits in communication or gave it up; the rest are warnings."""
_SHOWN = OPENS - {"nccl_connect"} | {"watchdog_abort", "flight_dump_signal"}
"""Kinds of lines whose whole content is in `Symptoms`."""
_WARNS = re.compile(r"\bWARN(?:ING)?\b|Warning: |^\[?W\d{4} ")
"""Heads of warnings, which NCCL, Python and loggers also print of what they then do without."""


def is_warning(text: str) -> bool:
    """Return whether a line is only a warning, so that the job may have gone on without what it is about."""
    return _WARNS.search(text) is not None


def ended_by(job: JobState, *, by_exit_codes: bool = True) -> Callable[[str, int], bool | None]:
    """Return what says whether a warning in a line of a file ended the job; None if it is not known how it ended.

    It did if communication failed behind it, and no rank had failed on its own before. Exit codes of which nothing else
    is known count as such a failure on request only.
    """
    evidence, quiet_time = job.evidence, cache(partial(silence, job.evidence))
    ends = [*job.endings.values(), *(of_error(e, UNNAMED) for e in evidence.errors if ends_a_rank(e))]
    own = {(end.file, end.line) for end in ends if end.of_program}
    signs: list[LogFact | Ending] = [end for end in ends if not end.of_program and end.kind != "stopped"]
    signs = [end for end in signs if by_exit_codes or not (isinstance(end, Ending) and end.only_exit_code)]
    signs += [fact for fact in evidence.facts if fact.kind in _GAVE_UP]  # Some of these are warnings too.
    # NCCL warns on stdout before torch raises on stderr: of one failure, either may come first in a file.
    facts = [f for f in evidence.facts if f.kind == "dist_backend_error" and "remote" not in f.text]
    raised = {fact.file: fact.line for fact in facts if fact.line > last_progress(evidence).get(fact.file, 0)}

    def ended(file: str, line: int) -> bool | None:
        behind = [sign.line if sign.file == file else inf for sign in signs if sign.file != file or sign.line >= line]
        behind += [line] if raised.get(file, line) < line else []
        if signs or own:
            first = min(behind, default=inf)
            return bool(behind) and not any(place[0] != file or place[1] < first for place in own)
        quiet = quiet_time()
        if job.stands_still() or (quiet and not quiet.may_be_zone and (quiet.file != file or quiet.line < line)):
            return True
        return False if any(fact.kind in ("job_stopped", ENDED) for fact in evidence.facts) else None

    return ended


def says(row: str, **figures: object) -> Phrase:
    """Return a text of the table with these figures."""
    return Phrase(row, _TABLE["texts"][row], figures)


class Waiting(Struct, frozen=True):
    """Ranks that wait in one call."""

    ranks: tuple[int, ...]
    """Empty if the lines name none."""
    op: str
    """Name of the operation; empty = unknown."""
    seq: int | None = None
    numel: int | None = None
    """Input elements per rank."""
    group: str = ""
    """Description or name of the group; empty = not named."""
    members: int | None = None
    """Number of ranks in the group; None = unknown."""
    completed: int | None = None
    """Last position completed by the lowest rank with a counter; below 1 if no call of the group completed there."""
    enqueued: int | None = None
    """Last position that any of these ranks enqueued; None = unknown."""
    waited_s: float | None = None
    timeout_s: float | None = None
    since: str = ""
    """Time at which the wait began by the log's own clock, such as `01:57:08`."""
    site: str = ""
    """The user's line, such as `train.py:12`, from the ranks' stacks or tracebacks; empty = unknown."""
    behind: tuple[int, ...] = ()
    """Those of the ranks that were already waiting in another group when they enqueued this call; it waits for them."""
    processes: tuple[int, ...] = ()
    """Process ids of ranks that nothing names."""

    @property
    def first(self) -> bool:
        """Whether no call of the group completed before this one."""
        return self.completed <= 0 if self.completed is not None else self.seq in (0, 1)

    @property
    def seems_whole(self) -> bool:
        """Whether all ranks from 0 to the highest of these wait in the call, in a group of unknown size."""
        of_all = self.op not in TRANSFERS and not self.behind
        return of_all and self.members is None and bool(self.waited_s) and 1 < len(self.ranks) == self.ranks[-1] + 1

    @property
    def counted(self) -> bool:
        """Whether the position is one that all ranks of the group share: messages of two ranks are counted apart."""
        return not self.op or self.op in COUNTED

    @property
    def whole_group(self) -> bool:
        """Whether every rank of the group is known to wait in the call, and none of them is held up elsewhere."""
        return self.members is not None and len(self.ranks) == self.members > 1 and not self.behind


class Progress(Struct, frozen=True):
    """Ranks that do not wait in a group, and their last positions in it."""

    ranks: tuple[int, ...]
    group: str
    completed: int
    enqueued: int


class Symptoms(Struct, frozen=True):
    """A job that stands still, as its log or observations of its processes show it."""

    waits: tuple[Waiting, ...]
    """The call in which the most ranks wait comes first."""
    others: tuple[Progress, ...]
    silent: tuple[int, ...]
    """Ranks of the job without any line in the log but those of its steps."""
    aborted: tuple[int, ...]
    """Ranks that ended by SIGABRT, as a watchdog ends them; only if no wait is known."""
    kinds: frozenset[str]
    """Kinds of all lines that were recognised."""
    stuck_s: float = 0.0
    """Longest time for which a watchdog itself was stuck."""
    stuck: tuple[int, ...] = ()
    """Ranks whose watchdog was stuck, if their lines name them."""
    refused: bool = False
    """Whether a peer refused a connection of NCCL."""
    inside_node: str = ""
    """Kind of the address to which NCCL failed to connect, if other nodes cannot reach such addresses."""
    broken: tuple[int, ...] = ()
    """Ranks that do not wait and in which a thread other than the main thread raised an exception."""
    failure: str = ""
    """How NCCL or gloo failed, from its most specific line; empty if no line says so."""
    warning: str = ""
    """NCCL's first warning."""
    failed: tuple[int, ...] = ()
    """Ranks whose lines report the failure."""
    results: frozenset[str] = frozenset()
    """NCCL's result codes, such as `ncclSystemError`."""
    printed: tuple[tuple[tuple[int, ...], str, str], ...] = ()
    """Those of the silent ranks that printed steps, with the last one and its time (`HH:MM:SS`, or empty)."""
    failed_silently: tuple[int, ...] = ()
    """Ranks that ended with exit code 1, as after any exception, but left no traceback; only if no wait is known."""
    has_unnamed_exit: bool = False
    """Whether a process of an unknown rank ended with exit code 1 and left no traceback."""
    absent: tuple[int, ...] = ()
    """Ranks that did not reach a monitored barrier, a call of Horovod, or the set-up of a communicator."""
    limit_s: float = 0.0
    """Timeout of the monitored barrier that they did not reach; 0 if no line states it."""
    unanswered: tuple[int, ...] = ()
    """Ranks whose processes do not answer NCCL's RAS."""
    lost: str = ""
    """Message of the first exception by which a rank noticed that a peer was gone or a call had timed out."""
    timed_out: str = ""
    """How the first rank that gave up waiting says so, such as for a key of the store."""
    lost_peer: tuple[int, ...] = ()
    """Ranks with such an exception, if their lines name them."""
    library: str = "nccl"
    """`gloo` or `hccl` if it wrote any of the lines: variables of NCCL and of its flight recorder then show nothing."""
    differ: Phrase | str = ""
    """What a check of torch or NCCL reported of calls that do not match; it names one side at most."""
    sizes: str = ""
    """The line with which gloo ended a process because two sizes do not match."""
    minority_sizes: tuple[int, ...] = ()
    """Ranks whose size differs from that of most, if such lines of several ranks show it."""
    peer_calls: tuple[Waiting, ...] = ()
    """Calls in which other ranks lost that process."""
    of_model: bool = False
    """Whether the model fixes the sizes of these calls."""
    statements: int = 0
    """Number of calls, an operation at a line, of the ended process and its peers; 0 if its own is unknown."""
    possibly_late: tuple[int, ...] = ()
    """Ranks that lost their peers where these timed out, so they may have come too late."""
    departed: tuple[int, ...] = ()
    """Rank that alone closed the connections of its node's processes."""
    side_error: str = ""
    """The first exception of a side thread whose line names no rank."""
    work: LogFact | None = None
    """The last line before the wait about work outside of the training steps, or about their end."""
    silence: Silence | None = None
    """The time without a step before something stopped the job."""
    worker_died: str = ""
    """What Ray wrote of a worker whose process was gone."""
    without_report: tuple[int, ...] = ()
    """Ranks that torchrun lists without a known line at which they gave up, while that of others is known."""
    unlisted: tuple[int, ...] = ()
    """Few ranks of a node that torchrun does not list, while it lists the others with exit codes of their own."""
    outside: tuple[tuple[tuple[int, ...], Phrase], ...] = ()
    """Ranks that were observed outside of communication, and what they do."""
    threaded: tuple[int, ...] = ()
    """Ranks with a collective in a thread that the program started, beside others that communicate or wait."""

    @property
    def shown_kinds(self) -> frozenset[str]:
        """Kinds of lines that need not be shown in addition to this."""
        again = FAILED - {"dist_backend_error"} | {"watchdog_abort"}  # One line of a failure shows its place.
        failed = again if "dist_backend_error" in self.kinds else frozenset[str]()
        return _SHOWN if self.waits else failed | (KINDS["lost"] if self.lost or self.absent else frozenset())

    @property
    def longest(self) -> Waiting:
        """The wait of the most ranks; one without ranks if no wait is known."""
        return self.waits[0] if self.waits else Waiting((), "")

    @property
    def behind(self) -> tuple[int, ...]:
        """Ranks that completed all of their calls and did not make the next one, in which others wait."""
        at = {wait.group: wait.seq for wait in self.waits if wait.seq is not None and wait.counted}
        behind = [rest for rest in self.others if at.get(rest.group, -1) > rest.completed == rest.enqueued]
        return tuple(rank for rest in behind for rank in rest.ranks)

    @property
    def by_call(self) -> Vote:
        """The waiting ranks, divided by their calls: lines of the user, or else collectives without a position."""
        placed = [wait for wait in self.waits if wait.site and wait.ranks]
        placed = placed or [wait for wait in self.waits if wait.seq is None and wait.op in COUNTED]
        return count_votes(OF_JOB, 0, {rank: wait for wait in placed[::-1] for rank in wait.ranks})

    @property
    def at_other_calls(self) -> tuple[int, ...]:
        """Ranks that wait in another call than the most ranks; none if all wait in sends and receives."""
        comparable = not {wait.op for wait in self.waits} <= TRANSFERS
        return tuple(rank for side in self.by_call.sides[1:] for rank in side if comparable)

    @property
    def mismatched(self) -> tuple[int, ...]:
        """Ranks with another size than most, or that gloo ended while most were in a call of the model's sizes."""
        of_peers = self.peer_calls[0].ranks if len(self.peer_calls) == 1 and self.of_model else ()
        return self.minority_sizes or (self.aborted if len(self.aborted) < len(of_peers) else ())

    @property
    def by_position(self) -> tuple[Waiting, ...]:
        """The waits of one group at different positions, the lowest first; empty if there are none.

        Waits whose group no line names may be those of the only group that is named, at positions near to each other.
        """
        placed = [(wait.seq, wait) for wait in self.waits if wait.seq is not None and wait.ranks]
        placed.sort(key=lambda place: place[0])
        last = {wait.group: seq for seq, wait in placed}
        for group in last:
            near = (NEAR * last[group], last[group] / NEAR)
            joins = len(last) == 2 and group
            own = [wait for seq, wait in placed if wait.group == group or (joins and near[0] < seq < near[1])]
            low, high = own[0].seq or 0, own[-1].seq or 0
            if all(wait.counted for wait in own) and low < high and (group or low > NEAR * high):
                return tuple(own)
        return ()

"""The position of each rank in each process group from its NCCL watchdog's lines (ProcessGroupNCCL.cpp, 2.4 to 2.13).
torch prints a timeout without its group, and a status with it; lines that cannot be assigned to one group are omitted.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import pairwise
from operator import attrgetter

from msgspec import Struct, field
from msgspec.structs import replace

from diagnostics.contract.formatting import counted
from diagnostics.contract.grouping import grouped
from diagnostics.evidence.calls import ROOTED, Call, Described, GroupKey, Wire, operation
from diagnostics.evidence.model import MOST_RANKS, Evidence, Frame, LogFact

_SOME_CALL = "a collective"
"""Operation of ranks that are only known to have made the call at a position."""
COUNTED = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", operation(_SOME_CALL), *ROOTED}
"""Collectives; sends, receives and coalesced blocks have numbers of their own."""
_EVEN = {"ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE", "ALLGATHER", "REDUCE_SCATTER"}
"""OpType whose NumelIn is the same on all ranks: not gather and scatter (the root's differs), not all_to_all."""
_GATHERS = {"ALLGATHER", "_ALLGATHER_BASE"}
_SCATTERS = {"REDUCE_SCATTER", "_REDUCE_SCATTER_BASE"}
_STAMP = re.compile(r"^\[?[A-Z](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d(?:\.\d{1,9})?)")
_CLOCK_STEP_S = 0.002  # Times of two calls closer than this have no order, as torch prints whole milliseconds.
_DAY_S = 86_400.0
_SLACK_S = 60  # Delay of watchdogs and logs: lines further apart than the timeout and this are not taken as one hang.
NEAR = 0.99  # Share of the higher of two positions from which the lower one is not by chance that of another group.
UNNAMED = ""  # Name of the group for lines that do not name one.


class Wait(Struct, frozen=True):
    """The oldest collective of one rank that timed out in one group."""

    rank: int
    seq: int
    op: str
    """OpType printed by torch: `ALLREDUCE`, `_ALLGATHER_BASE`."""
    numel: int | None
    """Number of input elements; None if not printed."""
    group_rank: int | None
    fact: LogFact
    site: Frame | None = None
    """The user's line, if torch printed the stack of the call after the timeout."""

    @property
    def name(self) -> str:
        """The name that the user calls."""
        return operation(self.op)

    @property
    def even(self) -> bool:
        """Whether NumelIn must be equal on all ranks."""
        return self.op in _EVEN and self.numel is not None

    @property
    def counted(self) -> bool:
        """Whether SeqNum is a position among the collectives: sends and receives are counted separately."""
        return self.name in COUNTED

    @property
    def wire(self) -> Wire:
        """The known part of the call's identity: sizes only if they must be equal on all ranks."""
        return Wire(self.name, (self.numel,) if self.even and self.numel is not None else (), ())

    def call(self, group: "GroupLog") -> Call:
        """Return the call in the form in which recorders' calls are compared."""
        size = counted(self.numel, "element") if self.even and self.numel is not None else ""
        described = Described(self.wire, self.name, f"of {size}" if size else "")
        return Call(group.key, self.seq, described, False, None, stack=(self.site,) if self.site else ())

    @property
    def began_s(self) -> float | None:
        """When the call was enqueued, by the clock of `stamp_s`; torch prints for how many milliseconds it ran."""
        at_s, ran_ms = stamp_s(self.fact), self.fact.fields.get("ran_ms")
        return at_s - ran_ms / 1000 if at_s is not None and isinstance(ran_ms, int) else None


class Counters(Struct, frozen=True):
    """Progress of one rank in one group."""

    enqueued: int
    completed: int
    fact: LogFact
    work: int | None = None
    """Position of the call that its watchdog found timed out; None if it only dumped because of another rank."""


class GroupLog(Struct, frozen=True):
    """Watchdog reports of the ranks of one group."""

    name: str
    desc: str = ""
    waits: dict[int, Wait] = field(default_factory=dict)
    counters: dict[int, Counters] = field(default_factory=dict)
    mixed: bool = False
    """Whether the lines cannot be from one group of one job."""
    has_guid: bool = False
    """Whether its name is one of the whole job (since torch 2.5): numbers alone count the groups of one rank."""
    label: str = ""
    """The title, with the name where several groups share it, as those of one dimension of a mesh do."""

    @property
    def key(self) -> GroupKey:
        """The group in the form in which recorders' groups are compared."""
        return GroupKey("nccl", self.name, self.desc)

    @property
    def default(self) -> bool:
        """Whether it is the default group."""
        return self.desc == "default_pg" or (self.name == "0" and not self.desc)

    @property
    def title(self) -> str:
        """The description, or the name of a group without one."""
        return self.desc or self.name

    def is_old(self, ranks: Iterable[int], others: Iterable[int]) -> bool:
        """Return whether the counters of ranks are so much older than those of others that the job may have gone on."""
        at_s = {rank: stamp for rank, own in self.counters.items() if (stamp := stamp_s(own.fact)) is not None}
        first, last = ([at_s[rank] for rank in side if rank in at_s] for side in (ranks, others))
        return bool(first and last) and max(last) - min(first) > _SLACK_S


def read_counted(evidence: Evidence) -> list[GroupLog]:
    """Return the groups of `read_all`; without timeouts, the ranks wait in the calls that their status lines name."""
    groups = read_all(evidence)
    for group in (group for group in groups if not group.waits):
        works = ((rank, own.work, own.fact) for rank, own in group.counters.items() if own.work)
        group.waits.update({rank: Wait(rank, work, _SOME_CALL, None, None, fact) for rank, work, fact in works})
    return groups


def read_all(evidence: Evidence) -> list[GroupLog]:
    """Return all groups that a watchdog names, the default group first, then by name; of some only the counters."""
    groups: dict[str, GroupLog] = {}
    works: defaultdict[tuple[int, str, int], set[str]] = defaultdict(set)
    for fact in sorted(evidence.facts, key=attrgetter("file", "line")):  # The last line of a rank and group counts.
        if fact.kind == "watchdog_status" and fact.rank is not None and (name := _name(fact)):
            group = _group(groups, name, fact)
            enqueued, completed = fact.fields.get("last_enqueued"), fact.fields.get("last_completed")
            if isinstance(enqueued, int) and isinstance(completed, int):
                known_work = group.counters[fact.rank].work if fact.rank in group.counters else None
                work = fact.fields.get("work", known_work)
                group.counters[fact.rank] = Counters(enqueued, completed, fact, work)
            if isinstance(fact.fields.get("work"), int):
                works[fact.rank, fact.file, fact.fields["work"]].add(name)
    timeouts = [fact for fact in evidence.facts if fact.kind == "watchdog_timeout" and fact.rank is not None]
    timeouts.sort(key=lambda fact: (not _name(fact), fact.rank, fact.file, fact.line))
    calls: set[tuple[object, ...]] = set()
    stacks = grouped(((fact.rank, fact.file), fact) for fact in evidence.facts if fact.kind == "collective_stack")
    for fact in timeouts:
        _take(groups, works, calls, fact, stacks[fact.rank, fact.file])
    _join(groups)
    report, default_group = _reported(evidence), groups.get("0", GroupLog(""))
    if len(report.waits | report.counters) > len(default_group.waits | default_group.counters):
        groups = {name: group for name, group in groups.items() if name != UNNAMED} | {"0": report}
    alike = Counter(group.title for group in groups.values())
    labels = {
        name: f"{group.title} {name[:8]}" if alike[group.title] > 1 else group.title for name, group in groups.items()
    }
    checked = [
        replace(group, mixed=group.mixed or not _is_one_hang(group), label=labels[name])
        for name, group in groups.items()
    ]
    return sorted(checked, key=lambda group: (not group.default, group.name))


def _join(groups: dict[str, GroupLog]) -> None:
    """Move timeouts whose group no line names into the default group, where a rank of it timed out in the same call.

    In the default group the rank that torch writes in front of a timeout is the global one, in others hardly ever.
    """
    named = next((group for group in groups.values() if group.default and group.name != UNNAMED), None)
    unnamed = groups.get(UNNAMED)
    if named is None or unnamed is None:
        return
    calls = {(wait.seq, wait.op, wait.numel) for wait in named.waits.values()}
    for rank, wait in list(unnamed.waits.items()):
        if (wait.seq, wait.op, wait.numel) in calls and wait.group_rank == rank and rank not in named.waits:
            named.waits[rank] = unnamed.waits.pop(rank)
    if not unnamed.waits:
        del groups[UNNAMED]


def site_of(stack: LogFact) -> Frame:
    """Return the user's line of a printed stack."""
    return Frame(str(stack.fields["file"]), int(stack.fields["line"]), str(stack.fields["function"]))


def stamp_s(fact: LogFact) -> float | None:
    """Return a line's time in seconds of a year with 12 months of 31 days: only differences are meaningful."""
    match = _STAMP.match(fact.text)
    if match is None:
        return None
    month, day, hour, minute = (int(part) for part in match.groups()[:4])
    return (((month * 31 + day) * 24 + hour) * 60 + minute) * 60 + float(match[5])


def is_after(time_s: float, stamp: float) -> bool:
    """Return whether a launcher's time, which is kept as if its zone were UTC, is less than a day after a `stamp_s`.

    torch and torchrun write times in the node's own zone.
    """
    at = datetime.fromtimestamp(time_s, UTC)
    return 0 < (((at.month * 31 + at.day) * 24 + at.hour) * 60 + at.minute) * 60 + at.second - stamp < _DAY_S


def _op(fact: LogFact) -> str:
    """Return OpType; of a coalesced block the operation whose sizes it has, one a multiple of the other."""
    op, small, large = (fact.fields.get(name) for name in ("op", "numel_in", "numel_out"))
    if op != "COALESCED" or not isinstance(small, int) or not isinstance(large, int):
        return str(op)
    is_multiple = 0 < min(small, large) < max(small, large) <= min(small, large) * MOST_RANKS
    if not is_multiple or max(small, large) % min(small, large):
        return str(op)
    return "_ALLGATHER_BASE" if small < large else "_REDUCE_SCATTER_BASE"


def members_of(fact: LogFact) -> int | None:
    """Return the size of the group, the ratio of the sizes that a gather or a reduce_scatter takes and returns."""
    small, large = fact.fields.get("numel_in"), fact.fields.get("numel_out")
    op = _op(fact)
    if op in _SCATTERS:
        small, large = large, small
    if op not in _GATHERS | _SCATTERS or not isinstance(small, int) or not isinstance(large, int) or small < 1:
        return None
    return large // small if large % small == 0 and small < large <= small * MOST_RANKS else None


def enqueued_behind(groups: Iterable[GroupLog]) -> set[tuple[str, int]]:
    """Return (group, rank) for each rank that was already waiting in another group when it enqueued its call there.

    Kernels of later calls do not start before the earlier one has completed, so such a wait says nothing of its group.
    """
    began = {(group.name, rank): wait.began_s for group in groups for rank, wait in group.waits.items()}
    first: dict[int, float] = {}
    for (_, rank), at_s in began.items():
        if at_s is not None:
            first[rank] = min(at_s, first.get(rank, at_s))
    return {key for key, at_s in began.items() if at_s is not None and at_s - first[key[1]] > _CLOCK_STEP_S}


def _reported(evidence: Evidence) -> GroupLog:
    """Return the ranks' positions from torch's desync report (TORCH_NCCL_DESYNC_DEBUG, TraceUtils.h).

    Ranks may have started calls far behind one that did not complete: that they made the next one is all that counts.
    """
    rows = [fact for fact in evidence.facts if fact.kind == "desync_state"]
    low, report = min((fact.fields["seq"] for fact in rows), default=0), GroupLog("0", "default_pg")
    for fact in rows:
        seq, op = fact.fields["seq"], str(fact.fields["op"])
        call = (seq, op) if seq == low else (low + 1, _SOME_CALL)
        for rank in fact.fields["ranks"]:
            if fact.fields["state"] == "finished":
                report.counters[rank] = Counters(seq, seq, fact)
            else:
                report.waits[rank] = Wait(rank, *call, None, rank, fact)
    return report


def _name(fact: LogFact) -> str:
    return str(fact.fields.get("guid") or fact.fields.get("group") or "")


def _group(groups: dict[str, GroupLog], name: str, fact: LogFact) -> GroupLog:
    group = groups.get(name, GroupLog(name))
    has_guid = group.has_guid or "guid" in fact.fields
    groups[name] = replace(group, desc=group.desc or str(fact.fields.get("desc") or ""), has_guid=has_guid)
    return groups[name]


def _take(
    groups: dict[str, GroupLog],
    works: dict[tuple[int, str, int], set[str]],
    calls: set[tuple[object, ...]],
    fact: LogFact,
    stacks: list[LogFact],
) -> None:
    seq, rank, fields = fact.fields.get("seq"), fact.rank, fact.fields
    if not isinstance(seq, int) or rank is None:
        return
    numel, group_rank = fields.get("numel_in"), fields.get("group_rank", fields.get("pg_rank"))
    numel, group_rank = (value if isinstance(value, int) else None for value in (numel, group_rank))
    # The user's line is in the first stack that torch printed after this rank's timeout.
    behind = [other for other in stacks if other.line > fact.line]
    site = site_of(min(behind, key=lambda other: other.line)) if behind else None
    wait = Wait(rank, seq, _op(fact), numel, group_rank, fact, site)
    name, call = _name(fact), (rank, seq, wait.op, wait.numel)
    if name:
        calls.add(call)
    elif call in calls:
        return  # The same timeout was also printed with its group.
    else:
        beside = works.get((rank, fact.file, seq), set())
        name = next(iter(beside)) if len(beside) == 1 else UNNAMED
    group = _group(groups, name, fact)
    first = group.waits.setdefault(rank, wait)
    # A rank number found only in the line itself is the rank in the group.
    if (first.seq, first.op, first.numel) != (seq, wait.op, wait.numel) or (
        fields.get("only_in_group") and not group.default and group.name != UNNAMED
    ):
        groups[name] = replace(group, mixed=True)


def _is_one_hang(group: GroupLog) -> bool:
    """Return whether the lines, whose groups may share a name, can be from one group and one hang."""
    waits = sorted(group.waits.items())
    placed = [(rank, wait.group_rank) for rank, wait in waits if wait.group_rank is not None]
    if group.default or group.name == UNNAMED:
        fits = all(rank == place for rank, place in placed)
    else:
        fits = all(place <= rank for rank, place in placed) and all(a[1] < b[1] for a, b in pairwise(placed))
    stamps = [at_s for _, wait in waits if (at_s := stamp_s(wait.fact)) is not None]
    timeouts = [wait.fact.fields.get("timeout_ms") for _, wait in waits]
    limit_s = max((value / 1000 for value in timeouts if isinstance(value, int)), default=0.0)
    return fits and (not stamps or not limit_s or max(stamps) - min(stamps) <= limit_s + _SLACK_S)

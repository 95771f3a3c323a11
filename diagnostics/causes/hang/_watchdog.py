"""Findings about hangs of which only the lines of NCCL's watchdogs are left."""

from dataclasses import dataclass

from diagnostics.analysis.divergence import differing_parts
from diagnostics.analysis.stall.explain import Stall
from diagnostics.analysis.stall.watchdog import WatchdogGap, WatchdogMismatch, WatchdogOpen
from diagnostics.analysis.stall.watchdog_lines import UNNAMED, GroupLog, Wait
from diagnostics.causes.hang import _parts
from diagnostics.contract.findings import EvidenceItem, Finding, Group, Remedy, Text, Where
from diagnostics.contract.formatting import ranks_spoken, sentence, verb

_SURE = 0.75
"""A mismatch in a group that the lines name; dumps, which show the calls before it, are surer."""
_LIKELY = 0.65
"""A tie, or lines that do not name their group."""
_BEHIND = 0.6
_OPEN = ("hang.collective_mismatch", "hang.signature_mismatch", "hang.conditional_collective")
"""Causes that timeouts leave open."""
_DUMPS = "TORCH_FR_BUFFER_SIZE=2000 TORCH_FR_DUMP_TEMP_FILE=/tmp/flight_rank_, which records the calls before it"


@dataclass(frozen=True, slots=True)
class TimeoutsDisagree:
    """Facts: ranks that timed out at one position in calls that do not fit together."""

    case: WatchdogMismatch

    @property
    def sides(self) -> tuple[Wait, ...]:
        """What the sides wait in, the largest side first."""
        return tuple(self.case.group.waits[side[0]] for side in self.case.vote.sides)

    @property
    def cause(self) -> str:
        """Other operations, or other arguments of the same one."""
        majority, minority = self.sides[:2]
        different = differing_parts(majority.wire, minority.wire)
        return "hang.collective_mismatch" if "operation" in different else "hang.signature_mismatch"

    def text(self, finding: Finding) -> Text:
        """Put the finding into words."""
        vote, group, sides = self.case.vote, self.case.group, self.sides
        waits = [
            f"{ranks_spoken(side)} {'waits' if len(side) == 1 else 'wait'} in {group.waits[side[0]].text}"
            for side in (*vote.sides[1:4], vote.sides[0])
        ]
        at = f"position {vote.position}"
        summary = f"{sentence(', '.join(waits[:-1]))} where {waits[-1]}, at {at} of {_named(group)}."
        if any(wait.numel == 1 and wait.name == "all_reduce" for wait in sides):
            summary += " (A barrier is an all_reduce of 1 element.)"
        if vote.tie:
            counts = " against ".join(str(len(side)) for side in vote.sides)
            summary += f" It is a tie ({counts}): either side may be the wrong one."
        majority, minority = sides[:2]
        change = f"{majority.text} and {minority.text} meet at {at}: let all ranks take the same branch"
        if self.cause == "hang.signature_mismatch":
            change = f"{majority.name} at {at} needs the same number of elements on every rank"
        return Text(
            summary=(
                f"{summary} Whether it is this call that is wrong or one left out or added before it, logs do not tell."
            ),
            measured=f"{len(vote.minority)} of {len(vote.present)} ranks differ at {at}",
            remedies=(Remedy("code", change, "collectives are matched by their order in the group"),),
        )


@dataclass(frozen=True, slots=True)
class CallNotReached:
    """Facts: ranks that timed out in a call that the others never made."""

    case: WatchdogGap

    def text(self, finding: Finding) -> Text:
        """Put the finding into words."""
        case, waiting, behind, call = self.case, self.case.waiting, self.case.behind, self.case.call
        group, last = _named(case.group), call.seq - 1
        if case.few_wait:
            summary = (
                f"Only {ranks_spoken(waiting)} {verb(waiting, 'calls', 'call')} {call.text} at position {call.seq} of "
                f"{group}; {ranks_spoken(behind)} completed #{last} and made no call after it."
            )
            change = f"let all ranks call {call.text}, or none"
        else:
            summary = (
                f"{sentence(ranks_spoken(behind))} never reached {call.text} (#{call.seq} of {group}), which "
                f"{ranks_spoken(waiting)} {verb(waiting, 'waits', 'wait')} in: {verb(behind, 'its', 'their')} last "
                f"call was #{last}, and it completed. {sentence(verb(behind, 'it is', 'they are'))} late or stuck, or "
                "left that call out: the logs cannot tell."
            )
            change = f"look at what {ranks_spoken(behind)} did after #{last}"
        return Text(
            summary=summary,
            measured=f"{len(waiting)} of {len(case.members)} ranks reached position {call.seq}",
            missing=_DUMPS,
            remedies=(Remedy("code", change, "a collective returns only when every rank of its group calls"),),
        )


@dataclass(frozen=True, slots=True)
class TimeoutsUnclear:
    """Facts: timeouts of one group that do not show why its ranks wait."""

    group: GroupLog

    def text(self, finding: Finding) -> Text:
        """Put the finding into words."""
        return Text(summary=self._why(), missing=_DUMPS)

    def _why(self) -> str:
        group, ranks = self.group, ranks_spoken(self.group.waits)
        if group.mixed:
            return f"The timeouts of {ranks} cannot be of one process group, so they are not compared."
        waits = sorted(group.waits.values(), key=lambda wait: (wait.seq, wait.rank))
        first, last = waits[0], waits[-1]
        if first.seq != last.seq:
            return (
                f"Rank {first.rank} waits in #{first.seq} of {_named(group)}, which rank {last.rank} completed before "
                f"it came to #{last.seq}: a device that does not complete, or calls that did not fit before."
            )
        if len({(wait.name, wait.numel) for wait in waits}) == 1:
            return f"{sentence(ranks)} wait in the same call: {first.text}, #{first.seq} of {_named(group)}."
        return f"{sentence(ranks)} wait at #{first.seq} in calls that may differ by rank: {first.op}, {last.op}."


def findings(stall: Stall, cause: str) -> list[Finding]:
    """Return what the watchdogs' lines show of one cause: at most one finding."""
    case = stall.watchdog
    if isinstance(case, WatchdogMismatch):
        facts = TimeoutsDisagree(case)
        return [_mismatch(facts)] if facts.cause == cause else []
    if isinstance(case, WatchdogGap):
        shown = "hang.conditional_collective" if case.few_wait else "hang.host_stall"
        return [_gap(case, cause)] if shown == cause else []
    if isinstance(case, WatchdogOpen) and cause in _OPEN:
        return [Finding(cause=cause, status="undecided", facts=TimeoutsUnclear(case.group), confidence=0.0)]
    return []


def _mismatch(facts: TimeoutsDisagree) -> Finding:
    case, (majority, minority, *others) = facts.case, facts.sides
    return Finding(
        cause=facts.cause,
        status="confirmed",
        facts=facts,
        confidence=_LIKELY if case.vote.tie or case.group.name == UNNAMED else _SURE,
        ranks=case.culprits,
        victims=tuple(rank for rank in case.members if rank not in case.culprits),
        group=_group(case),
        position=case.vote.position,
        where=(*_where(minority), *_where(majority)),
        evidence=tuple(_line(wait) for wait in (minority, *others[:2], majority)),
    )


def _gap(case: WatchdogGap, cause: str) -> Finding:
    counters = case.group.counters[case.behind[0]]
    progress = f"rank {case.behind[0]}: last enqueued {counters.enqueued}, last completed {counters.completed}"
    return Finding(
        cause=cause,
        status="confirmed",
        facts=CallNotReached(case),
        confidence=_BEHIND,
        ranks=case.culprits,
        victims=tuple(rank for rank in case.members if rank not in case.culprits),
        group=_group(case),
        position=case.call.seq,
        where=_where(case.call),
        evidence=(EvidenceItem("log", counters.fact.file, progress, counters.fact.line), _line(case.call)),
    )


def _named(group: GroupLog) -> str:
    if group.name == UNNAMED:
        return "the default group, as far as the lines tell"
    return f"group {group.desc or group.name}"


def _group(case: WatchdogMismatch | WatchdogGap) -> Group | None:
    group = case.group
    return Group(group.name, case.members, group.desc) if group.name != UNNAMED else None


def _line(wait: Wait) -> EvidenceItem:
    numel = f", NumelIn={wait.numel}" if wait.numel is not None else ""
    detail = f"rank {wait.rank}: timed out in SeqNum={wait.seq}, OpType={wait.op}{numel}"
    return EvidenceItem("log", wait.fact.file, detail, wait.fact.line)


def _where(wait: Wait) -> tuple[Where, ...]:
    return _parts.where(wait.rank, wait.site, wait.text)

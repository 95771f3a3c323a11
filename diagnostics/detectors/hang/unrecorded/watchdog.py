"""Hangs of which only logs are left: what the NCCL watchdogs of several ranks say about one process group.

Two ranks that wait at the same position in calls that do not fit are proof; positions that differ are none, since
NCCL may complete a call on one rank and not on another. Dumps say more, so with any this keeps silent.
"""

from dataclasses import dataclass

from diagnostics.contract.findings import EvidenceItem, Finding, Group, Where
from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import Context
from diagnostics.detectors.hang.unrecorded.watchdog_lines import UNNAMED, GroupLog, Wait, read

SURE = 0.75
"""A mismatch in a group that the lines name; dumps, which show the calls before it, are surer."""
LIKELY = 0.65
"""A tie, or lines that do not name their group."""
BEHIND = 0.6
_MISMATCHES = ("hang.collective_mismatch", "hang.signature_mismatch")
_SHIFTED = "Whether it is this call that is wrong or one left out or added before it, logs do not tell."
_DUMPS = "TORCH_FR_BUFFER_SIZE=2000 TORCH_FR_DUMP_TEMP_FILE=/tmp/flight_rank_, which records the calls before it"


@dataclass(frozen=True, slots=True)
class Sides:
    """The ranks that wait at one position of a group, by what they wait in: the largest side first."""

    group: GroupLog
    seq: int
    sides: tuple[tuple[Wait, ...], ...]

    @property
    def tie(self) -> bool:
        """Whether no side is larger than all others."""
        return len(self.sides[0]) == len(self.sides[1])

    @property
    def blamed(self) -> tuple[int, ...]:
        """The minority; at a tie all."""
        return tuple(sorted(wait.rank for side in self.sides[0 if self.tie else 1 :] for wait in side))


def find(context: Context) -> list[Finding]:
    """At most one cause that is confirmed, else why none is."""
    if any(record.lines or record.p2p for record in context.survey.ranks.values()):
        return []
    groups = read(context.evidence)
    for group in groups:
        sides = None if group.mixed or not _complete(context, group, groups) else _sides(group)
        if sides is not None:
            return [_mismatch(context, sides)]
    for group in groups:
        if not group.mixed and group.name != UNNAMED and (found := _apart(context, group, groups)):
            return [found]
    return _open(groups)


def _complete(context: Context, group: GroupLog, groups: list[GroupLog]) -> bool:
    """Lines that name no group can only be compared where all ranks are there, and none is in a named one."""
    if group.name != UNNAMED:
        return True
    world = context.evidence.world_size or len(group.waits)
    ranked = [wait.rank for wait in group.waits.values() if wait.group_rank == wait.rank]
    return len(groups) == 1 and sorted(ranked) == list(range(world))


def _sides(group: GroupLog) -> Sides | None:
    """The ranks at the group's first open position, if what they wait in does not fit together."""
    waits = [wait for _, wait in sorted(group.waits.items()) if wait.counted]
    if len(waits) < len(group.waits):
        return None  # Sends and receives share the numbers.
    seq = min(wait.seq for wait in waits)
    here = [wait for wait in waits if wait.seq == seq]
    kinds: dict[object, list[Wait]] = {}
    by_op = len({wait.name for wait in here}) > 1
    if not by_op and not all(wait.even for wait in here):
        return None
    for wait in here:
        kinds.setdefault(wait.name if by_op else wait.numel, []).append(wait)
    if len(kinds) < 2:
        return None
    ordered = sorted(kinds.values(), key=lambda side: (-len(side), side[0].rank))
    sides = Sides(group, seq, tuple(tuple(side) for side in ordered))
    # Two groups may go by one name (split_group): only a majority shows that the ranks belong together.
    return sides if group.default or group.name == UNNAMED or not sides.tie else None


def _mismatch(context: Context, sides: Sides) -> Finding:
    group, usual, odd = sides.group, sides.sides[0][0], sides.sides[1][0]
    cause = _MISMATCHES[usual.name == odd.name]
    everybody = set(group.waits) | set(group.counters)
    blamed = sides.blamed
    context.blamed |= set(blamed)
    context.settled |= everybody
    change = f"{usual.text} and {odd.text} meet at position {sides.seq}: let all ranks take the same branch"
    if cause == "hang.signature_mismatch":
        change = f"{usual.name} at position {sides.seq} needs the same number of elements on every rank"
    return Finding(
        cause=cause,
        status="confirmed",
        summary=_what(context, sides),
        confidence=LIKELY if sides.tie or group.name == UNNAMED else SURE,
        ranks=blamed,
        victims=tuple(sorted(everybody - set(blamed))),
        group=_named(group, everybody),
        position=sides.seq,
        where=tuple(place for wait in (odd, usual) for place in _where(context, wait)),
        evidence=tuple(_seen(side[0]) for side in (*sides.sides[1:4], sides.sides[0])),
        remedies=say.remedies(context.evidence, change, "collectives are matched by their order in the group"),
        measured=f"{len(blamed)} of {sum(len(side) for side in sides.sides)} ranks differ at position {sides.seq}",
    )


def _what(context: Context, sides: Sides) -> str:
    parts = [
        f"{say.ranks(wait.rank for wait in side)} {'waits' if len(side) == 1 else 'wait'} in {side[0].text}"
        for side in (*sides.sides[1:4], sides.sides[0])
    ]
    text = f"{say.sentence(', '.join(parts[:-1]))} where {parts[-1]}, at position {sides.seq} of {_of(sides.group)}."
    if any(side[0].numel == 1 and side[0].name == "all_reduce" for side in sides.sides):
        text += " (A barrier is an all_reduce of 1 element.)"
    if sides.tie:
        counts = " against ".join(str(len(side)) for side in sides.sides)
        text += f" It is a tie ({counts}): either side may be the wrong one."
    return f"{text} {_SHIFTED}"


def _of(group: GroupLog) -> str:
    return f"group {group.label}" if group.name != UNNAMED else "the default group, as far as the lines tell"


def _apart(context: Context, group: GroupLog, groups: list[GroupLog]) -> Finding | None:
    """Some ranks wait in a call that the others, all of whose calls completed, have never made."""
    waits = list(group.waits.values())
    seqs = {wait.seq for wait in waits}
    first = min(waits, key=lambda wait: wait.rank)
    if len(seqs) != 1 or len({(wait.name, wait.numel) for wait in waits if wait.even}) > 1 or not first.counted:
        return None
    seq = seqs.pop()
    # Below that position the others could not have completed it either: such a counter counts something else.
    behind = {rank: one for rank, one in group.counters.items() if rank not in group.waits}
    busy = {rank for other in groups if other is not group for rank in other.waits}
    gone = {rank for rank, end in context.ends.items() if end.by_itself}
    if not behind or gone or busy & set(behind) or any(wait.name != first.name for wait in waits):
        return None
    if any((one.enqueued, one.completed) != (seq - 1, seq - 1) for one in behind.values()):
        return None
    unseen = (context.evidence.world_size or 0) - len(waits) - len(behind) if group.default else 0
    context.settled |= set(behind) | set(group.waits)
    few = 2 * (len(waits) + max(unseen, 0)) < len(waits) + len(behind) + max(unseen, 0)
    return (_ahead if few else _late)(context, group, first, tuple(sorted(behind)))


def _ahead(context: Context, group: GroupLog, first: Wait, others: tuple[int, ...]) -> Finding:
    ranks = tuple(sorted(group.waits))
    return _between(
        context,
        group,
        first,
        others,
        cause="hang.conditional_collective",
        summary=(
            f"Only {say.ranks(ranks)} {say.verb(ranks, 'calls', 'call')} {first.text} at position {first.seq} of "
            f"{_of(group)}; {say.ranks(others)} completed #{first.seq - 1} and made no call after it."
        ),
        ranks=ranks,
        change=f"let all ranks call {first.text}, or none",
    )


def _late(context: Context, group: GroupLog, first: Wait, others: tuple[int, ...]) -> Finding:
    waiting = tuple(sorted(group.waits))
    return _between(
        context,
        group,
        first,
        others,
        cause="hang.host_stall",
        summary=(
            f"{say.sentence(say.ranks(others))} never reached {first.text} (#{first.seq} of {_of(group)}), which "
            f"{say.ranks(waiting)} {say.verb(waiting, 'waits', 'wait')} in: "
            f"{say.verb(others, 'its', 'their')} last call was #{first.seq - 1}, and it completed. "
            f"{say.sentence(say.verb(others, 'it is', 'they are'))} late or stuck, or left that call out: the logs "
            "cannot tell."
        ),
        ranks=others,
        change=f"look at what {say.ranks(others)} did after #{first.seq - 1}",
    )


def _between(
    context: Context,
    group: GroupLog,
    first: Wait,
    others: tuple[int, ...],
    *,
    cause: str,
    summary: str,
    ranks: tuple[int, ...],
    change: str,
) -> Finding:
    """A finding on ranks of which some wait in a call and the others never made it."""
    everybody = {*group.waits, *others}
    counters = group.counters[others[0]]
    return Finding(
        cause=cause,
        status="confirmed",
        summary=summary,
        confidence=BEHIND,
        ranks=ranks,
        victims=tuple(sorted(everybody - set(ranks))),
        group=_named(group, everybody),
        position=first.seq,
        where=tuple(_where(context, first)),
        evidence=(
            EvidenceItem(
                "log",
                counters.fact.file,
                f"rank {others[0]}: last enqueued {counters.enqueued}, last completed {counters.completed}",
                counters.fact.line,
            ),
            _seen(first),
        ),
        remedies=say.remedies(context.evidence, change, "a collective returns only when every rank of its group calls"),
        measured=f"{len(group.waits)} of {len(everybody)} ranks reached position {first.seq}",
        missing=_DUMPS,
    )


def _open(groups: list[GroupLog]) -> list[Finding]:
    """Why the lines do not settle it."""
    told = next((text for text in (_why_open(group) for group in groups if len(group.waits) > 1) if text), "")
    causes = (*_MISMATCHES, "hang.conditional_collective", "hang.device_stall", "hang.network") if told else ()
    return [say.undecided(cause, told, _DUMPS) for cause in causes]


def _why_open(group: GroupLog) -> str:
    ranks = say.ranks(group.waits)
    if group.mixed:
        return f"The timeouts of {ranks} cannot be of one process group, so they are not compared."
    waits = sorted(group.waits.values(), key=lambda wait: (wait.seq, wait.rank))
    first, last = waits[0], waits[-1]
    if first.seq != last.seq:
        return (
            f"Rank {first.rank} waits in #{first.seq} of {_of(group)}, which rank {last.rank} completed before it "
            f"came to #{last.seq}: a device that does not complete, or calls that did not fit before."
        )
    if len({(wait.name, wait.numel) for wait in waits}) == 1:
        return f"{say.sentence(ranks)} wait in the same call: {first.text}, #{first.seq} of {_of(group)}."
    return f"{say.sentence(ranks)} wait at #{first.seq} in calls that may differ by rank: {first.op}, {last.op}."


def _named(group: GroupLog, ranks: set[int]) -> Group | None:
    return Group(group.name, tuple(sorted(ranks)), group.desc) if group.name != UNNAMED else None


def _seen(wait: Wait) -> EvidenceItem:
    numel = f", NumelIn={wait.numel}" if wait.numel is not None else ""
    detail = f"rank {wait.rank}: timed out in SeqNum={wait.seq}, OpType={wait.op}{numel}"
    return EvidenceItem("log", wait.fact.file, detail, wait.fact.line)


def _where(context: Context, wait: Wait) -> list[Where]:
    """The user's line, where torch printed the stack of the call behind the timeout."""
    places = [
        fact
        for fact in context.evidence.facts
        if fact.kind == "collective_stack" and (fact.rank, fact.file) == (wait.rank, wait.fact.file)
    ]
    after = min((fact for fact in places if fact.line > wait.fact.line), key=lambda fact: fact.line, default=None)
    if after is None:
        return []
    fields = after.fields
    return [Where(wait.rank, str(fields["file"]), int(fields["line"]), str(fields["function"]), wait.text)]

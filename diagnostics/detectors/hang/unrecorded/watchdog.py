"""Hangs of which only logs are left: what the NCCL watchdogs of several ranks say about one process group.

Two ranks that wait at the same position in calls that do not fit are proof; positions that differ are none, since
NCCL may complete a call on one rank and not on another. Dumps say more, so with any this keeps silent.
"""

from diagnostics.analysis.divergence import Vote, count_votes, differing_parts
from diagnostics.contract.findings import EvidenceItem, Finding, Group, Where
from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import Context
from diagnostics.detectors.hang.unrecorded.watchdog_lines import UNNAMED, GroupLog, Wait, read

SURE = 0.75
"""A mismatch in a group that the lines name; dumps, which show the calls before it, are surer."""
LIKELY = 0.65
"""A tie, or lines that do not name their group."""
BEHIND = 0.6
_OPEN = (
    "hang.collective_mismatch",
    "hang.signature_mismatch",
    "hang.conditional_collective",
    "hang.device_stall",
    "hang.network",
)
_SHIFTED = "Whether it is this call that is wrong or one left out or added before it, logs do not tell."
_DUMPS = "TORCH_FR_BUFFER_SIZE=2000 TORCH_FR_DUMP_TEMP_FILE=/tmp/flight_rank_, which records the calls before it"


def find(context: Context) -> list[Finding]:
    """At most one cause that is confirmed, else why none is."""
    if any(record.lines or record.p2p for record in context.survey.ranks.values()):
        return []
    groups = read(context.evidence)
    for group in groups:
        vote = None if group.mixed or not _complete(context, group, groups) else _vote(group)
        if vote is not None:
            return [_mismatch(context, group, vote)]
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


def _vote(group: GroupLog) -> Vote | None:
    """The ranks at the group's first open position, if what they wait in does not fit together."""
    waits = [wait for _, wait in sorted(group.waits.items()) if wait.counted]
    if len(waits) < len(group.waits):
        return None  # Sends and receives share the numbers.
    position = min(wait.seq for wait in waits)
    here = [wait for wait in waits if wait.seq == position]
    by_op = len({wait.name for wait in here}) > 1
    if not by_op and not all(wait.even for wait in here):
        return None
    issued: dict[object, list[int]] = {}
    for wait in here:
        issued.setdefault(wait.name if by_op else wait.wire, []).append(wait.rank)
    vote = count_votes(group.key, position, issued, ())
    # Two groups may go by one name (split_group): only a majority shows that the ranks belong together.
    certain = group.default or group.name == UNNAMED or not vote.tie
    return vote if len(vote.sides) > 1 and certain else None


def _mismatch(context: Context, group: GroupLog, vote: Vote) -> Finding:
    sides = [group.waits[side[0]] for side in vote.sides]
    majority, minority = sides[:2]
    different = differing_parts(majority.wire, minority.wire)
    cause = f"hang.{'collective' if 'operation' in different else 'signature'}_mismatch"
    everybody = set(group.waits) | set(group.counters)
    culprits = vote.minority
    context.blamed |= set(culprits)
    context.settled |= everybody
    change = f"{majority.text} and {minority.text} meet at position {vote.position}: let all ranks take the same branch"
    if cause == "hang.signature_mismatch":
        change = f"{majority.name} at position {vote.position} needs the same number of elements on every rank"
    return Finding(
        cause=cause,
        status="confirmed",
        summary=_what(group, vote),
        confidence=LIKELY if vote.tie or group.name == UNNAMED else SURE,
        ranks=culprits,
        victims=tuple(sorted(everybody - set(culprits))),
        group=_named(group, everybody),
        position=vote.position,
        where=tuple(place for wait in (minority, majority) for place in _where(context, wait)),
        evidence=tuple(_seen(wait) for wait in (*sides[1:4], sides[0])),
        remedies=say.remedies(context.evidence, change, "collectives are matched by their order in the group"),
        measured=f"{len(culprits)} of {len(vote.present)} ranks differ at position {vote.position}",
    )


def _what(group: GroupLog, vote: Vote) -> str:
    order = (*vote.sides[1:4], vote.sides[0])
    parts = [
        f"{say.ranks(side)} {'waits' if len(side) == 1 else 'wait'} in {group.waits[side[0]].text}" for side in order
    ]
    text = f"{say.sentence(', '.join(parts[:-1]))} where {parts[-1]}, at position {vote.position} of {_of(group)}."
    firsts = [group.waits[side[0]] for side in vote.sides]
    if any(wait.numel == 1 and wait.name == "all_reduce" for wait in firsts):
        text += " (A barrier is an all_reduce of 1 element.)"
    if vote.tie:
        counts = " against ".join(str(len(side)) for side in vote.sides)
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
    return [say.undecided(cause, told, _DUMPS) for cause in _OPEN] if told else []


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

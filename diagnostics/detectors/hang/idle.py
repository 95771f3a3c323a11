"""Ranks that all others wait for, though they are there: host stalls, device stalls, and the odd one that ran ahead."""

from collections import defaultdict

from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import Context
from diagnostics.detectors.hang.waits import Operation
from diagnostics.evidence import stacks
from diagnostics.evidence.model import Stacks
from diagnostics.findings import EvidenceItem, Finding, Where

_CURE = {
    "data loader": "look at the data loader's workers of that rank (dead, slow disk, lock inherited by fork)",
    "file I/O": "move the file access off the path that other ranks wait for, or let all ranks do it",
    "lock": "find who holds the lock that this line waits for",
    "compile": "compile before the first collective, or raise the timeout of the group for the first steps",
    "sleep": "take the sleep out, or let all ranks wait at a barrier with a longer timeout",
}


def find(context: Context) -> list[Finding]:
    """Confirmed stalls among the roots of the wait-for graph."""
    if not context.stands():
        return []
    gone = context.settled | set(context.ends)
    roots = [rank for rank in context.waits.roots() if rank not in gone and not context.silent(rank)]
    stuck: list[int] = []
    idle: list[int] = []
    for rank in roots:
        (stuck if context.waits.of_rank.get(rank) else idle).append(rank)
    found = []
    lagging = [rank for rank in stuck if _others_completed(context, rank)]
    lagging += _lone_laggards(context, [*roots, *lagging])
    if lagging:
        found.append(_device(context, tuple(sorted(lagging))))
        context.settled |= set(lagging) | context.waits.reaching(lagging)
    idle = [rank for rank in idle if rank not in context.settled]
    if idle:
        found += _host(context, idle)
    return found


def _others_completed(context: Context, rank: int) -> list[Operation]:
    """Pending operations of a rank that completed on the other members."""
    return [
        operation
        for operation in context.waits.of_rank.get(rank, [])
        if operation.peer < 0
        and context.waits.complete[operation]
        and not context.waits.absent[operation]
        and operation.key.recorder not in {"gloo", "dtk"}
    ]


def _lone_laggards(context: Context, known: list[int]) -> list[int]:
    """Nobody is absent, but most members completed what few still wait in: those few's devices are stuck."""
    if context.waits.waited_for():
        return []
    few = set()
    for operation, waiting in context.waits.waiting.items():
        complete = context.waits.complete[operation]
        if operation.peer < 0 and operation.key.recorder not in {"gloo", "dtk"} and len(complete) > len(waiting):
            few |= set(waiting)
    return sorted(few - set(known) - context.settled)


def _device(context: Context, ranks: tuple[int, ...]) -> Finding:
    survey = context.survey
    operation = _others_completed(context, ranks[0]) or context.waits.of_rank[ranks[0]]
    first = operation[0]
    line = survey.ranks[ranks[0]].lines[first.key]
    call = context.waits.calls[ranks[0], first]
    peers = context.waits.complete[first]
    ahead = max((survey.groups[first.key].lines[rank].done for rank in peers), default=line.done)
    counts = f"completed {line.done} of {line.issued} enqueued, its peers completed {ahead}"
    rest = sorted(context.waits.reaching(ranks) - set(ranks))
    return Finding(
        cause="hang.device_stall",
        status="confirmed",
        summary=(
            f"The {'device' if len(ranks) == 1 else 'devices'} of {say.ranks(ranks)} "
            f"{say.verb(ranks, 'does', 'do')} not complete what "
            f"the others complete: rank {ranks[0]} stands at {say.call(call)} of group "
            f"{first.key.desc or first.key.name} ({counts})."
            + (
                f" {say.sentence(say.ranks(rest))} {say.verb(rest, 'waits', 'wait')} for "
                f"{say.verb(ranks, 'it', 'them')}."
                if rest
                else ""
            )
        ),
        confidence=0.9,
        ranks=ranks,
        victims=tuple(rest),
        group=say.group(survey, first.key),
        position=first.seq,
        where=tuple(say.where(ranks[0], call, f"enqueued {call.text}, which does not complete")),
        cost=context.cost(),
        evidence=say.flight(
            survey,
            {
                **dict.fromkeys(ranks, "enqueued work that its peers completed"),
                **{peers[0]: f"completed #{first.seq}"},
            }
            if peers
            else {ranks[0]: counts},
        ),
        remedies=say.remedies(
            context.evidence,
            f"look for Xid and ECC errors on the {'device' if len(ranks) == 1 else 'devices'} of "
            f"{say.ranks(ranks)} (dmesg, nvidia-smi -q), and for a kernel that never ends",
            "the host enqueued the work, the device does not finish it",
        ),
        measured=counts,
    )


def _host(context: Context, idle: list[int]) -> list[Finding]:
    """Ranks with nothing pending, by the group in which they are missed."""
    missed: dict[Operation, list[int]] = defaultdict(list)
    for operation, absent in sorted(context.waits.absent.items()):
        for rank in idle:
            if rank in absent:
                missed[operation].append(rank)
    if not missed:
        return []
    operation = min(missed, key=lambda one: (-len(missed[one]), _began(context, one), one))
    latest = {one.rank: one for one in context.evidence.stacks if one.rank is not None}
    ahead = _ran_ahead(context, operation, idle, latest)
    if ahead is not None:
        context.settled |= set(idle)
        return [ahead]
    ranks = tuple(sorted(idle))
    context.settled |= set(ranks)
    return [_stall(context, ranks, operation, latest)]


def _began(context: Context, operation: Operation) -> float:
    return min(context.waits.calls[rank, operation].created_s or 0.0 for rank in context.waits.waiting[operation])


def _ran_ahead(context: Context, operation: Operation, idle: list[int], latest: dict[int, Stacks]) -> Finding | None:
    """Most ranks are outside any collective and agree; the few that wait are the odd ones."""
    waiting = context.waits.waiting[operation]
    absent = context.waits.absent[operation]
    members = len(waiting) + len(absent)
    if 2 * len(waiting) >= members or len(waiting) + len(set(absent) & set(idle)) < members:
        return None
    if any(rank in latest and stacks.doing(latest[rank]) not in {"collective", "unknown"} for rank in absent):
        return None
    if (
        len(
            {
                context.survey.groups[operation.key].lines[rank].issued
                for rank in absent
                if rank in context.survey.groups[operation.key].lines
            }
        )
        > 1
    ):
        return None
    call = context.waits.calls[waiting[0], operation]
    peer = absent[0]
    last = context.survey.ranks[peer].last
    hidden = all(context.unrecorded_possible(rank) for rank in absent)
    summary = (
        f"Only {say.ranks(waiting)} {say.verb(waiting, 'calls', 'call')} {say.call(call)}; "
        f"{say.ranks(absent)} made no call after "
        f"{say.call(last) if last else 'the start'}."
    )
    if hidden:
        summary += (
            " They may wait in a monitored_barrier, send or recv that it left out: gloo's recorder does not show those."
        )
    return Finding(
        cause="hang.conditional_collective",
        status="confirmed",
        summary=summary,
        confidence=0.65 if hidden else 0.55,
        ranks=tuple(waiting),
        victims=tuple(absent),
        group=say.group(context.survey, operation.key),
        position=operation.seq,
        where=(*say.where(waiting[0], call), *say.where(peer, last, f"made {last.text} last" if last else None)),
        cost=context.cost(),
        evidence=say.flight(context.survey, {waiting[0]: f"waits in {call.text}", peer: "nothing pending"}),
        remedies=say.remedies(
            context.evidence,
            f"let all ranks call {call.text} at {call.site.file}:{call.site.line}, and what stands before it"
            if call.site
            else f"let all ranks reach {call.text}, and what stands before it",
            "the other ranks agree with each other and are not there",
        ),
        measured=f"{len(waiting)} of {members} ranks reached position {operation.seq}",
    )


def _stall(context: Context, ranks: tuple[int, ...], operation: Operation, latest: dict[int, Stacks]) -> Finding:
    waiting = context.waits.waiting[operation]
    call = context.waits.calls[waiting[0], operation]
    first = ranks[0]
    seen = latest.get(first)
    activity = stacks.doing(seen) if seen is not None else "unknown"
    frame = stacks.where(seen) if seen is not None else None
    last = context.survey.ranks[first].last
    victims = tuple(sorted(context.waits.reaching(ranks) - set(ranks)))
    known = activity not in {"unknown", "collective"}
    at = f" ({say.short(frame.file)}:{frame.line} in {frame.function})" if frame else ""
    what = {"user code": "user code", "collective": "a call of torch.distributed that its recorder does not show"}.get(
        activity, activity
    )
    missing = f"{call.text} (#{call.seq} of group {operation.key.desc or operation.key.name})"
    if operation.peer >= 0:
        missing = f"the other half of {call.text}"
    summary = (
        f"{say.sentence(say.ranks(ranks))} never reached {missing}, which {say.ranks(waiting)} "
        f"{say.verb(waiting, 'waits', 'wait')} in"
    )
    if frame or known:
        summary += f": its host is in {what}{at}."
    else:
        summary += (
            f"; nothing is pending on {say.verb(ranks, 'it', 'them')} and no error or stack was left: stuck "
            "outside any collective, late, or gone."
        )
        if all(context.unrecorded_possible(rank) for rank in ranks):
            summary += " It may also sit in a send or recv, which gloo's recorder does not show."
    where = [Where(first, frame.file, frame.line, frame.function, f"stands in {what}")] if frame else []
    where = where or say.where(first, last, f"made {last.text} last" if last else None)
    evidence = list(
        say.flight(context.survey, {**dict.fromkeys(ranks, "nothing pending"), waiting[0]: f"waits in {call.text}"})
    )
    if seen is not None:
        evidence.insert(0, EvidenceItem("stacks", seen.file, f"rank {first}: {what}{at}"))
    return Finding(
        cause="hang.host_stall",
        status="confirmed",
        summary=summary,
        confidence=0.95 if known else 0.6,
        ranks=ranks,
        victims=victims,
        group=say.group(context.survey, operation.key),
        position=operation.seq if operation.peer < 0 else None,
        step=context.survey.ranks[first].step,
        where=(*where, *say.where(waiting[0], call, f"waits in {call.text}")),
        cost=context.cost(),
        evidence=tuple(evidence),
        remedies=say.remedies(
            context.evidence,
            _CURE.get(activity, f"look at what {say.ranks(ranks)} did after {say.call(last) if last else 'start-up'}")
            + (f" ({frame.file}:{frame.line})" if frame else ""),
            "everybody else waits for this rank's next collective",
        ),
        measured=(
            f"{len(waiting)} ranks wait for {say.ranks(ranks)}, which {say.verb(ranks, 'has', 'have')} nothing pending"
        ),
    )

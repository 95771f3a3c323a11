"""Ranks that all others wait for, though they are there: host stalls, device stalls, and the odd one that ran ahead."""

from collections import defaultdict

from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.contract.findings import Finding
from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import Context
from diagnostics.detectors.hang.waiting import stalled
from diagnostics.evidence.model import Stacks
from diagnostics.evidence.stacks import activity


def find(context: Context) -> list[Finding]:
    """Confirmed stalls among the roots of the wait-for graph."""
    if not context.stands_still():
        return []
    gone = context.settled | {rank for rank, end in context.ends.items() if end.gone}
    roots = [rank for rank in context.waits.roots() if rank not in gone and not context.silent(rank)]
    stuck: list[int] = []
    idle: list[int] = []
    for rank in roots:
        (stuck if context.waits.of_rank.get(rank) else idle).append(rank)
    found = []
    behind = [rank for rank in stuck if _others_completed(context, rank)]
    behind += [rank for rank in lagging(context) if rank not in {*gone, *behind}]
    behind += _lone_laggards(context, [*roots, *behind])
    if behind:
        ranks = tuple(sorted(behind))
        operation = (_others_completed(context, ranks[0]) or context.waits.of_rank[ranks[0]])[0]
        found.append(stalled.device(context, ranks, operation))
        context.settled |= set(behind) | context.waits.reaching(behind)
    idle = [rank for rank in idle if rank not in context.settled]
    if idle:
        found += _host(context, idle)
    return found


def lagging(context: Context) -> list[int]:
    """Ranks whose device does not complete what their peers did, and that wait for nobody but ranks without a dump."""
    return [
        rank
        for rank in sorted(context.waits.of_rank)
        if _others_completed(context, rank)
        and all(context.silent(one) for op in context.waits.blockers(rank) for one in context.waits.absent[op])
    ]


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


def _host(context: Context, idle: list[int]) -> list[Finding]:
    """Ranks with nothing pending, by the group in which they are missed."""
    missed: dict[Operation, list[int]] = defaultdict(list)
    ended = {rank for rank, end in context.ends.items() if end.gone}
    for operation, absent in sorted(context.waits.absent.items()):
        # Who ended of itself with a call under way waits no longer: nobody is late for that call.
        if not set(context.waits.waiting[operation]) - ended:
            continue
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
    return [stalled.host(context, ranks, operation, latest)]


def _began(context: Context, operation: Operation) -> float:
    return min(context.waits.calls[rank, operation].created_s or 0.0 for rank in context.waits.waiting[operation])


def _ran_ahead(context: Context, operation: Operation, idle: list[int], latest: dict[int, Stacks]) -> Finding | None:
    """Most ranks are outside any collective and agree; the few that wait are the odd ones."""
    waiting = context.waits.waiting[operation]
    absent = context.waits.absent[operation]
    members = len(waiting) + len(absent)
    if 2 * len(waiting) >= members or len(waiting) + len(set(absent) & set(idle)) < members:
        return None
    if any(rank in latest and activity.doing(latest[rank]).doing not in {"collective", "unknown"} for rank in absent):
        return None
    lines = context.survey.groups[operation.key].lines
    if len({lines[rank].issued for rank in absent if rank in lines}) > 1:
        return None
    return _ahead(context, operation, tuple(waiting), absent)


def _ahead(context: Context, operation: Operation, waiting: tuple[int, ...], absent: tuple[int, ...]) -> Finding:
    call = context.waits.calls[waiting[0], operation]
    peer = absent[0]
    last = context.survey.ranks[peer].last
    hidden = all(context.may_be_unrecorded(rank) for rank in absent)
    summary = (
        f"Only {say.ranks(waiting)} {say.verb(waiting, 'calls', 'call')} {say.call(call)}; {say.ranks(absent)} made "
        f"no call after {say.call(last) if last else 'the start'}."
    )
    if hidden:
        summary += (
            " They may wait in a monitored_barrier, send or recv that it left out: gloo's recorder does not show those."
        )
    reach = f"call {call.text} at {call.site.file}:{call.site.line}" if call.site else f"reach {call.text}"
    return Finding(
        cause="hang.conditional_collective",
        status="confirmed",
        summary=summary,
        confidence=0.65 if hidden else 0.55,
        ranks=waiting,
        victims=absent,
        group=say.group(context.survey, operation.key),
        position=operation.seq,
        where=(*say.where(waiting[0], call), *say.where(peer, last, f"made {last.text} last" if last else None)),
        cost=context.cost(),
        evidence=say.flight(context.survey, {waiting[0]: f"waits in {call.text}", peer: "nothing pending"}),
        remedies=say.remedies(
            context.evidence,
            f"let all ranks {reach}, and what stands before it",
            "the other ranks agree with each other and are not there",
        ),
        measured=f"{len(waiting)} of {len(waiting) + len(absent)} ranks reached position {operation.seq}",
    )

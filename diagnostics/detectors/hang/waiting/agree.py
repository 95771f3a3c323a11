"""All ranks issued the same collective: it completes on none, or a rooted one completes on some. And start-up."""

from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.contract.findings import EvidenceItem, Finding
from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import Context
from diagnostics.evidence.calls import ROOTED
from diagnostics.evidence.model import shortened
from diagnostics.evidence.rank_endings import peer_vanished

_STARTUP = {
    "rendezvous_timeout",
    "store_timeout",
    "store_key_timeout",
    "missing_variable",
    "interface_missing",
    "port_in_use",
}
_NETWORK = {"nccl_ib_error", "nccl_ib_async", "nccl_connect", "nccl_socket_error"}


def rooted(context: Context) -> list[Finding]:
    """A rooted operation that everybody issued and only some completed: they do not agree on the root."""
    found = []
    for operation, waiting in sorted(context.waits.waiting.items()):
        call = context.waits.calls[waiting[0], operation]
        complete = context.waits.complete[operation]
        if call.wire.op not in ROOTED or not complete or set(waiting) & context.settled:
            continue
        if context.waits.absent[operation] or operation.key.recorder not in {"gloo"} or call.wire.root is not None:
            continue
        found.append(_root_differs(context, operation, tuple(waiting), tuple(complete)))
        context.settled |= set(waiting) | set(complete) | context.waits.reaching(waiting)
    return found


def _root_differs(
    context: Context, operation: Operation, waiting: tuple[int, ...], complete: tuple[int, ...]
) -> Finding:
    """Gloo's tree says who can be the odd one: of the ranks left waiting, the common root waits for those it misses."""
    call = context.waits.calls[waiting[0], operation]
    members = context.survey.members(operation.key)
    odd = suspects(members, waiting) if call.wire.op == "broadcast" else ()
    ranks = odd or waiting
    side = "source" if call.wire.op in {"broadcast", "scatter"} else "destination"
    stuck = dict.fromkeys(waiting[:2], f"#{operation.seq} did not complete")
    both = (*ranks[:1], *[rank for rank in waiting if rank not in ranks][:1])
    at = f" at {call.site.file}:{call.site.line}" if call.site else ""
    return Finding(
        cause="hang.signature_mismatch",
        status="confirmed",
        summary=(
            f"{say.sentence(say.ranks(waiting))} hang in {say.call(call)}, which {say.ranks(complete)} completed: "
            f"all made the call, so they do not agree on its {side}. {_which(odd, members, side)}"
        ),
        confidence=0.7 if odd else 0.6,
        ranks=ranks,
        victims=tuple(rank for rank in members if rank not in ranks),
        group=say.group(context.survey, operation.key),
        position=operation.seq,
        where=tuple(place for rank in both for place in say.where(rank, context.waits.calls[rank, operation])),
        cost=context.cost(),
        evidence=say.flight(context.survey, {**stuck, complete[0]: f"#{operation.seq} completed"}),
        remedies=say.remedies(
            context.evidence,
            f"pass the same {side} on every rank{at}",
            "a rooted collective needs one root that all ranks name",
        ),
        measured=f"completed on {len(complete)} of {len(members)} ranks",
    )


def _which(odd: tuple[int, ...], members: tuple[int, ...], side: str) -> str:
    """Who differs, as far as it is known."""
    if not odd:
        return "Which of them differs is not recorded: a tie."
    other = f"{say.ranks(odd)} that {say.verb(odd, 'names', 'name')} another"
    return f"If the common {side} is rank {members[0]}, it is {other}."


def suspects(members: tuple[int, ...], waiting: tuple[int, ...]) -> tuple[int, ...]:
    """Ranks that, naming another source than the first member, leave exactly `waiting` stuck in gloo's broadcast.

    Each hypothesis is played through: binomial tree over ranks relative to the root (gloo, broadcast.cc);
    a send completes when the peer receives it, a receive when the peer sends. Source 0 for the others is by
    far the usual one; without a unique answer nobody is singled out.
    """
    size = len(members)
    if not 2 < size <= 64:
        return ()
    stuck = {members.index(rank) for rank in waiting if rank in members}
    found = set()
    for odd in range(1, size):
        for root in range(1, size):
            roots = [root if rank == odd else 0 for rank in range(size)]
            if _stuck_in_broadcast(roots) == stuck:
                found.add(members[odd])
    return tuple(sorted(found)) if len(found) == 1 else ()


def _stuck_in_broadcast(roots: list[int]) -> set[int]:
    """Which ranks never return when each takes its own idea of the root."""
    size = len(roots)
    plans = [_plan(rank, root, size) for rank, root in enumerate(roots)]
    at = [0] * size
    moved = True
    while moved:
        moved = False
        for rank in range(size):
            if at[rank] < len(plans[rank]):
                sends, peer = plans[rank][at[rank]]
                if at[peer] < len(plans[peer]) and plans[peer][at[peer]] == (not sends, rank):
                    at[rank] += 1
                    at[peer] += 1
                    moved = True
    return {rank for rank in range(size) if at[rank] < len(plans[rank])}


def _plan(rank: int, root: int, size: int) -> list[tuple[bool, int]]:
    """A rank's steps in the tree: (whether it sends, peer)."""
    virtual = (rank + size - root) % size
    depth = max(1, (size - 1).bit_length())
    mask = (1 << depth) - 1
    plan = []
    for bit in range(depth):
        mask ^= 1 << bit
        peer = virtual ^ (1 << bit)
        if virtual & mask or peer >= size:
            continue
        plan.append((not virtual & (1 << bit), (peer + root) % size))
    return plan


def network(context: Context) -> list[Finding]:
    """Everybody is in the same collective and nobody comes out."""
    if not context.stands_still() or context.waits.waited_for() or peer_vanished(context.evidence, context.ends):
        return []
    found = []
    for operation, waiting in sorted(context.waits.waiting.items()):
        members = context.survey.members(operation.key)
        if (
            operation.peer >= 0
            or context.waits.complete[operation]
            or len(waiting) < 2
            or set(waiting) & context.settled
        ):
            continue
        if len(waiting) < len(members) or not all(
            context.waits.calls[rank, operation].completion_known for rank in waiting
        ):
            continue
        found.append(_nobody_completes(context, operation, tuple(waiting)))
        context.settled |= set(waiting)
    return found


def _nobody_completes(context: Context, operation: Operation, waiting: tuple[int, ...]) -> Finding:
    call = context.waits.calls[waiting[0], operation]
    lines = context.survey.groups[operation.key].lines
    first = all(lines[rank].done <= 0 for rank in waiting)
    facts = [fact for fact in context.evidence.facts if fact.kind in _NETWORK]
    summary = (
        f"All {len(waiting)} ranks of the group agree: they are in {say.call(call)} and it completes on none. No "
        "rank is to blame."
    )
    if first:
        summary += (
            " It is the group's first collective: its connections may never have come up (interface, firewall, "
            "one device for two ranks)."
        )
    change = (
        "check the network between the nodes: NCCL_DEBUG=INFO, the interface in NCCL_SOCKET_IFNAME or "
        "GLOO_SOCKET_IFNAME, ib_write_bw"
    )
    return Finding(
        cause="hang.network",
        status="confirmed",
        summary=summary,
        confidence=0.9 if facts else 0.75,
        victims=waiting,
        group=say.group(context.survey, operation.key),
        position=operation.seq,
        where=tuple(say.where(waiting[0], call)),
        cost=context.cost(),
        evidence=(
            *say.flight(context.survey, dict.fromkeys(waiting[:2], f"waits in {call.text}")),
            *(EvidenceItem("log", fact.file, fact.text, fact.line) for fact in facts[:3]),
        ),
        remedies=say.remedies(context.evidence, change, "the ranks agree, so what is between them is left"),
        measured=f"{len(waiting)} of {len(waiting)} ranks in the same collective, 0 completed",
    )


def rendezvous(context: Context) -> list[Finding]:
    """Start-up that never completed: the store or the rendezvous timed out and no collective was issued."""
    facts = [fact for fact in context.evidence.facts if fact.kind in _STARTUP]
    calls = any(record.lines or record.p2p for record in context.survey.ranks.values())
    if (
        not facts
        or calls
        or any(
            end.kind in {"raised", "oom", "killed"} and end.frames
            for end in context.ends.values()
            if "Timeout" not in end.what and "Network" not in end.what and "Store" not in end.what
        )
    ):
        return []
    fact = facts[0]
    ranks = sorted({one.rank for one in facts if one.rank is not None})
    return [
        Finding(
            cause="hang.rendezvous",
            status="confirmed",
            summary=(
                f"Start-up never completed: {shortened(fact.text.strip().rstrip('.'), 200)}. "
                "No rank issued a collective."
            ),
            confidence=0.85,
            victims=tuple(ranks),
            cost=context.cost(),
            evidence=tuple(EvidenceItem("log", one.file, one.text, one.line) for one in facts[:4]),
            remedies=say.remedies(
                context.evidence,
                "check MASTER_ADDR, MASTER_PORT and WORLD_SIZE, that every node was started, and that the "
                "port is open between them",
                "the ranks never all met",
            ),
            measured=f"{len(facts)} messages of start-up, 0 collectives",
        )
    ]

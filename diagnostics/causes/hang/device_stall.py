"""The host enqueued work that its device does not complete, while other ranks' devices complete theirs."""

from msgspec import Struct

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.stall.job_state import JobState
from diagnostics.analysis.stall.late import late_roots, not_late
from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _parts
from diagnostics.contract.findings import CERTAIN, Finding
from diagnostics.evidence.calls import Call

_TEXTS = Texts(__file__)


class DeviceStall(Struct, frozen=True):
    """Ranks whose device does not begin or complete an operation that other devices began or completed."""

    ranks: tuple[int, ...]
    operation: Operation
    call: Call
    """The call on the first rank."""
    completed: int
    """Last position in the group that the first rank completed."""
    enqueued: int
    peers: tuple[int, ...]
    """Ranks that completed the operation; if `begun`, those that wait in it."""
    peers_completed: int
    waiting: tuple[int, ...]
    """Other ranks that wait for these."""
    begun: bool = False
    """Whether the devices of `peers` execute the operation, while these have not come to it."""


def decide(stall: Stall) -> Finding:
    """Decide from what NCCL's dumps say of calls that devices began and completed."""
    case, job = stalled_devices(stall.job), stall.job
    if case is None:
        return _parts.unconfirmed(stall, _TEXTS.phrase("counters"))
    counts = _TEXTS.phrase("not_begun" if case.begun else "counts", case=case)
    own = dict.fromkeys(case.ranks, _TEXTS.phrase("enqueued")) if case.peers else {case.ranks[0]: counts}
    row = "waits_in" if case.begun else "completed"
    details = own | dict.fromkeys(case.peers[:1], _parts.says(row, what=case.call.text, seq=case.operation.seq))
    where = _parts.where(case.ranks[0], case.call, _TEXTS.phrase("does", call=case.call.text))
    rows = ["begun" if case.begun else "default", *["others_wait"] * bool(case.waiting)]
    facts, victims = _TEXTS.facts(rows, case=case, counts=counts), case.waiting
    return _parts.confirmed(  # NCCL counts a collective as completed shortly after its completion.
        job, facts, CERTAIN, at=case.operation, seen=details, ranks=case.ranks, victims=victims, where=where
    )


def stalled_devices(job: JobState) -> DeviceStall | None:
    """Return ranks whose device lags behind its peers', by what NCCL's dumps say of each call; None if none."""
    if not job.hangs():
        return None
    if (not_begun := _not_begun(job)) is not None:
        return not_begun
    ranks = {rank for rank in late_roots(job) if _completed_elsewhere(job, rank)} | set(_lagging(job))
    if not job.waits.waited_for():
        # No rank is absent, but most members completed what a few still wait in: their devices are stuck.
        for operation, few in job.waits.waiting.items():
            if _counts_completion(operation) and len(job.waits.complete[operation]) > len(few):
                ranks |= set(few)
    ranks -= not_late(job)
    if not ranks:
        return None
    first = min(ranks)
    operation = (_completed_elsewhere(job, first) or job.waits.of_rank[first])[0]
    line = job.survey.ranks[first].lines[operation.key]
    lines = job.survey.groups[operation.key].lines
    peers = tuple(job.waits.complete[operation])
    most = max((lines[rank].done for rank in peers), default=line.done)
    call, waiting = job.waits.calls[first, operation], tuple(sorted(job.waits.reaching(ranks) - ranks))
    return DeviceStall(tuple(sorted(ranks)), operation, call, line.done, line.issued, peers, most, waiting)


def _not_begun(job: JobState) -> DeviceStall | None:
    """Return the fewer ranks whose devices did not begin a call that all issued, with nothing recorded before it.

    Of the two ranks of a message it is the one that did not, if its recorder shows what its device begins.
    """
    waits, taken, ranks = job.waits, not_late(job), job.survey.ranks
    for operation in sorted(waits.waiting):
        own = waits.participants(operation)
        if waits.absent[operation] or waits.complete[operation]:
            continue
        begun = tuple(rank for rank, at in own.items() if waits.calls[rank, at].begun)
        late = sorted(own.keys() - {*begun})
        is_first = all(job.waits_first_in(rank, own[rank]) for rank in late)
        is_few = len(late) < len(begun) or (operation.peer >= 0 and all(ranks[rank].shows_begun for rank in late))
        if late and begun and is_few and is_first and not taken.intersection(late):
            line, at = ranks[late[0]].lines.get(operation.key), own[late[0]]
            done, issued = (line.done, line.issued) if line is not None else (0, 0)
            figures = (done, issued, begun, done, tuple(sorted(waits.of_rank.keys() - {*late})))
            return DeviceStall(tuple(late), at, waits.calls[late[0], at], *figures, begun=True)
    return None


def _lagging(job: JobState) -> list[int]:
    """Return ranks whose device lags behind its peers and that wait only for ranks without a dump."""
    waits = job.waits
    behind = (rank for rank in sorted(waits.of_rank) if _completed_elsewhere(job, rank))
    peers = {rank: [peer for operation in waits.blockers(rank) for peer in waits.absent[operation]] for rank in behind}
    return [rank for rank, absent in peers.items() if job.survey.ranks.keys().isdisjoint(absent)]


def _counts_completion(operation: Operation) -> bool:
    """Return whether completion on a device is known: gloo and dtk's ring do not record it."""
    return operation.peer < 0 and operation.key.on_devices


def _completed_elsewhere(job: JobState, rank: int) -> list[Operation]:
    counted, waits = filter(_counts_completion, job.waits.of_rank.get(rank, [])), job.waits
    return [operation for operation in counted if waits.complete[operation] and not waits.absent[operation]]


CAUSE = declared(__file__, explain, decide)

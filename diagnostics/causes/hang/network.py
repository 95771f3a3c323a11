"""All ranks of a group are in the same collective, but no rank completes it."""

from msgspec import Struct

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.stall.job_state import JobState
from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _parts
from diagnostics.contract.findings import CERTAIN, PLAUSIBLE, SUSPECTED, Finding
from diagnostics.evidence.calls import Call
from diagnostics.evidence.model import LogFact

_TEXTS = Texts(__file__)
_TRANSPORT = {"nccl_ib_error", "nccl_ib_async", "nccl_connect", "nccl_socket_error"}


class NeverCompletes(Struct, frozen=True):
    """A collective that all members entered, or a message of which both halves were posted, that completed on none."""

    operation: Operation
    call: Call
    ranks: tuple[int, ...]
    first: bool
    """Whether no earlier call of the group completed."""
    begun: bool
    """Whether every member is known to execute it; otherwise a device may be stuck in earlier work."""
    transport: tuple[LogFact, ...]

    @property
    def certain(self) -> bool:
        """Whether the transport fails, rather than a device that is stuck before the call."""
        return self.begun or self.first or bool(self.transport)


def never_complete(job: JobState) -> list[NeverCompletes]:
    """Return the collectives that all members entered, in a stalled job in which no rank is missing."""
    roots = {*job.waits.roots()}
    if not job.hangs() or job.peer_vanished() or (job.waits.waited_for() and (job.waits.cycles() or not roots)):
        return []
    facts = tuple(fact for fact in job.evidence.facts if fact.kind in _TRANSPORT)
    cases, taken = [], job.waits.incomparable()
    for operation in sorted(job.waits.waiting):
        calls = _entered(job, operation)
        if not calls or calls.keys() & taken or (roots and not roots <= calls.keys()):
            continue
        first_call, lines = next(iter(calls.values())), job.survey.groups[operation.key].lines
        if not first_call.wire.amounts and len({call.described.text for call in calls.values()}) > 1:
            continue  # Splits of an all_to_all that differ may not fit each other, which the dumps do not show.
        first = operation.peer < 0 and all(lines[rank].done <= 0 for rank in calls)
        begun = not operation.key.on_devices or all(call.begun for call in calls.values())
        cases.append(NeverCompletes(operation, first_call, tuple(calls), first, begun, facts))
        taken |= calls.keys()
    return cases


def _entered(job: JobState, operation: Operation) -> dict[int, Call]:
    """Return the call of each rank of a pending operation; empty unless all of them wait in it before all else."""
    waits, waiting = job.waits, job.waits.participants(operation)
    is_whole = operation.peer >= 0 or len(waiting) >= max(2, len(job.survey.members(operation.key)))
    if waits.complete[operation] or not is_whole:
        return {}
    calls = {rank: waits.calls[rank, own] for rank, own in waiting.items()}
    is_known = all(call.completion_known for call in calls.values())
    is_same_size = operation.peer < 0 or len({call.wire.amounts for call in calls.values()}) == 1
    is_head = not operation.key.on_devices or all(job.waits_first_in(rank, own) for rank, own in waiting.items())
    # A call that some had given up when the last rank came cannot complete: that rank is late.
    last_s, true_s = max((call.created_s or 0.0 for call in calls.values()), default=0.0), job.survey.clocks.true_s
    over_s = [call.created_s + call.timeout_s for call in calls.values() if call.created_s and call.timeout_s]
    ends = (job.endings[rank] for rank in calls.keys() & job.endings.keys())
    over_s += [
        true_s(end.rank, end.time_s) for end in ends if end.time_s and not end.line
    ]  # A log's zone is not known.
    return calls if is_known and is_same_size and is_head and all(last_s < at_s for at_s in over_s) else {}


def decide(stall: Stall) -> list[Finding]:
    """Decide from agreeing dumps of all ranks, and from transport errors in logs."""
    findings = [
        _parts.confirmed(
            stall.job,
            _TEXTS.facts(
                ("message_" if case.operation.peer >= 0 else "")
                + ("first" if case.first else "default" if case.certain else "enqueued"),
                ranks=len(case.ranks),
                members=case.ranks,
                call=case.call.cited(),
            ),
            # A device that is stuck in earlier work looks like a transport that reports nothing.
            CERTAIN if case.transport else PLAUSIBLE if case.certain else SUSPECTED,
            at=case.operation,
            seen=dict.fromkeys(case.ranks[:2], _parts.says("waits_in", what=case.call.text)),
            evidence=_parts.lines(case.transport),
            victims=case.ranks,
            where=_parts.where(case.ranks[0], case.call),
        )
        for case in never_complete(stall.job)
    ]
    return findings or [_parts.unconfirmed(stall)]


CAUSE = declared(__file__, explain, decide)

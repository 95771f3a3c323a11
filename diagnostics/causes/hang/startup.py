"""The first collective of a group never completes on any of its ranks: their connections were never established."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.symptoms.absent import set_up
from diagnostics.analysis.symptoms.gather import symptoms
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _parts
from diagnostics.contract.findings import PLAUSIBLE, Cost, Finding, Group, confirmed

_TEXTS = Texts(__file__)


def decide(stall: Stall) -> Finding:
    """Decide from NCCL's lines about its set-up on several ranks, or the watchdog messages of all ranks of a group."""
    state = None if stall.job.finished() or stall.job.any_calls() else symptoms(stall.job.evidence)
    late = set_up(stall.job.evidence) if state and state.waits and all(wait.first for wait in state.waits) else None
    waiting = {rank for wait in (state.waits if state else ()) for rank in wait.ranks}
    if late is not None and late.blames and (not late.is_complete or waiting.issuperset(late.ranks)):
        parts = {"others": late.others, "nranks": len(late.ranks) + len(late.others), "comm": late.comm}
        facts = _TEXTS.facts(late.row, stage=late.stage, reached=late.reached, **parts)
        items = _parts.lines(late.lines)
        return _parts.confirmed(stall.job, facts, PLAUSIBLE, ranks=late.ranks, victims=late.others, evidence=items)
    wait = next((wait for wait in state.waits if wait.first and wait.whole_group), None) if state else None
    if wait is None:
        return _parts.unconfirmed(stall)
    lines = [fact for fact in stall.job.evidence.facts if fact.kind == "watchdog_timeout" and fact.rank in wait.ranks]
    return confirmed(
        facts=_TEXTS.facts(who=wait.ranks, count=len(wait.ranks), wait=wait),
        confidence=PLAUSIBLE,  # Sizes or dtypes that differ look the same: the messages do not print them.
        victims=wait.ranks,
        group=Group(wait.group, wait.ranks),
        position=wait.seq,
        cost=Cost(wait.waited_s, "s blocked") if wait.waited_s else None,
        evidence=_parts.lines(lines[:2]),
    )


CAUSE = declared(__file__, explain, decide)

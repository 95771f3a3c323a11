"""Stages of a pipeline disagree about the number of micro-batches of a step, or the size of messages."""

from diagnostics.analysis.pairwise import pairs
from diagnostics.analysis.stall.circular import PointToPoint
from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang.all_to_all_splits import places, seen
from diagnostics.causes.hang.p2p_cycle import figures, finding
from diagnostics.contract.findings import Finding, Group

_TEXTS = Texts(__file__)


def decide(stall: Stall) -> Finding:
    """Decide from waits in torch's schedules, or else from the recorded messages of each stage's last step."""
    for wait in stall.circular:
        if isinstance(wait, PointToPoint) and wait.scheduled:
            return finding(stall, wait, _TEXTS.facts(**figures(wait) | {"said": "schedules"}))
    calls = pairs(stall.job.evidence)
    layout, case = calls.layout, calls.messages()
    if case is None:
        if layout is not None and layout.degrees["pp"] == 1:
            return _TEXTS.ruled_out("no_pipeline")
        if layout is not None and len(calls.records) > 1:
            return _TEXTS.ruled_out("fit")
        if calls.records and not any(record.is_p2p for records in calls.records.values() for record in records):
            return _TEXTS.ruled_out("no_message")
        return _TEXTS.undecided(missing=_parts.RECORD)
    assert layout is not None
    first, what = case.misfits[0], "sizes" if case.shapes else "counts"
    stages = [(layout.place(rank)["pp"], rank) for rank in (first.sender, first.receiver)]
    sender, receiver = (_TEXTS.phrase("stage", stage=stage, rank=rank) for stage, rank in stages)
    row = f"{what}_tie" if len(case.culprits) > 1 else what
    return Finding(
        status="confirmed",
        facts=_TEXTS.facts(row, first=first, sender=sender, receiver=receiver),
        confidence=0.95,
        ranks=case.culprits,
        victims=case.victims,
        group=Group("pp", case.group),
        step=case.misfits[0].calls[1].step,
        where=places(case),
        evidence=seen(calls, case, "elements" if case.shapes else "messages"),
    )


CAUSE = declared(__file__, explain, decide)

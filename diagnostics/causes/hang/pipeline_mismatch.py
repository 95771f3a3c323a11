"""Stages of a pipeline disagree about the number of micro-batches of a step, or the size of messages."""

from diagnostics.analysis.pairwise import pairs, pipeline_misfit
from diagnostics.analysis.run_records import joint_group
from diagnostics.analysis.stall.circular import PointToPoint
from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._messages import figures, finding, places, seen
from diagnostics.contract.files import patterns_beside
from diagnostics.contract.findings import ASSUMED, SEEN, EvidenceItem, Finding, confirmed
from diagnostics.evidence.calls import own_line

_TEXTS = Texts(__file__)
_LOSS = patterns_beside(__file__, "loss")
"""The table documents what each pattern matches."""


def decide(stall: Stall) -> Finding:
    """Decide from waits between stages, the loss of torch's schedules, or the messages of each stage's last step."""
    for wait in stall.circular:
        if isinstance(wait, PointToPoint) and wait.of_stages:
            return finding(stall, wait, _TEXTS.facts(**figures(wait)))
    if (at_loss := _at_loss(stall)) is not None:
        return at_loss
    calls = pairs(stall.job.evidence)
    layout, case = calls.layout, pipeline_misfit(calls)
    if case is None:
        if layout is not None and layout.pp == 1:
            return _TEXTS.ruled_out("no_pipeline")
        if layout is not None and len(calls.records) > 1:
            return _TEXTS.ruled_out("fit")
        if calls.records and not any(record.is_p2p for records in calls.records.values() for record in records):
            return _TEXTS.ruled_out("no_message")
        return _TEXTS.undecided(missing=_parts.recording(calls.evidence))
    assert layout is not None
    first, what = case.misfits[0], "sizes" if case.shapes else "counts"
    stages = [(layout.index("pp", rank), rank) for rank in (first.sender, first.receiver)]
    sender, receiver = (_TEXTS.phrase("stage", stage=stage, rank=rank) for stage, rank in stages)
    row = f"{what}_tie" if {first.sender, first.receiver} <= {*case.culprits} else what
    return confirmed(
        facts=_TEXTS.facts(row, first=first, sender=sender, receiver=receiver),
        confidence=SEEN,
        ranks=case.culprits,
        victims=case.victims,
        group=joint_group(layout, "pp", case.group),
        step=case.misfits[0].calls[1].step,
        where=places(case),
        evidence=seen(calls, case, "elements" if case.shapes else "messages"),
    )


def _at_loss(stall: Stall) -> Finding | None:
    """Return the finding about a last stage whose targets and whose predecessor's outputs are of different batches."""
    for rank, end in sorted(stall.job.endings.items()):
        sizes = _LOSS["sizes"].search(end.message) if end.kind == "raised" else None
        if sizes is not None and any(_LOSS["frames"].search(f"{at.file}:{at.function}") for at in end.frames):
            others = {other for other, ended in stall.job.endings.items() if ended.victim}
            first, second = (int(size) for size in sizes.groups() if size)
            return confirmed(
                facts=_TEXTS.facts("loss", rank=rank, first=first, second=second),
                confidence=ASSUMED,  # A loss with a mistake of its own raises the same.
                victims=tuple(sorted({rank, *others})),
                where=_parts.where(rank, own_line(end.frames), end.summary),
                evidence=(EvidenceItem(end.record.kind, end.record.file, end.summary, end.record.line),),
            )
    return None


CAUSE = declared(__file__, explain, decide)

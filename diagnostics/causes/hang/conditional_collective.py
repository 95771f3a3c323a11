"""A collective that only some ranks issue."""

from typing import Any

from diagnostics.analysis.stall.endings import ended_in_order
from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.stall.stack_evidence import collective_of
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _divergence, _parts
from diagnostics.causes.hang._divergence import Disagreement, Reading
from diagnostics.contract.findings import OPEN, POSSIBLE, SUSPECTED, Finding, Remedy
from diagnostics.contract.formatting import file_name

_TEXTS = Texts(__file__)
_AT_END = {"of_one": POSSIBLE, "finished": OPEN, "or_left": SUSPECTED}
"""Confidence that a rank which alone waits at the end made one call more, by what shows it."""


def _remedies(facts: Disagreement) -> tuple[Remedy, ...]:
    divergence, is_added = facts.divergence, facts.kind == "added"
    fix = _divergence.fix_call(facts.calls[0], divergence.majority if is_added else divergence.minority, added=is_added)
    if divergence.explanation.terms[0].name == "forward twice":
        return (_divergence.TEXTS.remedy("made_before", side=facts.minority, place=divergence.minority.place),)
    if not divergence.explanation.alternatives:
        return (fix,)
    # The line may also be after the loop.
    return fix, _divergence.TEXTS.remedy("run_equally_often", place=divergence.majority.place)


def _summary(facts: Disagreement) -> str:
    row, divergence = str(facts.kind), facts.divergence
    if divergence.ended == "majority":
        row = "alone" if divergence.majority.seq < divergence.minority.seq else "never"
    row = "earlier" if divergence.explanation.terms[0].name == "forward twice" else row
    return facts.filled(_TEXTS, row)


READING = Reading(_TEXTS, ("left_out", "added"), _remedies, _summary)


def decide(stall: Stall) -> list[Finding]:
    """Decide from the first call in which the ranks differ, and from calls that only some ranks make.

    Such a call is missed in a cycle of waits, is made by few ranks, or is made after others ended.
    """
    return _divergence.decided(stall, READING, _at_end(stall), silent=True)


def _at_end(stall: Stall) -> list[Finding]:
    """Return the finding about a rank that alone waits in a call after the others ended in order."""
    exited = ended_in_order(stall.endings)
    end = exited.gave_up if exited is not None and exited.alone and stall.departure is None else None
    place = collective_of(end.frames) if end is not None else None
    if exited is None or end is None or place is None:
        return []
    op, site = place
    lists = (fact for fact in stall.job.evidence.facts if fact.kind == "torchrun_list")
    row = (
        "of_one" if exited.one_more else "finished" if any(fact.fields.get("finished") for fact in lists) else "or_left"
    )
    facts = _TEXTS.facts(
        "at_end", rank=end.rank, op=op, site=site, near=f"{file_name(site.file)}:{site.line}", at=_TEXTS.phrase(row)
    )
    more: dict[str, Any] = {"ranks": (end.rank,), "where": _parts.where(end.rank, site, op), "basis": "messages"}
    return [_parts.confirmed(stall.job, facts, _AT_END[row], evidence=(end.evidence,), **more)]


CAUSE = declared(__file__, explain, decide)

"""A collective that only some ranks issue."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _divergence
from diagnostics.causes.hang._divergence import Disagreement, Reading
from diagnostics.contract.findings import Finding, Remedy

_TEXTS = Texts(__file__)


def _remedies(facts: Disagreement) -> tuple[Remedy, ...]:
    fix, divergence = _divergence.fix_call(facts.calls[0], added=facts.kind == "added"), facts.divergence
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
    return _divergence.decided(stall, READING, [], silent=True)


CAUSE = declared(__file__, explain, decide)

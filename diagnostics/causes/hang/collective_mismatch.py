"""Ranks issued different collective calls at the same position of a group."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang._divergence import Disagreement, Reading, decided
from diagnostics.contract.findings import Finding, Remedy

_TEXTS = Texts(__file__)


def _remedies(facts: Disagreement) -> tuple[Remedy, ...]:
    minority, majority = facts.divergence.minority, facts.divergence.majority
    row = "same_branch" if minority.site is not None and majority.site is not None else "same_branch_unplaced"
    return (_TEXTS.remedy(row, minority_call=minority, majority_call=majority),)


READING = Reading(_TEXTS, ("other_operation",), _remedies)


def decide(stall: Stall) -> list[Finding]:
    """Decide from the first call in which the ranks differ, or else from watchdog messages and stacks."""
    return decided(stall, READING, [], silent=True)


CAUSE = declared(__file__, explain, decide)

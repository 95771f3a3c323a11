"""Ranks issued different operations at the same position of a group."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import declared
from diagnostics.causes.hang import _stacks, _watchdog
from diagnostics.causes.hang._divergence import Disagreement, Reading, decided
from diagnostics.contract.findings import Finding, Remedy

ID = "hang.collective_mismatch"
_WHY = "collectives are matched by their order in the group, not by name"


def _summary(facts: Disagreement) -> str:
    return facts.filled("{side:^} {side:calls|call} {mine} where {rest} {rest:calls|call} {theirs}, at {at}.")


def _remedies(facts: Disagreement) -> tuple[Remedy, ...]:
    minority, majority = facts.divergence.minority, facts.divergence.majority
    meet = f"{minority.text} and {majority.text} meet at position {minority.seq} and"
    if minority.site is not None and majority.site is not None:
        meet = f"{minority.place} and {majority.place}"
    return (Remedy("code", f"let all ranks take the same branch: {meet} must be the same collective", _WHY),)


READING = Reading(
    ID,
    ("other_operation",),
    _summary,
    _remedies,
    not_this="Both sides issue {op} at {at}.",
    not_this_either="The operations at {at} differ only because of what was confirmed: {why}.",
)


def decide(stall: Stall) -> list[Finding]:
    """Decide it by the first call in which the ranks differ, else by what watchdogs printed and by stacks."""
    findings = [*_watchdog.different_operations(stall, ID), *_stacks.findings(stall, ID)]
    return decided(stall, READING, findings, silent=True)


CAUSE = declared(__file__, explain, decide)

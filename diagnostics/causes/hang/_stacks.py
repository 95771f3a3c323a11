"""Ranks in different collectives by their stacks alone, which leaves three causes open."""

from diagnostics.analysis.stall.explain import Stall
from diagnostics.analysis.stall.stack_evidence import DifferentCollectives, InCollective
from diagnostics.causes.declared import Texts
from diagnostics.contract.findings import Finding
from diagnostics.contract.formatting import file_name

_TEXTS = Texts(__file__)


def described(place: InCollective) -> str:
    """Return `barrier (train.py:25)`."""
    at = f" ({file_name(place.site.file)}:{place.site.line})" if place.site else ""
    return (place.op or str(_TEXTS.phrase("no_stack"))) + at


def findings(stall: Stall) -> list[Finding]:
    """Return why this cause is open, where stacks show two collectives."""
    case = stall.stacks
    if not isinstance(case, DifferentCollectives):
        return []
    here, there = (described(case.inside[side[0]]) for side in (case.few, case.many))
    facts = _TEXTS.facts(few=case.few, many=case.many, here=here, there=there)
    return [Finding(status="undecided", facts=facts, confidence=0.0, victims=tuple(sorted(case.inside)))]

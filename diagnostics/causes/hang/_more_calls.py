"""The finding about ranks that made more calls than others, which ended in order; shared by two causes."""

from diagnostics.analysis.stall.departure import MoreCalls
from diagnostics.analysis.stall.endings import ended_in_order
from diagnostics.analysis.stall.explain import Stall
from diagnostics.causes.hang import _parts
from diagnostics.contract.findings import Facts, Finding


def more_calls(stall: Stall, case: MoreCalls, facts: Facts, confidence: float) -> Finding:
    """Return the finding with the first additional call and the last one of the ranks that ended."""
    first, there, exited = case.extra[0], case.there, ended_in_order(stall.endings)
    last = _parts.says("made_last" if case.agreeing else "ended_after", call=there)
    return _parts.confirmed(
        stall.job,
        facts,
        confidence,
        at=first,
        seen={case.ranks[0]: _parts.says("call_is", call=first), case.ended[0]: last},
        evidence=[end.evidence for end in (exited.endings[:6] if exited else ())],
        ranks=case.ranks,
        victims=case.ended,
        step=first.step,
        where=(*_parts.where(case.ranks[0], first), *_parts.where(case.ended[0], there, last)),
    )

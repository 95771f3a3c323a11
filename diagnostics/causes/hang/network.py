"""All ranks of a group are in the same collective, but no rank completes it."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._unconfirmed import unconfirmed
from diagnostics.contract.findings import CERTAIN, PLAUSIBLE, SUSPECTED, Finding

_TEXTS = Texts(__file__)


def decide(stall: Stall) -> list[Finding]:
    """Decide from agreeing dumps of all ranks, and from transport errors in logs."""
    findings = [
        _parts.confirmed(
            stall.job,
            _TEXTS.facts(
                "first" if case.first else "default" if case.certain else "enqueued",
                ranks=len(case.ranks),
                call=case.call.cited(),
            ),
            # A device that is stuck in earlier work looks like a transport that reports nothing.
            CERTAIN if case.transport else PLAUSIBLE if case.certain else SUSPECTED,
            at=case.operation,
            seen=dict.fromkeys(case.ranks[:2], _parts.says("waits_in", what=case.call.text)),
            evidence=_parts.lines(case.transport[:3]),
            victims=case.ranks,
            where=_parts.where(case.ranks[0], case.call),
        )
        for case in stall.never_complete
    ]
    return findings or [unconfirmed(stall)]


CAUSE = declared(__file__, explain, decide)

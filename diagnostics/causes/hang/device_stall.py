"""The host enqueued work that its device does not complete, while other ranks' devices complete theirs."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._unconfirmed import unconfirmed
from diagnostics.contract.findings import CERTAIN, Finding
from diagnostics.contract.formatting import Phrase

_TEXTS = Texts(__file__)


def decide(stall: Stall) -> Finding:
    """Decide from what NCCL's dumps say of calls that devices began and completed."""
    case, job = stall.device, stall.job
    if case is None:
        return unconfirmed(stall, _TEXTS.phrase("counters"))
    counts = _TEXTS.phrase("not_begun" if case.begun else "counts", case=case)
    details: dict[int, str | Phrase] = dict.fromkeys(case.ranks, _TEXTS.phrase("enqueued"))
    if not case.peers:
        details = {case.ranks[0]: counts}
    peer = (
        _parts.says("waits_in", what=case.call.text) if case.begun else _parts.says("completed", seq=case.operation.seq)
    )
    details |= dict.fromkeys(case.peers[:1], peer)
    where = _parts.where(case.ranks[0], case.call, _TEXTS.phrase("does", call=case.call.text))
    rows = ["begun" if case.begun else "default", *["others_wait"] * bool(case.waiting)]
    facts, victims = _TEXTS.facts(rows, case=case, counts=counts), case.waiting
    return _parts.confirmed(  # NCCL counts a collective as completed shortly after its completion.
        job, facts, CERTAIN, at=case.operation, seen=details, ranks=case.ranks, victims=victims, where=where
    )


CAUSE = declared(__file__, explain, decide)

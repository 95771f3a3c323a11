"""The host enqueued work that its device does not complete while the devices of others do."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.stall.late import DeviceStall
from diagnostics.causes.declared import declared, texts_beside
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._unconfirmed import unconfirmed
from diagnostics.contract.findings import Finding, worded

ID = "hang.device_stall"
_TEXTS = texts_beside(__file__)
_CONFIDENCE = 0.9
"""NCCL counts a collective as completed a moment after it is."""


def _counts(case: DeviceStall) -> str:
    return f"completed {case.completed} of {case.enqueued} enqueued, its peers completed {case.peers_completed}"


def decide(stall: Stall) -> list[Finding]:
    """Decide from the completion counters of NCCL's dumps."""
    case, job = stall.device, stall.job
    if case is None:
        return [unconfirmed(stall, ID, "NCCL's completion counters: TORCH_NCCL_TRACE_BUFFER_SIZE=2000")]
    details = dict.fromkeys(case.ranks, "enqueued work that its peers completed")
    if not case.peers:
        details = {case.ranks[0]: _counts(case)}
    details |= dict.fromkeys(case.peers[:1], f"completed #{case.operation.seq}")
    where = _parts.where(case.ranks[0], case.call, f"enqueued {case.call.text}, which does not complete")
    said = ("usual", "others_wait") if case.waiting else "usual"
    facts, victims = worded(_TEXTS, said=said, case=case, counts=_counts(case)), case.waiting
    return [
        _parts.confirmed(
            job, ID, facts, _CONFIDENCE, at=case.operation, seen=details, ranks=case.ranks, victims=victims, where=where
        )
    ]


CAUSE = declared(__file__, explain, decide)

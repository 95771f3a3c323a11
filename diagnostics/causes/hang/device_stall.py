"""The host enqueued work that its device does not complete while the devices of others do."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.stall.late import DeviceStall
from diagnostics.causes.declared import declared
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._unconfirmed import unconfirmed
from diagnostics.contract.findings import Finding, Remedy, Text, worded
from diagnostics.contract.formatting import ranks_spoken, sentence, verb

ID = "hang.device_stall"
_CONFIDENCE = 0.9
"""NCCL counts a collective as completed a moment after it is."""


def _words(finding: Finding, case: DeviceStall) -> Text:
    ranks, counts = case.ranks, _counts(case)
    devices = verb(ranks, "device", "devices")
    summary = (
        f"The {devices} of {ranks_spoken(ranks)} {verb(ranks, 'does', 'do')} not complete what the others "
        f"complete: rank {ranks[0]} is stuck at {case.call.cited()} of group {case.call.key.label} ({counts})."
    )
    if case.waiting:
        waits = verb(case.waiting, "waits", "wait")
        summary += f" {sentence(ranks_spoken(case.waiting))} {waits} for {verb(ranks, 'it', 'them')}."
    change = (
        f"look for Xid and ECC errors on the {devices} of {ranks_spoken(ranks)} (dmesg, nvidia-smi -q), and for a "
        "kernel that never ends"
    )
    why = "the host enqueued the work, and the device does not finish it"
    return Text(summary=summary, measured=counts, remedies=(Remedy("code", change, why),))


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
    facts, victims = worded(_words, case=case), case.waiting
    return [
        _parts.confirmed(
            job, ID, facts, _CONFIDENCE, at=case.operation, seen=details, ranks=case.ranks, victims=victims, where=where
        )
    ]


CAUSE = declared(__file__, explain, decide)

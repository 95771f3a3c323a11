"""All ranks of a group are in the same collective and none comes out of it."""

from diagnostics.analysis.stall.blameless import NeverCompletes
from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import declared
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._unconfirmed import unconfirmed
from diagnostics.contract.findings import Finding, Remedy, Text, worded

ID = "hang.network"
_CONFIDENCE, _REPORTED_CONFIDENCE = 0.75, 0.9
"""All ranks agree; surer where the transport reported errors as well."""


def _words(finding: Finding, case: NeverCompletes) -> Text:
    ranks = len(case.ranks)
    summary = (
        f"All {ranks} ranks of the group agree: they are in {case.call.cited()} and it completes on none. No "
        "rank is to blame."
    )
    if case.first:
        summary += (
            " It is the group's first collective: its connections may never have come up (interface, firewall, one "
            "device for two ranks)."
        )
    change = (
        "check the network between the nodes: NCCL_DEBUG=INFO, the interface in NCCL_SOCKET_IFNAME or "
        "GLOO_SOCKET_IFNAME, ib_write_bw"
    )
    why = "the ranks agree, so the fault lies between them"
    measured = f"{ranks} of {ranks} ranks in the same collective, 0 completed"
    return Text(summary=summary, measured=measured, remedies=(Remedy("code", change, why),))


def decide(stall: Stall) -> list[Finding]:
    """Decide from dumps of all ranks that agree, and from errors of the transport in logs."""
    findings = [
        _parts.confirmed(
            stall.job,
            ID,
            worded(_words, case=case),
            _REPORTED_CONFIDENCE if case.transport else _CONFIDENCE,
            at=case.operation,
            seen=dict.fromkeys(case.ranks[:2], f"waits in {case.call.text}"),
            evidence=_parts.lines(case.transport[:3]),
            victims=case.ranks,
            where=_parts.where(case.ranks[0], case.call),
        )
        for case in stall.never_complete
    ]
    return findings or [unconfirmed(stall, ID)]


CAUSE = declared(__file__, explain, decide)

"""A link between two nodes failed: a cable, a port, a switch, or the route between two network devices."""

from diagnostics.analysis.link_faults import RETRY_EXCEEDED, LinkFaults, link_faults
from diagnostics.causes.declared import declared
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text, undecided, worded
from diagnostics.contract.formatting import counted, sentence

_SHOWN = 6
"""Lines that a finding cites, and pairs that it names."""
_CONFIDENCE = 0.85
"""A peer whose process died stops to acknowledge as well; where a log shows that end, it is the cause."""


def _words(finding: Finding, faults: LinkFaults) -> Text:
    parts = []
    if faults.completions:
        status = faults.completions[0].fields["status"]
        pairs = ", ".join(f"{host or 'a rank'} and {peer}" for host, peer in faults.pairs[:_SHOWN])
        parts.append(f"InfiniBand status {status} between {pairs}: {RETRY_EXCEEDED[status]}")
    down = dict.fromkeys(
        f"{fact.fields.get('device')}{':' + str(fact.fields['port']) if 'port' in fact.fields else ''}"
        for fact in (*faults.ports, *faults.down)
    )
    if down:
        parts.append(f"the port {', '.join(down)} reported an error or went down")
    common = f" All lines have {faults.common} in common." if faults.common else ""
    change = (
        f"look at {faults.common or 'both ends of this link'}: ibstat and ibqueryerrors (symbol errors, link downed), "
        "cable and switch port; ib_write_bw between the two nodes; for RoCE NCCL_IB_GID_INDEX and MTU; leave the "
        "device out with NCCL_IB_HCA=^DEVICE until it is repaired"
    )
    return Text(
        summary=f"A link failed. {sentence('; '.join(parts))}.{common}",
        measured=counted(len(faults.completions) + len(faults.ports), "line"),
        remedies=(Remedy("environment", change, "the transport gives up after its retries, about a minute"),),
    )


def decide(faults: LinkFaults) -> list[Finding]:
    """Decide from NCCL's InfiniBand errors and from what the network's driver says."""
    lines = (*faults.completions, *faults.ports)
    if not lines:
        summary = "No line reports a failed link."
        if faults.followed:
            summary = "The transport reported errors that follow from an earlier one, which no line shows."
        elif faults.down:
            summary = "A network interface went down, and no line of NCCL shows that the job used it."
        missing = "NCCL_DEBUG=WARN on every rank; dmesg | grep -i 'link down' on every node"
        return [undecided("network.link_fault", summary, missing)]
    return [
        Finding(
            cause="network.link_fault",
            status="confirmed",
            facts=worded(_words, faults=faults),
            confidence=_CONFIDENCE,
            victims=tuple(sorted({fact.rank for fact in lines if fact.rank is not None})),
            evidence=tuple(
                EvidenceItem("log", fact.file, fact.text, fact.line) for fact in (*lines, *faults.down)[:_SHOWN]
            ),
        )
    ]


CAUSE = declared(__file__, link_faults, decide)

"""A link between two nodes failed: a cable, a port, a switch, or the route between two network devices."""

from collections import Counter

from msgspec import Struct

from diagnostics.causes.declared import declared
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text, undecided, worded
from diagnostics.contract.formatting import counted, sentence
from diagnostics.evidence.model import Evidence, LogFact

RETRY_EXCEEDED = {12: "the peer did not acknowledge (retry count exceeded)", 13: "the peer was not ready (RNR retry)"}
"""Status of a work completion (`ibv_wc_status`) that speaks of the way between two ports. 5 (flushed) only follows from
an earlier error; 4, 10 and 11 are about memory and rights."""
_NO_WAY = frozenset({"Connection timed out", "Network is unreachable", "No route to host"})
"""Errors of `ibv_modify_qp` by which two network devices do not reach each other. Others are about the own device."""


class LinkFaults(Struct, frozen=True):
    """Completions that failed, ports that went down, and what they have in common."""

    completions: tuple[LogFact, ...]
    """With a status of `RETRY_EXCEEDED`."""
    ports: tuple[LogFact, ...]
    """Ports of which NCCL saw an error."""
    down: tuple[LogFact, ...]
    """`Link down` of the kernel: alone it may be of an interface that nobody uses, or of the start of the machine."""
    followed: tuple[LogFact, ...]
    """Completions with any other status."""
    unreached: tuple[LogFact, ...] = ()
    """Connections that were never made, for a reason of `_NO_WAY`."""

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """(host, address of its peer), the most frequent first."""
        counts = Counter((_host(fact), _address(fact)) for fact in self.completions)
        return tuple(pair for pair, _ in counts.most_common())

    @property
    def common(self) -> str:
        """The device, port, host or peer that all lines share; empty where there is none, or but one line."""
        facts = (*self.completions, *self.ports, *self.unreached)
        named = [[str(fact.fields.get(key, "")) for key in ("device", "local_gid")] for fact in facts]
        parts = [(*names, _address(fact), _host(fact)) for names, fact in zip(named, facts, strict=True)]
        shared = (set(values).pop() for values in zip(*parts) if len(set(values)) == 1)
        return next(filter(None, shared), "") if len(facts) > 1 else ""


def link_faults(evidence: Evidence) -> LinkFaults:
    """Return what all ranks' lines say about links."""
    completions = [fact for fact in evidence.facts if fact.kind == "nccl_ib_error"]
    ports = [fact for fact in evidence.facts if fact.kind == "nccl_ib_async" and "failed" in fact.fields]
    down = [fact for fact in evidence.facts if fact.kind == "link_down"]
    failed = [fact for fact in completions if fact.fields.get("status") in RETRY_EXCEEDED]
    unreached = [f for f in evidence.facts if f.kind == "nccl_qp_failed" and str(f.fields.get("why")) in _NO_WAY]
    followed = [fact for fact in completions if fact not in failed]
    return LinkFaults(tuple(failed), tuple(ports), tuple(down), tuple(followed), tuple(unreached))


def _host(fact: LogFact) -> str:
    return str(fact.fields.get("process", "")).partition(":")[0]


def _address(fact: LogFact) -> str:
    return str(fact.fields.get("peer", "")).partition("<")[0]


_SHOWN = 6
"""Lines that a finding cites, and pairs that it names."""
_CONFIDENCE = 0.85
"""A peer whose process died stops to acknowledge as well; where a log shows that end, it is the cause."""


def _words(finding: Finding, faults: LinkFaults) -> Text:
    parts = []
    if faults.completions:
        status = faults.completions[0].fields["status"]
        pairs = ", ".join(f"{host or 'a rank'} and {peer or 'a peer'}" for host, peer in faults.pairs[:_SHOWN])
        parts.append(f"InfiniBand status {status} between {pairs}: {RETRY_EXCEEDED[status]}")
    down = dict.fromkeys(
        f"{fact.fields.get('device')}{':' + str(fact.fields['port']) if 'port' in fact.fields else ''}"
        for fact in (*faults.ports, *faults.down)
    )
    if down:
        parts.append(f"the port {', '.join(down)} reported an error or went down")
    if faults.unreached:
        device = faults.unreached[0].fields.get("device")
        why = f"{faults.unreached[0].fields['why']}{f', on {device}' if device else ''}"
        parts.append(f"two network devices could not be connected ({why})")
    common = f" All lines have {faults.common} in common." if faults.common else ""
    change = (
        f"look at {faults.common or 'both ends of this link'}: ibstat and ibqueryerrors (symbol errors, link downed), "
        "cable and switch port; ib_write_bw between the two nodes; for RoCE NCCL_IB_GID_INDEX and MTU; "
        "NCCL_CROSS_NIC=0 where only devices of the same number are connected; leave the device out with "
        "NCCL_IB_HCA=^DEVICE until it is repaired"
    )
    return Text(
        summary=f"A link failed. {sentence('; '.join(parts))}.{common}",
        measured=counted(len(faults.completions) + len(faults.ports) + len(faults.unreached), "line"),
        remedies=(Remedy("environment", change, "the transport gives up after its retries, about a minute"),),
    )


def decide(faults: LinkFaults) -> list[Finding]:
    """Decide from NCCL's InfiniBand errors and from what the network's driver says."""
    lines = (*faults.completions, *faults.ports, *faults.unreached)
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

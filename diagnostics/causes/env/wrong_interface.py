"""The ranks communicate over a network interface that does not exist or does not reach the other nodes."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from diagnostics.analysis.environment.job import JobEnvironment
from diagnostics.analysis.environment.recorded import Recorded, interfaces
from diagnostics.causes.env._failures import lines
from diagnostics.causes.env._lint import lint_cause, set_anywhere
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text
from diagnostics.evidence.model import LogFact

_SHOWN = 8
"""Lines that a finding cites."""
_LOCAL = re.compile(r"^(?:docker|veth|br-|virbr|cni|flannel|cali|tunl|podman|lxc|lo$)")
"""Names of interfaces that do not leave the node."""
_TRIES = 2
"""Refused attempts behind which the peer is not merely about to listen: NCCL announces an address that listens."""
_CONNECTED = frozenset({"watchdog_timeout", "watchdog_status", "nccl_peer_closed", "gloo_closed", "gloo_reset"})
"""Kinds of lines of a job whose ranks had been connected, so that a peer may have ended since."""
_LINK_LOCAL = re.compile(r"\[?(?:169\.254\.|fe80:)", re.IGNORECASE)
"""RFC 3927 and RFC 4291: what an interface gives itself where nothing else did."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What NCCL and gloo said about the interface that they use."""

    why: Literal["missing", "local", "link_local", "unreachable", "refused"]
    """It does not exist; it does not leave the node although there are others; its address holds on one link only and
    a connection to it failed; a connection failed; and nobody ever listened at a peer's address."""
    name: str
    """Empty = the log names no interface."""
    nnodes: int | None
    lines: int

    def text(self, finding: Finding) -> Text:
        """Put it into words."""
        if self.why == "missing":
            named = f"has no interface or address {self.name!r}" if self.name else "found no interface that it may use"
            summary = f"The node {named}, so the ranks cannot meet."
        elif self.why == "local":
            summary = (
                f"NCCL meets over {self.name}, which does not leave the node, and the job has {self.nnodes} nodes."
            )
        elif self.why == "link_local":
            summary = (
                f"NCCL could not connect to {self.name}: a link-local address, which holds on one link only and is "
                "given to an interface that got no other."
            )
        elif self.why == "refused":
            summary = (
                f"Nobody listens at {self.name}, the address that a peer announced for itself: every attempt was "
                "refused, and no rank is known to have ended. So it is not the peer that is reached there: an "
                "interface with the same address on several nodes, as in containers, or a firewall."
            )
        else:
            summary = "NCCL chose an interface that does not leave the node, and then could not connect."
        change = "NCCL_SOCKET_IFNAME==<interface between the nodes> GLOO_SOCKET_IFNAME=<the same>"
        remedy = Remedy("environment", change, "both take the interface that the other nodes can reach")
        return Text(summary=summary, measured=lines(self.lines), remedies=(remedy,))


def _from_logs(job: JobEnvironment) -> Finding | None:
    """Return an interface that was refused, or that cannot reach the other nodes."""
    nnodes = job.recorded.nnodes
    refused = [fact for fact in job.log if fact.kind == "interface_missing"]
    if refused:
        return _finding("missing", str(refused[0].fields.get("name") or ""), nnodes, refused, 0.97)
    chosen = [
        fact for fact in job.log if fact.kind == "nccl_bootstrap" and _LOCAL.match(str(fact.fields.get("interface")))
    ]
    if chosen and (nnodes or 0) > 1:
        return _finding("local", str(chosen[0].fields["interface"]), nnodes, chosen, 0.9)
    link = [fact for fact in job.log if fact.kind == "nccl_connect" and _LINK_LOCAL.match(str(fact.fields.get("peer")))]
    if link:
        own = [f for f in job.log if f.kind == "nccl_bootstrap" and _LINK_LOCAL.match(str(f.fields.get("address")))]
        return _finding("link_local", str(link[0].fields["peer"]), nnodes, [*own, *link], 0.85)
    sockets = [
        fact for fact in job.log if fact.kind == "nccl_socket" and _all_local(str(fact.fields.get("interfaces")))
    ]
    failed = [fact for fact in job.log if fact.kind == "nccl_connect"]
    if (chosen or sockets) and failed:
        return _finding("unreachable", "", nnodes, [*chosen, *sockets, *failed[:1]], 0.8)
    tries = sum(fact.fields.get("count", 1) for fact in job.log if fact.kind == "nccl_retry")
    kinds = {fact.kind for fact in job.log}
    refused = [fact for fact in failed if "refused" in str(fact.fields.get("why"))]
    if refused and tries >= _TRIES and not job.errors and not kinds & _CONNECTED:
        return _finding("refused", str(refused[0].fields["peer"]), nnodes, refused, 0.6)
    return None


def _finding(
    why: Literal["missing", "local", "link_local", "unreachable", "refused"],
    name: str,
    nnodes: int | None,
    facts: Iterable[LogFact],
    confidence: float,
) -> Finding:
    shown = list(facts)
    return Finding(
        cause="env.wrong_interface",
        status="confirmed",
        facts=Chosen(why, name, nnodes, len(shown)),
        confidence=confidence,
        ranks=tuple(sorted({fact.rank for fact in shown if fact.rank is not None})),
        evidence=tuple(EvidenceItem("log", fact.file, fact.text[:200], fact.line) for fact in shown[:_SHOWN]),
    )


def _all_local(text: str) -> bool:
    names = interfaces(text)
    return bool(names) and all(map(_LOCAL.match, names))


def _lacking(record: Recorded) -> str:
    """Return the fact of the machine without which it cannot be ruled out."""
    named = set_anywhere(record, "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    return "list of the node's network interfaces" if named and "interfaces" not in record.hardware else ""


CAUSE = lint_cause(
    id="env.wrong_interface",
    title="communication on the wrong network interface",
    branch="environment.hardware",
    remedy="NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME by their exact names",
    decided_from="environment against the node's interfaces; what NCCL and gloo say they use",
    lacking=_lacking,
    from_logs=_from_logs,
)

"""The ranks communicate over a network interface that does not exist or does not reach the other nodes."""

import re
from collections import defaultdict
from collections.abc import Sequence

from diagnostics.analysis.environment.addresses import interface_inside, network_inside
from diagnostics.analysis.environment.job import JobEnvironment
from diagnostics.analysis.environment.recorded import Recorded, interfaces
from diagnostics.causes.declared import Texts
from diagnostics.causes.env._lint import lint_cause, set_anywhere
from diagnostics.contract.findings import Finding
from diagnostics.evidence.model import LogFact

_SHOWN = 8
"""Lines that a finding cites."""
_TRIES = 2
"""Refused attempts behind which the peer is not merely about to listen: NCCL announces an address that listens."""
_CONNECTED = frozenset({"watchdog_timeout", "watchdog_status", "nccl_peer_closed", "gloo_closed", "gloo_reset"})
"""Kinds of lines of a job whose ranks had been connected, so that a peer may have ended since."""
_NO_ROUTE = re.compile(r"No route to host|Network is unreachable|\b(?:returned|errno) 1(?:01|13)\b")
"""What the operating system says where no packet reaches the address, or a firewall rejects all of them."""
_LOOPBACK = re.compile(r"remote=\[127\..*\bsize=(?P<ranks>\d{1,7}), local=\[127\.")
"""What gloo writes of a connection on which both ends gave the address that every node has for itself."""
_ON_A_NODE = 8  # Ranks that a node mostly has at most; the loopback address is right within one.
_TEXTS = Texts(__file__)


def _from_logs(job: JobEnvironment) -> Finding | None:
    """Return an interface that was refused, or that cannot reach the other nodes."""
    nnodes = job.recorded.nnodes

    def finding(why: str, name: object, facts: Sequence[LogFact], confidence: float) -> Finding:
        network = network_inside("link" if why == "link_local" else "node", str(name))
        return Finding(
            status="confirmed",
            facts=_TEXTS.facts([why, "lines"], name=str(name), network=network, nnodes=nnodes, lines=len(facts)),
            confidence=confidence,
            ranks=tuple(sorted({fact.rank for fact in facts if fact.rank is not None})),
            evidence=tuple(fact.quoted() for fact in facts[:_SHOWN]),
        )

    by_kind: dict[str, list[LogFact]] = defaultdict(list)
    for fact in job.log:
        by_kind[fact.kind].append(fact)
    if missing := by_kind["interface_missing"]:
        name = missing[0].fields.get("name")
        return finding("missing" if name else "none", name, missing, 0.97)
    chosen = [fact for fact in by_kind["nccl_bootstrap"] if interface_inside(str(fact.fields.get("interface")))]
    if chosen and (nnodes or 0) > 1:
        return finding("local", chosen[0].fields["interface"], chosen, 0.9)
    loops = [(fact, _LOOPBACK.search(str(fact.fields.get("why")))) for fact in by_kind["mesh_failed"]]
    if loop := [fact for fact, ends in loops if ends and (nnodes or int(ends["ranks"]) / _ON_A_NODE) > 1]:
        return finding("loopback", "", loop, 0.75)
    failed = by_kind["nccl_connect"]
    announced = by_kind["nccl_bootstrap"]
    if link := [fact for fact in failed if network_inside("link", fact.fields.get("peer"))]:
        own = [fact for fact in announced if network_inside("link", fact.fields.get("address"))]
        return finding("link_local", link[0].fields["peer"], [*own, *link], 0.85)
    listed = [(fact, interfaces(str(fact.fields.get("interfaces")))) for fact in by_kind["nccl_socket"]]
    sockets = [fact for fact, names in listed if names and all(map(interface_inside, names))]
    tries = sum(fact.fields.get("count", 1) for fact in by_kind["nccl_retry"])
    if (chosen or sockets) and (failed or tries >= _TRIES):
        return finding("unreachable", "", [*chosen, *sockets, *failed[:1], *by_kind["nccl_retry"][:1]], 0.8)
    outside = [fact for fact in announced if not network_inside("node", fact.fields.get("address"))]
    if outside and (inside := [fact for fact in failed if network_inside("node", fact.fields.get("peer"))]):
        return finding("inside", inside[0].fields["peer"], [*outside[:1], *inside], 0.75)
    no_route = [fact for fact in failed if _NO_ROUTE.search(str(fact.fields.get("why")))]
    if no_route and not by_kind.keys() & {"watchdog_timeout", "watchdog_status"}:  # It had not begun to train.
        peer = no_route[0].fields["peer"]
        return finding("inside_peer" if network_inside("node", peer) else "no_route", peer, no_route, 0.75)
    refused = [fact for fact in failed if "refused" in str(fact.fields.get("why"))]
    if refused and tries >= _TRIES and not job.errors and not by_kind.keys() & _CONNECTED:
        return finding("refused", refused[0].fields["peer"], refused, 0.6)
    return None


def _lacking(record: Recorded) -> str:
    """Return the fact of the machine without which it cannot be ruled out."""
    named = set_anywhere(record, "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    return "interfaces" if named and "interfaces" not in record.hardware else ""


CAUSE = lint_cause(__file__, lacking=_lacking, from_logs=_from_logs)

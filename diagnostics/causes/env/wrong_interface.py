"""The ranks use a network interface that does not exist or does not reach the other nodes."""

from collections.abc import Sequence
from math import inf

from diagnostics.analysis.environment.addresses import interface_inside, network_inside
from diagnostics.analysis.environment.job import JobEnvironment, interfaces
from diagnostics.causes.declared import Texts
from diagnostics.causes.env._lint import lint_cause
from diagnostics.contract import findings as level
from diagnostics.contract.files import patterns_beside
from diagnostics.contract.findings import CITED, Finding, confirmed
from diagnostics.contract.grouping import grouped
from diagnostics.evidence.model import LogFact

_TRIES = 2
"""Chosen: refused attempts that rule out a peer that does not listen yet; NCCL announces an address that listens."""
_CONNECTED = frozenset({"watchdog_timeout", "watchdog_status", "nccl_peer_closed", "gloo_closed", "gloo_reset"})
"""Kinds of log lines which show that ranks had been connected, so that a peer may have exited since."""
_OF_NCCL = ("nccl_warn", "nccl_last_error")
_ON_A_NODE = 8  # Typical maximum of ranks per node; the loopback address is valid within a node.
_TEXTS, _WHY = Texts(__file__), patterns_beside(__file__, "patterns")


def _from_logs(job: JobEnvironment) -> Finding | None:
    """Return the finding about an interface that was refused or cannot reach the other nodes; None if there is none."""
    nnodes = job.recorded.nnodes

    def finding(why: str, name: object, facts: Sequence[LogFact], confidence: float) -> Finding:
        network = network_inside("link" if why == "link_local" else "node", str(name))
        return confirmed(
            facts=_TEXTS.facts([why, "lines"], name=str(name), network=network, nnodes=nnodes, lines=len(facts)),
            confidence=confidence,
            ranks=tuple(sorted({fact.rank for fact in facts if fact.rank is not None})),
            evidence=tuple(fact.quoted() for fact in facts[:CITED]),
        )

    def saying(row: str, facts: Sequence[LogFact]) -> list[LogFact]:
        return [fact for fact in facts if _WHY[row].search(f"{fact.fields.get('peer', '')} {fact.fields.get('why')}")]

    by_kind = grouped((fact.kind, fact) for fact in job.log)
    if missing := by_kind["interface_missing"]:
        name = missing[0].fields.get("name")
        return finding("missing" if name else "none", name, missing, level.STATED)
    if lacking := [fact for kind in _OF_NCCL for fact in by_kind[kind] if _WHY["family"].search(fact.text)]:
        return finding("family", "", lacking, level.SUSPECTED)
    chosen = [fact for fact in by_kind["nccl_bootstrap"] if interface_inside(str(fact.fields.get("interface")))]
    if chosen and (nnodes or 0) > 1:
        return finding("local", chosen[0].fields["interface"], chosen, level.CERTAIN)
    loops = [(fact, _WHY["loopback"].search(str(fact.fields.get("why")))) for fact in by_kind["mesh_failed"]]
    if loop := [fact for fact, ends in loops if ends and (nnodes or int(ends["ranks"]) / _ON_A_NODE) > 1]:
        return finding("loopback", "", loop, level.PLAUSIBLE)
    if nnodes is None and not by_kind["one_node"] and (loop := saying("to_loopback", by_kind["mesh_failed"])):
        return finding("to_loopback", "", loop, level.SUSPECTED)
    failed = by_kind["nccl_connect"]
    announced = by_kind["nccl_bootstrap"]
    if link := [fact for fact in failed if network_inside("link", fact.fields.get("peer"))]:
        own = [fact for fact in announced if network_inside("link", fact.fields.get("address"))]
        return finding("link_local", link[0].fields["peer"], [*own, *link], level.LIKELY)
    listed = [(fact, interfaces(str(fact.fields.get("interfaces")))) for fact in by_kind["nccl_socket"]]
    sockets = [fact for fact, names in listed if names and all(map(interface_inside, names))]
    tries = sum(fact.fields.get("count", 1) for fact in by_kind["nccl_retry"])
    if (chosen or sockets) and (failed or tries >= _TRIES):
        return finding("unreachable", "", [*chosen, *sockets, *failed[:1], *by_kind["nccl_retry"][:1]], level.PROBABLE)
    outside = [fact for fact in announced if not network_inside("node", fact.fields.get("address"))]
    if outside and (inside := [fact for fact in failed if network_inside("node", fact.fields.get("peer"))]):
        return finding("inside", inside[0].fields["peer"], [*outside[:1], *inside], level.PLAUSIBLE)
    if tried := by_kind["nccl_no_route"]:
        return finding("no_route", _TEXTS.phrase("unnamed_peer"), tried, level.PLAUSIBLE)
    no_route = saying("no_route", failed)
    if no_route and not by_kind.keys() & {"watchdog_timeout", "watchdog_status"}:  # The job had not started to train.
        peer = no_route[0].fields["peer"]
        return finding("inside_peer" if network_inside("node", peer) else "no_route", peer, no_route, level.PLAUSIBLE)
    refused = saying("refused", failed)
    first = {fact.file: fact.line for fact in reversed(refused)}
    met = any(fact.line < first.get(fact.file, inf) for kind in _CONNECTED for fact in by_kind[kind])
    if refused and (saying("again", refused) or tries >= _TRIES) and not job.errors and not met:
        return finding("refused", refused[0].fields["peer"], refused, level.OPEN)
    return None


_NEEDS = ("interfaces", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
CAUSE = lint_cause(__file__, needs=_NEEDS, from_logs=_from_logs)

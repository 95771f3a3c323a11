"""The ranks of a node get less CPU than they need: a cgroup's quota, their affinity, or the hypervisor."""

from diagnostics.analysis.node_health import NodeHealth, node_health
from diagnostics.causes.declared import declared
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text, ruled_out, undecided, worded
from diagnostics.contract.formatting import counted, ranks_spoken, sentence

ID = "env.cpu_starved"
_TABLE = table_beside(__file__)
_PERIODS = 100
"""Of the scheduler, of 100 ms as a rule."""
_THROTTLED = 0.25
"""Of these periods in which the quota was used up. A burst now and then is held back in a healthy job as well."""
_STOLEN_PERCENT, _STOLEN_S = 10.0, 30.0


def _reason(node: NodeHealth) -> str:
    """Return the kind of shortage in the table; empty where the ranks of a node have what they need."""
    if node.periods >= _PERIODS and node.throttled_periods >= _THROTTLED * node.periods:
        return "quota"
    if node.usable_cores and node.cores and node.usable_cores < min(len(node.ranks), node.cores):
        return "affinity"
    stolen = (node.stolen_percent or 0) >= _STOLEN_PERCENT and node.seconds >= _STOLEN_S
    return "stolen" if stolen else ""


def _told(node: NodeHealth, reason: str) -> str:
    what: str = _TABLE[reason]["what"]
    return what.format(
        quota=node.quota_cores or 0.0,
        share=node.throttled_periods / max(1, node.periods),
        periods=node.periods,
        ranks=counted(len(node.ranks), "rank"),
        cores=counted(node.usable_cores or 0, "core"),
        all=node.cores,
        stolen=node.stolen_percent or 0.0,
    )


def _words(finding: Finding, node: NodeHealth, reason: str) -> Text:
    what, entry = _told(node, reason), _TABLE[reason]
    who = f"{sentence(ranks_spoken(finding.ranks))} did not get the CPU time that they need" if finding.ranks else ""
    remedies = (Remedy("environment", entry["change"], entry["why"]),)
    return Text(summary=f"{who or 'The job lacks CPU'}: {what}.", measured=what, remedies=remedies)


def decide(nodes: tuple[NodeHealth, ...]) -> list[Finding]:
    """Decide from the counters of the cgroup, the affinity and the stolen time of each node."""
    starved = [(node, reason) for node in nodes if (reason := _reason(node))]
    if starved:
        return [
            Finding(
                cause=ID,
                status="confirmed",
                facts=worded(_words, node=starved[0][0], reason=starved[0][1]),
                confidence=0.85,
                ranks=tuple(sorted({rank for node, _ in starved for rank in node.ranks})),
                evidence=tuple(
                    EvidenceItem("telemetry", node.file, _told(node, reason)) for node, reason in starved[:8]
                ),
            )
        ]
    known = [node for node in nodes if node.usable_cores]
    if known:
        cores = min(node.quota_cores or node.usable_cores or 0 for node in known)
        text = "At least {cores:g} cores a node, and no quota that was used up."
        return [ruled_out(ID, text, "{cores:g} cores", cores=cores)]
    return [undecided(ID, "What the ranks may use of the CPU was not recorded.", "record=light of a dtk run")]


CAUSE = declared(__file__, node_health, decide)

"""The ranks of a node lack CPU: a cgroup quota, their affinity, the hypervisor, other threads, or far NUMA nodes."""

from diagnostics.analysis.node_health import NodeHealth, node_health
from diagnostics.causes.declared import Texts, declared
from diagnostics.contract.findings import CITED, LIKELY, SUSPECTED, EvidenceItem, Finding, confirmed
from diagnostics.contract.formatting import Phrase

_TEXTS = Texts(__file__)
_PERIODS = 100  # Chosen: minimum number of scheduler periods, typically of 100 ms, that is 10 s.
_THROTTLED = 0.25
"""Chosen: share of these periods in which the quota was exhausted. Healthy jobs are throttled in bursts as well."""
_STOLEN_PERCENT, _STOLEN_S = 10.0, 30.0
"""Chosen: share of the CPU's time that the hypervisor gave to others, and for how long; shared hosts show less."""
_CONTENDED, _CONTENDED_S = 0.25, 30.0
"""Chosen: share of the time in which main threads were runnable without a core, and for how long. On nodes with devices
only: on a laptop, more ranks than cores are intended."""


def _reason(node: NodeHealth) -> str:
    """Return the table's name for the kind of shortage; empty if the ranks of a node have enough CPU."""
    if node.periods >= _PERIODS and node.throttled_periods >= _THROTTLED * node.periods:
        return "quota"
    if node.last.usable_cores and node.cores and node.last.usable_cores < min(len(node.ranks), node.cores):
        return "affinity"
    stolen = (node.stolen_percent or 0) >= _STOLEN_PERCENT and node.seconds >= _STOLEN_S
    contended = node.devices and node.seconds >= _CONTENDED_S and node.core_wait_share >= _CONTENDED
    return "stolen" if stolen else "threads" if contended else ""


def _shows(node: NodeHealth, reason: str) -> Phrase:
    share = node.throttled_periods / max(1, node.periods)
    return _TEXTS.phrase(
        f"{reason}.what", node=node, quota=node.last.cgroup_cores or 0.0, share=share, ranks=len(node.ranks)
    )


def decide(nodes: tuple[NodeHealth, ...]) -> Finding:
    """Decide from the cgroup counters, the affinity, the steal time and the waits for a core of each node."""
    starved = [(node, reason) for node in nodes if (reason := _reason(node))]
    if starved:
        return confirmed(
            facts=_TEXTS.facts(
                [starved[0][1], "ranks" if any(node.ranks for node, _ in starved) else "job"], what=_shows(*starved[0])
            ),
            confidence=LIKELY,
            ranks=tuple(sorted({rank for node, _ in starved for rank in node.ranks})),
            evidence=tuple(EvidenceItem("telemetry", node.file, _shows(node, why)) for node, why in starved[:CITED]),
        )
    far = {
        rank
        for node in nodes
        for rank, own in node.last.rank_numa_nodes.items()
        if own and node.last.rank_gpu_numa_node.get(rank, -1) not in (-1, *own)
    }
    if far:  # What it costs is not measured.
        return confirmed(facts=_TEXTS.facts("numa", ranks=far), confidence=SUSPECTED, ranks=tuple(sorted(far)))
    cores = [node.last.cgroup_cores or node.last.usable_cores for node in nodes if node.last.usable_cores]
    return _TEXTS.ruled_out(cores=min(cores)) if cores else _TEXTS.undecided()


CAUSE = declared(__file__, node_health, decide)

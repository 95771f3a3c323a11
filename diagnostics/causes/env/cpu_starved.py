"""The ranks of a node get less CPU than they need: a cgroup's quota, their affinity, or the hypervisor."""

from diagnostics.analysis.node_health import NodeHealth, node_health
from diagnostics.contract.causes import Cause
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text, ruled_out, undecided, worded
from diagnostics.contract.formatting import counted, ranks_spoken, sentence

ID = "env.cpu_starved"
_PERIODS = 100
"""Of the scheduler, of 100 ms as a rule."""
_THROTTLED = 0.25
"""Of these periods in which the quota was used up. A burst now and then is held back in a healthy job as well."""
_STOLEN_PERCENT, _STOLEN_S = 10.0, 30.0


def _reason(node: NodeHealth) -> tuple[str, Remedy] | None:
    """Return what keeps the CPU from the ranks of a node, and what to change."""
    count, why = len(node.ranks), "each rank needs a core for its main thread, and more for its data loader"
    if node.periods >= _PERIODS and node.throttled_periods >= _THROTTLED * node.periods:
        quota = f" of {node.quota_cores:g} cores" if node.quota_cores else ""
        share = node.throttled_periods / node.periods
        change = "raise or remove the CPU limit: resources.limits.cpu of the pod, docker --cpus, --cpus-per-task"
        what = f"the cgroup's quota{quota} was used up in {share:.0%} of {node.periods:,} periods of the scheduler"
        return what, Remedy("environment", change, "all threads of the job stand still until the next period")
    if node.usable_cores and node.cores and node.usable_cores < min(count, node.cores):
        change = "give each rank cores of its own: srun --cpus-per-task=8, no taskset around the launcher"
        cores = f"{counted(count, 'rank')} may run on {counted(node.usable_cores, 'core')} of {node.cores} (affinity)"
        return cores, Remedy("environment", change, why)
    if (node.stolen_percent or 0) >= _STOLEN_PERCENT and node.seconds >= _STOLEN_S:
        change = "move to a machine of its own, or to an instance type without shared cores"
        what = f"the hypervisor gave {node.stolen_percent:.0f}% of the CPU to other machines"
        return what, Remedy("environment", change, why)
    return None


def _words(finding: Finding, reason: str, remedy: Remedy) -> Text:
    who = f"{sentence(ranks_spoken(finding.ranks))} did not get the CPU that they need" if finding.ranks else ""
    return Text(summary=f"{who or 'The job lacks CPU'}: {reason}.", measured=reason, remedies=(remedy,))


def decide(nodes: tuple[NodeHealth, ...]) -> list[Finding]:
    """Decide from the counters of the cgroup, the affinity and the stolen time of each node."""
    starved = [(node, reason) for node in nodes if (reason := _reason(node)) is not None]
    if starved:
        what, remedy = starved[0][1]
        return [
            Finding(
                cause=ID,
                status="confirmed",
                facts=worded(_words, reason=what, remedy=remedy),
                confidence=0.85,
                ranks=tuple(sorted({rank for node, _ in starved for rank in node.ranks})),
                evidence=tuple(EvidenceItem("telemetry", node.file, text) for node, (text, _) in starved[:8]),
            )
        ]
    known = [node for node in nodes if node.usable_cores]
    if known:
        cores = min(node.quota_cores or node.usable_cores or 0 for node in known)
        text = "At least {cores:g} cores a node, and no quota that was used up."
        return [ruled_out(ID, text, "{cores:g} cores", cores=cores)]
    return [undecided(ID, "What the ranks may use of the CPU was not recorded.", "record=light of a dtk run")]


CAUSE = Cause(
    id=ID,
    title="the ranks lack CPU",
    outcome="slow",
    branch="environment.hardware",
    facts=node_health,
    decide=decide,
    decided_from="telemetry of a dtk run: throttled periods of the cgroup, affinity, stolen time",
    remedy="a higher CPU limit, cores for each rank, a machine of its own",
    source="Documentation/scheduler/sched-bwc.rst of Linux (nr_throttled)",
)

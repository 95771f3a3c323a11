"""`memory.host`: the memory of the host or of the job's cgroup ran out, which ended an allocation or a process."""

from diagnostics.analysis.node_health import NodeHealth, node_health
from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import Texts, declared
from diagnostics.contract.files import patterns_beside
from diagnostics.contract.findings import CERTAIN, CITED, SEEN, EvidenceItem, Finding, Where, confirmed
from diagnostics.contract.formatting import UNNAMED
from diagnostics.evidence.calls import own_line
from diagnostics.evidence.job.rank_endings import memory_kills

_TEXTS, _SAYS = Texts(__file__), patterns_beside(__file__, "patterns")
_HOST = {"cgroup": ["limit", "raise_limit"], "host_memory": ["killed"], "host_allocation": ["allocation"]}
"""Details of endings caused by host memory, and the rows that describe them."""
_SMALL_BYTES = 1 << 30
"""Size up to which a request is smaller than any host's memory: by default Linux refuses only what exceeds all of it
(vm.overcommit_memory in proc(5)). A convention."""


def _resident(node: NodeHealth) -> EvidenceItem:
    """Return what the ranks of a node held, which shows a rank that grew, a copy in each rank, or other processes."""
    _, first, last = zip(*node.resident)
    figures = {"first": min(first), "low": min(last), "high": max(last), "total": node.last.memory_total_bytes}
    rest = max(0, (node.last.memory_used_bytes or 0) - sum(last))
    shown = _TEXTS.phrase(
        "resident", ranks=node.ranks, most=node.resident[last.index(max(last))][0], rest=rest, **figures
    )
    return EvidenceItem("telemetry", node.file, shown)


def decide(stall: Stall) -> Finding:
    """Decide from how the ranks ended, and from kernel, Slurm and Kubernetes messages about killed processes.

    A data loader worker killed by SIGKILL only counts with such a message: anybody may have sent the signal.
    """
    killed, ends = memory_kills(stall.job.evidence), stall.job.endings
    hosts = [end for end in ends.values() if end.kind == "oom" and end.detail in _HOST]
    workers = [end for end in ends.values() if end.detail == "data_loader_sigkill"] if killed and not hosts else []
    guilty = hosts or workers
    if not guilty:
        return _TEXTS.undecided()
    request = _SAYS["request"].search(guilty[0].message) if guilty[0].detail == "host_allocation" else None
    is_small = request is not None and int(request[1]) <= _SMALL_BYTES
    rows = ["worker"] if workers else ["own_limit"] if is_small else _HOST[guilty[0].detail]
    rows = ["huge"] if rows == ["allocation"] and _SAYS["huge"].search(guilty[0].message) else [*rows, "less"]
    case = next((case for case in stall.endings if any(end in guilty for end in case.endings)), None)
    ranks = tuple(sorted(end.rank for end in guilty if end.rank != UNNAMED))
    places = [(end.rank, frame) for end in guilty[:CITED] if (frame := own_line(end.frames))]
    limits = [fact for fact in stall.job.evidence.facts if fact.kind == "memory_limit"]
    lines = [fact.quoted() for fact in (*killed[:CITED], *limits[:1])]
    nodes = [node for node in node_health(stall.job.evidence) if node.resident and node.last.memory_total_bytes]
    lines += [_resident(node) for node in nodes if not ranks or set(node.ranks) & set(ranks)][:CITED]
    return confirmed(
        facts=_TEXTS.facts(
            rows,
            who=ranks or _TEXTS.phrase("process"),
            what=str(guilty[0].summary).rstrip("."),
            limit=f" of {limits[0].fields['limit']}" if limits else "",
        ),
        confidence=CERTAIN if workers or UNNAMED in ends else SEEN,
        ranks=ranks,
        victims=tuple(rank for rank in case.victims if rank not in ranks) if case else (),
        step=next((end.step for end in guilty if end.step is not None), None),
        where=tuple(Where(rank if rank != UNNAMED else None, at.file, at.line, at.function) for rank, at in places),
        evidence=tuple(dict.fromkeys((*(end.evidence for end in guilty[:CITED]), *lines))),
    )


CAUSE = declared(__file__, explain, decide)

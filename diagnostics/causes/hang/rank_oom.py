"""A rank ran out of memory, on the host or on its device."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.hang import _endings, _examples
from diagnostics.contract.causes import Cause, Example, ExplainedBy
from diagnostics.contract.findings import Finding


def decide(stall: Stall) -> list[Finding]:
    """Decide from how the ranks ended, and in which order."""
    return _endings.decide(stall, "oom")


CAUSE = Cause(
    id="hang.rank_oom",
    title="a rank ran out of memory",
    outcome="oom",
    branch="crash",
    facts=explain,
    decide=decide,
    decided_from="out-of-memory texts in logs and error files, allocator snapshots",
    remedy="see the memory causes: smaller micro-batch, more sharding, activation checkpointing",
    explained_by=(ExplainedBy(("memory.*",), when=("ranks",)),),
    example=Example(_examples.out_of_memory, ranks=(1,)),
)

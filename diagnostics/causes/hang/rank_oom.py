"""A rank ran out of memory, on the host or on its device."""

from functools import partial

from diagnostics.analysis.stall.explain import explain
from diagnostics.causes.hang import _endings
from diagnostics.contract.causes import Cause, ExplainedBy

CAUSE = Cause(
    id="hang.rank_oom",
    title="a rank ran out of memory",
    outcome="oom",
    branch="crash",
    facts=explain,
    decide=partial(_endings.decide, kind="oom"),
    decided_from="out-of-memory texts in logs and error files, allocator snapshots",
    names_outcome=True,
    remedy="see the memory causes: smaller micro-batch, more sharding, activation checkpointing",
    explained_by=(ExplainedBy(("memory.*",), when=("ranks", "group")),),
)

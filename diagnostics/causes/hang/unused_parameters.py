"""Gradients that never became ready on some ranks, so that a bucket was not reduced there."""

from diagnostics.analysis.stall.explain import explain
from diagnostics.causes.hang import _asymmetric_waits
from diagnostics.causes.hang._relations import FAILED
from diagnostics.causes.hang._unconfirmed import decided_by
from diagnostics.contract.causes import Cause, ExplainedBy

CAUSE = Cause(
    id="hang.unused_parameters",
    title="gradients never became ready on some ranks",
    outcome="hung",
    branch="hang.asymmetric",
    facts=explain,
    decide=decided_by("hang.unused_parameters", _asymmetric_waits.ddp_unused),
    decided_from="dumps or rings, DDP's message, stacks",
    crash_when="unreduced",
    remedy="strategy.find_unused_parameters=true, or use every parameter on every rank",
    explained_by=(ExplainedBy(FAILED, when=("ranks",)),),
)

"""Gradients that never became ready on some ranks, so that a bucket was not reduced there."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.hang import _asymmetric, _asymmetric_waits, _parts
from diagnostics.causes.hang._relations import FAILED
from diagnostics.causes.hang._unconfirmed import unconfirmed
from diagnostics.contract.causes import Cause, ExplainedBy
from diagnostics.contract.findings import Finding


def decide(stall: Stall) -> list[Finding]:
    """Decide from the first divergence of the ranks' calls, and from what their waiting and their ends show."""
    findings = [
        *_asymmetric.disagreements(stall, "hang.unused_parameters"),
        *_asymmetric_waits.ddp_unused(stall),
    ]
    return _parts.surest(findings) or [unconfirmed(stall, "hang.unused_parameters")]


CAUSE = Cause(
    id="hang.unused_parameters",
    title="gradients never became ready on some ranks",
    outcome="hung",
    branch="hang.asymmetric",
    facts=explain,
    decide=decide,
    decided_from="dumps or rings, DDP's message, stacks",
    remedy="strategy.find_unused_parameters=true, or use every parameter on every rank",
    explained_by=(ExplainedBy(FAILED, when=("ranks",)),),
)

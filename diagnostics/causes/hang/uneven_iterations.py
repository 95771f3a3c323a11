"""A rank ran fewer or more steps of the loop than the others."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.hang import _asymmetric, _asymmetric_waits, _parts, _stacks
from diagnostics.causes.hang._relations import CIRCULAR, FAILED, LATE
from diagnostics.causes.hang._unconfirmed import unconfirmed
from diagnostics.contract.causes import Cause, ExplainedBy
from diagnostics.contract.findings import Finding


def decide(stall: Stall) -> list[Finding]:
    """Decide from the first divergence of the ranks' calls, and from what their waiting and their ends show."""
    findings = [
        *_asymmetric.disagreements(stall, "hang.uneven_iterations"),
        *_stacks.findings(stall, "hang.uneven_iterations"),
        *_asymmetric_waits.uneven(stall),
    ]
    return _parts.surest(findings) or [unconfirmed(stall, "hang.uneven_iterations")]


CAUSE = Cause(
    id="hang.uneven_iterations",
    title="a rank ran fewer or more steps than the others",
    outcome="hung",
    branch="hang.asymmetric",
    facts=explain,
    decide=decide,
    decided_from="dumps or rings, steps in heartbeats",
    remedy="deal out equal batches, agree on when to stop, or use DDP's Join",
    explained_by=(
        ExplainedBy(FAILED, when=("ranks",)),
        ExplainedBy(("hang.unused_parameters",), when=("group",)),
        ExplainedBy(LATE, when=("ranks", "victims")),
        ExplainedBy(CIRCULAR, when=("ranks", "group")),
    ),
)

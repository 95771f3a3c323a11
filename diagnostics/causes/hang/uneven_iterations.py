"""A rank ran fewer or more steps of the loop than the others."""

from diagnostics.analysis.stall.explain import explain
from diagnostics.causes.hang import _asymmetric_waits, _stacks
from diagnostics.causes.hang._relations import CIRCULAR, FAILED, LATE
from diagnostics.causes.hang._unconfirmed import decided_by
from diagnostics.contract.causes import Cause, ExplainedBy

CAUSE = Cause(
    id="hang.uneven_iterations",
    title="a rank ran fewer or more steps than the others",
    outcome="hung",
    branch="hang.asymmetric",
    facts=explain,
    decide=decided_by("hang.uneven_iterations", _stacks.findings, _asymmetric_waits.uneven),
    decided_from="dumps or rings, steps in heartbeats",
    remedy="deal out equal batches, agree on when to stop, or use DDP's Join",
    explained_by=(
        ExplainedBy(FAILED, when=("ranks",)),
        ExplainedBy(("hang.unused_parameters",), when=("group",)),
        ExplainedBy(LATE, when=("ranks", "victims")),
        ExplainedBy(CIRCULAR, when=("ranks", "group")),
    ),
)

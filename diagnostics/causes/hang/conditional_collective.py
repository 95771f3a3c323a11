"""A collective that only some ranks issue."""

from diagnostics.analysis.stall.explain import explain
from diagnostics.causes.hang import _asymmetric_waits, _stacks, _watchdog
from diagnostics.causes.hang._relations import CIRCULAR, FAILED, LATE
from diagnostics.causes.hang._unconfirmed import decided_by
from diagnostics.contract.causes import Cause, ExplainedBy

CAUSE = Cause(
    id="hang.conditional_collective",
    title="only some ranks issued a collective",
    outcome="hung",
    branch="hang.asymmetric",
    facts=explain,
    decide=decided_by(
        "hang.conditional_collective", _watchdog.findings, _stacks.findings, _asymmetric_waits.conditional
    ),
    decided_from="dumps or rings, stacks",
    remedy="take the collective out of the `if rank == ...`",
    explained_by=(
        ExplainedBy(("hang.timeout_budget",), when=("any",)),
        ExplainedBy((*FAILED, "hang.uneven_iterations"), when=("ranks",)),
        ExplainedBy(("hang.unused_parameters",), when=("group",)),
        ExplainedBy(LATE, when=("ranks", "victims")),
        ExplainedBy(CIRCULAR, when=("ranks", "group")),
    ),
)

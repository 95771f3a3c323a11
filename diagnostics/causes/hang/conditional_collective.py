"""A collective that only some ranks issue."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.hang import _asymmetric, _asymmetric_waits, _parts, _stacks, _watchdog
from diagnostics.causes.hang._relations import CIRCULAR, FAILED, LATE
from diagnostics.causes.hang._unconfirmed import unconfirmed
from diagnostics.contract.causes import Cause, ExplainedBy
from diagnostics.contract.findings import Finding


def decide(stall: Stall) -> list[Finding]:
    """Decide from the first divergence of the ranks' calls, and from what their waiting and their ends show."""
    findings = [
        *_asymmetric.disagreements(stall, "hang.conditional_collective"),
        *_watchdog.findings(stall, "hang.conditional_collective"),
        *_stacks.findings(stall, "hang.conditional_collective"),
        *_asymmetric_waits.conditional(stall),
    ]
    return _parts.surest(findings) or [unconfirmed(stall, "hang.conditional_collective")]


CAUSE = Cause(
    id="hang.conditional_collective",
    title="only some ranks issued a collective",
    outcome="hung",
    branch="hang.asymmetric",
    facts=explain,
    decide=decide,
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

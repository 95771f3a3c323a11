"""Ranks issued different operations at the same position of a group."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.hang import _asymmetric, _parts, _stacks, _watchdog
from diagnostics.causes.hang._relations import CIRCULAR, FAILED, OTHER_CALLS
from diagnostics.causes.hang._unconfirmed import unconfirmed
from diagnostics.contract.causes import Cause, ExplainedBy
from diagnostics.contract.findings import Finding


def decide(stall: Stall) -> list[Finding]:
    """Decide from the first divergence of the ranks' calls."""
    findings = [
        *_asymmetric.disagreements(stall, "hang.collective_mismatch"),
        *_watchdog.findings(stall, "hang.collective_mismatch"),
        *_stacks.findings(stall, "hang.collective_mismatch"),
    ]
    return _parts.surest(findings) or [unconfirmed(stall, "hang.collective_mismatch")]


CAUSE = Cause(
    id="hang.collective_mismatch",
    title="ranks issued different operations at the same position",
    outcome="hung",
    branch="hang.asymmetric",
    facts=explain,
    decide=decide,
    decided_from="dumps or rings of two ranks or more, else NCCL's watchdog lines or DETAIL's message",
    remedy="let all ranks call the same collective at that line",
    explained_by=(
        ExplainedBy(FAILED, when=("ranks",)),
        ExplainedBy(OTHER_CALLS, when=("ranks", "victims")),
        ExplainedBy(("hang.unused_parameters",), when=("group",)),
        ExplainedBy(CIRCULAR, when=("ranks", "group")),
    ),
)

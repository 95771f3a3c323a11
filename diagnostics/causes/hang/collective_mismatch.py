"""Ranks issued different operations at the same position of a group."""

from diagnostics.analysis.stall.explain import explain
from diagnostics.causes.hang import _stacks, _watchdog
from diagnostics.causes.hang._relations import CIRCULAR, FAILED, OTHER_CALLS
from diagnostics.causes.hang._unconfirmed import decided_by
from diagnostics.contract.causes import Cause, ExplainedBy

CAUSE = Cause(
    id="hang.collective_mismatch",
    title="ranks issued different operations at the same position",
    outcome="hung",
    branch="hang.asymmetric",
    facts=explain,
    decide=decided_by("hang.collective_mismatch", _watchdog.findings, _stacks.findings),
    decided_from="dumps or rings of two ranks or more, else NCCL's watchdog lines or DETAIL's message",
    may_complete=True,
    remedy="let all ranks call the same collective at that line",
    explained_by=(
        ExplainedBy(FAILED, when=("ranks",)),
        ExplainedBy(OTHER_CALLS, when=("ranks", "victims")),
        ExplainedBy(("hang.unused_parameters",), when=("group",)),
        ExplainedBy(CIRCULAR, when=("ranks", "group")),
    ),
)

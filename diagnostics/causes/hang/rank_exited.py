"""A rank left without an exception or a signal while others waited for it.

Ranks that exit together after they have waited are not blamed: what they waited for came first.
"""

from functools import partial

from diagnostics.analysis.stall.explain import explain
from diagnostics.causes.hang import _endings
from diagnostics.causes.hang._relations import CIRCULAR, FAILED, MISMATCH, OTHER_CALLS
from diagnostics.contract.causes import Cause, ExplainedBy

CAUSE = Cause(
    id="hang.rank_exited",
    title="a rank exited while the others waited for it",
    outcome="hung",
    branch="crash",
    facts=explain,
    decide=partial(_endings.decide, kind="exited"),
    decided_from="events of dtk's ranks, exit codes that launchers report, the last collectives of all ranks",
    crash_when="failed",
    remedy="let every rank run the same number of steps and leave together",
    explained_by=(
        ExplainedBy(FAILED, when=("ranks",)),
        ExplainedBy((*FAILED, *MISMATCH, "hang.unused_parameters"), when=("victims",)),
        ExplainedBy((*MISMATCH, *OTHER_CALLS), when=("group",)),
        ExplainedBy((*OTHER_CALLS, "hang.host_stall", "hang.device_stall", *CIRCULAR), when=("ranks", "victims")),
        ExplainedBy(("hang.network", "hang.rendezvous"), when=("any",)),
    ),
)

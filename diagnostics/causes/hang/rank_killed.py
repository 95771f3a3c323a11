"""A rank was killed by a signal that no launcher sends, or its process vanished."""

from functools import partial

from diagnostics.analysis.stall.explain import explain
from diagnostics.causes.hang import _endings
from diagnostics.causes.hang._relations import ASYMMETRIC, CIRCULAR, LATE, MISMATCH, REFUSED
from diagnostics.contract.causes import Cause, ExplainedBy

CAUSE = Cause(
    id="hang.rank_killed",
    title="a rank was killed by a signal",
    outcome="crashed",
    branch="crash",
    facts=explain,
    decide=partial(_endings.decide, kind="killed"),
    decided_from="exit codes and signals that launchers report, status.json",
    remedy="find out what sent the signal: the kernel when memory runs out, the scheduler, a user",
    explained_by=(
        ExplainedBy(("hang.rank_raised", "hang.rank_oom", "hang.rank_exited", *ASYMMETRIC, *LATE), when=("victims",)),
        ExplainedBy(("hang.rank_oom", "memory.host"), when=("ranks",)),
        ExplainedBy((*MISMATCH, *REFUSED), when=("group",)),
        ExplainedBy(CIRCULAR, when=("ranks", "victims")),
    ),
)

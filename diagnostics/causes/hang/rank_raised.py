"""A rank raised an exception of its own, and its peers wait for collectives that it never reaches."""

from functools import partial

from diagnostics.analysis.stall.explain import explain
from diagnostics.causes.hang import _endings
from diagnostics.causes.hang._relations import ASYMMETRIC, CIRCULAR, LATE, REFUSED
from diagnostics.contract.causes import Cause, ExplainedBy

CAUSE = Cause(
    id="hang.rank_raised",
    title="a rank raised an exception",
    outcome="crashed",
    branch="crash",
    facts=explain,
    decide=partial(_endings.decide, kind="raised"),
    decided_from="error files, tracebacks in logs, failure events",
    remedy="fix the exception at the named line; its peers only lost their connection",
    explained_by=(
        ExplainedBy(("hang.rank_oom", "hang.rank_killed", "hang.rank_exited", *ASYMMETRIC, *LATE), when=("victims",)),
        ExplainedBy(("hang.rank_oom", "hang.rank_killed"), when=("ranks",)),
        ExplainedBy((*CIRCULAR, "numeric.non_finite", "numeric.overflow"), when=("ranks", "victims")),
        ExplainedBy(REFUSED, when=("group",)),
        ExplainedBy(("checkpoint.mismatch", "memory.host"), when=("ranks", "group")),
    ),
)

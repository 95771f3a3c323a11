"""A rank raised an exception of its own, and its peers wait for collectives that it never reaches."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.hang import _endings, _examples
from diagnostics.causes.hang._relations import ASYMMETRIC, CIRCULAR, LATE, REFUSED
from diagnostics.contract.causes import Cause, Example, ExplainedBy
from diagnostics.contract.findings import Finding


def decide(stall: Stall) -> list[Finding]:
    """Decide from how the ranks ended, and in which order."""
    return _endings.decide(stall, "raised")


CAUSE = Cause(
    id="hang.rank_raised",
    title="a rank raised an exception",
    outcome="crashed",
    branch="crash",
    facts=explain,
    decide=decide,
    decided_from="error files, tracebacks in logs, failure events",
    remedy="fix the exception at the named line; its peers only lost their connection",
    explained_by=(
        ExplainedBy(
            (
                "hang.rank_oom",
                "hang.rank_killed",
                "hang.rank_exited",
                *ASYMMETRIC,
                *LATE,
            ),
            when=("victims",),
        ),
        ExplainedBy(("hang.rank_oom", "hang.rank_killed"), when=("ranks",)),
        ExplainedBy((*CIRCULAR, "numeric.non_finite"), when=("ranks", "victims")),
        ExplainedBy(REFUSED, when=("group",)),
    ),
    example=Example(_examples.raised, ranks=(2,)),
)

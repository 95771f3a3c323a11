"""Ranks issued the same operation with another shape, dtype, root, ReduceOp or other split sizes."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.hang import _asymmetric_waits, _parts, _watchdog
from diagnostics.causes.hang._relations import FAILED, OTHER_CALLS
from diagnostics.causes.hang._unconfirmed import decided_by
from diagnostics.contract.causes import Cause, ExplainedBy
from diagnostics.contract.findings import Finding, Remedy, Text, worded
from diagnostics.evidence.model import LogFact, shortened


def _sizes_printed_text(finding: Finding, facts: tuple[LogFact, ...]) -> Text:
    printed = shortened(facts[0].text.strip(), 200)
    change = "compare shapes and dtypes of this collective over the ranks"
    return Text(
        summary=(
            f"Ranks brought different sizes to one collective: {printed}. The rank that aborted is the one that "
            "met the wrong size, not the one that brought it; which one did is not recorded."
        ),
        measured=f"{len(facts)} messages",
        missing=_parts.RECORD,
        remedies=(Remedy("code", change, "gloo ends a process whose message does not fit"),),
    )


def _sizes_differ(stall: Stall, cause: str) -> list[Finding]:
    case = stall.sizes
    if case is None or case.divergence is not None:
        return []
    return [
        Finding(
            cause=cause,
            status="confirmed",
            facts=worded(_sizes_printed_text, facts=case.facts),
            confidence=0.75,
            victims=case.victims,
            cost=stall.job.cost(),
            evidence=_parts.lines(case.facts[:4]),
        )
    ]


CAUSE = Cause(
    id="hang.signature_mismatch",
    title="ranks issued the same operation with different arguments",
    outcome="hung",
    branch="hang.asymmetric",
    facts=explain,
    decide=decided_by("hang.signature_mismatch", _sizes_differ, _watchdog.findings, _asymmetric_waits.root_differs),
    decided_from="dumps or rings, else NCCL's watchdog lines; for sizes also DETAIL's message and gloo's abort",
    may_complete=True,
    remedy="make shape, dtype, root, ReduceOp and splits equal; pad or gather sizes first",
    explained_by=(
        ExplainedBy(FAILED, when=("ranks",)),
        ExplainedBy(("hang.all_to_all_splits", "hang.pipeline_mismatch"), when=("any",)),
        ExplainedBy(OTHER_CALLS, when=("ranks", "victims")),
        ExplainedBy(("hang.unused_parameters",), when=("group",)),
    ),
)

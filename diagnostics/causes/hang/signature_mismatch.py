"""Ranks issued the same operation with another shape, dtype, root, ReduceOp or other split sizes."""

from diagnostics.causes.hang import _asymmetric_waits, _examples, _parts
from diagnostics.causes.hang._relations import FAILED, OTHER_CALLS
from diagnostics.causes.hang._unconfirmed import unconfirmed
from diagnostics.contract.causes import Cause, Example, ExplainedBy
from diagnostics.contract.findings import Finding
from diagnostics.detectors.hang.stall import Stall, explain


def decide(stall: Stall) -> list[Finding]:
    """Decide from the first divergence of the ranks' calls, and from what their waiting and their ends show."""
    findings = [finding for finding in stall.findings if finding.cause == "hang.signature_mismatch"]
    findings += _asymmetric_waits.root_differs(stall)
    return _parts.surest(findings) or [unconfirmed(stall, "hang.signature_mismatch")]


CAUSE = Cause(
    id="hang.signature_mismatch",
    title="ranks issued the same operation with different arguments",
    outcome="hung",
    branch="hang.asymmetric",
    facts=explain,
    decide=decide,
    decided_from="dumps or rings, else NCCL's watchdog lines; for sizes also gloo's abort",
    remedy="make shape, dtype, root, ReduceOp and splits equal; pad or gather sizes first",
    explained_by=(
        ExplainedBy(FAILED, when=("ranks",)),
        ExplainedBy(OTHER_CALLS, when=("ranks", "victims")),
        ExplainedBy(("hang.unused_parameters",), when=("group",)),
    ),
    example=Example(_examples.other_size, ranks=(1,)),
)

"""RDMA is available but not used between the nodes."""

from diagnostics.analysis.environment.recorded import Recorded
from diagnostics.causes.env._lint import lint_cause, set_everywhere


def _lacking(record: Recorded) -> str:
    """Return the missing fact about the job that is needed to rule this cause out."""
    if not set_everywhere(record, "NCCL_IB_DISABLE", "NCCL_NET"):
        return ""
    if record.nnodes is None:
        return "nodes"
    return "rdma" if record.nnodes > 1 and "infiniband" not in record.hardware else ""


CAUSE = lint_cause(__file__, nccl_only=True, lacking=_lacking)

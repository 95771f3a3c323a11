"""RDMA is available but not used: a variable switches it off, or NCCL's plugin for it fails."""

from diagnostics.analysis.environment.job import JobEnvironment
from diagnostics.causes.declared import Texts
from diagnostics.causes.env._lint import lint_cause
from diagnostics.contract.findings import CITED, PLAUSIBLE, SUSPECTED, Finding, confirmed

_TEXTS = Texts(__file__)


def _from_logs(job: JobEnvironment) -> Finding | None:
    """Return the finding about a plugin that failed, so that NCCL uses sockets; None on one node, or if none did."""
    failed = [fact for fact in job.log if fact.kind == "nccl_plugin_failed"]
    networks = {fact.fields["net"] for fact in job.log if fact.kind == "nccl_net"}
    if not failed or networks != {"Socket"} or job.recorded.nnodes == 1:
        return None
    # Images of a cloud have the plugin on machines without its device, too.
    confidence = PLAUSIBLE if job.recorded.nnodes else SUSPECTED
    lines = tuple(fact.quoted() for fact in failed[:CITED])
    return confirmed(facts=_TEXTS.facts("plugin"), confidence=confidence, evidence=lines)


_NEEDS = ("infiniband", "NCCL_IB_DISABLE", "NCCL_NET")
CAUSE = lint_cause(__file__, nccl_only=True, needs=_NEEDS, between_nodes=True, from_logs=_from_logs)

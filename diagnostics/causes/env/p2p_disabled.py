"""Direct transfers between the devices of a node are switched off."""

from dataclasses import replace

from diagnostics.causes.env._lint import lint_cause
from diagnostics.contract.causes import Example, ExplainedBy

CAUSE = replace(
    lint_cause(
        id="env.p2p_disabled",
        title="direct transfers between devices are switched off",
        branch="environment.hardware",
        remedy="unset NCCL_P2P_DISABLE",
        example=Example("variables", "NCCL_P2P_DISABLE=1"),
        decided_from="environment, the node's GPUs",
        nccl_only=True,
    ),
    explained_by=(ExplainedBy(("env.p2p_broken",), when=("any",)),),  # Then it is how the job works at all.
)

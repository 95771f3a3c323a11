"""Variables that contradict each other, or that differ between ranks and must not."""

from diagnostics.causes.env._lint import lint_cause
from diagnostics.contract.causes import Example

CAUSE = lint_cause(
    id="env.contradiction",
    title="variables that contradict each other",
    branch="environment.settings",
    remedy="unset one of the two; the same value on all ranks",
    example=Example("variables", "NCCL_MNNVL_ENABLE=1\nNCCL_CUMEM_ENABLE=0"),
    decided_from="environment of all ranks",
)

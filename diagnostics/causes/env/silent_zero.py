"""A variable whose value is silently read as 0."""

from diagnostics.causes.env._lint import lint_cause
from diagnostics.contract.causes import Example

CAUSE = lint_cause(
    id="env.silent_zero",
    title="a variable whose value is silently read as 0",
    branch="environment.names",
    remedy="write a plain number: 1, not true; 4194304, not 4M",
    example=Example("variables", "NCCL_BUFFSIZE=4M"),
    decided_from="environment as it was typed (a log shows it only as NCCL read it)",
)

"""A variable with a value that its reader does not accept."""

from diagnostics.causes.env._lint import lint_cause
from diagnostics.contract.causes import Example

CAUSE = lint_cause(
    id="env.invalid_value",
    title="a variable with a value that its reader does not accept",
    branch="environment.names",
    remedy="use an accepted value, in the right case",
    example=Example("variables", "NCCL_P2P_LEVEL=nvl"),
)

"""A variable under an old name."""

from diagnostics.causes.env._lint import lint_cause
from diagnostics.contract.causes import Example

CAUSE = lint_cause(
    id="env.deprecated_variable",
    title="a variable under an old name",
    branch="environment.names",
    remedy="use the current name",
    example=Example("variables", "NCCL_CHECKS_DISABLE=1"),
    names=True,
)

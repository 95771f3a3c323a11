"""A variable with a value that its reader does not accept."""

from diagnostics.causes.env._lint import lint_cause

CAUSE = lint_cause(
    id="env.invalid_value",
    title="a variable with a value that its reader does not accept",
    branch="environment.names",
    remedy="a value that its reader accepts, in the right case",
)

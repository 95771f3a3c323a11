"""A variable under an old name."""

from diagnostics.causes.env._lint import lint_cause

CAUSE = lint_cause(
    id="env.deprecated_variable",
    title="a variable under an old name",
    branch="environment.names",
    remedy="today's name",
    names=True,
)

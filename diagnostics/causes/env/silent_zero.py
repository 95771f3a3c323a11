"""A variable whose value is silently read as 0."""

from diagnostics.causes.env._lint import lint_cause

CAUSE = lint_cause(__file__)

"""A variable with a value that its reader does not accept."""

from diagnostics.causes.env._lint import lint_cause

CAUSE = lint_cause(__file__)

"""A variable under an old name."""

from diagnostics.causes.env._lint import lint_cause

CAUSE = lint_cause(__file__, names=True)

"""A debugging setting that was left on and costs time."""

from diagnostics.causes.env._lint import lint_cause

CAUSE = lint_cause(__file__)

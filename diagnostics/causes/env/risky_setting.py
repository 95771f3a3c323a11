"""A setting that can hang or crash the job, or give wrong numbers."""

from diagnostics.causes.env._lint import lint_cause

CAUSE = lint_cause(__file__)

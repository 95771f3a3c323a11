"""A variable that nothing reads: a slip in its name, or a name that is older or newer than the NCCL in use."""

from diagnostics.causes.env._lint import lint_cause

CAUSE = lint_cause(__file__, names=True)

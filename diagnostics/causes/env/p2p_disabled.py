"""Direct transfers between the devices of a node are switched off."""

from diagnostics.causes.env._lint import lint_cause

CAUSE = lint_cause(__file__, nccl_only=True)

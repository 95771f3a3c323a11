"""Two ranks use the same GPU, which NCCL refuses."""

from diagnostics.causes.env._failures import failure_cause

CAUSE = failure_cause(__file__)

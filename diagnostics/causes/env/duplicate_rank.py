"""Two processes have the same rank, which NCCL refuses when the second one joins."""

from diagnostics.causes.env._failures import failure_cause

CAUSE = failure_cause(__file__)

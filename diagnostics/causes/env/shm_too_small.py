"""/dev/shm is full or too small for NCCL or for the workers of the data loader."""

from diagnostics.causes.env._failures import failure_cause

CAUSE = failure_cause(__file__)

"""The ranks load different versions of NCCL, which refuses to start."""

from diagnostics.causes.env._failures import failure_cause

CAUSE = failure_cause(__file__)

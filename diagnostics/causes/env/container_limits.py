"""A limit of the container or of the user is too low: threads and processes, open files, locked memory."""

from diagnostics.causes.env._failures import failure_cause

CAUSE = failure_cause(__file__)

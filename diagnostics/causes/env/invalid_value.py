"""A variable with a value that its reader does not accept."""

from diagnostics.causes.env._examples import dtk_run
from diagnostics.causes.env._lint import lint_cause

CAUSE = lint_cause(
    id="env.invalid_value",
    title="a variable with a value that its reader does not accept",
    branch="environment.names",
    remedy="a value that its reader accepts, in the right case",
    example=dtk_run({"NCCL_P2P_LEVEL": "nvl"}),
)

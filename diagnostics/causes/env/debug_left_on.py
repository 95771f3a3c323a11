"""A debugging setting that was left on and costs time."""

from diagnostics.causes.env._lint import lint_cause
from diagnostics.contract.causes import Example

CAUSE = lint_cause(
    id="env.debug_left_on",
    title="a debugging setting that was left on",
    branch="environment.settings",
    remedy="unset it once the fault is found",
    example=Example("variables", "NCCL_DEBUG=TRACE"),
)

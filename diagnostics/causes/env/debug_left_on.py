"""A debugging setting that was left on and costs time."""

from diagnostics.causes.env._lint import lint_cause

CAUSE = lint_cause(
    id="env.debug_left_on",
    title="a debugging setting that was left on",
    branch="environment.settings",
    remedy="unset it once the fault is found",
)

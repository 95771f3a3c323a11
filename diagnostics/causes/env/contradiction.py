"""Variables that contradict each other, or that differ between ranks and must not."""

from diagnostics.causes.env._lint import lint_cause

CAUSE = lint_cause(
    id="env.contradiction",
    title="variables that contradict each other",
    branch="environment.settings",
    remedy="unset one of the two; the same value on all ranks",
    decided_from="environment of all ranks",
)

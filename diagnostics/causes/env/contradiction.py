"""Variables that contradict each other, or that differ between ranks and must not."""

from diagnostics.causes.env._lint import lint_cause

CAUSE = lint_cause(__file__)

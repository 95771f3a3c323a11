"""A variable that nothing reads: a slip in its name, or a name that is older or newer than the NCCL in use."""

from diagnostics.causes.env._lint import lint_cause

CAUSE = lint_cause(
    id="env.unknown_variable",
    title="a variable that nothing reads",
    branch="environment.names",
    remedy="the name that was meant, or unset it",
    decided_from="environment in manifest or log, against the catalogue of NCCL, torch and gloo",
    names=True,
)

"""A variable that nothing reads: a slip in its name, or a name that is older or newer than the NCCL in use."""

from diagnostics.causes.env._lint import lint_cause
from diagnostics.contract.causes import Example

CAUSE = lint_cause(
    id="env.unknown_variable",
    title="a variable that nothing reads",
    branch="environment.names",
    remedy="correct the name, or unset it",
    example=Example("variables", "NCCL_SOCKET_IFNAM=eth0"),
    decided_from="environment in manifest or log, against the catalogue of NCCL, torch and gloo",
    names=True,
)

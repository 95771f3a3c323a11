"""A setting that can hang or crash the job, or give wrong numbers."""

from diagnostics.causes.env._lint import lint_cause
from diagnostics.contract.causes import Example

CAUSE = lint_cause(
    id="env.risky_setting",
    title="a setting that can hang or crash the job",
    branch="environment.settings",
    remedy="unset it: the default is safe",
    example=Example("variables", "NCCL_PROTO=LL128"),
)

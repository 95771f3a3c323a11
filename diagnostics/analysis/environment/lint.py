"""The linter of environment variables: every rule over one set of variables. Reads no file and no environment."""

from typing import Any

from diagnostics.analysis.environment.catalogue import Version
from diagnostics.analysis.environment.rules_conflicts import RULES as CONFLICT_RULES
from diagnostics.analysis.environment.rules_hardware import RULES as HARDWARE_RULES
from diagnostics.analysis.environment.rules_names import check_name
from diagnostics.analysis.environment.rules_values import check_value
from diagnostics.analysis.environment.situation import Lint, situation

CAUSES = (
    "env.unknown_variable", "env.deprecated_variable", "env.silent_zero", "env.invalid_value", "env.contradiction",
    "env.risky_setting", "env.debug_left_on", "env.wrong_interface", "env.ib_disabled", "env.p2p_disabled",
)  # fmt: skip
"""Every cause that a lint may name."""
_ORDER = {"error": 0, "warning": 1, "note": 2}


def lint(
    variables: dict[str, str], nccl_version: Version | None, nnodes: int | None, hardware: dict[str, Any]
) -> list[Lint]:
    """Return what is wrong with a set of variables, the worst first, then sorted by name.

    Args:
        variables: name -> text, of one process; others than NCCL's, torch's and gloo's are passed over.
        nccl_version: as (2, 27, 3); None = unknown.
        nnodes: nodes of the job; None = unknown.
        hardware: facts of the node, see `situation.situation`; {} = unknown.
    """
    where = situation(variables, nccl_version, nnodes, hardware)
    lints = {found for rule in (*CONFLICT_RULES, *HARDWARE_RULES) for found in rule(where)}
    for name, text in variables.items():
        lints |= {*check_name(name, where), *check_value(name, text, where)}
    return sorted(lints, key=lambda found: (_ORDER[found.severity], found.variable, found.cause_id, found.message))

"""The linter of environment variables: every rule over one set of variables. Reads no file and no environment."""

from typing import Any

from diagnostics.analysis.environment.catalogue import Version
from diagnostics.analysis.environment.rules_conflicts import RULES as CONFLICT_RULES
from diagnostics.analysis.environment.rules_hardware import RULES as HARDWARE_RULES
from diagnostics.analysis.environment.rules_names import check_name
from diagnostics.analysis.environment.rules_values import check_value
from diagnostics.analysis.environment.situation import Lint, situation

_ORDER = {"error": 0, "warning": 1, "note": 2}  # The worst first.


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
    lints = {lint for rule in (*CONFLICT_RULES, *HARDWARE_RULES) for lint in rule(where)}
    for name, text in variables.items():
        lints |= {*check_name(name, where), *check_value(name, text, where)}
    return sorted(lints, key=lambda lint: (_ORDER[lint.severity], lint.variable, lint.rule, str(lint.values)))

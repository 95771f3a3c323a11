"""The lints of a set of variables in words, by variable, and a node that rules are tried on."""

from dataclasses import dataclass
from typing import Any

from diagnostics.analysis.environment.lint import lint
from diagnostics.analysis.environment.situation import Lint
from diagnostics.causes.lint_texts import lint_text

RDMA = {"interfaces": ["lo", "eth0"], "infiniband": ["mlx5_0", "mlx5_1", "mlx5_10"]}
"""A node with two interfaces and three HCAs."""


@dataclass(frozen=True)
class Worded:
    severity: str
    variable: str
    cause_id: str
    message: str
    fix: str


def worded(found: Lint) -> Worded:
    text = lint_text(found)
    return Worded(found.severity, found.variable, text.cause, text.message, text.fix)


def found(
    variables: dict[str, str],
    nccl_version: tuple[int, ...] | None = None,
    nnodes: int | None = None,
    hardware: dict[str, Any] | None = None,
) -> dict[tuple[str, str, str], Worded]:
    texts = map(worded, lint(variables, nccl_version, nnodes, hardware or {}))
    return {(one.variable, one.cause_id, one.severity): one for one in texts}


def only(variables: dict[str, str], **situation: Any) -> Worded:
    (one,) = found(variables, **situation).values()
    return one

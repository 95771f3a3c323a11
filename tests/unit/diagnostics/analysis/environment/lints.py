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


def worded(lint: Lint) -> Worded:
    text = lint_text(lint)
    return Worded(lint.severity, lint.variable, text.cause, text.message, text.fix)


def lints_of(
    variables: dict[str, str],
    nccl_version: tuple[int, ...] | None = None,
    nnodes: int | None = None,
    hardware: dict[str, Any] | None = None,
) -> dict[tuple[str, str, str], Worded]:
    texts = map(worded, lint(variables, nccl_version, nnodes, hardware or {}))
    return {(text.variable, text.cause_id, text.severity): text for text in texts}


def only(variables: dict[str, str], **situation: Any) -> Worded:
    (finding,) = lints_of(variables, **situation).values()
    return finding

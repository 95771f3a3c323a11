"""The lints of a set of variables, by variable, and a node that rules are tried on."""

from typing import Any

from diagnostics.analysis.environment.lint import lint
from diagnostics.analysis.environment.situation import Lint

RDMA = {"interfaces": ["lo", "eth0"], "infiniband": ["mlx5_0", "mlx5_1", "mlx5_10"]}
"""A node with two interfaces and three HCAs."""


def found(
    variables: dict[str, str],
    nccl_version: tuple[int, ...] | None = None,
    nnodes: int | None = None,
    hardware: dict[str, Any] | None = None,
) -> dict[tuple[str, str, str], Lint]:
    return {
        (one.variable, one.cause_id, one.severity): one for one in lint(variables, nccl_version, nnodes, hardware or {})
    }


def only(variables: dict[str, str], **situation: Any) -> Lint:
    (one,) = found(variables, **situation).values()
    return one

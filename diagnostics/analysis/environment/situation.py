"""Types that the linter's rules share: a lint, and the variables with the facts of the machine."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from diagnostics.analysis.environment.catalogue import Version
from diagnostics.analysis.environment.values import number

Severity = Literal["error", "warning", "note"]
"""error: the setting has no or another effect, or breaks the job; warning: it probably hurts; note: worth knowing."""

_NVLINK_GPUS = ("SXM", "H100 80GB HBM3", "H200", "B200", "B300", "GB200", "GB300", "GH200", "DGX", "HGX")
"""Parts of NVML's names of GPUs that are only sold on NVLink boards."""


Value = str | int | tuple[str, ...] | tuple[int, ...] | tuple[tuple[str, tuple[int, ...]], ...]
"""A text, a number, names, a version, or values of a variable with the ranks that have them."""


class Change(Struct, frozen=True):
    """A fix that requires no decision: a variable to unset, then one to set."""

    unset: str = ""
    name: str = ""
    """Variable to set; empty = none."""
    value: str | None = None
    """Value to set; None = the value of the variable that is unset."""


def assign(name: str, value: str) -> Change:
    """Return the fix that gives a variable this value."""
    return Change(name=name, value=value)


class Lint(Struct, frozen=True):
    """One problem of one variable: the rule that it breaks and the values that the rule found."""

    severity: Severity
    variable: str
    rule: str
    """A key under `lints` in the YAML file of the cause that it supports (`causes/lint_texts.py`)."""
    change: Change | None = None
    """None if the fix requires a decision."""
    values: tuple[tuple[str, Value], ...] = ()
    """The values that the rule found, sorted by name."""


def lint_of(severity: Severity, variable: str, rule: str, change: Change | None = None, **values: Value) -> Lint:
    """Return a lint with the values that its rule found."""
    return Lint(severity, variable, rule, change, tuple(sorted(values.items())))


class Situation(Struct, frozen=True):
    """The variables of a process and the facts that rules need; None = unknown."""

    variables: Mapping[str, str]
    nccl_version: Version | None
    nnodes: int | None
    nproc: int | None
    """Number of ranks on this node."""
    interfaces: tuple[str, ...] | None
    """Network interfaces of this node."""
    infiniband: tuple[str, ...] | None
    """RDMA devices (HCAs) of this node; empty = there is none."""
    nvlink: bool | None
    missing_files: frozenset[str]
    """Variables whose file is known not to exist."""
    missing_folders: frozenset[str]
    """Variables of a file to be written whose folder is known not to exist."""

    def get(self, name: str) -> str:
        """Return the text of a variable, empty when it is unset. NCCL treats both the same."""
        return self.variables.get(name, "")

    def number(self, name: str) -> int | None:
        """Return the number that NCCL parses from a variable, or None when it is unset."""
        text = self.get(name)
        return number(text).value if text else None


def situation(
    variables: Mapping[str, str], nccl_version: Version | None, nnodes: int | None, hardware: Mapping[str, Any]
) -> Situation:
    """Combine a process's variables (name -> text) with the valid facts of a description of the machine.

    `hardware` may have `nproc` (ranks on the node), `interfaces`, `infiniband` (lists of names), `nvlink` (bool),
    `gpus` (list of {"name": ...}) and `missing_files`, `missing_folders` (names of variables), as in dtk's manifest.
    """
    nproc = hardware.get("nproc")
    nvlink = hardware.get("nvlink")
    models = gpu_names(hardware)
    if nvlink is None and len(models) > 1:
        nvlink = True if any(part in model for model in models for part in _NVLINK_GPUS) else None
    return Situation(
        variables=variables,
        nccl_version=nccl_version,
        nnodes=nnodes,
        nproc=nproc if isinstance(nproc, int) else None,
        interfaces=_texts(hardware.get("interfaces")),
        infiniband=_texts(hardware.get("infiniband")),
        nvlink=nvlink if isinstance(nvlink, bool) else None,
        missing_files=frozenset(_texts(hardware.get("missing_files")) or ()),
        missing_folders=frozenset(_texts(hardware.get("missing_folders")) or ()),
    )


def gpu_names(hardware: Mapping[str, Any]) -> list[str]:
    """Return the names of the GPUs in a description of the machine."""
    gpus = hardware.get("gpus")
    return [str(gpu.get("name", "")) for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []


def _texts(value: Any) -> tuple[str, ...] | None:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else None

"""`dtk nccl lint`: runs the diagnosis' linter over variables and their places, with facts of this machine."""

import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnostics.analysis.environment.catalogue import Version, catalogue, leading_version, version_text
from diagnostics.analysis.environment.known_bugs import Installed
from diagnostics.analysis.environment.lint import lint
from diagnostics.analysis.environment.situation import Severity, gpu_names, lint_of
from diagnostics.causes.lint_texts import lint_text
from diagnostics.contract.formatting import counted
from dtk.errors import DtkError
from dtk.extras import installed
from dtk.nccl.machine import Machine
from dtk.nccl.variable_sources import Given
from dtk.record.manifest import missing_files, network

SCHEMA = "dtk.nccl-lint/1"
CLEAN, PROBLEMS = 0, 1  # Exit codes: notes only; warnings or errors.
_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}  # Sort order: the most severe first.


@dataclass(frozen=True, slots=True)
class Item:
    """One problem and its location."""

    severity: Severity
    variable: str
    value: str
    place: str
    message: str
    fix: str
    cause: str
    """Id of the cause in `dtk diagnose`."""
    fix_in_message: bool = False
    """Whether the message already contains the fix."""


@dataclass(frozen=True, slots=True)
class Linted:
    """The result of linting."""

    items: tuple[Item, ...]
    read: tuple[str, ...]
    checked: int
    """Number of variables checked."""
    nccl_version: str
    """Version of NCCL. Empty if unknown; rules that depend on it are skipped."""
    facts: str
    """Known facts of the machine, as text."""

    @property
    def exit_code(self) -> int:
        """Return 1 if there are warnings or errors, else 0."""
        return PROBLEMS if any(item.severity != "note" for item in self.items) else CLEAN


def lint_given(given: Given, machine: Machine | None, nodes: int | None, nccl_version: str) -> Linted:
    """Lint variables; `machine=None` means that they are for another machine."""
    version = parse_version(nccl_version) if nccl_version else None
    hardware: dict[str, Any] = {}
    if machine is not None:
        missing = [name for name, text in given.variables.items() if text and _folder_missing(name, text)]
        hardware = {**network(), "missing_files": missing_files(given.variables), "missing_folders": missing}
        if machine.gpus:
            hardware |= {"nproc": len(machine.gpus), "gpus": [{"name": gpu.name} for gpu in machine.gpus]}
        hardware |= {} if machine.nvlink is None else {"nvlink": machine.nvlink}
    lints = lint(given.variables, version, nodes, hardware)
    if nodes is not None and not any(hit.variable == "NCCL_IB_DISABLE" for hit in lints):
        # Harmless with these nodes, but not a default, so it is reported for every job.
        lints += [hit for hit in lint(given.variables, version, None, {}) if hit.variable == "NCCL_IB_DISABLE"]
    here = {"torch": installed("torch") or "", "driver": machine.driver} if machine is not None else {}
    versions = {"nccl": version or ()} | {name: leading_version(text) for name, text in here.items()}
    arch = platform.machine() if machine is not None else ""
    lints += Installed(versions, arch, gpu_names(hardware)).lints(given.variables)
    placed = [(hit, given.variables.get(hit.variable, ""), given.places.get(hit.variable, "")) for hit in lints]
    placed += [(lint_of("error", "", rule, text=text), "", place) for place, rule, text in given.oddities]
    for name, place, value in given.shadowed:
        hit = lint_of("note", name, "shadowed", text=given.variables[name], first=given.places[name])
        placed.append((hit, value, place))
    items = []
    for hit, value, place in placed:
        text = lint_text(hit)
        about = (text.message, text.fix, text.cause, text.fix_in_message)
        items.append(Item(hit.severity, hit.variable, value, place, *about))
    ordered = tuple(sorted(items, key=lambda item: (_ORDER[item.severity], item.variable, item.place, item.message)))
    facts = [counted(nodes, "node") if nodes else "number of nodes unknown"]
    if machine is None:
        facts.append("another machine: its interfaces, cards and GPUs are not known")
    else:
        facts += [counted(len(machine.interfaces), "interface"), counted(len(machine.rdma), "RDMA device")]
        facts.append(counted(len(machine.gpus), "GPU"))
    return Linted(ordered, given.read, len(given.variables), nccl_version, ", ".join(facts))


def doubts(variables: dict[str, str]) -> list[str]:
    """Return a line for each certain problem with the variables, at most three; `dtk nccl lint` lists all."""
    installed = installed_nccl()
    lints = lint(variables, parse_version(installed) if installed else None, None, {})
    texts = [(hit, lint_text(hit)) for hit in lints]
    sure = [(hit, text) for hit, text in texts if hit.severity == "error" or text.unread]
    return [f"{hit.variable}={variables.get(hit.variable, '')}: {text.message}" for hit, text in sure[:3]]


def installed_nccl() -> str:
    """Return the version of the NCCL package installed with torch; empty if there is none."""
    packages = map(installed, ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"))
    return version_text(leading_version(next(filter(None, packages), "")))


def parse_version(text: str) -> Version:
    """Return (2, 27, 3) of `2.27.3`; DtkError if the text is not a version."""
    if not re.fullmatch(r"\d{1,4}(?:\.\d{1,4}){1,3}", text):
        raise DtkError(f"--nccl-version {text} is not a version", fix="write it like 2.27.3")
    return leading_version(text)


def _folder_missing(name: str, text: str) -> bool:
    """Whether NCCL would write to a missing folder; unknown, thus False, with %h or %p in the path."""
    variable = catalogue().nccl.get(name)
    if variable is None or variable.type != "file":
        return False
    folder = Path(text.strip()).parent
    try:
        return "%" not in str(folder) and not folder.is_dir()
    except (OSError, ValueError):  # The value names no folder at all.
        return True

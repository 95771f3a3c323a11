"""The types of a check and its result, and what the checks of one machine share: the user's options, child processes
with a time limit, and NVML and torch's facts, asked for once. torch is imported by a child process only: a broken
installation, or a driver that hangs, costs a check, not the doctor.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from diagnostics.contract.files import read_table
from dtk.launch.children import Children
from dtk.record.nvml import open_nvml

Status = Literal["ok", "warning", "failure", "not_applicable"]
SEVERITY: tuple[Status, ...] = ("not_applicable", "ok", "warning", "failure")  # From the least to the most worrying.
POLL_S = 0.05  # Chosen: far below the duration of the checks.
GRACE_S = 3.0  # Chosen: children torn down by a failure report soon after it; longer only delays the result.


@dataclass(frozen=True, slots=True)
class Remedy:
    """A remedy, and its exact command if there is one."""

    what: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one check."""

    status: Status
    summary: str
    """One line with the figures; for `not_applicable` the reason."""
    details: tuple[str, ...] = ()
    """Further lines, one per device, pair or interface."""
    remedies: tuple[Remedy, ...] = ()
    measures: Mapping[str, Any] = field(default_factory=dict)
    """Measured values for programs, with units in the names."""
    common: Mapping[str, str] = field(default_factory=dict)
    """Values that must be equal on all nodes of a job: name -> value here."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the machine."""

    name: str
    topic: str
    about: str
    """Short description of what the check covers."""
    run: Callable[["Scope"], Result]
    slow: bool = False
    """Whether the check takes seconds: its limit is `--timeout-s`, and progress is shown."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An observation within one check; the worst one decides the result."""

    status: Status
    text: str
    remedy: Remedy | None = None


def finding(key: str, /, *, bad: bool = False, **values: Any) -> Finding:
    """Return a finding of `findings.yaml` with its remedy, if any; of a text for `either` severity, `bad` decides.

    `{python}` in a row is this interpreter.
    """
    row = read_table(Path(__file__).with_name("findings.yaml"))[key]
    texts = {part: text.format(python=sys.executable, **values) for part, text in row.items()}
    status: Status = "failure" if bad or "failure" in texts else "warning"
    remedy = Remedy(texts["fix"], texts.get("command", "")) if "fix" in texts else None
    return Finding(status, texts.get("either") or texts[status], remedy)


def not_applicable(reason: str, **more: Any) -> Result:
    """Return the result of a check that does not apply here, with the reason."""
    return Result("not_applicable", reason, **more)


def worst(statuses: Iterable[Status]) -> Status:
    """Return the most severe status, or `not_applicable` if there is none."""
    return max(statuses, key=SEVERITY.index, default="not_applicable")


def judged(
    findings: Iterable[Finding],
    fine: str = "",
    *,
    details: Sequence[str] = (),
    measures: Mapping[str, Any] | None = None,
    common: Mapping[str, str] | None = None,
) -> Result:
    """Combine findings into one result: the most severe first, each remedy once.

    `details` follow the findings that the summary omits; `common` values must be equal on all nodes.
    """
    ranked = sorted(findings, key=lambda finding: -SEVERITY.index(finding.status))
    remedies = tuple(dict.fromkeys(finding.remedy for finding in ranked if finding.remedy is not None))
    return Result(
        status=ranked[0].status if ranked else "ok",
        summary=ranked[0].text if ranked else fine,
        details=(*(f"{finding.status}: {finding.text}" for finding in ranked[1:]), *details),
        remedies=remedies,
        measures=dict(measures or {}),
        common=dict(common or {}),
    )


@dataclass(slots=True)
class ChildOutput:
    """Output and exit of a child process."""

    records: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""
    """Why the output is incomplete; empty if the child succeeded."""
    late: bool = False
    """Whether it was killed at the time limit, or because another child failed."""


def run_child(arguments: Sequence[str], timeout_s: float) -> ChildOutput:
    """Run Python with these arguments in this environment, until it exits or the time limit is reached."""
    return run_children(arguments, timeout_s, {0: os.environ})[0]


def run_children(
    arguments: Sequence[str], timeout_s: float, environments: Mapping[int, Mapping[str, str]]
) -> list[ChildOutput]:
    """Run several at once; all are killed at the limit, and soon after one of them failed."""
    outputs = {number: ChildOutput() for number in environments}

    def read(ends_s: float, goes_on: Callable[[], object]) -> None:
        while goes_on() and time.monotonic() < ends_s:
            for number, record in children.lines(POLL_S):
                outputs[number].records.append(record)

    with Children(arguments, environments) as children:
        ends_s = time.monotonic() + timeout_s
        read(ends_s, lambda: children.running and not children.failed())
        if children.failed():
            read(min(ends_s, time.monotonic() + GRACE_S), lambda: children.running)
        late = children.running
        children.kill()
        read(time.monotonic() + GRACE_S, lambda: not children.ended)
        for failed in children.failed():
            outputs[failed.rank].problem = str(failed)
    for number in late:
        outputs[number].problem, outputs[number].late = f"no answer in {timeout_s:.0f} s", True
    return list(outputs.values())


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """What a child process reports about torch."""

    facts: dict[str, Any]
    """Facts; empty if torch could not be queried."""
    reason: str = ""
    """Why torch could not be queried."""
    installed: bool = True


@dataclass(slots=True)
class Scope:
    """One machine under examination."""

    runs_folder: Path
    port: int | None = None
    """The user's rendezvous port; None selects the default port."""
    timeout_s: float = 60.0
    """Time limit of one slow check."""
    nodes: int = 1
    under_launcher: bool = False
    """Whether torchrun or srun started this process, so the rendezvous port is in use by the job itself."""
    _torch: TorchFacts | None = None
    _nvml: tuple[Any, str] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def torch(self) -> TorchFacts:
        """Return what torch reports about itself; `dtk.doctor.torch_facts` runs once, in a separate process."""
        with self._lock:
            if self._torch is None and find_spec("torch") is None:
                self._torch = TorchFacts({}, "torch is not installed", installed=False)
            if self._torch is None:
                output = run_child(["-m", "dtk.doctor.torch_facts"], self.timeout_s)
                whole = bool(output.records) and not output.problem
                reason = "" if whole else f"import torch: {output.problem or 'it printed nothing'}"
                self._torch = TorchFacts(output.records[-1] if whole else {}, reason)
            return self._torch

    def nvml(self) -> tuple[Any, str]:
        """Return the initialized NVML module, or None and the reason; it is loaded once."""
        with self._lock:
            if self._nvml is None:
                self._nvml = open_nvml()
            return self._nvml

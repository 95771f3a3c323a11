"""What the checks of one machine share: the user's options, child processes with a time limit, and NVML and torch's
facts, asked for once. torch is imported by a child process only: a broken installation, or a driver that hangs, costs a
check, not the doctor.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dtk.launch.children import Children
from dtk.record.nvml import open_nvml

POLL_S = 0.05  # Chosen: far below the duration of the checks.
GRACE_S = 3.0  # Chosen: children torn down by a failure report soon after it; longer only delays the result.


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

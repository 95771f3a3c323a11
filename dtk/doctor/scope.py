"""What the checks of one machine share: the user's options, and NVML and torch's facts, asked for once.
torch is imported by a child process only: a broken installation, or a driver that hangs, costs a check, not the doctor.
"""

import threading
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dtk.doctor.children import run_child
from dtk.record.nvml import open_nvml


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

"""The profiler window: a few steps of one rank as a compressed Chrome trace. No overhead outside the window."""

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from dtk.record.guard import guarded, report
from dtk.record.memory import held_bytes

TOPIC = "profiler"


@dataclass(eq=False)
class ProfilerWindow:
    """Profiles `steps` steps of this process, from its `start`-th on, and exports in the background.

    Work between a step and the next, such as an evaluation, belongs to its `ProfilerStep`.
    """

    path: Path
    rank: int
    device: torch.device
    start: int
    steps: int
    stacks: bool = False
    """Whether Python functions are recorded too."""

    def __post_init__(self) -> None:
        self._seen = 0
        self._profiler: Any = None
        self._mark: Any = None
        self._export: threading.Thread | None = None

    def begin_step(self, step: int) -> None:
        """Open or close the window when due; inside it, mark the step as torch's own tools expect."""
        self._seen += 1
        if self._seen == self.start and self.steps > 0:
            cuda = [ProfilerActivity.CUDA] if self.device.type == "cuda" else []
            options: dict[str, Any] = {"record_shapes": True, "profile_memory": True, "with_stack": self.stacks}
            self._profiler = torch.profiler.profile(activities=[ProfilerActivity.CPU, *cuda], **options)
            own = {"rank": self.rank, **({} if cuda else {"held_bytes": held_bytes()})}
            self._profiler.start()
            self._profiler.add_metadata_json("dtk", json.dumps(own))
        if self._profiler is None:
            return
        self._unmark()
        if self._seen >= self.start + self.steps:
            self._close()
        else:
            self._mark = torch.autograd.profiler.record_function(f"ProfilerStep#{step}")
            self._mark.__enter__()

    def close(self, timeout_s: float) -> None:
        """Close an open window, and wait for its trace for at most `timeout_s` seconds."""
        if self._profiler is not None:
            self._unmark()
            self._close()
        if self._export is not None:
            self._export.join(timeout_s)
            if self._export.is_alive():
                report(TOPIC, f"the trace was not written within {timeout_s:g} s")

    def _unmark(self) -> None:
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None

    def _close(self) -> None:
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        self._export = threading.Thread(target=self._write, args=(profiler,), name="dtk-trace", daemon=True)
        self._export.start()

    def _write(self, profiler: Any) -> None:
        """Write to a temporary name, then rename: a trace is complete or absent."""
        with guarded(TOPIC):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.path.with_name(f".{self.path.name.removesuffix('.json.gz')}.tmp.json.gz")
            profiler.export_chrome_trace(str(temporary))
            temporary.replace(self.path)

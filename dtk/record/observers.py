"""Observers of regions: NVTX, the profiler, spans; they take well under a microsecond unless a tool is attached. The
profiler window records a few steps of one rank as a compressed Chrome trace, without overhead outside it.
"""

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.autograd.profiler as autograd_profiler
from torch.profiler import ProfilerActivity

from dtk.parallel.regions import Region
from dtk.record.guard import JsonLines, guarded, report
from dtk.record.memory import held_bytes

MAX_NAMES = 4096  # Chosen: region names whose NVTX attributes are cached; those of communication regions include sizes.
_PROFILER = "profiler"


class Nvtx:
    """NVTX ranges in the domain `dtk`, seen by Nsight Systems, even without a GPU; ImportError without `nvtx`."""

    def __init__(self) -> None:
        import nvtx

        self._domain: Any = nvtx.get_domain("dtk")
        self._attributes: dict[str, Any] = {}

    def enter(self, region: Region) -> None:
        """Push a range on the current thread."""
        attributes = self._attributes.get(region.name)
        if attributes is None:
            if len(self._attributes) >= MAX_NAMES:
                self._attributes.clear()
            attributes = self._domain.get_event_attributes(message=region.name)
            self._attributes[region.name] = attributes
        self._domain.push_range(attributes)

    def exit(self, region: Region) -> None:
        """Pop the range."""
        self._domain.pop_range()


class ProfilerMarks:
    """`record_function` spans while a torch profiler runs."""

    def __init__(self) -> None:
        self._open: dict[int, Any] = {}

    def enter(self, region: Region) -> None:
        """Open a span if a profiler is active."""
        if autograd_profiler._is_profiler_enabled:
            mark: Any = autograd_profiler.record_function(region.name)
            mark.__enter__()
            self._open[id(region)] = mark

    def exit(self, region: Region) -> None:
        """Close the span if it was opened."""
        if self._open and (mark := self._open.pop(id(region), None)) is not None:
            mark.__exit__(None, None, None)


class Spans:
    """Observer that collects the regions of a step and passes them to the writer when the next step begins."""

    def __init__(self, lines: JsonLines) -> None:
        self._lines = lines
        self._step: int | None = None
        self._open: dict[int, tuple[float, float]] = {}
        self._closed: list[dict[str, Any]] = []

    def begin_step(self, step: int | None) -> None:
        """Write the spans of the last step; None = the run ends."""
        records, self._closed = self._closed, []
        if records:
            self._lines.append(*records)
        self._step = step

    def enter(self, region: Region) -> None:
        """Record the start time of a span."""
        self._open[id(region)] = time.time(), time.perf_counter()  # `place` may be set while the span is open.

    def exit(self, region: Region) -> None:
        """Close and store the span."""
        began = self._open.pop(id(region), None)
        if began is not None:
            record = {"kind": "span", "name": region.name, "step": self._step, "time_s": began[0]}
            record |= {"duration_ms": (time.perf_counter() - began[1]) * 1e3, **region.place}
            if region.op is not None:
                record |= {"op": region.op, "size_bytes": region.size_bytes, "group": region.group}
            self._closed.append(record)


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
                report(_PROFILER, f"the trace was not written within {timeout_s:g} s")

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
        with guarded(_PROFILER):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.path.with_name(f".{self.path.name.removesuffix('.json.gz')}.tmp.json.gz")
            profiler.export_chrome_trace(str(temporary))
            temporary.replace(self.path)

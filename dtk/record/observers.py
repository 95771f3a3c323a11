"""Observers of regions: NVTX, the profiler, spans; they take well under a microsecond unless a tool is attached."""

import time
from typing import Any

import torch.autograd.profiler as autograd_profiler

from dtk.parallel.regions import Region
from dtk.record.jsonl import JsonLines

MAX_NAMES = 4096  # Chosen: region names whose NVTX attributes are cached; those of communication regions include sizes.


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

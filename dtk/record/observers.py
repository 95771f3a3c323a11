"""What listens to regions at every step, in well under a microsecond unless its tool is attached: NVTX, profiler."""

from typing import Any

import torch.autograd.profiler as autograd_profiler

from dtk.parallel.regions import Region

MAX_NAMES = 4096  # Region names whose NVTX attributes are kept; communication regions carry sizes in theirs.


class Nvtx:
    """NVTX ranges in the domain `dtk`, seen by Nsight Systems; works without a GPU.

    Raises:
        ImportError: the package `nvtx` is missing.
    """

    def __init__(self) -> None:
        import nvtx

        self._domain: Any = nvtx.get_domain("dtk")
        self._attributes: dict[str, Any] = {}

    def enter(self, region: Region) -> None:
        """Push a range on this thread."""
        attributes = self._attributes.get(region.name)
        if attributes is None:
            if len(self._attributes) >= MAX_NAMES:
                self._attributes.clear()
            attributes = self._domain.get_event_attributes(message=region.name)
            self._attributes[region.name] = attributes
        self._domain.push_range(attributes)

    def exit(self, region: Region) -> None:
        """Pop it."""
        self._domain.pop_range()


class ProfilerMarks:
    """`record_function` spans, only while some torch profiler runs."""

    def __init__(self) -> None:
        self._open: dict[int, Any] = {}

    def enter(self, region: Region) -> None:
        """Open a span if a profiler is active."""
        if autograd_profiler._is_profiler_enabled:
            mark: Any = autograd_profiler.record_function(region.name)
            mark.__enter__()
            self._open[id(region)] = mark

    def exit(self, region: Region) -> None:
        """Close it if it was opened."""
        if self._open and (mark := self._open.pop(id(region), None)) is not None:
            mark.__exit__(None, None, None)

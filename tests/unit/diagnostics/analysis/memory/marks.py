"""Marks of a profiler trace as the reader leaves them: allocations, releases, regions and calls, with times in us."""

from typing import Any

from diagnostics.evidence.trace.memory_marks import MemoryEvent, Span, TraceCall, TraceMarks

MIB = 1 << 20
GPU, CPU = 1, 0


class Recording:
    """What happened, in order; each event takes a microsecond."""

    def __init__(self, device: int = GPU, before: int = 0) -> None:
        self.marks = TraceMarks(rank=0, world_size=2)
        self.device, self.level, self.now_us = device, before, 0.0
        self._sizes: dict[int, int] = {}

    def _tick(self) -> float:
        self.now_us += 1.0
        return self.now_us

    def _event(self, size: int, address: int, thread: int) -> None:
        self.level += size
        kept = 10 * MIB * -(-self.level // (10 * MIB)) if self.device == GPU else 0
        self.marks.events.append(
            MemoryEvent(
                bytes=size, address=address, total_allocated_bytes=self.level, total_reserved_bytes=kept,
                device_type=self.device, device_id=self.device - 1, ts_us=self._tick(), thread=thread,
            )
        )  # fmt: skip

    def alloc(self, address: int, mib: float, thread: int = 1) -> None:
        self._sizes[address] = int(mib * MIB)
        self._event(self._sizes[address], address, thread)

    def free(self, address: int, mib: float = 0) -> None:
        """A block of the window, or one from before it (`mib`)."""
        self._event(-self._sizes.pop(address, int(mib * MIB)), address, 1)

    def span(self, name: str, since_us: float) -> None:
        """A region that was open until now."""
        self.marks.spans.append(Span(name, since_us, self._tick(), 1))
        self.marks.spans.sort(key=lambda span: span.start_us)

    def call(self, op: str, in_mib: float, out_mib: float | None = None, **more: Any) -> None:
        out_bytes = None if out_mib is None else int(out_mib * MIB)
        facts = {"ranks": 2, "thread": 1, "is_list": False, **more}
        self.marks.calls.append(TraceCall(op, int(in_mib * MIB), out_bytes, start_us=self._tick(), **facts))


def training(device: int = GPU, steps: int = 2, before_mib: int = 100) -> Recording:
    """Each step: an activation that its backward pass frees, a gradient that lives into the optimizer's step."""
    recording = Recording(device, before_mib * MIB if device == GPU else 0)
    for step in range(steps):
        begin = recording.now_us
        forward = recording.now_us
        recording.alloc(1, 40)
        recording.span("forward", forward)
        backward = recording.now_us
        recording.alloc(2, 20)
        recording.free(1)
        recording.span("backward", backward)
        update = recording.now_us
        recording.alloc(3, 8)
        recording.free(3)
        recording.span("Optimizer.step#AdamW.step", update)
        recording.free(2)
        recording.span(f"ProfilerStep#{step}", begin)
    return recording

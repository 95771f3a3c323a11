"""Progress output of rank 0 during training: one plain line per logged step, and the speed between two of them."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from dtk.parallel.regions import current
from dtk.record.metrics import model_flops_utilization

GIB = 2**30  # Bytes.
REPLACEABLE = "\r"
"""End of a line that a terminal may replace by the next one; in a log it is part of a line ending."""
_SHORT = {"token": "tok", "sample": "samples"}


def human_time(seconds: float) -> str:
    """Return `14s`, `3m 20s`, `2h 05m`."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m {seconds % 60:02d}s"
    return f"{seconds // 3600}h {seconds % 3600 // 60:02d}m"


def print_line(line: str) -> None:
    """Print and flush, as the parent reads rank 0's output while it runs. A full disk loses the line only."""
    with suppress(OSError):
        print(line, flush=True)


@contextmanager
def printing_elapsed(text: str, on: bool, every_s: float = 5.0) -> Iterator[None]:
    """While `on`, print every few seconds how long the block has lasted, and the region in which this rank is."""
    if not on:  # The usual step starts nothing.
        yield
        return

    def tell() -> None:
        began_s = time.perf_counter()
        while not done.wait(every_s):
            where = f", rank 0 in {inside.name}" if (inside := current()) else ""
            print_line(f"{text}: {human_time(time.perf_counter() - began_s)} so far{where}")

    done, thread = threading.Event(), threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@dataclass(slots=True)
class Progress:
    """Formats step lines. The ETA uses the mean step time after the first step.

    A line is `REPLACEABLE` unless another tenth of the run is complete.
    """

    steps: int
    world_size: int
    first_step: int
    unit: str = "token"
    """The unit in which speed is counted."""
    began_s: float = field(default_factory=time.perf_counter)
    tenths: int = 0
    """Tenths of the run that were complete at the last line."""

    def line(self, record: dict[str, Any]) -> str:
        """Return one line from a metrics record."""
        done, speed = record["step"], record["tokens_per_s"]
        eta = "?"
        if done <= self.first_step + 1:
            self.began_s = time.perf_counter()
        else:
            per_step_s = (time.perf_counter() - self.began_s) / (done - self.first_step - 1)
            eta = human_time(per_step_s * (self.steps - done))
        ranks = f" ({speed / self.world_size:,.0f}/rank)" if self.world_size > 1 else ""
        ideal = record.get("pipeline_bubble_ideal")
        bubble = "" if ideal is None else f"  bubble {record['pipeline_bubble']:.0%} (ideal {ideal:.0%})"
        mfu = f"{record['mfu']:.1%}" if record["mfu"] is not None else "n/a"
        before, self.tenths = self.tenths, done * 10 // self.steps
        return (
            f"step {done}/{self.steps}  loss {record['loss']:.4f}  {_SHORT[self.unit]}/s {speed:,.0f}{ranks}  "
            f"mfu {mfu}{bubble}  mem {record['peak_memory_bytes'] / GIB:.2f} GiB  eta {eta}"
            f"{REPLACEABLE * (self.tenths == before)}"
        )


@dataclass(slots=True)
class Measures:
    """Times windows of steps on this rank; a window ends at a logged step, which synchronizes with the device."""

    tokens_per_step: int
    """Tokens in the global batch."""
    flops_per_token: int | None
    world_size: int
    peak_flops: float | None
    """Peak FLOP/s of one device; None if unknown."""
    peak_reason: str
    communicated_bytes_per_step: int
    """Bytes of the full buffers of all collectives of one rank in a step, as the strategy declares them."""
    began_s: float = 0.0
    began_step: int = 0
    paused_s: float = 0.0

    def start(self, step: int = 0) -> None:
        """Begin the first window at `step` finished steps."""
        self.began_s, self.began_step = time.perf_counter(), step

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time inside the context from the step times."""
        began_s = time.perf_counter()
        yield
        self.paused_s += time.perf_counter() - began_s

    def window(self, step: int) -> dict[str, Any]:
        """Close the window at `step` finished steps and open the next."""
        now_s = time.perf_counter()
        steps = max(1, step - self.began_step)
        step_time_s = max(1e-9, now_s - self.began_s - self.paused_s) / steps
        self.began_s, self.began_step, self.paused_s = now_s, step, 0.0
        tokens_per_s = self.tokens_per_step / step_time_s
        device = self.world_size, self.peak_flops, self.peak_reason
        mfu, reason = model_flops_utilization(tokens_per_s, self.flops_per_token, *device)
        return {
            "step_time_s": step_time_s,
            "tokens": step * self.tokens_per_step,
            "tokens_per_s": tokens_per_s,
            "mfu": mfu,
            "mfu_reason": reason,
            "communicated_bytes_per_step": self.communicated_bytes_per_step,
        }

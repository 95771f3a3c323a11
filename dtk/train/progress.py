"""What rank 0 says while it trains: one plain line per logged step, read by people and by the parent."""

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

GIB = 2**30
_SHORT = {"token": "tok", "sample": "samples"}


def human_time(seconds: float) -> str:
    """Return `14s`, `3m 20s`, `2h 05m`."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m {seconds % 60:02d}s"
    return f"{seconds // 3600}h {seconds % 3600 // 60:02d}m"


def say(line: str) -> None:
    """Print at once: the parent reads rank 0's output while it is written. A disk that is full costs the line only."""
    with suppress(OSError):
        print(line, flush=True)


@dataclass(slots=True)
class Progress:
    """Formats step lines. The step time of the ETA is the mean since the first step was over."""

    steps: int
    world_size: int
    first_step: int
    unit: str = "token"
    """What speed is counted in."""
    began_s: float = field(default_factory=time.perf_counter)

    def line(self, record: dict[str, Any]) -> str:
        """Return one line from a metrics record.

        Args:
            record: has step, loss, tokens_per_s, mfu, mfu_reason, peak_memory_bytes.
        """
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
        return (
            f"step {done}/{self.steps}  loss {record['loss']:.4f}  {_SHORT[self.unit]}/s {speed:,.0f}{ranks}  "
            f"mfu {mfu}{bubble}  mem {record['peak_memory_bytes'] / GIB:.2f} GiB  eta {eta}"
        )

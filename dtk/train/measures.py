"""Speed between two logged steps: tokens/s, step time, MFU. Evaluation and checkpoints are not in it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dtk.record.metrics import model_flops_utilization


@dataclass(slots=True)
class Measures:
    """Times windows of steps on this rank; a window ends at a logged step, where the device was waited for."""

    tokens_per_step: int
    """Tokens in the global batch."""
    flops_per_token: int | None
    world_size: int
    peak_flops: float | None
    """Peak of one device; null when unknown."""
    peak_reason: str
    communicated_bytes_per_step: int
    """Declared by the strategy: full buffers of all collectives of one rank and step."""
    began_s: float = 0.0
    began_step: int = 0
    paused_s: float = 0.0

    def start(self, step: int = 0) -> None:
        """Begin the first window at `step` finished steps."""
        self.began_s, self.began_step = time.perf_counter(), step

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time spent inside the context from the step times."""
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

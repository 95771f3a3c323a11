"""Per-step agreement of all ranks on the host: whether to stop, the number of valid targets, which samples were used.
It has its own gloo group and overlaps the step, so it neither synchronizes with the device nor adds to the step time.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from dtk.parallel.context import Context
from dtk.parallel.regions import communication

_ENOUGH = 2**32  # Summand of a rank whose callback requests a stop; there are never this many ranks.


@dataclass(slots=True)
class Agreement:
    """Sums over all ranks; reading one waits for the slowest rank."""

    values: torch.Tensor
    """int64 [3]: ranks that request a stop (2^32 if a callback does), valid targets, mixed sample ids (modulo 2^64)."""
    work: dist.Work | None

    def _wait(self) -> torch.Tensor:
        if self.work is not None:
            self.work.wait()
            self.work = None
        return self.values

    @property
    def stop(self) -> bool:
        """Whether any rank requested a stop."""
        return int(self._wait()[0]) > 0

    @property
    def enough(self) -> bool:
        """Whether a callback of any rank requested a stop: the run then counts as finished."""
        return int(self._wait()[0]) >= _ENOUGH

    @property
    def valid_targets(self) -> int:
        """Valid targets in the global batch."""
        return int(self._wait()[1])

    @property
    def samples(self) -> int:
        """Sum of the ranks' `samples` arguments, in [0, 2^64)."""
        return int(self._wait()[2]) % 2**64


def agree(context: Context, stop: bool, valid_targets: int, samples: int = 0, *, enough: bool = False) -> Agreement:
    """Start the exchange of one step; every rank must call it once per step.

    `samples` is the sum of this rank's mixed sample ids as int64; `enough` whether a callback of its requests a stop.
    """
    counts = int(context.leads)  # Only one of the ranks that share the work on the same samples counts.
    words = [int(stop) + _ENOUGH * int(enough), counts * valid_targets, counts * samples]
    values = torch.tensor(words, dtype=torch.int64)
    if context.world_size == 1:
        return Agreement(values, None)
    with communication("all_reduce", values.nbytes, "control"):
        work = dist.all_reduce(values, group=context.control, async_op=True)
    return Agreement(values, work)


def list_over_ranks(context: Context, value: int) -> list[int]:
    """Return an integer of every rank, in rank order."""
    values = torch.zeros(context.world_size, dtype=torch.int64)
    values[context.rank] = value
    return [int(v) for v in sum_over_ranks(context, values)]


def sum_over_ranks(context: Context, values: torch.Tensor) -> torch.Tensor:
    """Sum a small host tensor over all ranks, in place, on the control group."""
    if context.world_size > 1:
        with communication("all_reduce", values.nbytes, "control"):
            dist.all_reduce(values, group=context.control)
    return values


@torch.no_grad()
def share_buffers(context: Context, model: nn.Module) -> None:
    """Broadcast rank 0's buffers, such as BatchNorm's running statistics, which differ with each rank's samples.

    Every rank must call it before evaluations and checkpoints, which then depend on no copy. Stages are not changed.
    """
    if context.world_size == 1 or context.mesh.pp > 1:
        return
    for buffer in model.buffers():
        host = buffer.to("cpu", copy=True).contiguous()
        with communication("broadcast", host.nbytes, "control"):
            dist.broadcast(host, 0, group=context.control)
        buffer.copy_(host)

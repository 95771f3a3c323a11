"""A user's model whose ranks stop agreeing, or stop: what the tests of the live watch name as `model._target_`."""

import os
import signal
import time

import torch
import torch.distributed as dist
from torch import Tensor

from dtk.config.schema import GPTConfig
from dtk.models.gpt import GPT


class Hanging(GPT):
    """A tiny GPT that goes wrong in its n-th forward; says on stdout when."""

    def __init__(self, fault: str, rank: int = 1, forward: int = 4, seconds: float = 1e6) -> None:
        super().__init__(GPTConfig(name="hanging", vocab_size=256, context_length=64, layers=2, heads=2, width=32))
        self.fault = fault
        self.calls_left = forward
        self.seconds = seconds
        self.armed = int(os.environ.get("RANK", "0")) == rank

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls_left -= 1
        if self.calls_left == 0:
            print(f"planted at {time.time():.6f}", flush=True)
            getattr(self, self.fault)()
        return super().forward(tokens)

    def operation(self) -> None:
        """Another collective on one rank."""
        if self.armed:
            dist.broadcast(torch.zeros(8), 0)
        else:
            dist.all_reduce(torch.zeros(8))

    def size(self) -> None:
        """The same collective with another size: gloo may abort a rank for it."""
        dist.all_reduce(torch.zeros(64 if self.armed else 128))

    def extra(self) -> None:
        """A collective that only one rank calls."""
        if self.armed:
            dist.barrier()

    def reduce_op(self) -> None:
        """Nothing hangs here, and every number that follows is wrong."""
        dist.all_reduce(torch.zeros(8), op=dist.ReduceOp.MAX if self.armed else dist.ReduceOp.SUM)
        time.sleep(self.seconds)

    def sleep(self) -> None:
        """One rank's host is stuck."""
        if self.armed:
            time.sleep(self.seconds)

    def stop(self) -> None:
        """One rank's process stands still with all its threads."""
        if self.armed:
            os.kill(os.getpid(), signal.SIGSTOP)

    def work(self) -> None:
        """One rank is late for a good reason."""
        ends_s = time.monotonic() + (self.seconds if self.armed else 0)
        while time.monotonic() < ends_s:
            sum(i * i for i in range(10_000))

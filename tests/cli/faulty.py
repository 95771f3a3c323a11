"""A user's model that goes wrong on one rank: what the failure tests name as `model._target_`."""

import os
import signal

import torch
from torch import Tensor

from dtk.config.schema import GPTConfig
from dtk.models.gpt import GPT


class Faulty(GPT):
    """A tiny GPT that fails in its n-th forward on one rank, in one attempt only."""

    def __init__(self, fault: str, rank: int = 1, forward: int = 4, attempt: int = 0) -> None:
        super().__init__(GPTConfig(name="faulty", vocab_size=256, context_length=64, layers=2, heads=2, width=32))
        self.fault = fault
        self.calls_left = forward
        here = int(os.environ.get("RANK", "0")), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.armed = here == (rank, attempt)

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls_left -= 1
        if self.armed and self.calls_left == 0:
            self.fail()
        return super().forward(tokens)

    def fail(self) -> None:
        if self.fault == "raise":
            raise ValueError("bad batch")
        if self.fault == "out_of_memory":
            torch.empty(1 << 46, dtype=torch.uint8)  # No host has it, and a process could address it.
        if self.fault == "exit":
            os._exit(7)
        os.kill(os.getpid(), getattr(signal, self.fault))

"""Strategies of one process: `single`, the reference, and `dp`, nn.DataParallel."""

import torch
from torch import nn

from dtk.errors import DtkError
from dtk.strategies.base import Fill, Strategy, materialise
from dtk.strategies.declared import Collective


class Single(Strategy):
    """One process and one device; communicates nothing."""

    def wrap(self, model: nn.Module, fill: Fill) -> nn.Module:
        """Materialise the model on the device."""
        materialise(model, self.context.device, fill)
        return model

    def collectives(self, model: nn.Module, accumulation_steps: int) -> list[Collective]:
        """None."""
        return []


class DataParallel(Single):
    """nn.DataParallel: scatters each batch over the CUDA devices of this process.

    Its copies happen inside CUDA kernels of one process: there is no process group to declare.
    """

    def wrap(self, model: nn.Module, fill: Fill) -> nn.Module:
        """Materialise on the first device and replicate in every forward.

        Raises:
            DtkError: fewer than two CUDA devices.
        """
        if self.context.device.type != "cuda" or torch.cuda.device_count() < 2:
            raise DtkError(
                "strategy=dp needs at least two CUDA devices",
                f"this machine has {torch.cuda.device_count()}",
                "use strategy=ddp (or strategy=single for one device)",
            )
        return nn.DataParallel(super().wrap(model, fill))

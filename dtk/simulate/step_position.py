"""The current position in a step: the region, and the block of the model."""

import bisect
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from dtk.parallel.regions import Region

REGIONS = ("forward", "backward", "clip", "optimizer")
BEFORE = -1  # Number for positions outside of all blocks.


class Places:
    """The current position of this rank in its step."""

    def __init__(self) -> None:
        self.region = "set-up"
        self.in_loss = False  # Whether forward has finished and the loss is being computed.
        self.communicates = False
        self.micro_batch = -1
        self.entered: Any = None  # Called at the start of a region.
        self._block = BEFORE
        self._blocks = 0
        self._starts: list[int] = []
        self._end = 0

    def watch(self, blocks: Sequence[nn.Module], model: nn.Module | None) -> None:
        """Track these blocks in forward; `model` is the module that is called, None if no loss follows it."""
        self._blocks = len(blocks)
        for number, block in enumerate(blocks):
            block.register_forward_pre_hook(partial(self._begins, number))
        if blocks:
            blocks[-1].register_forward_hook(self._blocks_end)
        if model is not None:
            model.register_forward_hook(self._model_ends)

    def enter(self, region: Region) -> None:
        """Enter a region."""
        if region.op is not None:
            self.communicates = True
        elif region.name in REGIONS:
            self.region, self.in_loss = region.name, False
            self._block = self._blocks if region.name == "backward" else BEFORE
            if region.name == "forward":
                self.micro_batch += 1
                self._starts = []
            if self.entered is not None:
                self.entered()

    def exit(self, region: Region) -> None:
        """Leave a region; work after it still belongs to it."""
        if region.op is not None:
            self.communicates = False

    def now(self) -> tuple[str, int]:
        """Return region and block: BEFORE all of them, 0 ... L-1, or L after the last."""
        if self.region == "backward" and self._starts:
            node = torch._C._current_autograd_node()
            number = -1 if node is None else node._sequence_nr()
            if self._starts[0] <= number < self._end:
                self._block = bisect.bisect_right(self._starts, number) - 1
            elif 0 <= number < self._starts[0]:
                self._block = BEFORE
        return self.region, self._block

    def _begins(self, number: int, *_: Any) -> None:
        if self.region == "forward":
            self._block = number
            self._starts.append(torch._C._autograd._get_sequence_nr())

    def _blocks_end(self, *_: Any) -> None:
        if self.region == "forward":
            self._block = self._blocks
            self._end = torch._C._autograd._get_sequence_nr()

    def _model_ends(self, *_: Any) -> None:
        self.in_loss = self.in_loss or self.region == "forward"

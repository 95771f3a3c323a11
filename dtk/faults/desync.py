"""Faults in which ranks disagree about a collective: operation, shape, dtype, order, or an additional call."""

import datetime

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from dtk.data.dataset import Batch
from dtk.faults.base import FaultyLoop
from dtk.models.gpt import GPT
from dtk.parallel.control import Agreement
from dtk.train.loop import StepResult

NUMBERS = 1024  # Number of elements of the tensors that the faulty collectives exchange.


class ExtraCollective(FaultyLoop, name="extra_collective"):
    """One rank averages the loss for a message that only this rank prints."""

    def _log(self, result: StepResult) -> None:
        if self.strikes(self.state.step):
            mean = result.loss_sum.clone()
            dist.all_reduce(mean)  # fault: extra_collective
        super()._log(result)


class OtherOperation(FaultyLoop, name="other_operation"):
    """All ranks exchange statistics after the step, but one uses a different operation."""

    def _log(self, result: StepResult) -> None:
        if self.state.step == self.fault.step:
            statistics = torch.ones(NUMBERS)
            if self.context.rank == self.fault.rank:
                dist.broadcast(statistics, src=self.fault.rank)  # fault: other_operation
            else:
                dist.all_reduce(statistics)
        super()._log(result)


class OtherShape(FaultyLoop, name="other_shape"):
    """One rank reduces a tensor of a different length, as with a different batch size."""

    def _log(self, result: StepResult) -> None:
        if self.state.step == self.fault.step:
            length = NUMBERS // 2 if self.context.rank == self.fault.rank else NUMBERS
            dist.all_reduce(torch.ones(length))  # fault: other_shape
        super()._log(result)


class OtherDtype(FaultyLoop, name="other_dtype"):
    """One rank reduces in a different dtype, as with mixed precision enabled on that rank only."""

    def _log(self, result: StepResult) -> None:
        if self.state.step == self.fault.step:
            dtype = torch.float64 if self.context.rank == self.fault.rank else torch.float32
            dist.all_reduce(torch.ones(NUMBERS, dtype=dtype))  # fault: other_dtype
        super()._log(result)


class GroupOrder(FaultyLoop, name="group_order"):
    """Two groups with the same ranks, used in opposite order by even and odd ranks."""

    groups: tuple[dist.ProcessGroup, ...]

    def _prepare(self) -> None:
        timeout = datetime.timedelta(seconds=self.config.launcher.timeout_s)
        self.groups = tuple(dist.new_group(timeout=timeout, group_desc=desc) for desc in ("first", "second"))

    def _log(self, result: StepResult) -> None:
        if self.started(self.state.step):
            for group in self.groups if self.context.rank % 2 == 0 else self.groups[::-1]:
                dist.all_reduce(torch.ones(NUMBERS), group=group)  # fault: group_order
        super()._log(result)


class RecvBeforeSend(FaultyLoop, name="recv_before_send"):
    """A ring in which every rank waits for its neighbour before it sends."""

    def _log(self, result: StepResult) -> None:
        if self.started(self.state.step):
            rank, world_size = self.context.rank, self.context.world_size
            arriving = torch.empty(NUMBERS)
            dist.recv(arriving, src=(rank - 1) % world_size)  # fault: recv_before_send
            dist.send(torch.ones(NUMBERS), dst=(rank + 1) % world_size)
        super()._log(result)


class Branch(FaultyLoop, name="branch"):
    """Model A on odd ranks, model B on even ones: other parameters, and other collectives in the forward pass."""

    def _step(self, step: int, batches: list[Batch], agreement: Agreement) -> StepResult:
        if self.started(step + 1):
            self.parts.model.forward = self._forward
        return super()._step(step, batches, agreement)

    def _forward(self, tokens: Tensor) -> Tensor:
        model = self.parts.model
        assert isinstance(model, GPT)
        x = model.token_embedding(tokens) + model.position_embedding.weight[: tokens.shape[1]]
        *blocks, last = model.blocks
        for block in blocks:
            x = block(x)
        if self.context.rank % 2:
            mean = x.detach().mean((0, 1))
            dist.all_reduce(mean)  # fault: branch
            x = x - mean / self.context.world_size
        else:
            x = last(x)
        return F.linear(model.final_norm(x), model.token_embedding.weight)

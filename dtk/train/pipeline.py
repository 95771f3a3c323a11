"""Execution of the micro-batches of a step through the stages of a pipeline, in the order of its schedule. All ranks
of a pipeline read the same samples; they send each other only the residual stream and its gradient.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from dtk.data.dataset import Batch
from dtk.dimensions.cp import Part
from dtk.dimensions.pp import Messages, Shared, declare_messages
from dtk.parallel.control import sum_over_ranks
from dtk.parallel.pipeline import FREES, RECEIVES, SENDS, Action, Pipeline, forward_only
from dtk.parallel.regions import region
from dtk.sharding.base import Strategy
from dtk.sharding.declared import Collective
from dtk.tasks.base import Task, add_figures, loss_of, no_figures
from dtk.tasks.cross_entropy import auxiliary_loss, logits_of
from dtk.train.runner import ExpertLoads, Stage, own_part


@dataclass(slots=True)
class Clock:
    """Records when this rank computed in the last step. On CUDA it uses events, so that nothing synchronizes."""

    device: torch.device
    computed: list[tuple[Any, Any]] = field(default_factory=list)  # Start and end of each computation.
    step: tuple[Any, Any] = (0.0, 0.0)
    micro_batches: int = 1

    def now(self) -> Any:
        """Record the current time."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self) -> tuple[float, float]:
        """Return (seconds computed, seconds from the first start to the last end); synchronizes with the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return sum(map(self._between, self.computed)), self._between(self.step)

    def _between(self, mark: tuple[Any, Any]) -> float:
        return float(mark[0].elapsed_time(mark[1])) / 1e3 if self.device.type == "cuda" else float(mark[1] - mark[0])


@dataclass(slots=True)
class Pipelined:
    """Runs this rank's stages."""

    strategy: Strategy
    schedule: Callable[[int], Pipeline]
    """Returns the schedule for a number of micro-batches."""
    stages: Mapping[int, Stage]  # Those of this rank, by their index in the whole pipeline.
    messages: Messages
    stream: Callable[[torch.Size], tuple[int, ...]]
    """Maps the shape of token ids to the shape of the residual stream that a rank sends."""
    message_bytes: int  # Of the residual stream of one whole micro-batch.
    shared: Shared | None
    clock: Clock
    task: Task
    part: Part | None  # The tokens of each sequence that this rank has; None = all.
    loads: ExpertLoads | None = None

    def run(self, batches: Sequence[Batch], factor: float, seed: Callable[[int], None]) -> Tensor:
        """Run the schedule; see `Accumulate.run`. Gradients are communicated in the last backward of each stage."""
        schedule, clock = self.schedule(len(batches)), self.clock
        order = schedule.orders()[self.messages.axis.rank]
        last = {action.stage: action for action in order if action.kind in FREES}
        step = _Step(self, batches, schedule, factor)
        clock.computed.clear()
        clock.micro_batches = len(batches)
        if self.loads is not None:
            self.loads.counts.zero_()
        began = clock.now()
        for action in order:
            if step.transfers(action):
                continue
            arrived = step.arrived(action)
            begin = clock.now()
            name = "forward" if action.kind == "forward" else "backward"
            with region(name, stage=action.stage, micro_batch=action.micro_batch):
                if action.kind == "forward":
                    seed(action.micro_batch)
                    step.forward(action, arrived)
                else:
                    halves, ends = action.kind != "backward", last[action.stage] == action
                    with self.strategy.begin_backward(self.stages[action.stage].wrapped, ends, halves):
                        step.backward(action, arrived)
            clock.computed.append((begin, clock.now()))
        self.messages.flush()
        clock.step = began, clock.now()
        if self.shared is not None:
            self.shared.sum_gradients()
        return step.total

    def evaluate(self, batches: Iterable[Batch], collected: Mapping[str, Any] | None = None) -> Tensor:
        """Run the forward of each batch through all stages; only the last stage returns figures, the others zeros."""
        batches = list(batches)
        schedule = self.schedule(1)
        step = _Step(self, batches, schedule, 1.0)
        for stage in self.stages.values():
            stage.model.eval()
        for action in forward_only(schedule, len(batches))[self.messages.axis.rank]:
            if not step.transfers(action):
                step.evaluate(action, step.arrived(action))
        self.messages.flush()
        for stage in self.stages.values():
            self.strategy.release(stage.model)
            stage.model.train()
        return step.figures

    def collectives(self, accumulation_steps: int, clips: bool) -> list[Collective]:
        """Return the collectives of the strategy for each stage, the messages, and the sum of shared gradients."""
        rank = self.messages.axis.rank
        order = self.schedule(accumulation_steps).orders()[rank]
        declared = declare_messages(order, self.message_bytes)
        for number, stage in self.stages.items():
            declared += self.strategy.collectives(stage.model, accumulation_steps, clips and number == min(self.stages))
            declared += stage.declare(accumulation_steps)
        return [*declared, *(self.shared.declare() if self.shared else ())]

    def figures(self) -> dict[str, float | list[float]]:
        """Return the idle share of the last step, averaged over ranks, and the ideal one.

        pipeline_busiest is the `pp` coordinate that computed longest, pipeline_imbalance its time over the mean.
        """
        context, axis = self.strategy.context, self.messages.axis
        of_place = torch.zeros(axis.size + 1, dtype=torch.float64)
        of_place[axis.rank], of_place[-1] = self.clock.seconds()
        *computed_s, step_s = sum_over_ranks(context, of_place).tolist()
        return {
            "pipeline_bubble": 1 - sum(computed_s) / max(step_s, 1e-9),
            "pipeline_bubble_ideal": self.schedule(self.clock.micro_batches).ideal_bubble,
            "pipeline_busiest": computed_s.index(max(computed_s)),
            "pipeline_imbalance": max(computed_s) * axis.size / max(sum(computed_s), 1e-9),
            **(self.loads.figures() if self.loads is not None else {}),
        }


class _Step:
    """State of a rank while the micro-batches of one step are in flight."""

    def __init__(self, runner: Pipelined, batches: Sequence[Batch], pipeline: Pipeline, factor: float) -> None:
        device = runner.strategy.context.device
        self.runner, self.pipeline, self.factor = runner, pipeline, factor
        self.last_stage = pipeline.stages - 1
        own = [own_part(runner.part, batch, device) for batch in batches]
        self.on_host, self.where = [batch for batch, _ in own], [where for _, where in own]
        self.batches = [batch.to(device) for batch in self.on_host]
        self.total = torch.zeros((), device=device)
        self.figures = no_figures(runner.task, device)
        self.results: dict[tuple[bool, int, int], Tensor] = {}
        """(whether forward, stage that needs it, micro-batch) -> residual stream or its gradient."""
        self.expected: dict[tuple[bool, int, int], tuple[Tensor, dist.Work]] = {}
        self.saved: dict[tuple[int, int], tuple[Tensor | None, list[Tensor]]] = {}
        """(stage, micro-batch) -> its input, and its output or loss plus an auxiliary loss, kept until the backward."""
        self.split: dict[tuple[int, int], list[dict[str, Any]]] = {}
        """(stage, micro-batch) -> what the input-gradient pass saves for the weight-gradient pass."""

    def transfers(self, action: Action) -> bool:
        """Send a result or post a receive; return whether the action is a transfer."""
        kind, stage, micro_batch = action
        if kind in SENDS:
            forward = kind == "send_forward"
            to = stage + 1 if forward else stage - 1
            self.runner.messages.send(self.results.pop((forward, to, micro_batch)), self.pipeline.rank_of(to))
        elif kind in RECEIVES:
            forward = kind == "receive_forward"
            shape = self.runner.stream(self.batches[micro_batch].inputs.shape)
            buffer = torch.empty(shape, dtype=self.runner.strategy.stream_dtype, device=self.total.device)
            source = self.pipeline.rank_of(stage - 1 if forward else stage + 1)
            self.expected[forward, stage, micro_batch] = buffer, self.runner.messages.expect(buffer, source)
        return kind in (*SENDS, *RECEIVES)

    def arrived(self, action: Action) -> Tensor | None:
        """Wait for the neighbour's tensor that a computation needs, and return it; None if it needs none."""
        key = action.kind == "forward", action.stage, action.micro_batch
        if key in self.expected:
            buffer, work = self.expected.pop(key)
            self.runner.messages.wait(buffer, work)
            return buffer
        return self.results.pop(key, None)

    def forward(self, action: Action, stream: Tensor | None) -> None:
        """Run the forward of a stage; the last stage computes the loss."""
        stage, strategy = self.runner.stages[action.stage], self.runner.strategy
        batch = self.batches[action.micro_batch]
        if stream is not None:
            stream.requires_grad_()
        with strategy.accumulate(stage.wrapped, last=False), strategy.autocast():
            output = stage.wrapped(batch.inputs, stream=stream, **self.where[action.micro_batch])
            more = [] if (auxiliary := auxiliary_loss(output)) is None else [auxiliary * self.factor]
            if self.runner.loads is not None:
                self.runner.loads.add(output, stage.first_block)
            if action.stage == self.last_stage:
                loss = loss_of(self.runner.task, output, batch.targets)
                self.total += loss.detach()
                sent = sum(more, loss * self.factor)
            else:
                sent = logits_of(output)
        self.saved[action.stage, action.micro_batch] = stream, [sent, *(more if action.stage < self.last_stage else ())]
        if action.stage < self.last_stage:
            self.results[True, action.stage + 1, action.micro_batch] = sent.detach()

    def backward(self, action: Action, gradient: Tensor | None) -> None:
        """Compute the input and weight gradients, or only the one that the action names."""
        kind, number, micro_batch = action
        key = number, micro_batch
        model = self.runner.stages[number].model
        stream, outputs = self.saved[key]
        incoming = None if gradient is None else [gradient, *map(torch.ones_like, outputs[1:])]
        if kind == "input_gradient" and stream is None:
            # The first stage has no input gradient: its whole backward runs with the weight gradients.
            if gradient is not None:
                self.results[False, number, micro_batch] = gradient
            return
        if kind == "input_gradient":
            self.split[key] = stage_backward_input(outputs, incoming, [stream], model.parameters())[1]
        elif kind == "weight_gradient" and stream is not None:
            stage_backward_weight(model.parameters(), self.split.pop(key))
        else:
            torch.autograd.backward(outputs, incoming)
        if kind != "input_gradient":
            del self.saved[key]
        if kind != "weight_gradient" and stream is not None:
            assert stream.grad is not None
            self.results[False, number - 1, micro_batch], stream.grad = stream.grad, None

    def evaluate(self, action: Action, stream: Tensor | None) -> None:
        """Run a stage without gradients."""
        stage, batch = self.runner.stages[action.stage], self.batches[action.micro_batch]
        with self.runner.strategy.autocast():
            output = stage.model(batch.inputs, stream=stream, **self.where[action.micro_batch])
        if action.stage == self.last_stage:
            count = self.runner.task.count(self.on_host[action.micro_batch].targets)
            add_figures(self.figures, self.runner.task, output, batch, count)
        else:
            self.results[True, action.stage + 1, action.micro_batch] = output

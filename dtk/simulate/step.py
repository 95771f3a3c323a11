"""The real set-up and step of one rank on fake tensors: what each part of the second step held."""

import dataclasses
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parallel import DistributedDataParallel

from diagnostics.contract.artifacts import RunPaths
from dtk.config.schema import Config, CustomData, RecordConfig, SyntheticData
from dtk.data.build import build_dataset
from dtk.data.dataset import Batch, Dataset, SyntheticDataset
from dtk.models.build import build_on_meta
from dtk.parallel import regions
from dtk.parallel.blocks import blocks_of
from dtk.parallel.context import Context
from dtk.parallel.control import Agreement
from dtk.parallel.ddp_hooks import POWERSGD_START
from dtk.parallel.stop import StopRequest
from dtk.record.recorder import Recorder
from dtk.sharding.base import local, owned_state
from dtk.sharding.registry import NATIVE
from dtk.simulate.data_dependence import check_answer, check_gradients, explained
from dtk.simulate.ledger import ByCategory, Ledger, highest
from dtk.simulate.mirror import MirrorGroup, simulated_group
from dtk.simulate.step_position import Places
from dtk.simulate.torch_internals import Reducer, check_torch, propagation_ignored, undisturbed
from dtk.tasks.base import leaves
from dtk.tasks.cross_entropy import logits_of
from dtk.train.assemble import assemble
from dtk.train.loop import Loop
from dtk.train.pipeline import Pipelined
from dtk.train.setup import Parts, set_up

MICRO_BATCHES = 3
"""Limit of simulated micro-batches: the first, one that only accumulates, and the last. All others are alike."""
OWN_GRADIENTS = "own gradients"
"""Category of `.grad` of this rank's parameters; other gradients are whole ones on their way into a reduction."""


@dataclass(frozen=True, slots=True)
class Call:
    """A collective of the step."""

    op: str
    group: str
    """Purpose of the group: `mesh_dp_shard`, `control`; `default_pg` has all ranks."""
    ranks: tuple[int, ...]
    size_bytes: int
    """Bytes of the full buffer on this rank."""
    micro_batch: int
    dimension: str = ""
    """Dimension named by the surrounding region, as torch may share a group between dimensions with equal ranks."""


@dataclass(slots=True)
class Observed:
    """One rank's second step."""

    rank: int
    parameters: int
    parts: dict[tuple[str, str], ByCategory]
    """(region, part of the model) -> what was held at the peak there."""
    calls: list[Call]
    micro_batches: int
    """Number of simulated micro-batches."""
    loads: list[int] = field(default_factory=list)
    """Elements whose optimizer state each rank owns, if whole parameters are assigned to ranks (ZeRO-1)."""
    classes: int = 0
    """Logits per position: the last dimension of the model's output."""


def simulate_step(config: Config, rank: int, world_size: int, local_size: int, edge: int) -> Observed:
    """Set up one rank, run steps until all states exist, and observe the next one (usually the second).

    `edge` blocks at both ends of the model are parts of their own. DtkError if it reads values or cannot be simulated.
    """
    train, strategy = dataclasses.replace(config.train, compile=False), config.strategy.in_memory()
    off = RecordConfig(level="off")
    config = dataclasses.replace(config, record=off, train=train, strategy=strategy, engine=NATIVE, callbacks=[])
    check_torch()
    run = _Run(config, edge)
    group = simulated_group(rank, world_size, local_size, run.hear, config.mesh(world_size))
    with undisturbed(), explained(run.named), group as context:
        return run.observe(context)


class _Run:
    def __init__(self, config: Config, edge: int) -> None:
        self.config = config
        self.edge = edge
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.places = Places()
        self.ledger = Ledger(self.places.now, self._guess)
        self.calls: list[Call] = []
        self.modes = ExitStack()
        self.named = f"model={config.model.name}"
        self.gradients = GradientWatch(lambda tensors: self.ledger.mark(tensors, "gradients", weak=True))
        self.parts: Parts  # Set after the set-up.
        self.data: Dataset | None = None  # The user's object, if it creates the batches.
        self.answers: nn.Module | None = None  # Input of the loss, if it is computed on this rank.
        self._logits = 0
        self._classes = 0
        self._members: dict[int, tuple[int, ...]] = {}

    def hear(self, op: str, group: MirrorGroup, buffers: list[Tensor]) -> None:
        """Record a collective, except those by which DDP agrees on its buckets, which are not part of a step."""
        if self.ledger.host_numbers:
            return
        ranks = self._members.get(id(group))
        if ranks is None:
            ranks = self._members[id(group)] = tuple(dist.get_process_group_ranks(group))
        size = sum(tensor.nbytes for tensor in buffers)
        region = regions.current()
        dimension = region.group if region is not None and region.op == op else ""
        self.calls.append(Call(op, group.group_desc, ranks, size, self.places.micro_batch, dimension))
        self.ledger.mark(buffers, "buckets", weak=True)

    def observe(self, context: Context) -> Observed:
        """Simulate the step and return what was observed; the steps before it only create what persists."""
        with self.modes:
            regions.observe([self.places])  # strategies mark their collectives only when somebody listens
            self.ledger.host_numbers = True
            parts = set_up(self.config, context, make=self._make, fill=lambda model, config: None)
            self.ledger.host_numbers = False
            self.parts = parts
            with torch.no_grad(), self.ledger.pause:
                tensors = [*parts.model.parameters(), *parts.model.buffers()]
                self.ledger.mark([local(tensor) for tensor in tensors], "parameters")
            if not self.config.task._target_ and context.mesh.pp == 1:
                parts.model.register_forward_hook(lambda model, _, output: check_answer(self.named, model, output))
            blocks = blocks_of(parts.model)
            # In a pipeline the last stage has the loss, and all micro-batches are in flight together.
            stages = parts.runner.stages if isinstance(parts.runner, Pipelined) else {}
            called = [stage.wrapped for stage in stages.values()] or [parts.wrapped]
            ends = max(stages, default=0) == self.config.parallel.pipeline(1).stages - 1
            self.answers = called[-1] if ends else None
            self.places.watch(blocks, self.answers)
            for wrapped in called:
                wrapped.register_forward_hook(self._answered)
                if isinstance(wrapped, DistributedDataParallel):
                    wrapped.reducer = cast(Any, Reducer(wrapped.reducer, self.ledger))
            loop = self._loop(context, parts)
            count = self.config.batch_plan(context.world_size).accumulation_steps
            count = count if stages else min(MICRO_BATCHES, count)
            self.places.entered = self.ledger.touch
            regions.observe([self.places, self])
            # The first step, of one micro-batch, creates the optimizer's states and DDP's buckets; the first that
            # compresses creates PowerSGD's factors.
            compresses = getattr(self.config.strategy, "communication_hook", "none") == "powersgd"
            before = POWERSGD_START + 1 if compresses else 1
            for step in range(before):
                self._step(loop, step, 1)
            begin = len(self.ledger.events)
            self.calls.clear()
            self._step(loop, before, count)
            # ZeRO-1 assigns whole parameters to ranks.
            shares: list[Any] = getattr(parts.optimizer, "_partition_parameters", list)()
            return Observed(
                context.rank,
                parts.parameter_count,
                highest(self.ledger.events, begin, self.ledger.category, partial(self._part, len(blocks))),
                self.calls,
                count,
                [sum(p.numel() for group in share for p in group["params"]) for share in shares],
                self._classes,
            )

    def enter(self, region: regions.Region) -> None:
        """Do nothing at the start of a region."""

    def exit(self, region: regions.Region) -> None:
        """Set the category of gradients after backward, and of optimizer states after the optimizer."""
        if region.name not in ("backward", "optimizer"):
            return
        with torch.no_grad(), self.ledger.pause:
            if region.name == "backward":
                grads = [p.grad for p in self.parts.model.parameters() if p.grad is not None]
                self.ledger.mark([local(grad) for grad in grads], OWN_GRADIENTS)
            states = [value for state in owned_state(self.parts.optimizer).values() for value in state.values()]
            self.ledger.mark([local(state) for state in states if isinstance(state, Tensor)], "optimizer states")

    def _step(self, loop: Loop, step: int, count: int) -> None:
        self.places.micro_batch = -1
        with self.ledger.pause:
            batches = [self._batch() for _ in range(count)]
        try:
            loop._step(step, batches, Agreement(torch.zeros(3, dtype=torch.int64), None))
        except RuntimeError as error:
            check_gradients(self.named, loop.parts.model, error)
            raise

    def _batch(self) -> Batch:
        train, data = self.config.train, self.config.data
        if isinstance(data, CustomData):
            self.data = self.data or build_dataset(data, self.config.allow_targets)
            return self.data.train(np.arange(train.micro_batch_size) % self.data.train_size)
        inputs = torch.zeros(train.micro_batch_size, data.sequence_length, dtype=torch.int64)
        return Batch(inputs, inputs[:, 0] if data.name == "classification" else torch.zeros_like(inputs))

    def _make(self, config: Config) -> nn.Module:
        """Build the model on the meta device; tensors become fake when it gets memory."""
        self.modes.close()  # Parameters of the previous stage.
        model = build_on_meta(config.model, config.allow_targets)
        to_empty = model.to_empty

        def materialise(**arguments: Any) -> nn.Module:
            del model.to_empty
            self.modes.enter_context(self.fake)
            self.modes.enter_context(propagation_ignored(self.ledger))
            self.modes.enter_context(self.ledger)
            return to_empty(**arguments)

        model.to_empty = materialise  # type: ignore[method-assign]
        return model

    def _loop(self, context: Context, parts: Parts) -> Loop:
        config, paths = self.config, RunPaths(Path(os.devnull))
        place = context.rank, context.local_rank, context.node_rank, context.world_size
        recorder = Recorder(config, paths, *place, 0, context.device)
        data = SyntheticDataset(SyntheticData(sequence_length=config.data.sequence_length, validation_fraction=0.0))
        return assemble(config, context, paths, recorder, StopRequest(), built=(data, parts))

    def _guess(self, tensor: Tensor) -> str:
        region = self.places.region
        if self.ledger.host_numbers or self.places.communicates:  # DDP's buckets are made in set-up
            return "buckets"
        if region == "forward":
            return "logits" if self.places.in_loss else "activations"
        if region == "backward":
            return "logits" if tensor.numel() == self._logits else "activations"
        return "temporaries"

    def _answered(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if module is not self.answers:
            self.gradients.follow(logits_of(output))
            return
        logits = max(leaves(output), key=Tensor.numel) if self.config.task._target_ else logits_of(output)
        self._logits, self._classes = logits.numel(), logits.shape[-1]
        self.ledger.mark([logits], "logits")
        self.gradients.follow(logits)

    def _part(self, blocks: int, place: tuple[str, int]) -> tuple[str, str]:
        region, block = place
        if block < self.edge:
            return region, f"block {block}"
        return region, f"block L{block - blocks:+}" if block >= blocks - self.edge else "between"


class GradientWatch:
    """Reports every tensor that is, or becomes, the gradient of a parameter."""

    def __init__(self, report: Callable[[Iterable[Tensor]], None]) -> None:
        self.report = report
        self._handles: list[Any] = []

    def follow(self, output: Tensor) -> None:
        """Watch the graph behind a result until the next one is followed."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        stack, visited = [output.grad_fn], set()
        while stack:
            node: Any = stack.pop()
            if node is None or node in visited:
                continue
            visited.add(node)
            nexts = [following for following, _ in node.next_functions]
            if leaves := [i for i, following in enumerate(nexts) if _is_leaf(following)]:
                self._handles.append(node.register_hook(partial(self._handed_over, leaves, len(nexts) == 1)))
            if _is_leaf(node):
                self._handles.append(node.register_prehook(partial(self._handed_over, None, False)))
            stack += nexts

    def _handed_over(self, leaves: list[int] | None, alone: bool, given: Any, taken: Any = ()) -> None:
        """Report the gradients that a node passes to `leaves`, or all that flow into a leaf (None)."""
        present = [g for i, g in enumerate(given) if g is not None and (leaves is None or i in leaves)]
        if alone and present:  # A cast or a view of one parameter: also the node's incoming and outgoing gradients.
            present += [g for g in taken if g is not None and g.numel() == present[0].numel()]
        self.report(present)


def _is_leaf(node: Any) -> bool:
    return type(node).__name__ == "AccumulateGrad"

"""One rank of a dtk job, run by the code of a real worker without samples, initial values and files."""

import dataclasses
import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp._fully_shard import _fsdp_param

from diagnostics.contract.artifacts import RunPaths
from dtk.config.schema import Config
from dtk.data.build import build_dataset
from dtk.data.dataset import Batch, Dataset
from dtk.models.build import build_on_meta
from dtk.parallel.regions import observe, region
from dtk.parallel.stop import StopRequest
from dtk.preflight.evidence import NOWHERE
from dtk.preflight.exchange import SimulatedRank
from dtk.record.recorder import Recorder
from dtk.sharding.registry import NATIVE, one_device
from dtk.simulate.mirror import simulated_group
from dtk.simulate.step_position import Places
from dtk.train import assemble, loop, setup
from dtk.train.assemble import summarise
from dtk.train.checkpoint import Checkpoints, LoopState

SAMPLES = 1 << 20  # Samples of the placeholder data: more than any simulation uses.
LARGE = 4_000_000  # dtk's own models with more parameters are narrowed.
HEAD_WIDTH, SEQUENCE = 8, 32  # Head width of the narrowed models; maximum number of tokens per sample.


def simulated_config(config: Config, steps: int) -> Config:
    """Return a configuration of at least `steps` steps, with all that happens in the run, and the fault's step."""
    steps = max(steps, int(getattr(config.fault, "step", 0)) + 1)
    config = _reduced(config)
    # In one process: its copies are created inside, without a process group.
    alone = config.strategy.traits.one_process
    config = dataclasses.replace(config, strategy=one_device() if alone else config.strategy.in_memory())
    train = dataclasses.replace(config.train, steps=steps, compile=False, garbage_collect_every=0)
    schedule = dataclasses.replace(config.schedule, warmup_steps=0)
    return dataclasses.replace(config, train=train, schedule=schedule, resume=None, engine=NATIVE)


def _reduced(config: Config) -> Config:
    """Shorten samples and narrow large models of dtk: the same blocks, units and calls, but less work."""
    model, strategy = config.model, config.strategy
    if model.architecture == "custom":
        return config
    divided = 2 * config.parallel.cp * config.parallel.tp
    length = min(config.data.sequence_length, -(-SEQUENCE // divided) * divided)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, sequence_length=length))

    def size(model: Any) -> int:
        return sum(p.numel() for p in build_on_meta(model, config.allow_targets).parameters())

    if size(model) <= LARGE:
        return config
    width = HEAD_WIDTH * model.heads
    sizes = {"width": width, "vocab_size": min(model.vocab_size, 512), "pretrained": None}
    sizes |= {"context_length": min(model.context_length, length), "ffn_width": 2 * width, "expert_width": HEAD_WIDTH}
    narrow = dataclasses.replace(model, **{key: value for key, value in sizes.items() if hasattr(model, key)})
    if strategy.traits.gradients_in == "buckets":  # As many buckets as before.
        ratio = size(narrow) / size(model)
        strategy = dataclasses.replace(strategy, bucket_cap_mb=strategy.bucket_cap_mb * ratio)
    return dataclasses.replace(config, model=narrow, strategy=strategy)


def play_job(config: Config, local_size: int, resumes: int = -1) -> Callable[[SimulatedRank], None]:
    """Return what a simulated rank runs; the rank `resumes` alone continues from a checkpoint of step 1 (-1 = none)."""

    def play(simulated: SimulatedRank) -> None:
        gc.disable()  # The process ends before it would need them.
        observe([Places()])  # Regions are tracked only while a listener exists: each call records its region.
        rank = simulated.exchange.rank
        with (
            _outside_replaced(config),
            simulated_group(rank, simulated.world_size, local_size, mesh=config.mesh(simulated.world_size)) as context,
        ):
            recorder = _Recorder(config, simulated, context.local_rank, context.node_rank)
            checkpoint = NOWHERE / "step_1" if rank == resumes else None
            built = assemble.assemble(config, context, RunPaths(NOWHERE), recorder, StopRequest(), checkpoint)
            if config.fault.name != "none":
                from dtk.faults.install import install

                built = install(built)
            built.run()
            summarise(built, built.dataset)

    return play


class _Recorder(Recorder):
    """Recorder that writes nothing and only tracks the step."""

    def __init__(self, config: Config, simulated: SimulatedRank, local_rank: int, node_rank: int) -> None:
        silent = dataclasses.replace(config, record=dataclasses.replace(config.record, level="off"))
        rank, world_size = simulated.exchange.rank, simulated.world_size
        cpu = torch.device("cpu")
        super().__init__(silent, RunPaths(NOWHERE), rank, local_rank, node_rank, world_size, 0, cpu)
        self.simulated = simulated

    def begin_step(self, step: int) -> None:
        self.simulated.step = step
        self.simulated.rounds += 1
        self.simulated.log.begin_step(step)


class _Data(Dataset):
    """Samples of the right shape."""

    def __init__(self, config: Config) -> None:
        self.length = config.data.sequence_length
        self.vocab_size = config.model.vocab_size
        self.classes = getattr(config.model, "classes", None)
        self.train_size = SAMPLES
        self.validation_size = SAMPLES // 16 if config.data.validation_fraction else 0
        self.fixed_targets = None if self.classes else self.length

    def batch(self, numbers: np.ndarray) -> Batch:
        shape = (len(numbers), self.length)
        targets = torch.zeros(shape[:1] if self.classes else shape, dtype=torch.int64)
        return Batch(torch.zeros(shape, dtype=torch.int64), targets)

    def about(self) -> dict[str, Any]:
        return {"synthetic": True}


class _Checkpoints(Checkpoints):
    """The collectives of a checkpoint without its files: those of the strategy and of torch.distributed.checkpoint."""

    def save(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, loop: LoopState, more: Mapping[str, Any] | None = None
    ) -> None:
        self.wait()
        if loop.step == self.saved_step:
            return
        self.saved_step = loop.step
        with region("checkpoint"):
            self._agree(len(self.strategy.entries(model, optimizer)) + len(loop.tensors()))
        self._written = True

    def wait(self) -> None:
        if self._written:
            self._written = False
            dist.barrier(group=self.group)

    def clean(self) -> None:
        dist.barrier(group=self.group)

    def load(self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> LoopState:
        with region("checkpoint"):
            self._agree(len(self.strategy.outline(model)))
        self.saved_step = int(folder.name.rpartition("_")[2])
        return LoopState(self.saved_step)

    _written = False

    def _agree(self, entries: int) -> None:
        plans: list[Any] | None = [None] * self.context.world_size if self.context.rank == 0 else None
        dist.gather_object(entries, plans, dst=0, group=self.group)
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, plans, src=0, group=self.group)
        dist.gather_object(entries, plans, dst=0, group=self.group)


def _fill(model: nn.Module, config: Config) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            getattr(parameter, "_local_tensor", parameter).fill_(0.01)


@contextmanager
def _outside_replaced(config: Config) -> Iterator[None]:
    """Replace the parts with external effects while the context is open."""
    data = build_dataset if config.data.name == "custom" else lambda *_: _Data(config)
    with ExitStack() as stack:
        for module, name, other in (
            (assemble, "build_dataset", data),
            (assemble, "Checkpoints", _Checkpoints),
            (setup, "_fill", _fill),
            (loop, "print_line", lambda _: None),
            (_fsdp_param, "_chunk_with_empty", _Chunks),
        ):
            if hasattr(module, name):
                stack.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, other)
        yield


class _Chunks:
    """Lazy version of FSDP2's list of chunks, which holds a tensor for each rank and parameter."""

    def __init__(self, tensor: Tensor, chunks: int, dim: int) -> None:
        self.tensor = tensor
        self.dim = dim
        self.count = chunks

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        """Return one rank's chunk: an equal part, the remainder, or nothing (then one-dimensional, as in torch)."""
        length = self.tensor.size(self.dim)
        share = -(-length // self.count)
        start = index * share
        if index and start >= length:
            return self.tensor.new_empty(0)
        return self.tensor.narrow(self.dim, start, min(share, length - start))


def warm_up(config: Config, world_size: int, local_size: int) -> None:
    """Fill torch's caches in this process, so that all forked ranks inherit them.

    Runs set-up and a step of rank 0 without forward and backward, after which no fork is possible; ranks report errors.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # torch's threads do not survive a fork.
    with (
        suppress(Exception),
        _outside_replaced(config),
        simulated_group(0, world_size, local_size, mesh=config.mesh(world_size)) as context,
    ):
        parts = setup.set_up(config, context)
        parameters = [parameter for parameter in parts.model.parameters() if parameter.requires_grad]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        parts.strategy.scale_gradients(parameters, parts.strategy.gradient_norm(parameters))
        parts.optimizer.step()
        parts.optimizer.zero_grad(set_to_none=True)
    torch.set_num_threads(threads)

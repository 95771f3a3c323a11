"""The sides of the step-time benchmark: the same training step written five ways.

Every side trains the same model from the same weights on the same samples with AdamW and clipping
by the global norm, and reads the loss back every LOG_EVERY steps, as the others do.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from diagnostics.contract.artifacts import RunPaths
from dtk.config.schema import Config, RecordConfig
from dtk.data.build import build_dataset
from dtk.models.build import build_model
from dtk.models.initialize import initialize
from dtk.parallel import regions
from dtk.parallel.context import Context
from dtk.parallel.stop import StopRequest
from dtk.record.recorder import Recorder
from dtk.train.assemble import assemble

Step = Callable[[], None]


def dtk_side(level: str, config: Config, context: Context, folder: Path) -> Step:
    """Return the step function of dtk's real loop at a record level."""
    config = dataclasses.replace(config, record=RecordConfig(level=level))
    paths = RunPaths(folder / level)
    recorder = Recorder(config, paths, context.rank, context.local_rank, 0, context.world_size, 0, context.device)
    recorder.start()
    loop = assemble(config, context, paths, recorder, StopRequest())
    loop.measures.start()
    observers = regions._observers
    regions.observe(())

    def step() -> None:
        # Sides share one process: only the side that runs is observed.
        regions.observe(observers)
        loop.advance()
        regions.observe(())

    return step


def _model(config: Config, device: torch.device) -> torch.nn.Module:
    with torch.device("meta"):
        model = build_model(config.model, [])
    model.to_empty(device=device)
    return fill(model, config)


def fill(model: torch.nn.Module, config: Config) -> torch.nn.Module:
    """Fill the model with the initial weights that every side shares."""
    for name, parameter in model.named_parameters():
        initialize(parameter, name, model.initial(name), config.seed)
    return model


def plain_side(config: Config, context: Context) -> Step:
    """Return the step function of a handwritten loop: DDP or fully_shard, AdamW and clip_grad_norm_."""
    if config.strategy.name == "ddp":
        model: Any = DistributedDataParallel(_model(config, context.device), gradient_as_bucket_view=True)
    else:
        mesh = init_device_mesh(context.device.type, (context.world_size,))
        with torch.device("meta"):
            model = build_model(config.model, [])
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model.to_empty(device=context.device)
        fill(model, config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.optimizer.lr, betas=(0.9, 0.95), fused=True)
    batches = Batches(config, context)

    def step() -> None:
        loss = torch.zeros(())
        for inputs, targets in batches.next():
            loss = _loss(model(inputs), targets) / batches.rounds
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        batches.read_back(loss)

    return step


def accelerate_side(config: Config, context: Context) -> Step:
    """Hugging Face Accelerate on the same process group."""
    from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin

    plugin = None
    if config.strategy.name == "fsdp":
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"]
        )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    if plugin is not None:
        # Accelerate falls back to DDP on the CPU without a word; its FSDP2 code itself runs there.
        accelerator.state._shared_state["distributed_type"] = DistributedType.FSDP
        accelerator.state._shared_state["fsdp_plugin"] = plugin
    model = _model(config, context.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.optimizer.lr, betas=(0.9, 0.95), fused=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    if plugin is not None and not all(hasattr(p, "full_tensor") for p in model.parameters()):
        raise RuntimeError("Accelerate did not shard the model: this would not be the same work")
    batches = Batches(config, context)

    def step() -> None:
        loss = torch.zeros(())
        for inputs, targets in batches.next():
            loss = _loss(model(inputs), targets) / batches.rounds
            accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        batches.read_back(loss)

    return step


def fabric_side(config: Config, context: Context) -> Step:
    """Lightning Fabric on the same process group."""
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy, ModelParallelStrategy

    def shard(model: torch.nn.Module, mesh: Any) -> torch.nn.Module:
        for block in model.blocks:  # type: ignore[union-attr]
            fully_shard(block, mesh=mesh["data_parallel"])
        return fully_shard(model, mesh=mesh["data_parallel"])

    if config.strategy.name == "ddp":
        strategy: Any = DDPStrategy(gradient_as_bucket_view=True)
    else:
        strategy = ModelParallelStrategy(shard, data_parallel_size=context.world_size, tensor_parallel_size=1)
    fabric = Fabric(accelerator="cpu", devices=context.world_size, strategy=strategy)
    fabric.launch()
    model = fabric.setup_module(_model(config, context.device))
    optimizer = fabric.setup_optimizers(
        torch.optim.AdamW(model.parameters(), lr=config.optimizer.lr, betas=(0.9, 0.95), fused=True)
    )
    batches = Batches(config, context)

    def step() -> None:
        loss = torch.zeros(())
        for inputs, targets in batches.next():
            loss = _loss(model(inputs), targets) / batches.rounds
            fabric.backward(loss)
        if config.strategy.name == "ddp":
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        batches.read_back(loss)

    return step


def _loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), targets.reshape(-1))


class Batches:
    """Random windows of the same corpus, as a short hand-written loop would take them."""

    def __init__(self, config: Config, context: Context) -> None:
        self.config = config
        self.dataset = build_dataset(config.data)
        self.generator = np.random.default_rng(context.rank)
        self.rounds = config.train.global_batch_size // (config.train.micro_batch_size * context.world_size)
        self.step = 0

    def next(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the micro-batches of one step."""
        draw = functools.partial(self.generator.integers, 0, self.dataset.train_size)
        batches = [self.dataset.train(draw(self.config.train.micro_batch_size)) for _ in range(self.rounds)]
        return [(batch.inputs, batch.targets) for batch in batches]

    def read_back(self, loss: torch.Tensor) -> None:
        """Reduce the loss over all ranks and read it on the host, every `log_every` steps."""
        self.step += 1
        if self.step % self.config.train.log_every == 0:
            value = loss.detach().clone()
            dist.all_reduce(value)
            value.item()


SIDES: dict[str, Callable[[Config, Context, Path], Step]] = {
    "plain": lambda config, context, folder: plain_side(config, context),
    "dtk off": lambda config, context, folder: dtk_side("off", config, context, folder),
    "dtk light": lambda config, context, folder: dtk_side("light", config, context, folder),
    "accelerate": lambda config, context, folder: accelerate_side(config, context),
    "fabric": lambda config, context, folder: fabric_side(config, context),
}

"""The instant engine: a job's memory and traffic from formulas, for any number of ranks. See docs/plan_formulas.md.

Makes no process group and no tensor with memory. Knows dtk's own architectures; a model of the user's own is the
simulated engine's business.
"""

import dataclasses
from collections.abc import Iterator

from dtk.config.schema import Config
from dtk.plan.formulas.activations import Numbers
from dtk.plan.formulas.holding import Holding
from dtk.plan.formulas.ledger import Ledger
from dtk.plan.formulas.replication import Replicated
from dtk.plan.formulas.shape import ModelShape, model_shape
from dtk.plan.formulas.sharding import Sharded, shard_units
from dtk.plan.formulas.stretch import Stretch, micro_batches, stretch
from dtk.plan.formulas.tape import Tape
from dtk.plan.formulas.traffic import traffic
from dtk.plan.formulas.transformer import Model
from dtk.plan.formulas.walk import Step
from dtk.plan.prediction import Memory, Prediction
from dtk.strategies.declared import ITEM_BYTES

_CUDA_BLOCK_BYTES = 512
"""What CUDA's caching allocator rounds to."""


def closed_form(config: Config, world_size: int, local_size: int = 8) -> Prediction:
    """Predict memory and traffic of one job without running anything.

    Args:
        config: checked, its micro-batch settled for `world_size`. CUDA's kernels are counted where `launcher.device`
            is cuda, else the CPU's.
        world_size: ranks over all nodes.
        local_size: consecutive ranks of one node.

    Raises:
        DtkError: `model.architecture=custom`.
    """
    shape = model_shape(config.model)
    return Prediction(
        engine="closed_form",
        strategy=config.strategy.name,
        model=config.model.name,
        parameters=shape.parameters,
        world_size=world_size,
        global_batch_size=config.train.global_batch_size,
        micro_batch_size=config.train.micro_batch_size,
        sequence_length=config.data.sequence_length,
        memory=memory(config, world_size),
        traffic=traffic(config, shape, world_size, local_size),
        notes=tuple(_assumptions(config)),
    )


def memory(config: Config, world_size: int, whole: bool = False) -> Memory:
    """Return the memory alone, at a cost that depends on neither depth nor accumulation, as bisection calls it often.

    Args:
        config: as for `closed_form`.
        world_size: ranks over all nodes.
        whole: walk through every block and every micro-batch, which gives the same.

    Raises:
        DtkError: `model.architecture=custom`.
    """
    shape = model_shape(config.model)
    on_cuda = config.launcher.device == "cuda"
    ledger = Ledger(_CUDA_BLOCK_BYTES if on_cuda else 1)
    sharded = config.strategy.traits.shards_parameters
    train, unit = config.train, config.strategy.blocks_per_unit if sharded else 0
    ahead = max(1, config.strategy.prefetch_depth) if sharded else 0
    blocks = (
        Stretch(shape.layers, 1) if whole else stretch(shape.layers, unit, train.activation_checkpoint_every, ahead)
    )
    holding = _holding(config, shape, world_size, ledger, on_cuda, blocks.walked)
    holding.settle()
    compute = ITEM_BYTES[config.precision.compute_dtype]
    numbers = Numbers(
        dataclasses.replace(shape, layers=blocks.walked),
        train.micro_batch_size,
        config.data.sequence_length,
        # FSDP's policy casts whole units; autocast leaves the residual stream in float32.
        stream_bytes=compute if sharded else ITEM_BYTES["float32"],
        compute_bytes=compute,
        on_cuda=on_cuda,
    )
    rounds = config.batch_plan(world_size).accumulation_steps
    step = Step(
        Model(numbers, Tape(ledger)),
        holding,
        micro_batches=rounds,
        walked=range(rounds) if whole else micro_batches(rounds),
        blocks=blocks,
        blocks_per_unit=unit,
        recompute_every=train.activation_checkpoint_every,
        clips=train.clip_norm is not None or config.precision.initial_loss_scale is not None,
    )
    step.run()
    found = {name: size for name, size in ledger.at_peak.items() if size}
    return Memory(holding.rank, found, ledger.peak_region, ledger.by_region, holding.host_bytes)


def _holding(config: Config, shape: ModelShape, world_size: int, ledger: Ledger, on_cuda: bool, walked: int) -> Holding:
    """Return the model states of the strategy: those of the whole model, with units for the walked blocks only."""
    if not config.strategy.traits.shards_parameters:
        return Replicated(config, shape, world_size, ledger, on_cuda)
    shards = config.strategy.mesh(world_size).dp_shard
    units = shard_units(shape.block, walked, config.strategy.blocks_per_unit)
    return Sharded(config, shape, world_size, ledger, on_cuda, shards=shards, units=units)


def _assumptions(config: Config) -> Iterator[str]:
    """Yield the assumptions behind the figures and what no formula covers."""
    strategy = config.strategy
    if config.launcher.device == "cuda":
        yield (
            "CUDA kernels: flash attention, fused norms; buffers rounded to 512 bytes. Not counted: fragmentation of "
            "the allocator, NCCL's buffers, workspaces of cuBLAS"
        )
    elif not strategy.traits.one_process:
        yield "CPU kernels. Not counted: gloo's own copies of what it gathers and reduces, while it runs"
    if getattr(config.model, "dropout", 0.0) and config.launcher.device != "cuda":
        yield "with dropout the CPU's attention keeps the sequence x sequence matrix three times"
    if config.train.compile:
        yield "train.compile=true: counted as without, what compiled blocks keep is not known"
    if strategy.traits.least_cuda_devices > 1:
        yield f"strategy={strategy.name}: counted as one device with the whole micro-batch"
    hook = getattr(strategy, "communication_hook", "none")
    if hook != "none":
        yield f"strategy.communication_hook={hook}: its 16-bit copies and factors are not counted"
    if getattr(strategy, "cpu_offload", False):
        yield "strategy.cpu_offload=true: shards, gradients and optimizer state are host memory, not in the peak"

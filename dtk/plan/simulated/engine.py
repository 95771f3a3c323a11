"""The simulated engine: the real model, strategy and step of the fullest rank on tensors without memory.

Turns what `dtk.simulate` observed into a prediction. Holds no formula of a strategy: it checks the closed form.
"""

from collections.abc import Iterator
from typing import cast

from dtk.config.schema import Config, CustomModelConfig
from dtk.errors import DtkError
from dtk.plan.prediction import Category, Memory, Prediction
from dtk.plan.simulated.depth import at_depth, depths, edge_blocks, extended
from dtk.plan.simulated.traffic import totals, traffic, whole_dimension
from dtk.simulate.step import MICRO_BATCHES, OWN_GRADIENTS, Observed, simulate_step

_HOST = ("parameters", OWN_GRADIENTS, "optimizer states", "temporaries")
"""What offloading keeps in host memory; under it the optimizer and clipping work there too."""
Part = tuple[str, str]


def simulate(config: Config, world_size: int, local_size: int = 8) -> Prediction:
    """Predict memory and traffic of one job by running its step on fake tensors, in this process.

    Args:
        config: checked, its micro-batch settled for `world_size`.
        world_size: ranks over all nodes.
        local_size: consecutive ranks of one node.

    Raises:
        DtkError: the model reads values of tensors or fails, strategy dp, or a torch that cannot simulate.
    """
    _check(config)
    chosen, layers = depths(config), getattr(config.model, "layers", 0)
    observed = [_fullest(at_depth(config, depth), world_size, local_size) for depth in chosen]
    count = config.batch_plan(world_size).accumulation_steps
    whole = whole_dimension(config, world_size)
    calls = [totals(one.calls, whole, one.micro_batches, count) for one in observed]
    counts = extended(chosen, [one for one, _ in calls], layers)
    sizes = extended(chosen, [one for _, one in calls], layers)
    return Prediction(
        engine="simulated",
        strategy=config.strategy.name,
        model=config.model.name,
        parameters=extended(chosen, [{"": one.parameters} for one in observed], layers)[""],
        world_size=world_size,
        global_batch_size=config.train.global_batch_size,
        micro_batch_size=config.train.micro_batch_size,
        sequence_length=config.data.sequence_length,
        memory=_memory(config, observed[0].rank, _parts(chosen, observed, layers)),
        traffic=traffic(counts, sizes, world_size, local_size),
        dp_size=config.mesh(world_size).dp_size if config.parallel.cut else None,
        notes=tuple(_notes(config, count, chosen, observed[0].classes)),
    )


def _check(config: Config) -> None:
    if config.strategy.traits.least_cuda_devices > 1:
        raise DtkError(
            f"strategy={config.strategy.name} cannot be simulated",
            "nn.DataParallel copies between the CUDA devices of one process",
            "use strategy=ddp, or the closed form",
        )
    if config.parallel.pp > 1:
        raise DtkError(
            f"parallel.pp={config.parallel.pp} cannot be simulated",
            "a rank holds one stage of many",
            "use --engine closed_form",
        )
    if config.train.micro_batch_size < 1:
        raise DtkError("train.micro_batch_size=0 is not settled", fix="give it a number")


def _fullest(config: Config, world_size: int, local_size: int) -> Observed:
    """Simulate the rank that needs the most memory.

    That is the first rank, unless whole parameters are dealt out and another rank has more of them.

    fully_shard cuts rows so that the first rank never has fewer than another.
    """
    observed = simulate_step(config, 0, world_size, local_size, edge_blocks(config))
    most = max(observed.loads, default=0)
    if observed.loads and observed.loads[0] < most:
        rank = observed.loads.index(most)
        observed = simulate_step(config, rank, world_size, local_size, edge_blocks(config))
    return observed


def _parts(chosen: tuple[int, ...], observed: list[Observed], layers: int) -> dict[Part, dict[str, int]]:
    """Return the peak of each part of the step, at the model's depth, for the parts that all depths have."""
    common = [part for part in observed[0].parts if all(part in one.parts for one in observed)]
    return {part: extended(chosen, [one.parts[part] for one in observed], layers) for part in common}


def _memory(config: Config, rank: int, parts: dict[Part, dict[str, int]]) -> Memory:
    offloaded = _HOST if getattr(config.strategy, "cpu_offload", False) else ()
    on_device: dict[Part, dict[str, int]] = {}
    host_bytes = 0
    for part, held in parts.items():
        on_device[part] = {name: size for name, size in held.items() if name not in offloaded}
        host_bytes = max(host_bytes, sum(size for name, size in held.items() if name in offloaded))
    by_region: dict[str, int] = {}
    for (region, _), held in on_device.items():
        by_region[region] = max(by_region.get(region, 0), sum(held.values()))
    peak = max(on_device, key=lambda part: sum(on_device[part].values()))
    at_peak: dict[Category, int] = {}
    for name, size in on_device[peak].items():
        category = cast(Category, "gradients" if name == OWN_GRADIENTS else name)
        if size:
            at_peak[category] = at_peak.get(category, 0) + size
    return Memory(rank, at_peak, peak[0], by_region, host_bytes)


def _notes(config: Config, count: int, chosen: tuple[int, ...], classes: int) -> Iterator[str]:
    yield "operations as the CPU computes them; buffers inside kernels and inside the backend are not seen"
    if len(chosen) > 1:
        yield f"{config.model.layers} blocks on the straight line through {chosen[0]} and {chosen[1]} simulated ones"
    if count > MICRO_BATCHES:
        yield f"{MICRO_BATCHES} of {count} micro-batches simulated; those between the first and the last are alike"
    if config.train.compile:
        yield "torch.compile is not simulated: the figures are those of the eager step"
    if getattr(config.strategy, "cpu_offload", False):
        yield "offloading: the shards' copies on their way to and from the device are not seen"
    if getattr(config.model, "experts", 0):
        yield "every expert is taken to get as many tokens: which it gets follows from values"
    words = getattr(config.data, "vocab_size", classes)
    if isinstance(config.model, CustomModelConfig) and classes != words:
        yield f"the model answers with {classes} logits per token, but data.vocab_size={words}"

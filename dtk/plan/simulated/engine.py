"""The simulated engine: what `dtk.simulate` observed of the fullest rank's real step, as a prediction."""

from collections import Counter
from collections.abc import Iterator
from typing import cast

from dtk.config.schema import Config, CustomModelConfig
from dtk.errors import DtkError
from dtk.plan.formulas.traffic import lines
from dtk.plan.prediction import Category, Memory, Prediction
from dtk.plan.simulated.depth import at_depth, depths, edge_blocks, extended
from dtk.plan.simulated.traffic import totals, whole_dimension
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
    if config.strategy.traits.least_cuda_devices > 1:
        what = f"strategy={config.strategy.name} cannot be simulated"
        why = "nn.DataParallel copies between the CUDA devices of one process"
        raise DtkError(what, why, "use strategy=ddp, or the closed form")
    if config.parallel.pp > 1:
        why = "a rank holds one stage of many"
        raise DtkError(f"parallel.pp={config.parallel.pp} cannot be simulated", why, "use --engine closed_form")
    if config.train.micro_batch_size < 1:
        raise DtkError("train.micro_batch_size=0 is not settled", fix="give it a number")
    chosen, layers = depths(config), getattr(config.model, "layers", 0)
    observed = [_fullest(at_depth(config, depth), world_size, local_size) for depth in chosen]
    rounds, whole = config.batch_plan(world_size).accumulation_steps, whole_dimension(config, world_size)
    calls = [totals(each.calls, whole, each.micro_batches, rounds) for each in observed]
    counts, sizes = (extended(chosen, figures, layers) for figures in zip(*calls, strict=True))
    shared = [part for part in observed[0].parts if all(part in each.parts for each in observed)]
    parts = {part: extended(chosen, [each.parts[part] for each in observed], layers) for part in shared}
    return Prediction.of(
        config,
        world_size,
        engine="simulated",
        parameters=extended(chosen, [{"": each.parameters} for each in observed], layers)[""],
        memory=_memory(config, observed[0].rank, parts),
        traffic=lines({kind: (count, sizes[kind]) for kind, count in counts.items()}, world_size, local_size),
        notes=tuple(_notes(config, rounds, chosen, observed[0].classes)),
    )


def _fullest(config: Config, world_size: int, local_size: int) -> Observed:
    """Simulate the fullest rank: the first, unless whole parameters are dealt out and another has more of them."""
    observed = simulate_step(config, 0, world_size, local_size, edge_blocks(config))
    most = max(observed.loads, default=0)
    if observed.loads and observed.loads[0] < most:
        rank = observed.loads.index(most)
        observed = simulate_step(config, rank, world_size, local_size, edge_blocks(config))
    return observed


def _memory(config: Config, rank: int, parts: dict[Part, dict[str, int]]) -> Memory:
    strategy = config.strategy
    paged = ("optimizer states",) if strategy.pages(config.launcher.device) else ()
    offloaded = _HOST if strategy.offloads_parameters else paged
    filed = {*offloaded} & {"parameters", "optimizer states"} if strategy.offload_to == "nvme" else set[str]()
    file_bytes = max(sum(held.get(name, 0) for name in filed) for held in parts.values())
    by_region: dict[str, int] = {}
    host_bytes = peak_bytes = -1
    peak: Part = ("", "")
    for part, held in parts.items():
        size = sum(size for name, size in held.items() if name not in offloaded)
        host_bytes = max(host_bytes, sum(held.values()) - size - sum(held.get(name, 0) for name in filed))
        by_region[part[0]] = max(by_region.get(part[0], 0), size)
        if size > peak_bytes:
            peak, peak_bytes = part, size
    at_peak: Counter[Category] = Counter()
    for name, size in parts[peak].items():
        if size and name not in offloaded:
            at_peak[cast(Category, "gradients" if name == OWN_GRADIENTS else name)] += size
    return Memory(rank, dict(at_peak), peak[0], by_region, host_bytes, file_bytes)


def _notes(config: Config, count: int, chosen: tuple[int, ...], classes: int) -> Iterator[str]:
    yield "operations as the CPU computes them; buffers inside kernels and inside the backend are not seen"
    if len(chosen) > 1:
        yield f"{config.model.layers} blocks on the straight line through {chosen[0]} and {chosen[1]} simulated ones"
    if count > MICRO_BATCHES:
        yield f"{MICRO_BATCHES} of {count} micro-batches simulated; those between the first and the last are alike"
    if config.train.compile:
        yield "torch.compile is not simulated: the figures are those of the eager step"
    if config.strategy.offload != "none":
        yield "offloading: copies on their way to and from the device, and how much they move, are not seen"
    if getattr(config.model, "experts", 0):
        yield "every expert is taken to get as many tokens: which it gets follows from values"
    words = getattr(config.data, "vocab_size", classes)
    if isinstance(config.model, CustomModelConfig) and classes != words:
        yield f"the model answers with {classes} logits per token, but data.vocab_size={words}"

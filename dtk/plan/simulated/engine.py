"""The simulated engine: turns what `dtk.simulate` observed of the fullest rank's step into a prediction."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar, cast

from dtk.config.schema import Config, CustomModelConfig
from dtk.errors import DtkError
from dtk.plan.formulas.closed_form import lines
from dtk.plan.prediction import Category, Memory, Prediction
from dtk.simulate.step import MICRO_BATCHES, OWN_GRADIENTS, Call, Observed, simulate_step

_HOST = ("parameters", OWN_GRADIENTS, "optimizer states", "temporaries")
"""Categories that offloading keeps in host memory; the optimizer and clipping then run there too."""
Part = tuple[str, str]


def simulate(config: Config, world_size: int, local_size: int = 8) -> Prediction:
    """Predict memory and traffic of one job by running its step on fake tensors, in this process.

    Raises:
        DtkError: the model reads values of tensors or fails, strategy dp, or a torch that cannot simulate.
    """
    if config.strategy.traits.least_cuda_devices > 1:
        what = f"strategy={config.strategy.name} cannot be simulated"
        why = "nn.DataParallel copies between the CUDA devices of one process"
        raise DtkError(what, why, "use strategy=ddp, or the closed form")
    if config.train.micro_batch_size < 1:
        raise DtkError("train.micro_batch_size=0 is not settled", fix="give it a number")
    chosen, layers = depths(config), getattr(config.model, "layers", 0)
    ranks = [_observed(at_depth(config, depth), world_size, local_size) for depth in chosen]
    observed = [max(each, key=lambda rank: max(sum(part.values()) for part in rank.parts.values())) for each in ranks]
    busiest = [max(each, key=lambda rank: sum(call.size_bytes for call in rank.calls)) for each in ranks]
    rounds, whole = config.batch_plan(world_size).accumulation_steps, whole_dimension(config, world_size)
    calls = [totals(each.calls, whole, each.micro_batches, rounds) for each in busiest]
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


def _observed(config: Config, world_size: int, local_size: int) -> list[Observed]:
    """Simulate the first rank or that with most whole parameters; for a pipeline both ends and their neighbours."""
    pipeline = config.mesh(world_size).group("pp", 0)
    places = {0, 1, len(pipeline) - 2, len(pipeline) - 1} & {*range(len(pipeline))}
    ranks = [simulate_step(config, pipeline[n], world_size, local_size, edge_blocks(config)) for n in sorted(places)]
    loads = ranks[0].loads
    if loads and loads[0] < max(loads):
        return [simulate_step(config, loads.index(max(loads)), world_size, local_size, edge_blocks(config))]
    return ranks


def _memory(config: Config, rank: int, parts: dict[Part, dict[str, int]]) -> Memory:
    strategy = config.strategy
    paged = ("optimizer states",) if strategy.pages(config.launcher.device) else ()
    offloaded = _HOST if strategy.offloads_parameters else paged
    filed = {*offloaded} & {"parameters", "optimizer states"} if strategy.offload_to == "nvme" else set[str]()
    file_bytes = max(sum(sizes.get(name, 0) for name in filed) for sizes in parts.values())
    by_region: dict[str, int] = {}
    host_bytes = peak_bytes = -1
    peak: Part = ("", "")
    for part, sizes in parts.items():
        size = sum(size for name, size in sizes.items() if name not in offloaded)
        host_bytes = max(host_bytes, sum(sizes.values()) - size - sum(sizes.get(name, 0) for name in filed))
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
        yield f"{config.model.layers} blocks, extrapolated linearly from {chosen[0]} and {chosen[1]} simulated ones"
    if count > MICRO_BATCHES and config.parallel.pp == 1:
        yield f"{MICRO_BATCHES} of {count} micro-batches simulated; those between the first and the last are alike"
    if config.train.compile:
        yield "torch.compile is not simulated: the figures are those of the eager step"
    if config.strategy.offload != "none":
        yield "offloading: copies on their way to and from the device, and how much they move, are not seen"
    if getattr(config.model, "experts", 0):
        yield "every expert is assumed to get the same number of tokens: the routing depends on values"
    words = getattr(config.data, "vocab_size", classes)
    if isinstance(config.model, CustomModelConfig) and classes != words:
        yield f"the model returns {classes} logits per token, but data.vocab_size={words}"


_MESH = "mesh_"
_CONTROL = "control"
Kind = tuple[str, str, int, int]  # Key of one line of traffic: operation, group, its ranks, the distance between them.


def totals(calls: Sequence[Call], whole: str, simulated: int, rounds: int) -> tuple[Counter[Kind], Counter[Kind]]:
    """Return count and bytes of each kind of call over all micro-batches, except for the control group.

    The group of all ranks counts as the dimension `whole`. Of the real step's `rounds` micro-batches, those between the
    first and the last are equal.
    """
    counts: Counter[Kind] = Counter()
    sizes: Counter[Kind] = Counter()
    for call in calls:
        if call.group == _CONTROL:
            continue
        times = rounds - simulated + 1 if simulated > 2 and call.micro_batch == 1 else 1
        stride = call.ranks[1] - call.ranks[0] if len(call.ranks) > 1 else 1
        name = call.dimension or (call.group.removeprefix(_MESH) if call.group.startswith(_MESH) else whole)
        counts[call.op, name, len(call.ranks), stride] += times
        sizes[call.op, name, len(call.ranks), stride] += times * call.size_bytes
    return counts, sizes


def whole_dimension(config: Config, world_size: int) -> str:
    """Return the mesh dimension that holds all ranks; torch creates no separate group for it."""
    mesh = config.strategy.states_mesh(config.mesh(world_size))
    for name in ("tp", "pp"):  # The states' mesh has no cp.
        if mesh.size(name) == world_size > 1:
            return name
    if mesh.ep_holds_copies:
        return "dp_replicate"
    if not config.strategy.traits.shards_parameters:
        return "dp"
    replicates = config.strategy.traits.replicated_over == "dp_replicate"
    return "dp_replicate" if replicates and mesh.dp_shard == 1 else "dp_shard"


DIRECT = 16  # Blocks up to which the model itself is simulated.
_SMALL, _LARGE = 4, 8  # Depths in periods; two are too few, as the window of gathered units is not full.
_Key = TypeVar("_Key")


def depths(config: Config) -> tuple[int, ...]:
    """Return the numbers of blocks to simulate: the model's, or two smaller ones with the same remainder of a period.

    A period is the number of blocks after which sharding units and recomputed blocks repeat.
    """
    layers = getattr(config.model, "layers", 0)
    period, rest = _period(config), layers % _period(config)
    window = getattr(config.strategy, "prefetch_depth", 1)
    # Leading blocks without experts are in both.
    first = -(-getattr(config.model, "dense_layers", 0) // period)
    small = (max(_SMALL, window + 3) + first) * period + rest
    large = small + (_LARGE - _SMALL) * period
    # Buckets of a fixed size and whole parameters assigned to ranks do not grow linearly with the depth.
    if config.strategy.traits.gradients_in == "buckets" or layers <= max(DIRECT, large) or config.parallel.pp > 1:
        return (layers,)
    return small, large


def at_depth(config: Config, layers: int) -> Config:
    """Return the same job with another number of blocks; a custom model (`layers` = 0) stays as it is."""
    if not layers or layers == config.model.layers:
        return config
    return dataclasses.replace(config, model=dataclasses.replace(config.model, layers=layers))


def edge_blocks(config: Config) -> int:
    """Return the blocks at either end whose peaks are separate, so that equal blocks are compared across depths."""
    return 2 * _period(config)


def extended(depths: Sequence[int], figures: Sequence[Mapping[_Key, int]], layers: int) -> dict[_Key, int]:
    """Return the figures at `layers` blocks: unchanged for one depth, linear extrapolation from two; at least 0.

    There is one mapping per simulated depth; missing keys count as 0.
    """
    if len(depths) == 1:
        return dict(figures[0])
    (small, large), (low, high) = depths, figures
    made = {}
    for key in {**low, **high}:
        first, second = low.get(key, 0), high.get(key, 0)
        made[key] = max(0, first + round((second - first) * (layers - small) / (large - small)))
    return made


def _period(config: Config) -> int:
    unit = getattr(config.strategy, "blocks_per_unit", 0) or 1
    return math.lcm(unit, config.train.activation_checkpoint_every or 1)

"""The simulated engine: turns what `dtk.simulate` observed of the fullest rank's step into a prediction."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Sequence
from typing import cast

from diagnostics.contract.formatting import joined
from dtk.config.schema import Config, CustomModelConfig
from dtk.errors import Errors
from dtk.models.build import build_on_meta
from dtk.plan.formulas.closed_form import lines
from dtk.plan.formulas.prediction import Category, Memory, Prediction, notes
from dtk.plan.simulated.smaller import Sample, edge_blocks, extended, ranks_of_job, samples, simulated_places
from dtk.sharding.registry import for_several_ranks
from dtk.simulate.step import MICRO_BATCHES, OWN_GRADIENTS, Call, Observed, simulate_step

_errors = Errors(__file__)
_HOST = ("parameters", OWN_GRADIENTS, "optimizer states", "temporaries")
"""Categories that offloading keeps in host memory; the optimizer and clipping then run there too."""
Part = tuple[str, str]
Kind = tuple[str, str, int, int]  # Key of one line of traffic: operation, group, its ranks, the distance between them.


def simulate(config: Config, world_size: int, local_size: int = 8) -> Prediction:
    """Predict memory and traffic of one job by running its step on fake tensors, in this process.

    DtkError if the model reads values of tensors or fails, the strategy is dp, the micro-batch is not resolved, or this
    torch cannot simulate.
    """
    rules = {"copies": config.strategy.traits.least_cuda_devices > 1, "micro": config.train.micro_batch_size < 1}
    _errors.refuse(rules, c=config, several=for_several_ranks)
    job, sampled = Sample(config, world_size), samples(config, world_size)
    whole, pipeline = whole_dimension(config, world_size), config.mesh(world_size).group("pp", 0)
    parts, sent = {}, []
    for place in simulated_places(len(pipeline)):
        observed = [_observed(sample, place, local_size) for sample in sampled]
        parts[pipeline[place] if len(pipeline) > 1 else observed[0].rank] = {
            part: extended(sampled, [each.parts[part] for each in observed], job)
            for part in observed[0].parts
            if all(part in each.parts for each in observed)
        }
        sent.append(_extended_calls(sampled, observed, job, whole))
    fullest = max(parts, key=lambda rank: max(sum(by_category.values()) for by_category in parts[rank].values()))
    counts, sizes = max(sent, key=lambda each: sum(each[1].values()))
    parameters = observed[0].parameters
    if sampled[0].config is not config:  # A smaller model was simulated.
        parameters = sum(each.numel() for each in build_on_meta(config.model, config.allow_targets).parameters())
    return Prediction.of(
        config,
        world_size,
        engine="simulated",
        parameters=parameters,
        memory=_memory(config, fullest, parts[fullest]),
        traffic=lines({kind: (count, sizes[kind]) for kind, count in counts.items()}, world_size, local_size),
        notes=_notes(job, sampled, observed[0].classes),
    )


def _observed(sample: Sample, place: int, local_size: int) -> Observed:
    """Simulate the first rank of a stage, or that with most elements where ranks are assigned whole parameters."""
    config, ranks = sample.config, sample.world_size
    rank = config.mesh(ranks).group("pp", 0)[place]
    observed = simulate_step(config, rank, ranks, local_size, edge_blocks(config))
    loads = observed.loads
    if loads and loads[0] < max(loads):
        return simulate_step(config, loads.index(max(loads)), ranks, local_size, edge_blocks(config))
    return observed


def _extended_calls(
    sampled: Sequence[Sample], observed: Sequence[Observed], job: Sample, whole: str
) -> tuple[dict[Kind, int], dict[Kind, int]]:
    figures = []
    for sample, each in zip(sampled, observed, strict=True):
        ranks = functools.cache(functools.partial(ranks_of_job, sample, job))
        calls = [dataclasses.replace(call, ranks=ranks(call.ranks)) for call in each.calls]
        figures.append(totals(calls, whole, each.micro_batches, sample.micro_batches))
    counts, sizes = (extended(sampled, kind, job) for kind in zip(*figures, strict=True))
    return counts, sizes


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


def _notes(job: Sample, sampled: Sequence[Sample], classes: int) -> tuple[str, ...]:
    config, count = job.config, job.micro_batches
    depths = list(dict.fromkeys(each.config.model.layers for each in sampled if each.removed))
    pipelines = sorted({(each.config.parallel.pp, each.micro_batches) for each in sampled})
    vocabulary = getattr(config.data, "vocab_size", classes)
    rules = {
        "operations": True,
        "depths": len(depths) > 1,
        "pipelines": len(pipelines) > 1,
        "micro_batches": count > MICRO_BATCHES and config.parallel.pp == 1,
        "compile": config.train.compile,
        "offload": config.strategy.offload != "none",
        "experts": getattr(config.model, "experts", 0),
        "vocabulary": isinstance(config.model, CustomModelConfig) and classes != vocabulary,
    }
    sizes = joined(f"{n} through {ranks}" for ranks, n in pipelines)
    figures = {"count": count, "simulated": MICRO_BATCHES, "classes": classes, "vocabulary": vocabulary}
    return notes(__file__, rules, c=config, depths=joined(depths), sizes=sizes, **figures)


_MESH = "mesh_"
_CONTROL = "control"


def totals(calls: Sequence[Call], whole: str, simulated: int, rounds: int) -> tuple[Counter[Kind], Counter[Kind]]:
    """Return count and bytes of each kind of call over all micro-batches, except for the control group.

    The group of all ranks is the dimension `whole`. Of the step's `rounds`, those between first and last are equal.
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

"""The closed-form engine: memory and traffic of a job from formulas, without torch. See docs/plan_formulas.md."""

import functools
from collections import Counter
from collections.abc import Mapping

from dtk.config.schema import Config
from dtk.plan.formulas.prediction import Link, Memory, Prediction, Traffic, notes
from dtk.plan.formulas.shape import model_shape
from dtk.plan.formulas.stages import rank_memory, stage_declarations, states_mesh


def closed_form(config: Config, world_size: int, local_size: int = 8) -> Prediction:
    """Predict memory and traffic of one job without running anything.

    `launcher.device` selects CUDA's or the CPU's kernels; `local_size` consecutive ranks share a node. DtkError if
    `model.architecture=custom`.
    """
    parameters, sent = model_shape(config.model).parameters, traffic(config, world_size, local_size)
    figures = {"memory": memory(config, world_size), "traffic": sent, "notes": _assumptions(config)}
    return Prediction.of(config, world_size, engine="closed_form", parameters=parameters, **figures)


def memory(config: Config, world_size: int, whole: bool = False) -> Memory:
    """Return the memory of the fullest rank; for `whole` and what is raised see `rank_memory`."""
    # Of a pipeline only both ends and their neighbours are compared: the ranks between them are like these.
    ranks = config.parallel.pp
    places = sorted({0, 1, ranks - 2, ranks - 1} & {*range(ranks)})
    return max((rank_memory(config, world_size, place, whole) for place in places), key=lambda each: each.peak_bytes)


def _assumptions(config: Config) -> tuple[str, ...]:
    strategy, on_cuda = config.strategy, config.launcher.device == "cuda"
    rules = {
        "cuda": on_cuda,
        "cpu": not on_cuda and not strategy.traits.one_process,
        "dropout": not on_cuda and getattr(config.model, "dropout", 0.0) > 0,
        "pipeline": config.parallel.pp > 1,
        "experts": config.model.architecture == "moe",
        "compile": config.train.compile,
        "one_device": strategy.traits.least_cuda_devices > 1,
        "library": strategy.traits.library,
        "offload": strategy.offloads_parameters,
    }
    return notes(__file__, rules, c=config)


def traffic(config: Config, world_size: int, local_size: int) -> tuple[Traffic, ...]:
    """Return the collectives on the groups that carry tensors, per step from the second on, for a resolved batch.

    They are those of the strategy, of layers, between pipeline stages and of clipping, on the pipeline rank that
    communicates the most bytes. Not included: the 24 bytes of the control group, and what logging, evaluation,
    checkpoints and the comparison of replicas add in some steps.
    """
    mesh, states = config.mesh(world_size), states_mesh(config, world_size)
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    ranks = (stage_declarations(config, world_size, place) for place in range(config.parallel.pp))
    for declared in max(ranks, key=lambda calls: sum(call.size_bytes for call in calls)):
        counts[declared.op, declared.group] += declared.count
        sizes[declared.op, declared.group] += declared.size_bytes
    figures = {}
    for key, size in sizes.items():
        over, name = mesh if key[1] == "cp" else states, key[1]
        figures[*key, over.size(name), over.stride(name)] = counts[key], size
    return lines(figures, world_size, local_size)


def lines(
    figures: Mapping[tuple[str, str, int, int], tuple[int, int]], world_size: int, local_size: int
) -> tuple[Traffic, ...]:
    """Return the traffic lines; `figures`: operation, group, ranks, distance -> calls and bytes of full buffers."""
    return tuple(
        Traffic(op, group, count, size, n, ring_bytes(op, size, n), link(n, stride, world_size, local_size))
        for (op, group, n, stride), (count, size) in figures.items()
    )


def ring_bytes(op: str, size_bytes: int, ranks: int) -> int:
    """Return the bytes that a rank sends by the ring algorithm (Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce").

    With S bytes in the full buffer and n ranks: 2 S (n-1)/n for an all_reduce, S (n-1)/n for an all_gather, a
    reduce_scatter, an all_to_all or (pipelined, on average over the ranks) a broadcast; S for a send, 0 for a recv.
    """
    if op in ("send", "recv"):
        return size_bytes if op == "send" else 0
    return round((2 if op == "all_reduce" else 1) * size_bytes * (ranks - 1) / ranks)


@functools.cache
def link(ranks: int, stride: int, world_size: int, local_size: int) -> Link:
    """Return the slowest link that a group crosses; `stride` is the distance of neighbours in the ranks' numbering."""
    bases = range(0, world_size, ranks * stride)
    firsts = (base + offset for base in bases for offset in range(min(stride, world_size)))
    inside = all(first // local_size == (first + (ranks - 1) * stride) // local_size for first in firsts)
    return "intra_node" if inside else "inter_node"

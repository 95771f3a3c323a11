"""Smaller jobs that are simulated in place of a deep model, a long pipeline or many micro-batches.

Their figures extend to the job: memory and calls of a rank are linear in the blocks of its stages, in the stages of the
pipeline (a rank holds a micro-batch for each stage after it) and in the micro-batches of a step.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Any, TypeVar

from dtk.config.schema import Config
from dtk.parallel.pipeline import SCHEDULES

DIRECT = 16  # Chosen: stages of at most this many blocks are simulated as they are.
_SMALL, _LARGE = 4, 8  # Chosen: depths in periods; two are too few, as the window of gathered units is not full.
_ENDS = 2  # Stages at each end of a pipeline that are simulated: the end and its neighbour.
_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class Sample:
    """A job to simulate."""

    config: Config
    world_size: int
    removed: int = 0
    """Number of blocks removed from each stage of the job."""

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step."""
        return self.config.batch_plan(self.world_size).accumulation_steps


def samples(config: Config, world_size: int) -> list[Sample]:
    """Return the jobs to simulate: the job itself, or up to two depths of it with up to three pipelines each."""
    return [
        _sample(config, world_size, stages, count, removed)
        for removed in depths(config)
        for stages, count in pipelines(config, world_size)
    ]


def depths(config: Config) -> tuple[int, ...]:
    """Return how many blocks to remove from each stage: none, or two numbers that keep the remainder of a period.

    A period is the number of blocks after which sharding units and recomputed blocks repeat.
    """
    parallel, layers = config.parallel, getattr(config.model, "layers", 0)
    shortest, period = min(map(len, _stages(config))), _period(config)
    window = getattr(config.strategy, "prefetch_depth", 1)
    # Leading blocks without experts are in both.
    dense = getattr(config.model, "dense_layers", 0)
    small = (max(_SMALL, window + 3) - (-dense // period)) * period + shortest % period
    large = small + (_LARGE - _SMALL) * period
    uneven = parallel.pp > 1 and (parallel.stages_per_rank > 1 or dense)
    # Buckets of a fixed size and whole parameters assigned to ranks do not grow linearly with the depth.
    if config.strategy.traits.gradients_in == "buckets" or shortest <= max(DIRECT, large) or uneven or not layers:
        return (0,)
    return shortest - small, shortest - large


def pipelines(config: Config, world_size: int) -> list[tuple[int, int]]:
    """Return (ranks of the pipeline, micro-batches) of what to simulate: the job's own, or two or three smaller ones.

    They are large enough for the steady state, in which a rank alternates between forward and backward.
    """
    parallel, count = config.parallel, config.batch_plan(world_size).accumulation_steps
    ranks, own = parallel.pp, [(parallel.pp, count)]
    split = SCHEDULES[parallel.schedule].splits and parallel.stages_per_rank > 1
    if ranks == 1 or count < ranks:
        return own
    few = 2 * _ENDS + (config.train.activation_checkpoint_every > 1)
    if few >= ranks or getattr(config.model, "dense_layers", 0) > _stages(config)[_ENDS - 1].stop:
        few = ranks
    if parallel.stages_per_rank == 1:
        smaller = [(few, few + 2), (few, few + 3), (few + 1, few + 3)]
    elif count % ranks or split:  # Rounds of other sizes than the number of ranks, or stages in a V.
        few, size = ranks, parallel.pipeline(count).round
        smaller = [(few, 3 * size), (few, 4 * size)]
    else:
        smaller = [(few, 3 * few), (few, 4 * few), (few + 1, 3 * few + 3)]
    smaller = smaller[:2] if few == ranks else smaller
    return smaller if sum(each for _, each in smaller) < count else own


def simulated_places(ranks: int) -> list[int]:
    """Return the places of a pipeline that are simulated; those at its end are negative, counted from its end."""
    return [n if n < _ENDS else n - ranks for n in range(ranks) if n < _ENDS or n >= ranks - _ENDS]


def ranks_of_job(sample: Sample, job: Sample, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the job's group that a group of the sample stands for: the same stages, counted from their end."""
    few, many = (each.config.mesh(each.world_size) for each in (sample, job))
    if few.pp == many.pp:
        return ranks
    coordinates = [few.coordinate(rank) for rank in ranks]
    stages = dict.fromkeys(each["pp"] for each in coordinates)
    of_job = range(many.pp) if len(stages) == few.pp else [n if n < _ENDS else n - few.pp + many.pp for n in stages]
    others = {tuple(each[name] for name in many.order if name != "pp"): each for each in coordinates}
    places = [{**each, "pp": stage} for each in others.values() for stage in of_job]
    return tuple(sorted(sum(place[name] * many.stride(name) for name in many.order) for place in places))


def extended(sampled: Sequence[Sample], figures: Sequence[Mapping[_Key, int]], job: Sample) -> dict[_Key, int]:
    """Return the job's figures from those of its samples, at least 0; keys missing in a sample count as 0."""
    keys = {key: None for each in figures for key in each}
    return {key: max(0, round(_at(sampled, [each.get(key, 0) for each in figures], job))) for key in keys}


def _at(sampled: Sequence[Sample], figures: Sequence[int], job: Sample) -> Fraction:
    """Extrapolate one figure to the job: at each depth over pipeline ranks and micro-batches, then over the depths."""
    planes = []
    for removed, depth in groupby(zip(sampled, figures, strict=True), lambda each: each[0].removed):
        (first, low), *others = depth
        height = Fraction(low)
        if others:
            (more, high), *longer = others
            per_micro_batch = Fraction(high - low, more.micro_batches - first.micro_batches)
            height += per_micro_batch * (job.micro_batches - first.micro_batches)
            for each, figure in longer:
                stages = each.config.parallel.pp - first.config.parallel.pp
                of_stages = figure - low - per_micro_batch * (each.micro_batches - first.micro_batches)
                height += of_stages / stages * (job.config.parallel.pp - first.config.parallel.pp)
        planes.append((removed, height))
    (less, small), *deeper = planes
    return small if not deeper else small + (deeper[0][1] - small) / (less - deeper[0][0]) * less


def _sample(config: Config, world_size: int, ranks: int, count: int, removed: int) -> Sample:
    """Return the job with this many pipeline ranks and micro-batches, and fewer blocks in each stage.

    Middle stages are not simulated: one block each, the last as many as keep which blocks of the end are recomputed.
    """
    if (ranks, removed) == (config.parallel.pp, 0) and count == config.batch_plan(world_size).accumulation_steps:
        return Sample(config, world_size)
    parallel, stages, sizes = config.parallel, _stages(config), list[int]()
    if ranks == parallel.pp:
        sizes = [len(blocks) - removed for blocks in stages]
    else:
        for first in range(0, len(stages), parallel.pp):
            begin, end = stages[first : first + _ENDS], stages[first + parallel.pp - _ENDS : first + parallel.pp]
            middle = [1] * (ranks - 2 * _ENDS)
            sizes += [len(blocks) - removed for blocks in begin] + middle
            if middle:
                sizes[-1] += (end[0].start - sum(sizes)) % _period(config)
            sizes += [len(blocks) - removed for blocks in end]
    dp_size, world_size = config.mesh(world_size).dp_size, world_size // parallel.pp * ranks
    whole = count * config.train.micro_batch_size * dp_size
    shape: dict[str, Any] = {"pp": ranks, "microbatches": parallel.microbatches and count}
    if parallel.pp > 1:
        shape["blocks_per_stage"] = sizes
    return Sample(
        dataclasses.replace(
            config,
            model=dataclasses.replace(config.model, layers=sum(sizes)),
            train=dataclasses.replace(config.train, global_batch_size=whole),
            parallel=dataclasses.replace(parallel, **shape),
        ),
        world_size,
        removed,
    )


def edge_blocks(config: Config) -> int:
    """Return the blocks at either end whose peaks are separate, so that equal blocks are compared across samples."""
    return 2 * _period(config)


def _stages(config: Config) -> list[range]:
    return config.stage_blocks(getattr(config.model, "layers", 0))


def _period(config: Config) -> int:
    unit = getattr(config.strategy, "blocks_per_unit", 0) or 1
    return math.lcm(unit, config.train.activation_checkpoint_every or 1)

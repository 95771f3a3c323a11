"""The same job on other numbers of ranks: what each rank does stays, so the batch grows."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from dtk.config.compose import Composed
from dtk.errors import DtkError
from dtk.plan.engines import Machine, predict
from dtk.plan.job import check_world_size, ranks_of, settled_job
from dtk.plan.prediction import Prediction

USUAL = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""World sizes of the page's plots where none are asked for."""


@dataclass(frozen=True, slots=True)
class Point:
    """The job on one number of ranks."""

    world_size: int
    prediction: Prediction | None
    problem: str = ""
    """Why there is none."""


def parse_world_sizes(text: str) -> tuple[int, ...]:
    """`8,64,512` as numbers, ascending.

    Raises:
        DtkError: another text, or a number that no job has.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise DtkError(f'--world-size "{text}" is not a list of numbers', fix="write --world-size 8,64,512,4096")
    for part in parts:
        check_world_size(int(part), f"--world-size {part}")
    return tuple(sorted({int(part) for part in parts}))


def scaling(job: Composed, sizes: Sequence[int], here: Machine) -> tuple[Point, ...]:
    """One point for each number of ranks; a number that is impossible says why.

    Raises:
        DtkError: none of the numbers is possible.
    """
    if job.config.strategy.traits.one_process:
        name = job.config.strategy.name
        raise DtkError(f"strategy={name} is one process: it does not scale", fix="use strategy=ddp or strategy=fsdp")
    points = []
    for size in sizes:
        try:
            points.append(Point(size, predict(at_world_size(job, size).config, size, here)))
        except DtkError as error:
            points.append(Point(size, None, error.what))
    if all(point.prediction is None for point in points):
        raise DtkError(f"the job fits none of --world-size {','.join(map(str, sizes))}", points[0].problem)
    return tuple(points)


def at_world_size(job: Composed, world_size: int) -> Composed:
    """Return the job on that many ranks, each of which does as much work as before.

    Raises:
        DtkError: the mesh does not fit the ranks.
    """
    train = job.config.train
    share = job.config.batch_plan(ranks_of(job.config)).samples_per_rank
    grown = dataclasses.replace(train, global_batch_size=share * job.config.mesh(world_size).dp_size)
    return settled_job(dataclasses.replace(job, config=dataclasses.replace(job.config, train=grown)), world_size)

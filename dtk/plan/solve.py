"""The largest model and the largest micro-batch that fit a device, and the same job on other world sizes."""

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dtk.config.compose import Composed
from dtk.config.schema import Config, CustomModelConfig
from dtk.errors import DtkError, Errors
from dtk.plan.formulas.closed_form import memory
from dtk.plan.formulas.prediction import Prediction
from dtk.plan.job import Machine, check_world_size, on_device, predict, ranks_of, settled_job
from dtk.sharding.registry import for_several_ranks

_errors = Errors(__file__)
DEEPEST = 100_000  # Layers; the schema's own limit.
WIDEST = 4096  # Heads; wider models need sharding along their width, which the search does not vary.
LARGEST_BATCH = 1 << 24  # Samples in a micro-batch; with more, the number of tokens exceeds a tensor's index range.


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest setting of one kind that fits."""

    what: str
    """`deeper`, `wider`, `deeper and wider`, `micro-batch`."""
    overrides: tuple[str, ...]
    """Overrides to type for it."""
    prediction: Prediction | None
    """Prediction of this setting; None if not even the smallest fits."""


def max_batch(job: Composed, target: Machine) -> Largest:
    """Return the largest `train.micro_batch_size` that fits, with as many micro-batches per step as configured."""
    config, ranks = job.config, ranks_of(job.config)
    plan = config.batch_plan(ranks)

    def sized(micro: int) -> Config:
        samples = micro * plan.dp_size * plan.accumulation_steps
        train = dataclasses.replace(config.train, micro_batch_size=micro, global_batch_size=samples)
        return dataclasses.replace(config, train=train)

    micro = largest(range(1, LARGEST_BATCH + 1), lambda micro: _excess(sized(micro), target) <= 0)
    best = sized(micro or 1)
    overrides = tuple(f"train.{key}={getattr(best.train, key)}" for key in ("micro_batch_size", "global_batch_size"))
    return Largest("micro-batch", overrides, predict(best, ranks, target) if micro else None)


def max_model(job: Composed, target: Machine) -> tuple[Largest, ...]:
    """Return the deepest model, the widest model, and the largest model of the configured proportions that fit."""
    return tuple(_largest_model(job.config, target, what) for what in ("deeper", "wider", "deeper and wider"))


def check_solvable(config: Config, target: Machine, option: str) -> None:
    """Check that an option knows a device to fit into and, but for `--max-batch`, a model to change; else DtkError."""
    is_fixed = option != "--max-batch" and isinstance(config.model, CustomModelConfig)
    _errors.refuse({"no_device": target.hardware is None, "fixed": is_fixed}, option=option, model=config.model.name)


def largest(sizes: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """Return the largest size that fits, if all smaller ones do; None if not even the smallest does.

    Sizes ascend. `fits` is called at most once per size, and never above the first size that did not fit.
    """
    fitting, at = 0, 0  # Number of the smallest sizes that are known to fit, and the next one to try.
    while at < len(sizes) and fits(sizes[at]):
        # The largest size up to twice this one, or the next size if divisors are further apart.
        fitting, at = at + 1, max(bisect_right(sizes, 2 * sizes[at]) - 1, at + 1)
    fitting = bisect_left(sizes, True, fitting, max(fitting, at), key=lambda size: not fits(size))
    return sizes[fitting - 1] if fitting else None


def _largest_model(config: Config, target: Machine, what: str) -> Largest:
    """Return the largest model of one kind of growth; head size and the feed-forward ratio are kept."""
    model, ranks = config.model, ranks_of(config)
    # Heads that share keys and values are added together.
    step = model.heads // model.kv_heads if hasattr(model, "kv_heads") else 1

    def sizes(n: int) -> dict[str, int]:
        if what == "deeper":
            return {"layers": n}
        heads, width = n * step, n * step * (model.width // model.heads)
        sizes = {"width": width, "heads": heads}
        if hasattr(model, "kv_heads"):
            sizes["kv_heads"] = heads * model.kv_heads // model.heads
        if hasattr(model, "ffn_width"):
            sizes["ffn_width"] = round(model.ffn_width * width / model.width)
        return sizes if what == "wider" else {"layers": max(1, round(model.layers * heads / model.heads)), **sizes}

    def grown(n: int) -> Config:
        return dataclasses.replace(config, model=dataclasses.replace(model, **sizes(n)))

    numbers = range(1, (DEEPEST if what == "deeper" else WIDEST) + 1)
    number = largest(numbers, lambda n: _excess(grown(n), target) <= 0)
    overrides = tuple(f"model.{name}={value}" for name, value in sizes(number or 1).items())
    return Largest(what, overrides, predict(grown(number), ranks, target) if number else None)


def _excess(config: Config, target: Machine) -> int:
    """Return the bytes that the job needs beyond the device's memory, or the host's if that is more."""
    ranks = ranks_of(config)
    if target.engine == "simulated" or (hardware := target.hardware) is None:
        return predict(config, ranks, target, timed=False).excess_bytes
    needed = memory(on_device(config, target), ranks)
    return needed.excess_bytes(hardware.memory_bytes, min(target.local_size, ranks), hardware.host_memory_bytes)


DEFAULT_WORLD_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # Of a page's plots.


@dataclass(frozen=True, slots=True)
class Point:
    """The job on one number of ranks."""

    world_size: int
    prediction: Prediction | None
    problem: str = ""
    """Why there is no prediction."""


def parse_world_sizes(text: str) -> tuple[int, ...]:
    """Parse `8,64,512` into ascending numbers; DtkError if the text has another form, or a number is out of range."""
    parts = [part.strip() for part in text.split(",")]
    are_numbers = all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts)
    _errors.refuse({"sizes": not are_numbers}, text=text)
    for part in parts:
        check_world_size(int(part), f"--world-size {part}")
    return tuple(sorted({int(part) for part in parts}))


def scaling(job: Composed, sizes: Sequence[int], target: Machine) -> tuple[Point, ...]:
    """Return a point per number of ranks; DtkError if all have a `problem`, or the strategy is one process."""
    strategy = job.config.strategy
    _errors.refuse({"one": strategy.traits.one_process}, strategy=strategy.name, others=for_several_ranks)
    points = []
    for size in sizes:
        try:
            points.append(Point(size, predict(at_world_size(job, size).config, size, target)))
        except DtkError as error:
            points.append(Point(size, None, error.what))
    if all(point.prediction is None for point in points):
        raise _errors("none_fits", sizes=",".join(map(str, sizes)), why=points[0].problem)
    return tuple(points)


def at_world_size(job: Composed, world_size: int) -> Composed:
    """Return the job on `world_size` ranks with the same work per rank; DtkError if the mesh does not fit the ranks."""
    train = job.config.train
    share = job.config.batch_plan(ranks_of(job.config)).samples_per_rank
    grown = dataclasses.replace(train, global_batch_size=share * job.config.mesh(world_size).dp_size)
    return settled_job(dataclasses.replace(job, config=dataclasses.replace(job.config, train=grown)), world_size)

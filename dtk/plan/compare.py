"""The same job under every strategy, with a recommendation: the simplest and the fastest that fit, with reasons.
And (`search`) under every layout, fastest first: bounds of its step time and memory spare most of them a full plan.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from heapq import heapify, heappop, heappush
from itertools import product
from pathlib import Path
from typing import Any

from diagnostics.contract.formatting import bytes_text, counted, seconds_text
from diagnostics.contract.mesh import divisors
from dtk.config.checks import check
from dtk.config.compose import Composed, compose
from dtk.config.schema import Config
from dtk.errors import DtkError
from dtk.parallel.batch_plan import BatchPlan
from dtk.plan.formatting import percent_text, rate_text
from dtk.plan.formulas.prediction import Prediction, Time
from dtk.plan.formulas.stages import least_bytes
from dtk.plan.job import Machine, on_device, predict, ranks_of, settled_job
from dtk.plan.solve import at_world_size
from dtk.sharding.registry import CONFIG_TYPES, preferred

STRATEGIES = tuple(name for name, section in CONFIG_TYPES.items() if section.traits.compared)
"""Strategies to compare, simplest first."""
LEAST_MEMORY = preferred("units")  # The strategy that shards the most.
FASTER = 1.05  # Chosen: minimum speed-up over the simplest at which a faster variant is recommended.
TIGHT = 0.05  # Chosen: fraction of device memory below which the remainder counts as little.
_MORE_RANKS = 1 << 16  # Chosen: more than any cluster has devices.
_NAMED = 3  # Limit of variants or layouts that a sentence lists.
_CHECKPOINTING = "train.activation_checkpoint_every"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run the job."""

    strategy: str
    checkpointing: bool = False
    offload: bool = False

    @property
    def name(self) -> str:
        """Name such as `fsdp + checkpointing + offload`."""
        extras = [word for word, on in (("checkpointing", self.checkpointing), ("offload", self.offload)) if on]
        return " + ".join([self.strategy, *extras])


@dataclass(frozen=True, slots=True)
class Row:
    """One variant and its prediction."""

    variant: Variant
    overrides: tuple[str, ...]
    """Overrides that select it, in addition to those of the job."""
    prediction: Prediction | None
    problem: str = ""
    """Why there is no prediction."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rows, simplest first."""

    rows: tuple[Row, ...]
    recommended: Row | None
    """The simplest variant that fits."""
    reasons: tuple[str, ...]
    fastest: Row | None = None
    """The fastest variant that fits, if it is clearly faster than the simplest."""


VARIANTS = tuple(Variant(name, checkpointing) for checkpointing in (False, True) for name in STRATEGIES)
VARIANTS += tuple(Variant(LEAST_MEMORY, checkpointing, offload=True) for checkpointing in (False, True))
"""The simplest first: recomputing costs a third of the compute, offloading a copy over the host's bus each step."""


def compare(job: Composed, target: Machine, config_dir: Path | None = None) -> Comparison:
    """Plan the job under every variant; without a device there is no fit and no recommendation."""
    with_strategy = functools.cache(lambda strategy: _with_strategy(job, target, strategy, config_dir))
    ranks, every = ranks_of(job.config), job.config.train.activation_checkpoint_every
    rows = []
    for variant in VARIANTS:
        used = 1 if CONFIG_TYPES[variant.strategy].traits.one_process else ranks
        overrides = _selecting(job, target, variant.strategy)
        overrides += ["strategy.offload=parameters"] * variant.offload
        if variant.checkpointing or every:
            overrides.append(f"{_CHECKPOINTING}={(every or 1) if variant.checkpointing else 0}")
        try:
            config = _variant_job(job, variant, used, with_strategy).config
            rows.append(Row(variant, tuple(overrides), predict(config, used, target)))
        except DtkError as error:
            rows.append(Row(variant, tuple(overrides), None, error.what))
    if target.hardware is None:
        advice = "Without a device nothing is recommended: add hardware=NAME, for example hardware=h100_sxm."
        return Comparison(tuple(rows), None, (advice,))
    fitting = [row for row in rows if (plan := row.prediction) and plan.fits and plan.world_size == ranks]
    if not fitting:
        return Comparison(tuple(rows), None, tuple(_nothing_fits(rows, job, target, with_strategy)))
    simplest = fitting[0]
    # The times of offloading do not include copies to the host and back.
    fastest = max((row for row in fitting if not row.variant.offload), key=_tokens_per_s, default=simplest)
    clearly = _tokens_per_s(fastest) > FASTER * _tokens_per_s(simplest) > 0
    named = fastest if clearly else None
    return Comparison(tuple(rows), simplest, tuple(_reasons(rows, simplest, named)), named)


def _selecting(job: Composed, target: Machine, strategy: str) -> list[str]:
    """Return the overrides that select a strategy, and shard inside a node where it also replicates."""
    overrides, ranks = [f"strategy={strategy}"], ranks_of(job.config)
    own_mesh = any(text.lstrip("+~").startswith("strategy.dp_") for text in job.overrides)
    has_mesh = CONFIG_TYPES[strategy].traits.replicated_over == "dp_replicate"
    if has_mesh and not own_mesh and ranks > target.local_size and ranks % target.local_size == 0:
        overrides += ["strategy.dp_replicate=-1", f"strategy.dp_shard={target.local_size}"]
    return overrides


def _variant_job(job: Composed, variant: Variant, ranks: int, with_strategy: Callable[[str], Config]) -> Composed:
    other = with_strategy(variant.strategy)
    every = (job.config.train.activation_checkpoint_every or 1) if variant.checkpointing else 0
    train = dataclasses.replace(job.config.train, activation_checkpoint_every=every)
    strategy = dataclasses.replace(other.strategy, offload="parameters") if variant.offload else other.strategy
    config = dataclasses.replace(job.config, train=train, strategy=strategy, fault=other.fault)
    return settled_job(dataclasses.replace(job, config=config), ranks)


def _with_strategy(job: Composed, target: Machine, strategy: str, config_dir: Path | None) -> Config:
    """Compose the job with another strategy, without a fault and without keys that this strategy does not have."""
    own_by_definition = {"offload", "offload_to", "offload_folder", "reshard_after_forward"}
    accepted = {field.name for field in fields(CONFIG_TYPES[strategy])} - own_by_definition
    shared = []
    for text in job.overrides:
        section, _, name = text.lstrip("+~").partition("=")[0].partition(".")
        if section not in ("strategy", "fault") or (section == "strategy" and name in accepted):
            shared.append(text)
    return compose([*shared, *_selecting(job, target, strategy)], config_dir).config


def _tokens_per_s(row: Row) -> float:
    return row.prediction.time.tokens_per_s if row.prediction is not None and row.prediction.time is not None else 0.0


def _reasons(rows: Sequence[Row], simplest: Row, fastest: Row | None) -> Iterator[str]:
    """Yield why simpler variants do not fit, how much memory is left, and which variant is faster."""
    plan = simplest.prediction
    assert plan is not None
    device = plan.device_memory_bytes or 0
    free = device - plan.memory.peak_bytes
    simpler = [(row.variant.name, row.prediction) for row in rows[: rows.index(simplest)] if row.prediction is not None]
    large = [(name, other.memory.peak_bytes) for name, other in simpler if other.memory.peak_bytes > device]
    if large:
        named = ", ".join(f"{name} needs {bytes_text(peak)}" for name, peak in large[:_NAMED])
        more = f", and {len(large) - _NAMED} more" if len(large) > _NAMED else ""
        yield f"Too large for {bytes_text(device)}: {named}{more}."
    for name, other in simpler:
        if other.memory.peak_bytes <= device and other.exceeds_host:
            yield f"Too large for the host of a node: {_host(name, other)}."
    for name, other in simpler:
        if other.fits:
            yield f"{name} would fit, but uses only {counted(other.world_size, 'rank')}."
    free_memory = f"{bytes_text(free)} of {bytes_text(device)} are left"
    tight = ", which is little: fragmentation or longer batches may take it" if free < TIGHT * device else ""
    yield f"{simplest.variant.name} is the simplest that fits: {free_memory}{tight}."
    if fastest is not None:
        ratio, speed = _tokens_per_s(fastest) / _tokens_per_s(simplest), rate_text(_tokens_per_s(fastest))
        yield f"{fastest.variant.name} is the fastest that fits: {ratio:.2f} times as fast ({speed} tokens/s)."


def _nothing_fits(
    rows: list[Row], job: Composed, target: Machine, with_strategy: Callable[[str], Config]
) -> Iterator[str]:
    """Yield lines on which variant is closest to fitting and what would make it fit."""
    planned = [(row.variant.name, row.prediction) for row in rows if row.prediction is not None]
    if not planned:
        yield "No strategy can run this job."
        return
    name, least = min(planned, key=lambda variant: variant[1].excess_bytes)
    peak, device = least.memory.peak_bytes, least.device_memory_bytes or 0
    if peak > device:
        more = f"{bytes_text(peak - device)} more than the {bytes_text(device)} of the device"
        yield f"Nothing fits. The smallest is {name} with {bytes_text(peak)}, {more}."
    else:
        yield f"Nothing fits. {name} fits the device, but not the host memory of a node: {_host(name, least)}."
    if (micro := job.config.train.micro_batch_size) > 1:
        yield f"train.micro_batch_size={micro} can be smaller: --max-batch finds the largest that fits."
    # The smallest number of ranks, by doubling, on which the most sharded variant fits.
    ranks, fits = ranks_of(job.config), False
    with suppress(DtkError):
        sharded = _variant_job(job, Variant(LEAST_MEMORY, checkpointing=True), ranks, with_strategy)
        while ranks < _MORE_RANKS and not fits:
            ranks *= 2
            fits = bool(predict(at_world_size(sharded, ranks).config, ranks, target, timed=False).fits)
    if fits:
        yield f"{LEAST_MEMORY} + checkpointing fits on {counted(ranks, 'rank')}: launcher.world_size={ranks}."
    else:
        yield "More ranks do not help: one rank's activations or gathered parameters are too large by themselves."


def _host(name: str, plan: Prediction) -> str:
    """Return `fsdp + offload needs 2.1 TiB of 1.8 TiB`."""
    return f"{name} needs {bytes_text(plan.host_bytes_per_node)} of {bytes_text(plan.node_host_bytes or 0)}"


SHOWN = 10  # Number of layouts that are ranked and fully planned.
_LARGEST_MICRO_BATCH, _VIRTUAL = 16, (1, 2, 4)
"""Chosen: larger micro-batches gain little, and more virtual stages lose to the messages."""
_SAME_SHARE = 0.001  # Chosen: a smaller part of a step does not explain why one layout is faster than another.
Typed = dict[str, Any]  # Keys and values of overrides.


@dataclass(frozen=True, slots=True)
class FittingLayout:
    """A layout that fits the device."""

    overrides: tuple[str, ...]
    """Overrides to type for it, in addition to those of the job."""
    prediction: Prediction


@dataclass(frozen=True, slots=True)
class Search:
    """The layouts that fit, fastest first."""

    fitting: tuple[FittingLayout, ...]
    layouts: int
    """Number of layouts that the model and the batch allow."""
    too_large: int
    too_slow: int
    """Number of layouts whose time, or its lower bound, exceeds that of the last one shown."""
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    typed: Typed
    config: Config
    least_s: float


def search(job: Composed, target: Machine) -> Search:
    """Rank the layouts of a resolved job's ranks, model and global batch by step time; typed settings are kept."""
    from dtk.plan.timing.time import least_s, step_time

    assert target.hardware is not None
    ranks, device, room = ranks_of(job.config), on_device(job.config, target), target.hardware.memory_bytes
    possible = _layouts(dataclasses.replace(job, config=device), ranks, target.local_size)
    layouts = [_Candidate(typed, config, least_s(config, ranks, target.hardware)) for typed, config in possible]
    fitting: list[FittingLayout] = []
    large: list[tuple[_Candidate, int]] = []
    # By bound, then by time. Memory costs ten times as much to compute, so only for candidates that may be shown.
    queue: list[tuple[float, int, Time | None]] = [(each.least_s, n, None) for n, each in enumerate(layouts)]
    heapify(queue)
    while queue and len(fitting) < SHOWN:
        _, number, time = heappop(queue)
        layout = layouts[number]
        if time is None:
            if (needed := least_bytes(layout.config, ranks)) > room:
                large.append((layout, needed))
            else:
                time = step_time(layout.config, ranks, target.hardware)
                heappush(queue, (time.step_s, number, time))
            continue
        plan = predict(layout.config, ranks, target, "closed_form", timed=False)
        if plan.fits:
            fitting.append(FittingLayout(_overrides(layout.typed), dataclasses.replace(plan, time=time)))
        else:
            large.append((layout, plan.memory.peak_bytes))
    reasons = tuple(_reasons_of_layouts(fitting, large, room, len(queue)))
    return Search(tuple(fitting), len(layouts), len(large), len(queue), reasons)


def _layouts(job: Composed, ranks: int, local_size: int) -> Iterator[tuple[Typed, Config]]:
    """Yield the layouts that the rules of a run allow. `cp` is kept; tp stays within a node."""
    degrees = divisors(getattr(job.config.model, "experts", 1))
    fixed = dict(text.lstrip("+~").partition("=")[::2] for text in job.overrides)
    names = [name for name, kind in CONFIG_TYPES.items() if kind.traits.compared and not kind.traits.one_process]
    if (chosen := fixed.pop("strategy", "")) in CONFIG_TYPES:  # A strategy itself, not a preset of the user.
        names = [chosen]
    sections = {name: CONFIG_TYPES[name](name=name) for name in names} | {job.config.strategy.name: job.config.strategy}
    batch = job.config.train.global_batch_size
    for tp in (n for n in divisors(ranks) if n <= local_size):
        for pp, virtual in product(divisors(ranks // tp), _VIRTUAL):
            dp, rest = divmod(ranks, tp * pp * job.config.parallel.cp)
            if rest or (virtual > 1 and pp == 1):
                continue
            micros = [n for n in BatchPlan(batch, 1, dp).micro_batch_sizes() if n <= _LARGEST_MICRO_BATCH]
            micros = [n for n in micros if pp == 1 or BatchPlan(batch, n, dp).accumulation_steps >= pp]
            for name, micro, every, ep in product(names if dp > 1 else names[:1], micros, (0, 1), degrees):
                typed: Typed = {"strategy": name, "parallel.tp": tp, "parallel.pp": pp, "parallel.ep": ep}
                typed |= {"train.micro_batch_size": micro, "train.activation_checkpoint_every": every}
                if virtual > 1:
                    typed |= {"parallel.schedule": "interleaved_1f1b", "parallel.stages_per_rank": virtual}
                if sections[name].traits.replicated_over == "dp_replicate":
                    inside = max(1, local_size // tp)
                    if dp % inside or inside in (1, dp):
                        continue
                    typed |= {"strategy.dp_replicate": dp // inside, "strategy.dp_shard": inside}
                if all(fixed.get(key, str(value)) == str(value) for key, value in typed.items()):
                    whole = {"strategy": sections[name], "parallel": job.config.parallel, "train": job.config.train}
                    for section, old in whole.items():
                        head = f"{section}."
                        new = {key.removeprefix(head): value for key, value in typed.items() if key.startswith(head)}
                        whole[section] = dataclasses.replace(old, **new) if new else old
                    config = dataclasses.replace(job.config, **whole)
                    try:
                        check(config, ranks, config.launcher.device, ranks, numbers=False)
                    except DtkError:
                        continue
                    yield typed, config


def _overrides(typed: Typed) -> tuple[str, ...]:
    plain = {"parallel.tp": 1, "parallel.pp": 1, "parallel.ep": 1, "train.activation_checkpoint_every": 0}
    return tuple(f"{key}={value}" for key, value in typed.items() if plain.get(key) != value)


def _reasons_of_layouts(
    fitting: list[FittingLayout], large: list[tuple[_Candidate, int]], room: int, slow: int
) -> Iterator[str]:
    """Yield why the first layout is faster than the second, and why the others are excluded."""
    if not fitting:
        yield "No layout fits."
    times = [layout.prediction.time for layout in fitting if layout.prediction.time is not None]
    if len(times) > 1:
        first, second = times[:2]
        kinds = {"compute_s": "computing", "exposed_s": "waiting for communication"}
        kinds["bubble_s"] = "in the bubble of the pipeline"
        saved = [(getattr(second, name) - getattr(first, name), what) for name, what in kinds.items()]
        large_s = _SAME_SHARE * first.step_s
        saved = sorted((part for part in saved if abs(part[0]) >= large_s), key=lambda part: -part[0])
        savings = [f"{seconds_text(abs(s))} {'less' if s > 0 else 'more'} {what}" for s, what in saved]
        gain = percent_text(second.step_s / first.step_s - 1)
        yield f"The first is {gain} faster than the second: {', '.join(savings) or 'they take the same time'}."
    if large:  # In the order of their bounds: the first would be the fastest if they fitted.
        named = "; ".join(
            f"{' '.join(_overrides(layout.typed))} (at best {seconds_text(layout.least_s)}) "
            f"needs {bytes_text(needed)} at least, {bytes_text(needed - room)} too much"
            for layout, needed in large[:_NAMED]
        )
        more = f"; {len(large) - _NAMED:,} more do not fit" if len(large) > _NAMED else ""
        yield f"Too large for {bytes_text(room)}: {named}{more}."
    if slow:
        takes = "takes" if slow == 1 else "take"
        yield f"{counted(slow, 'layout')} {takes} more than {seconds_text(times[SHOWN - 1].step_s)}."

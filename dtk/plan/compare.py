"""The same job under every strategy, with a recommendation: the simplest and the fastest that fit, with reasons."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

from diagnostics.contract.formatting import bytes_text, counted
from dtk.config.compose import Composed, compose
from dtk.config.schema import Config
from dtk.errors import DtkError
from dtk.plan.engines import Machine, predict
from dtk.plan.formatting import rate_text
from dtk.plan.formulas.prediction import Prediction
from dtk.plan.job import ranks_of, settled_job
from dtk.plan.solve import at_world_size
from dtk.sharding.registry import CONFIG_TYPES, preferred

STRATEGIES = tuple(name for name, section in CONFIG_TYPES.items() if section.traits.compared)
"""Strategies to compare, simplest first."""
LEAST_MEMORY = preferred("units")  # The strategy that shards the most.
FASTER = 1.05  # Chosen: minimum speed-up over the simplest at which a faster variant is recommended.
TIGHT = 0.05  # Chosen: fraction of device memory below which the remainder counts as little.
_MORE_RANKS = 1 << 16  # Chosen: more than any cluster has devices.
_NAMED = 3  # Limit of variants that a sentence lists.
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

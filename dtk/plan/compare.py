"""The same job under every strategy, and which ones to take: the simplest and the fastest that fit, with the reasons.

Knows no output.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from diagnostics.contract.formatting import counted
from dtk.config.compose import Composed, compose
from dtk.config.schema import Config
from dtk.errors import DtkError
from dtk.plan.engines import Machine, predict, without_time
from dtk.plan.formatting import bytes_text, rate_text
from dtk.plan.job import ranks_of, settled_job
from dtk.plan.prediction import Prediction
from dtk.plan.scaling import at_world_size
from dtk.strategies.registry import CONFIG_TYPES, preferred

STRATEGIES = tuple(name for name, section in CONFIG_TYPES.items() if section.traits.compared)
"""The simplest first."""
LEAST_MEMORY = preferred("units")
"""The one that no other shards more than."""
FASTER = 1.05
"""Tokens/s over those of the simplest from which a faster one is worth naming."""
TIGHT = 0.05
"""Part of the device below which what is left over is called little."""
_MORE_RANKS = 1 << 16
_OWN = ("strategy", "fault")
"""Sections that each row has of its own: a planted fault may be settings of a strategy."""
_NAMED = 3
"""Variants that a sentence names at most."""
_CHECKPOINTING = "train.activation_checkpoint_every"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run the job."""

    strategy: str
    checkpointing: bool = False
    offload: bool = False

    @property
    def name(self) -> str:
        """`fsdp + checkpointing + offload`."""
        extras = [word for word, on in (("checkpointing", self.checkpointing), ("offload", self.offload)) if on]
        return " + ".join([self.strategy, *extras])


@dataclass(frozen=True, slots=True)
class Row:
    """One variant and what it needs."""

    variant: Variant
    overrides: tuple[str, ...]
    """What to type for it, beside the rest of the job."""
    prediction: Prediction | None
    problem: str = ""
    """Why there is no prediction."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rows, the simplest first."""

    rows: tuple[Row, ...]
    recommended: Row | None
    """The simplest that fits."""
    reasons: tuple[str, ...]
    fastest: Row | None = None
    """The fastest that fits, where it is clearly faster than the simplest."""


VARIANTS = (
    *(Variant(name) for name in STRATEGIES),
    *(Variant(name, checkpointing=True) for name in STRATEGIES),
    Variant(LEAST_MEMORY, offload=True),
    Variant(LEAST_MEMORY, checkpointing=True, offload=True),
)
"""The simplest first: recomputing costs a third of the compute, offloading a copy over the host's bus each step."""


def compare(job: Composed, here: Machine, config_dir: Path | None = None) -> Comparison:
    """Plan the job under every variant.

    Args:
        job: settled; its strategy is one of many here.
        here: the machine; without a device nothing fits or does not, and nothing is recommended.
        config_dir: the user's own YAML files.
    """
    sections = functools.cache(lambda strategy: _sections(job, here, strategy, config_dir))
    rows = tuple(_row(job, here, variant, sections) for variant in VARIANTS)
    if here.hardware is None:
        reason = "Without a device nothing is recommended: add hardware=NAME, for example hardware=h100_sxm."
        return Comparison(rows, None, (reason,))
    ranks = ranks_of(job.config)
    simplest = next(_fitting(rows, ranks), None)
    if simplest is None:
        return Comparison(rows, None, tuple(_nothing(rows, job, here, sections)))
    fastest = _fastest(rows, simplest, ranks)
    return Comparison(rows, simplest, tuple(_why(rows, simplest, fastest)), fastest)


def _row(job: Composed, here: Machine, variant: Variant, sections: Callable[[str], Config]) -> Row:
    ranks = 1 if CONFIG_TYPES[variant.strategy].traits.one_process else ranks_of(job.config)
    typed = _typed(job, here, variant)
    try:
        config = _job(job, variant, ranks, sections).config
        return Row(variant, typed, predict(config, ranks, here))
    except DtkError as error:
        return Row(variant, typed, None, error.what)


def _selecting(job: Composed, here: Machine, strategy: str) -> list[str]:
    """Return the overrides that select a strategy, and shard inside a node where it also replicates."""
    typed, ranks = [f"strategy={strategy}"], ranks_of(job.config)
    own_mesh = any(text.lstrip("+~").startswith("strategy.dp_") for text in job.overrides)
    has_mesh = CONFIG_TYPES[strategy].traits.replicated_over == "dp_replicate"
    if has_mesh and not own_mesh and ranks > here.local_size and ranks % here.local_size == 0:
        typed += ["strategy.dp_replicate=-1", f"strategy.dp_shard={here.local_size}"]
    return typed


def _typed(job: Composed, here: Machine, variant: Variant) -> tuple[str, ...]:
    """Return the overrides that select the variant."""
    typed = _selecting(job, here, variant.strategy)
    if variant.offload:
        typed.append("strategy.cpu_offload=true")
    every = job.config.train.activation_checkpoint_every or 1
    if variant.checkpointing:
        typed.append(f"{_CHECKPOINTING}={every}")
    elif job.config.train.activation_checkpoint_every:
        typed.append(f"{_CHECKPOINTING}=0")
    return tuple(typed)


def _job(job: Composed, variant: Variant, ranks: int, sections: Callable[[str], Config]) -> Composed:
    """Return the job with this variant's settings; `sections` has those of each strategy."""
    of_strategy = sections(variant.strategy)
    every = (job.config.train.activation_checkpoint_every or 1) if variant.checkpointing else 0
    train = dataclasses.replace(job.config.train, activation_checkpoint_every=every)
    section = of_strategy.strategy
    if variant.offload:
        section = dataclasses.replace(section, cpu_offload=True)
    config = dataclasses.replace(job.config, train=train, strategy=section, fault=of_strategy.fault)
    return settled_job(dataclasses.replace(job, config=config), ranks)


def _sections(job: Composed, here: Machine, strategy: str, config_dir: Path | None) -> Config:
    """Compose the job with another strategy, without the overrides that belong to its own.

    Raises:
        DtkError: the other overrides do not go with the strategy.
    """
    own_by_definition = {"cpu_offload", "reshard_after_forward"}
    accepted = {field.name for field in fields(CONFIG_TYPES[strategy])} - own_by_definition
    kept = []
    for text in job.overrides:
        section, _, name = text.lstrip("+~").partition("=")[0].partition(".")
        if section not in _OWN or (section == "strategy" and name in accepted):
            kept.append(text)
    return compose([*kept, *_selecting(job, here, strategy)], config_dir).config


def _fitting(rows: Sequence[Row], ranks: int) -> Iterator[Row]:
    """Rows that fit and use every rank."""
    for row in rows:
        if row.prediction is not None and row.prediction.fits and row.prediction.world_size == ranks:
            yield row


def _fastest(rows: Sequence[Row], simplest: Row, ranks: int) -> Row | None:
    """Return the row with the most tokens/s, if they are clearly more than those of the simplest."""
    # Copies to the host and back are not in the times of offloading.
    timed = [row for row in _fitting(rows, ranks) if not row.variant.offload]
    fastest = max(timed, key=_speed, default=simplest)
    return fastest if _speed(simplest) and _speed(fastest) > FASTER * _speed(simplest) else None


def _why(rows: Sequence[Row], simplest: Row, fastest: Row | None) -> Iterator[str]:
    """Why the simpler ones are out, how much is left, and what is faster."""
    made = simplest.prediction
    assert made is not None
    device = made.device_memory_bytes or 0
    free = device - made.memory.peak_bytes
    yield from _simpler(rows[: rows.index(simplest)], device)
    left = f"{bytes_text(free)} of {bytes_text(device)} are left"
    tight = ", which is little: fragmentation or longer batches may take it" if free < TIGHT * device else ""
    yield f"{simplest.variant.name} is the simplest that fits: {left}{tight}."
    if fastest is not None:
        more, speed = _speed(fastest) / _speed(simplest), rate_text(_speed(fastest))
        yield f"{fastest.variant.name} is the fastest that fits: {more:.2f} times as fast ({speed} tokens/s)."


def _speed(row: Row) -> float:
    """Tokens/s; 0 where they are not known."""
    return row.prediction.time.tokens_per_s if row.prediction is not None and row.prediction.time is not None else 0.0


def _simpler(rows: Sequence[Row], device: int) -> Iterator[str]:
    """One line on those that come before the recommended one."""
    made = [(row.variant.name, row.prediction) for row in rows if row.prediction is not None]
    large = [(name, one) for name, one in made if one.memory.peak_bytes > device]
    if large:
        named = [f"{name} needs {bytes_text(one.memory.peak_bytes)}" for name, one in large[:_NAMED]]
        rest = len(large) - len(named)
        yield f"Too large for {bytes_text(device)}: {', '.join(named)}{f', and {rest} more' if rest else ''}."
    for name, one in made:
        if one.memory.peak_bytes <= device and one.exceeds_host:
            yield f"Too large for the host of a node: {_host(name, one)}."
    for row in rows:
        if row.prediction is not None and row.prediction.fits:
            yield f"{row.variant.name} would fit, but uses {counted(row.prediction.world_size, 'rank')} only."


def _nothing(rows: Sequence[Row], job: Composed, here: Machine, sections: Callable[[str], Config]) -> Iterator[str]:
    """Yield lines that say which variant is closest to fitting and what would make it fit."""
    made = [(row.variant.name, row.prediction) for row in rows if row.prediction is not None]
    if not made:
        yield "No strategy can run this job."
        return
    name, least = min(made, key=lambda variant: variant[1].excess_bytes)
    peak, device = least.memory.peak_bytes, least.device_memory_bytes or 0
    if peak > device:
        yield (
            f"Nothing fits. The least is {name} with {bytes_text(peak)}, "
            f"{bytes_text(peak - device)} more than the {bytes_text(device)} of the device."
        )
    else:
        yield f"Nothing fits. Nearest is {name}, but not on the host of a node: {_host(name, least)}."
    if job.config.train.micro_batch_size > 1:
        micro = job.config.train.micro_batch_size
        yield f"train.micro_batch_size={micro} can be smaller: --max-batch finds the largest that fits."
    ranks = _ranks_that_fit(job, here, sections)
    if ranks:
        yield f"{LEAST_MEMORY} + checkpointing fits on {counted(ranks, 'rank')}: launcher.world_size={ranks}."
    else:
        yield "More ranks do not help: one rank's activations or gathered parameters are too large by themselves."


def _host(name: str, made: Prediction) -> str:
    """`fsdp + offload needs 2.1 TiB of 1.8 TiB`"""
    return f"{name} needs {bytes_text(made.host_bytes_per_node)} of {bytes_text(made.node_host_bytes or 0)}"


def _ranks_that_fit(job: Composed, here: Machine, sections: Callable[[str], Config]) -> int:
    """Return the smallest number of ranks, by doubling, on which the most sharded variant fits; 0 if it never does."""
    variant = Variant(LEAST_MEMORY, checkpointing=True)
    ranks = ranks_of(job.config)
    try:
        sharded = _job(job, variant, ranks, sections)
        while ranks < _MORE_RANKS:
            ranks *= 2
            if without_time(at_world_size(sharded, ranks).config, ranks, here).fits:
                return ranks
    except DtkError:
        return 0
    return 0

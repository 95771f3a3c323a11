"""`--search`: ranks all combinations of dimension sizes, strategies, recomputation and micro-batches.

Each layout has a lower bound of its step time and of its memory; layouts that are certainly too large or too slow are
not planned. Independent of the output.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import product
from typing import Any

from diagnostics.contract.formatting import bytes_text, counted, seconds_text
from diagnostics.contract.mesh import divisors
from dtk.config.checks import check
from dtk.config.compose import Composed
from dtk.config.schema import Config
from dtk.errors import DtkError
from dtk.parallel.batch_plan import BatchPlan
from dtk.plan.engines import Machine, on_device, predict
from dtk.plan.formatting import percent_text
from dtk.plan.formulas.prediction import Prediction, Time
from dtk.plan.formulas.stages import least_bytes
from dtk.plan.job import ranks_of
from dtk.sharding.registry import CONFIG_TYPES

SHOWN = 10  # Number of layouts that are ranked and fully planned.
_LARGEST_MICRO_BATCH, _VIRTUAL = 16, (1, 2, 4)
"""Chosen: larger micro-batches gain little, and more virtual stages lose to the messages."""
_SAME_SHARE = 0.001  # Chosen: a smaller part of a step does not explain why one layout is faster than another.
_NAMED = 3  # Maximum number of layouts that a sentence names.
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
    reasons = tuple(_reasons(fitting, large, room, len(queue)))
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


def _reasons(fitting: list[FittingLayout], large: list[tuple[_Candidate, int]], room: int, slow: int) -> Iterator[str]:
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

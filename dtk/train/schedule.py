"""The learning rate as a pure function of the step: it has no state to save or restore."""

import math
from abc import ABC, abstractmethod

from dtk.config.schema import ConstantSchedule, CosineSchedule, CustomSchedule, WSDSchedule
from dtk.errors import DtkError


class Schedule(ABC):
    """Base class of custom schedules; name the derived class in `schedule._target_`."""

    @abstractmethod
    def factor(self, step: int, steps: int) -> float:
        """Return the factor of the peak learning rate at a step (from 0) of all `steps`; it depends on both only."""


def learning_rate(
    schedule: ConstantSchedule | CosineSchedule | WSDSchedule | CustomSchedule,
    peak_lr: float,
    step: int,
    steps: int,
    own: Schedule | None = None,
) -> float:
    """Return the learning rate of one step of `steps`, counted from 0; `own` is the instance of a custom schedule.

    DtkError if a custom schedule returned something else than a finite number >= 0.
    Sources: cosine after Loshchilov & Hutter 2017 (SGDR); warm-up-stable-decay after Hu et al. 2024 (MiniCPM).
    """
    if step < schedule.warmup_steps:
        return peak_lr * (step + 1) / schedule.warmup_steps
    if own is not None:
        factor = own.factor(step, steps)
        if not isinstance(factor, int | float) or not 0 <= factor < math.inf:
            what = f"{type(own).__qualname__}.factor({step}, {steps}) returned {factor!r}"
            raise DtkError(what, fix="return a finite number that is at least 0")
        return peak_lr * factor
    if isinstance(schedule, ConstantSchedule | CustomSchedule):
        return peak_lr
    floor = schedule.min_lr_ratio
    if isinstance(schedule, CosineSchedule):
        progress = (step - schedule.warmup_steps) / max(1, steps - 1 - schedule.warmup_steps)
        return peak_lr * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))
    remaining = steps - step
    if remaining > schedule.decay_steps:
        return peak_lr
    return peak_lr * (floor + (1 - floor) * remaining / schedule.decay_steps)

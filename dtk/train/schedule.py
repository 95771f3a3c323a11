"""The learning rate as a pure function of the step: nothing to save, nothing to restore."""

import math

from dtk.config.schema import ConstantSchedule, CosineSchedule, WSDSchedule

Schedule = ConstantSchedule | CosineSchedule | WSDSchedule


def learning_rate(schedule: Schedule, peak_lr: float, step: int, steps: int) -> float:
    """Learning rate of one step.

    Args:
        schedule: the `schedule` section.
        peak_lr: the optimizer's `lr`.
        step: 0-based step.
        steps: steps in the whole run.

    Sources: cosine after Loshchilov & Hutter 2017 (SGDR); warm-up-stable-decay after Hu et al. 2024 (MiniCPM).
    """
    if step < schedule.warmup_steps:
        return peak_lr * (step + 1) / schedule.warmup_steps
    if isinstance(schedule, ConstantSchedule):
        return peak_lr
    floor = schedule.min_lr_ratio
    if isinstance(schedule, CosineSchedule):
        progress = (step - schedule.warmup_steps) / max(1, steps - 1 - schedule.warmup_steps)
        return peak_lr * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))
    left = steps - step
    if left > schedule.decay_steps:
        return peak_lr
    return peak_lr * (floor + (1 - floor) * left / schedule.decay_steps)

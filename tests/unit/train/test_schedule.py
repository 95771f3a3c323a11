import math

import pytest

from dtk.config.schema import ConstantSchedule, CosineSchedule, CustomSchedule, WSDSchedule
from dtk.errors import DtkError
from dtk.train.schedule import Schedule, learning_rate


def curve(schedule, steps):
    return [learning_rate(schedule, 1.0, step, steps) for step in range(steps)]


def test_warm_up_is_linear_and_ends_at_the_peak():
    rates = curve(ConstantSchedule(warmup_steps=4), 8)
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_cosine_starts_at_the_peak_and_ends_at_the_floor():
    rates = curve(CosineSchedule(warmup_steps=0, min_lr_ratio=0.1), 11)
    assert rates[0] == 1.0
    assert rates[-1] == pytest.approx(0.1)
    assert rates[5] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 2)))
    assert rates == sorted(rates, reverse=True)


def test_wsd_is_flat_then_decays_over_the_last_steps():
    rates = curve(WSDSchedule(warmup_steps=2, decay_steps=4, min_lr_ratio=0.2), 10)
    assert rates[2:6] == [1.0] * 4
    assert rates[6:] == pytest.approx([1.0, 0.8, 0.6, 0.4])


@pytest.mark.parametrize("schedule", [ConstantSchedule(), CosineSchedule(), WSDSchedule()])
def test_never_zero_before_the_end_nor_above_the_peak(schedule):
    assert all(0 < rate <= 1.0 for rate in curve(schedule, 40))


class Steps(Schedule):
    def __init__(self, last):
        self.last = last

    def factor(self, step, steps):
        return self.last if step == steps - 1 else 1 / (step + 1)


def test_a_schedule_of_ones_own_follows_the_warm_up():
    section = CustomSchedule(_target_="mine.Steps", warmup_steps=2)
    rates = [learning_rate(section, 4.0, step, 6, Steps(0.5)) for step in range(6)]
    assert rates == pytest.approx([2.0, 4.0, 4 / 3, 1.0, 0.8, 2.0])
    for last in (float("nan"), -1.0, "1", None, float("inf")):
        with pytest.raises(DtkError, match="return a finite number that is at least 0"):
            learning_rate(section, 4.0, 5, 6, Steps(last))

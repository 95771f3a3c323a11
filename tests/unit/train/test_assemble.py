"""From a configuration to a loop: its figures, and a schedule of your own."""

import pytest

from dtk.config import schema
from dtk.parallel.context import Context
from dtk.strategies.ddp import DDPConfig
from dtk.train.assemble import measures
from dtk.train.schedule import Schedule
from dtk.train.setup import set_up
from tests.unit.train.conftest import Build, config


def train(micro: int, clip: float | None = 1.0) -> schema.TrainConfig:
    return schema.TrainConfig(
        steps=4, global_batch_size=4, micro_batch_size=micro, evaluate_every=-1, log_every=1, clip_norm=clip
    )


def test_tokens_of_a_step_are_those_of_the_global_batch_whatever_the_accumulation(alone: Context) -> None:
    for micro in (1, 2, 4):
        section = config(train=train(micro))
        made = measures(section, alone, set_up(section, alone))
        assert (made.tokens_per_step, made.world_size) == (4 * 8, 1)
        assert made.communicated_bytes_per_step == 0, "one process sends nothing"
        assert made.peak_flops is None and made.peak_reason == "the CPU has no published peak"


@pytest.mark.parametrize("clip", [1.0, None])
def test_what_the_strategy_declares_is_what_a_step_sends(alone: Context, clip: float | None) -> None:
    section = config(train=train(2, clip), strategy=DDPConfig())
    parts = set_up(section, alone)
    declared = parts.runner.collectives(2, clips=clip is not None)
    assert measures(section, alone, parts).communicated_bytes_per_step == sum(c.size_bytes for c in declared)


class Falling(Schedule):
    """Half of the rate in each step."""

    def factor(self, step: int, steps: int) -> float:
        """Return 1, 0.5, 0.25 ..."""
        return 0.5**step


def test_a_schedule_of_your_own_is_built_from_its_name(build: Build) -> None:
    target = f"{__name__}.Falling"
    section = config(schedule=schema.CustomSchedule(warmup_steps=0, _target_=target), allow_targets=[target])
    loop = build(section)
    loop.run()
    assert loop.parts.optimizer.param_groups[0]["lr"] == pytest.approx(1e-2 * 0.5**3)

"""From a configuration to a loop: its figures, a schedule of your own, final figures, and how a run began."""

import pytest

from dtk.config import schema
from dtk.parallel.context import Context
from dtk.strategies.ddp import DDPConfig
from dtk.train.assemble import begun, measures, summarise
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
        result = measures(section, alone, set_up(section, alone))
        assert (result.tokens_per_step, result.world_size) == (4 * 8, 1)
        assert result.communicated_bytes_per_step == 0, "one process sends nothing"
        assert result.peak_flops is None and result.peak_reason == "the CPU has no published peak"


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


def test_speed_is_the_median_without_the_first_two_steps(build: Build) -> None:
    loop = build(config())
    assert loop.run()
    loop.speeds.clear()
    loop.speeds.extend([(9.0, 0.1), (7.0, None), (2.0, 0.4), (4.0, None), (3.0, 0.6)])
    summary = summarise(loop, loop.dataset)
    figures = summary["figures"]
    assert (figures["step_time_s"], figures["steps_measured"]) == (3.0, 3)
    assert figures["tokens_per_s"] == pytest.approx(4 * 8 / 3.0) and figures["mfu"] == pytest.approx(0.5)
    assert figures["synthetic_data"] is True and figures["world_size"] == 1
    assert len(figures["peak_memory_bytes_per_rank"]) == 1 and figures["parameters"] == loop.parts.parameter_count
    assert summary["speed_unit"] == "token" and set(summary["definitions"]) >= {"loss", "step_time_s", "lr"}
    assert not {"lr", "grad_norm", "samples_hash"} & set(figures)


def test_few_steps_are_all_there_is(build: Build) -> None:
    loop = build(config())
    assert "step_time_s" not in summarise(loop, loop.dataset)["figures"], "nothing was measured yet"
    loop.speeds.append((5.0, None))
    figures = summarise(loop, loop.dataset)["figures"]
    assert (figures["step_time_s"], figures["mfu"], figures["steps_measured"]) == (5.0, None, 1)


def test_runs_that_begin_alike_say_so(build: Build, tmp_path) -> None:
    first, again, other = (build(config(seed=seed), folder=tmp_path / str(i)) for i, seed in enumerate((1, 1, 2)))
    records = [begun(loop) for loop in (first, again, other)]
    assert records[0] == records[1] != records[2]

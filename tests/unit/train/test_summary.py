"""Final figures: medians without the first steps, each with its definition; and how a run began."""

import pytest

from dtk.train.assemble import begun, summarise
from tests.unit.train.conftest import Build, config


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

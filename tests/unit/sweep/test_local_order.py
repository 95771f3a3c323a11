"""In which order a sweep runs its points and what it does when one goes wrong; launching itself is stood in for."""

import pytest

from dtk.errors import DtkError
from dtk.sweep.folder import find
from dtk.sweep.local import Runner
from tests.unit.sweep.launches import SOURCE, begin


def go_on(tmp_path, sweep):
    sweep.close()
    read = find(tmp_path, "multirun", SOURCE, sweep.about.repeats)
    return read, Runner(read, None, None)


def states(sweep):
    return [trial.state for trial in sweep.trials]


def test_repeats_are_interleaved(tmp_path, points, launches, capsys):
    sweep, runner = begin(tmp_path, points, repeats=2)
    assert runner.interleaved(sweep.points) == 0
    assert launches.seen == ["ddp", "zero1", "fsdp"] * 2
    assert "[4/6] strategy=ddp (repeat 2 of 2)" in capsys.readouterr().out
    assert [trial.run.name for trial in sweep.trials] == [f"run-{i}" for i in range(6)]


@pytest.mark.parametrize("end", ["failed", "oom", "hung", DtkError("no data"), RuntimeError("the launcher broke")])
def test_a_point_that_fails_is_recorded_and_the_rest_go_on(end, tmp_path, points, launches):
    launches.ends = {1: end}
    sweep, runner = begin(tmp_path, points, repeats=2)
    assert runner.interleaved(sweep.points) == (2 if isinstance(end, DtkError) else 1)
    assert launches.seen == ["ddp", "zero1", "fsdp", "ddp", "fsdp"], "what failed at first is not repeated"
    failed = sweep.last(1, 0)
    expected = {DtkError: "refused", RuntimeError: "failed"}.get(type(end), end)
    assert failed.state == expected and failed.reason


def test_a_repeat_that_fails_is_repeated_all_the_same(tmp_path, points, launches):
    launches.ends = {3: "failed"}
    sweep, runner = begin(tmp_path, points, repeats=3)
    assert runner.interleaved(sweep.points) == 1
    assert launches.seen.count("ddp") == 3


@pytest.mark.parametrize("end", ["preempted", KeyboardInterrupt()])
def test_ctrl_c_stops_the_sweep_and_resume_goes_on(end, tmp_path, points, launches):
    launches.ends = {1: end}
    sweep, runner = begin(tmp_path, points)
    assert runner.interleaved(sweep.points) == 130
    assert states(sweep) == ["finished", "preempted"]
    sweep, runner = go_on(tmp_path, sweep)
    assert runner.interleaved(sweep.points) == 0
    assert launches.seen == ["ddp", "zero1", "zero1", "fsdp"]
    assert launches.resumed == [], "it had no checkpoint"
    assert (tmp_path / "run-1").is_dir() and (tmp_path / "run-2").is_dir(), "nothing is overwritten"
    sweep.close()


def test_resume_repeats_what_failed_and_skips_what_is_done(tmp_path, points, launches):
    launches.ends = {2: "oom"}
    sweep, runner = begin(tmp_path, points, repeats=2)
    runner.interleaved(sweep.points)
    sweep, runner = go_on(tmp_path, sweep)
    assert runner.interleaved(sweep.points) == 0
    assert launches.seen[5:] == ["fsdp", "fsdp"]
    sweep, runner = go_on(tmp_path, sweep)
    assert runner.interleaved(sweep.points) == 0 and len(launches.seen) == 7
    sweep.close()


def test_points_are_run_as_they_were_frozen(tmp_path, points, launches, monkeypatch):
    """Not composed again: conf/ may have changed since."""
    sweep, _ = begin(tmp_path, points)
    sweep, runner = go_on(tmp_path, sweep)
    monkeypatch.setattr("dtk.launch.prepare.compose", lambda *_, **__: pytest.fail("composed again"))
    assert runner.interleaved(sweep.points) == 0
    thawed = sweep.points[0].thaw("a").composed
    assert thawed.plain == points[0].config and thawed.overrides == points[0].overrides
    assert thawed.origins.keys["strategy.bucket_cap_mb"]
    sweep.close()

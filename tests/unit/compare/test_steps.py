"""Which steps of a run count: no warm-up, no profiler."""

from pathlib import Path
from statistics import StatisticsError
from typing import Any

import pytest
from msgspec.structs import replace

from diagnostics.evidence.limits import Limits
from dtk.compare import steps
from dtk.compare.compare import compare
from dtk.compare.load import load
from dtk.compare.model import RunRecord
from tests.unit.compare.folders import FSDP, START_S, make_run, median


def test_the_warm_up_does_not_count(tmp_path: Path) -> None:
    times = [9.0, 5.0, *[0.1] * 10]
    runs = [make_run(tmp_path, "a", times_s=times), make_run(tmp_path, "b", change=FSDP)]
    comparison = compare(runs)
    assert median(comparison, "step_time_s", "ddp") == 0.1
    assert median(comparison, "tokens_per_s", "ddp") == pytest.approx(8 * 128 / 0.1)
    assert compare(runs, warmup_steps=0).figures[0].cells[0].estimate is not None
    assert median(compare(runs, warmup_steps=11), "step_time_s", "ddp") == 0.1
    assert any("first 2 steps" in note for note in comparison.notes)


def test_windows_that_reach_into_the_warm_up_do_not_count_either(tmp_path: Path) -> None:
    times = [9.0, 5.0, *[0.3] * 3, *[0.1] * 7]
    runs = [make_run(tmp_path, "a", times_s=times, log_every=5), make_run(tmp_path, "b", change=FSDP)]
    assert median(compare(runs), "step_time_s", "ddp") == pytest.approx(0.1)


def test_steps_under_the_profiler_do_not_count(tmp_path: Path) -> None:
    """Steps 3 and 4 are recorded, and step 5 begins with writing the trace."""
    times = [1.0, 1.0, 3.0, 3.0, 7.0, *[0.1] * 3, *[0.2] * 4]
    full = {"record": {"level": "full", "profile_start": 3, "profile_steps": 2}}
    comparison = compare([make_run(tmp_path, "a", times_s=times, change=full), make_run(tmp_path, "b", change=FSDP)])
    assert median(comparison, "step_time_s", "ddp record=full") == pytest.approx(0.2)
    assert any("different levels" in note for note in comparison.notes)


def record(tmp_path: Path, **more: Any) -> RunRecord:
    return load(make_run(tmp_path, "r", **more), Limits())


def test_the_steps_of_the_profiler_count_where_nothing_else_is_left(tmp_path: Path) -> None:
    full = {"record": {"level": "full", "profile_start": 3, "profile_steps": 10}}
    run = record(tmp_path, change=full, times_s=[1.0, 1.0, *[0.5] * 10])
    assert steps.profiled(run) == (2, 13)
    assert [window.last for window in steps.measured(run)] == list(range(3, 13))


@pytest.mark.parametrize(
    ("profile", "span"),
    [
        ({"level": "light", "profile_start": 3, "profile_steps": 2}, (0, 0)),
        ({"level": "full", "profile_start": 3, "profile_steps": 0}, (0, 0)),
        ({"level": "full", "profile_start": "x", "profile_steps": 2}, (0, 0)),
        ({"level": "full", "profile_start": 3, "profile_steps": 2}, (2, 5)),
        ({"level": "full", "profile_start": 50, "profile_steps": 2}, (10, 13)),
    ],
)
def test_when_the_profiler_ran(tmp_path: Path, profile: dict[str, Any], span: tuple[int, int]) -> None:
    """A start behind the last step is moved before it, as the run does."""
    assert steps.profiled(record(tmp_path, change={"record": profile})) == span


def test_the_middle_half_needs_four_windows(tmp_path: Path) -> None:
    run = record(tmp_path, times_s=[1.0, 1.0, *[0.1] * 5, *[0.3] * 5])
    assert steps.spread_s(run) == pytest.approx((0.1, 0.3))
    assert steps.spread_s(replace(run, warmup_steps=9)) is None
    with pytest.raises(StatisticsError):
        steps.step_time_s(replace(run, warmup_steps=12))


def test_the_measured_time_begins_with_the_first_step_that_counts(tmp_path: Path) -> None:
    run = record(tmp_path, times_s=[1.0, 1.0, *[0.1] * 10])
    begin_s, end_s = steps.timespan_s(run)
    assert begin_s == pytest.approx(START_S + 2.0) and end_s == pytest.approx(START_S + 3.0)
    assert steps.tokens_per_step(run) == 8 * 128

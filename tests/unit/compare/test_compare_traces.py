"""Where a step of the profiled window went, from the measures of the diagnosis."""

from pathlib import Path

import pytest

from diagnostics.evidence.limits import Limits
from diagnostics.report.measures import breakdown
from dtk.compare.compare import explain
from tests.unit.compare.folders import measures


def test_a_step_is_the_mean_over_ranks_and_steps() -> None:
    result = breakdown(measures(60.0, 20.0, 12.0, 3.0))
    assert result is not None
    assert result.compute_ms == pytest.approx(60.0)
    assert result.exposed_ms == pytest.approx(12.0)
    assert result.waiting_ms == pytest.approx(3.0)
    assert result.wall_ms == pytest.approx(result.compute_ms + result.exposed_ms + result.idle_ms)
    for nothing in ({}, {"overlap": {}}, {"overlap": {"ranks": {}, "steps": 2}}, {"overlap": 7}):
        assert breakdown(nothing) is None


def test_ranks_that_recorded_other_numbers_of_steps_weigh_alike() -> None:
    result = measures(60.0, 20.0, 12.0, None)
    ranks = result["overlap"]["ranks"]
    ranks[1] = {**ranks[0], "steps": [{"step": n} for n in range(4)]}
    mean = breakdown(result)
    assert mean is not None
    # Rank 0: 54 ms a step over 2 steps; rank 1 has the same total over 4.
    assert mean.compute_ms == pytest.approx((54.0 + 27.0) / 2)
    assert mean.waiting_ms is None


@pytest.mark.parametrize("broken", [{"steps": 0}, {"steps": "2"}, {"ranks": [1]}, {"ranks": {}}])
def test_measures_that_say_nothing_are_no_breakdown(broken: dict[str, object]) -> None:
    result = measures(60.0, 20.0, 12.0, 3.0)
    assert breakdown({"overlap": {**result["overlap"], **broken}}) is None


def test_a_run_without_traces_is_not_diagnosed(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    assert explain(tmp_path, Limits(), None) == (None, ())

"""Figures: medians without warm-up, intervals over repeats, ratios, scaling, energy, out of memory marked."""

import math
from pathlib import Path
from statistics import StatisticsError
from typing import Any

import pytest
from msgspec.structs import replace

from diagnostics.evidence.limits import Limits
from dtk.compare import figures
from dtk.compare.compare import compare
from dtk.compare.load import load
from dtk.compare.model import RunRecord
from dtk.compare.report import headline
from tests.unit.compare.folders import FSDP, GATHERED, START_S, cell, make_run, median


def test_repeats_are_one_variant_with_an_interval_and_a_ratio(tmp_path: Path) -> None:
    runs = []
    for n, (ours, theirs) in enumerate(((0.100, 0.131), (0.104, 0.136), (0.098, 0.128))):
        runs.append(make_run(tmp_path, f"d{n}", times_s=ours, minute=2 * n))
        runs.append(make_run(tmp_path, f"f{n}", times_s=theirs, change=FSDP, traffic=GATHERED, minute=2 * n + 1))
    comparison = compare(runs)
    assert [(variant.label, len(variant.runs)) for variant in comparison.variants] == [("ddp", 3), ("fsdp", 3)]
    ratio = cell(comparison, "step_time_s", "fsdp").ratio
    assert ratio is not None
    assert ratio.median == pytest.approx(1.31, abs=0.005)
    assert ratio.low is not None
    assert ratio.high is not None
    assert 1.2 < ratio.low < 1.31 < ratio.high < 1.4
    (verdict,) = comparison.verdicts
    assert "fsdp is 1.31x slower than ddp (1." in verdict
    assert "24 all_gathers of about 28 MiB" in verdict
    assert "instead of 2 all_reduces of about 2 MiB" in verdict
    assert "4 bytes" not in verdict  # Every strategy agrees on norms and the like.
    assert "ddp needs 400 MiB and avoids the all_gathers and reduce_scatters" in verdict
    assert headline(comparison).endswith("ddp is the fastest")


def test_what_noise_explains_is_no_verdict(tmp_path: Path) -> None:
    runs = []
    for n, (ours, theirs) in enumerate(((0.10, 0.12), (0.14, 0.11), (0.09, 0.13))):
        runs.append(make_run(tmp_path, f"d{n}", times_s=ours, minute=2 * n))
        runs.append(make_run(tmp_path, f"f{n}", times_s=theirs, change=FSDP, minute=2 * n + 1))
    (verdict,) = compare(runs).verdicts
    assert "indistinguishable from ddp" in verdict
    assert "within noise" in verdict


def test_single_runs_whose_steps_overlap_are_not_told_apart(tmp_path: Path) -> None:
    uneven = [0.1, 0.1, *[0.08, 0.14] * 5]
    runs = [make_run(tmp_path, "a", times_s=uneven), make_run(tmp_path, "b", times_s=0.13, change=FSDP)]
    comparison = compare(runs)
    assert "their steps overlap" in comparison.verdicts[0]
    assert cell(comparison, "step_time_s", "ddp").spread == pytest.approx((0.08, 0.14))
    (few,) = (note for note in comparison.notes if note.startswith("fewer than 3 repeats of ddp and fsdp"))
    assert "too few for an interval" in few


def test_every_figure_is_finite(tmp_path: Path) -> None:
    comparison = compare([make_run(tmp_path, "a", times_s=1e-9), make_run(tmp_path, "b", times_s=1e9, change=FSDP)])
    for figure in comparison.figures:
        for drawn_cell in figure.cells:
            assert drawn_cell.estimate is None or math.isfinite(drawn_cell.estimate.median)
    assert "1,000,000" in comparison.verdicts[0]


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
    assert figures.profiled(run) == (2, 13)
    assert [window.last for window in figures.measured(run)] == list(range(3, 13))


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
    assert figures.profiled(record(tmp_path, change={"record": profile})) == span


def test_the_middle_half_needs_four_windows(tmp_path: Path) -> None:
    run = record(tmp_path, times_s=[1.0, 1.0, *[0.1] * 5, *[0.3] * 5])
    assert figures.spread_s(run) == pytest.approx((0.1, 0.3))
    assert figures.spread_s(replace(run, warmup_steps=9)) is None
    with pytest.raises(StatisticsError):
        figures.step_time_s(replace(run, warmup_steps=12))


def test_the_measured_time_begins_with_the_first_step_that_counts(tmp_path: Path) -> None:
    run = record(tmp_path, times_s=[1.0, 1.0, *[0.1] * 10])
    begin_s, end_s = figures.timespan_s(run)
    assert begin_s == pytest.approx(START_S + 2.0) and end_s == pytest.approx(START_S + 3.0)
    assert figures.tokens_per_step(run) == 8 * 128

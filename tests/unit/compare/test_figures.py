"""Figures: medians without warm-up, intervals over repeats, ratios, scaling, energy, out of memory marked."""

import math
from pathlib import Path

import pytest

from dtk.compare.compare import compare
from dtk.compare.report import headline
from tests.unit.compare.folders import FSDP, GATHERED, cell, make_run


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

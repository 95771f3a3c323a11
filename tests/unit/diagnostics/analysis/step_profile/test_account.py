"""A job is healthy only when its traces account for the time of its steps."""

from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics.analysis.step_profile.account import Account
from diagnostics.diagnose import diagnose
from diagnostics.report.overview import headline
from tests.shared_data import shared_data
from tests.trace_generator import Simulator, write
from tests.trace_scenarios import ddp

GOOD = Account(0.9, 0.02, 0.01, 0.03, 4, 4, on_device=True, no_device_events=False)


@pytest.mark.parametrize("figure", ["exposed", "copies", "idle"])
def test_a_tenth_of_the_step_without_a_reason_is_not_healthy(figure: str) -> None:
    assert not GOOD.unaccounted
    assert not replace(GOOD, **{figure: 0.1}).unaccounted
    assert replace(GOOD, **{figure: 0.11}).unaccounted


def test_one_rank_does_not_speak_for_the_others() -> None:
    assert replace(GOOD, traced=1, world_size=8).unaccounted
    assert not replace(GOOD, traced=1, world_size=1).unaccounted


def test_on_cpu_shares_say_nothing_as_ranks_share_the_cores() -> None:
    assert not replace(GOOD, on_device=False, exposed=0.6).unaccounted
    assert replace(GOOD, on_device=False, no_device_events=True).unaccounted


def test_a_healthy_report_shows_its_figures(tmp_path: Path) -> None:
    write(ddp(Simulator()), tmp_path)
    report = diagnose(tmp_path)
    assert report.outcome == "healthy"
    assert "idle " in headline(report) and "of the communication overlaps" in headline(report)


def test_one_traced_rank_of_four_is_undecided_with_the_figures(tmp_path: Path) -> None:
    write(ddp(Simulator()), tmp_path / "all")
    (tmp_path / "one").mkdir()
    (tmp_path / "all" / "rank0.json.gz").rename(tmp_path / "one" / "rank0.json.gz")
    report = diagnose(tmp_path / "one")
    assert report.outcome == "undecided"
    assert "1 of 4 ranks traced" in headline(report)


@pytest.mark.parametrize(
    ("name", "outcome", "figure"),
    [
        ("hta_cpu_only", "undecided", "exposed communication 85%"),
        ("hta_no_kernels", "undecided", "no event of a device"),
        ("hta_mtia_inference", "undecided", "no event of a device"),
        ("nsys_h100_copies", "undecided", "copies 97%"),
        ("nsys_healthy_1pct", "healthy", "idle 1%"),
    ],
)
def test_real_traces_are_healthy_only_when_they_earn_it(name: str, outcome: str, figure: str) -> None:
    report = diagnose(shared_data(f"traces/{name}"))
    assert (report.outcome, report.root_causes) == (outcome, ())
    assert figure in headline(report)

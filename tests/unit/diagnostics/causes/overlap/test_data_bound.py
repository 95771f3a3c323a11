"""The step waits for its data loader."""

from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from tests.trace_generator import write
from tests.unit.diagnostics.causes.overlap.helpers import finding_of, scenario

CAUSE = "overlap.data_bound"


def test_all_ranks_wait_for_their_loaders(tmp_path: Path, detect: Any) -> None:
    write(scenario("loader").build(), tmp_path)
    finding = finding_of(detect(tmp_path), CAUSE)
    assert (finding.status, finding.ranks, finding.victims) == ("confirmed", (0, 1, 2, 3), ())
    assert "_MultiProcessingDataLoaderIter" in text_of(finding).summary
    assert "num_workers" in text_of(finding).remedies[0].change


def test_one_rank_waits_and_the_others_wait_for_it(tmp_path: Path, detect: Any) -> None:
    write(scenario("late_loader").build(), tmp_path)
    finding = finding_of(detect(tmp_path), CAUSE)
    assert (finding.status, finding.ranks, finding.victims) == ("confirmed", (2,), (0, 1, 3))


def test_a_host_that_does_something_else_is_no_loader(tmp_path: Path, detect: Any) -> None:
    write(scenario("late_host").build(), tmp_path)
    assert finding_of(detect(tmp_path), CAUSE).status == "ruled_out"


def test_without_a_trace_it_is_open(detect: Any) -> None:
    finding = finding_of(detect(), CAUSE)
    assert finding.status == "undecided" and "record_shapes=True" in text_of(finding).missing


def said(folder, data_s, lines=12):
    """Write a log whose first step waits for the workers to start, and return what is found."""
    times = [(9.0, 8.8), *((0.2 + waits, waits) for waits in data_s)]
    steps = (f"Epoch: [0][{n}/99]\tTime {a:.3f} (0.5)\tData {b:.3f} (0.1)\tLoss 2.1" for n, (a, b) in enumerate(times))
    (folder / "train.log").write_text("\n".join([*steps][:lines]) + "\n")
    report = diagnose(folder)
    (finding,) = (item.finding for item in report.findings if item.finding.cause == CAUSE)
    return report, finding


def test_a_log_that_states_the_time_of_data(tmp_path):
    report, result = said(tmp_path, [0.01, 0.0, 4.0, 0.0] * 3)
    assert [root.cause for root in report.root_causes] == [CAUSE] and report.outcome == "slow"
    assert "of 11 steps" in text_of(result).summary and "at most 4.0 s" in text_of(result).summary
    assert result.evidence[0].line == 4


def test_a_loader_that_keeps_up_is_ruled_out_though_its_workers_started_slowly(tmp_path):
    report, result = said(tmp_path, [0.01] * 12)
    assert result.status == "ruled_out" and not report.root_causes


def test_few_lines_state_too_little(tmp_path):
    assert said(tmp_path, [4.0] * 12, lines=6)[1].status == "undecided"


def status_in(folder: Path) -> str:
    return next(each.finding.status for each in diagnose(folder).findings if each.finding.cause == CAUSE)


@pytest.mark.parametrize(("waits_s", "is_bound"), [(0.01, False), (0.4, True)])
@pytest.mark.parametrize("first", [0, 1])
def test_a_line_stands_for_the_steps_since_the_line_before(
    tmp_path: Path, waits_s: float, is_bound: bool, first: int
) -> None:
    """Of each epoch the first step waits for the workers, and then every 50th is printed."""
    steps = [(epoch, n, 9.0 if n == first else waits_s) for epoch in range(6) for n in (first, *range(50, 500, 50))]
    lines = (f"Epoch: [{e}][{n}/500]\tTime {0.2 + s:.3f} (0.5)\tData {s:.3f} (0.1)\tLoss 2.1" for e, n, s in steps)
    (tmp_path / "train.log").write_text("\n".join(lines))
    assert status_in(tmp_path) == ("confirmed" if is_bound else "ruled_out")


@pytest.mark.parametrize(
    ("waits_s", "status"),
    [
        ((1.1, 1.1, 1.2), "confirmed"),
        ((0.01, 1.1, 0.01), "undecided"),  # Once, as a server or a cache may need.
        ((1.1, 0.01, 0.01), "undecided"),
        ((0.01, 0.01, 0.02), "undecided"),
    ],
)
def test_few_lines_that_stand_for_many_steps(tmp_path: Path, waits_s: tuple[float, ...], status: str) -> None:
    """An excerpt from the middle of an epoch: the first line does not include the start of the workers."""
    text = (
        "2020-05-15 14:41:49,633 - mmdet - INFO - Epoch [1][{n}/2500]\tlr: 0.01, time: {s}, data_time: {w}, loss: 1.8"
    )
    lines = (text.format(n=250 + 50 * n, s=1.9, w=wait_s) for n, wait_s in enumerate(waits_s))
    (tmp_path / "train.log").write_text("\n".join(lines))
    assert status_in(tmp_path) == status


def test_few_lines_from_the_start_of_an_epoch_say_nothing(tmp_path: Path) -> None:
    """The medians of the first rows of the new epoch still include its first step."""
    rows = ((24, 1230, 0.3, 0.001), (24, 1240, 0.3, 0.002), (25, 0, 4.1, 3.8), (25, 10, 0.7, 0.35), (25, 20, 0.6, 0.3))
    text = "Epoch: [{e}]  [{n:>4}/1251]  eta: 0:06  loss: 0.6872 (0.6849)  time: {s}  data: {w}  max mem: 8361"
    (tmp_path / "train.log").write_text("\n".join(text.format(e=e, n=n, s=s, w=w) for e, n, s, w in rows))
    assert status_in(tmp_path) == "undecided"


def test_a_line_that_averages_over_steps_stands_for_them(tmp_path: Path) -> None:
    """MMEngine's first line of an epoch is of 50 steps."""
    lines = (
        f"06/01 - mmengine - INFO - Epoch(train) [{e}][{n}/150]  lr: 1e-04  time: 1.0000  "
        f"data_time: {0.9 * (n == 50):.4f}  loss: 2"
        for e in range(1, 7)
        for n in (50, 100, 150)
    )
    (tmp_path / "train.log").write_text("\n".join(lines))
    assert status_in(tmp_path) == "confirmed"

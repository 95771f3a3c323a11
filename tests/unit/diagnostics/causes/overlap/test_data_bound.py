"""The step waits for its data loader."""

from pathlib import Path
from typing import Any

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
    (finding,) = (one.finding for one in report.findings if one.finding.cause == CAUSE)
    return report, finding


def test_a_log_that_states_the_time_of_data(tmp_path):
    report, found = said(tmp_path, [0.01, 0.0, 4.0, 0.0] * 3)
    assert [root.cause for root in report.root_causes] == [CAUSE] and report.outcome == "slow"
    assert "of 11 printed steps" in text_of(found).summary and "at most 4.0 s" in text_of(found).summary
    assert found.evidence[0].line == 4


def test_a_loader_that_keeps_up_is_ruled_out_though_its_workers_started_slowly(tmp_path):
    report, found = said(tmp_path, [0.01] * 12)
    assert found.status == "ruled_out" and not report.root_causes


def test_few_lines_state_too_little(tmp_path):
    assert said(tmp_path, [4.0] * 12, lines=6)[1].status == "undecided"

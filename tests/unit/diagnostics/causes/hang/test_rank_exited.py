"""A rank left without an exception or a signal while others waited for it."""

from pathlib import Path

from diagnostics.contract.findings import Finding, text_of
from diagnostics.diagnose import diagnose
from diagnostics.report.model import Report
from tests.unit.diagnostics.causes.hang.helpers import STEP, finding, job

CAUSE = "hang.rank_exited"


def of(folder: Path, log: str) -> tuple[Finding, Report]:
    (folder / "slurm-1.out").write_text("step 1 loss 2.0\n" + log)
    report = diagnose(folder)
    return next(finding.finding for finding in report.findings if finding.finding.cause == CAUSE), report


def test_an_exit_code_without_a_traceback(tmp_path: Path) -> None:
    result, report = of(tmp_path, "srun: error: node1: task 1: Exited with exit code 3\n")
    assert (result.status, result.ranks, report.outcome) == ("confirmed", (1,), "crashed")
    assert text_of(result).summary == "Rank 1 ended with exit code 3 without a traceback."
    assert "find out what ends this process with exit code 3" in text_of(result).remedies[0].change


def test_a_traceback_says_more_than_the_exit_code_that_follows_from_it(tmp_path: Path) -> None:
    raised = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/job/train.py", line 9, in main\n'
    log = f"{raised}[rank1]: ValueError: bad batch\nsrun: error: node1: task 1: Exited with exit code 1\n"
    result, report = of(tmp_path, log)
    assert result.status != "confirmed" and [root.cause for root in report.root_causes] == ["hang.rank_raised"]


def test_without_an_ending_of_any_rank_it_is_open(tmp_path: Path) -> None:
    lost = 'Traceback (most recent call last):\n  File "/job/train.py", line 12, in train\nRuntimeError: '
    lost += "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:41423\n"
    result, _ = of(tmp_path, "".join(f"[rank0]: {line}\n" for line in lost.splitlines()))
    assert result.status == "undecided" and text_of(result).missing


def test_ranks_that_completed_everything_waited_for_nobody(tmp_path: Path) -> None:
    assert finding(tmp_path, job(STEP * 3, STEP * 3), CAUSE).status == "ruled_out"

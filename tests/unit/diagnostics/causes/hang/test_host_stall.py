"""A rank is there, waits in nothing, and never came to the collective that the others wait in."""

from pathlib import Path

from diagnostics.contract.findings import Finding, text_of
from diagnostics.diagnose import diagnose
from diagnostics.report.model import Report
from tests.unit.diagnostics.causes.hang.examples import late_host
from tests.unit.diagnostics.causes.hang.helpers import STEP, finding, job

CAUSE = "hang.host_stall"


def reported(folder: Path, files: dict[str, str | bytes]) -> Report:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return diagnose(folder)


def of(report: Report) -> Finding:
    return next(finding.finding for finding in report.findings if finding.finding.cause == CAUSE)


def test_a_stack_shows_what_the_late_rank_does(tmp_path: Path) -> None:
    finding = of(reported(tmp_path, dict(late_host())))
    assert (finding.status, finding.ranks, finding.victims, finding.confidence) == ("confirmed", (2,), (0, 1, 3), 0.95)
    text = text_of(finding)
    assert "its host is waiting for a queue (data.py:7 in next_batch)" in text.summary
    assert text.remedies[0].change.endswith("(/job/data.py:7)")
    assert (finding.where[0].rank, finding.where[0].line) == (2, 7)


def test_without_a_stack_it_is_less_sure_and_says_so(tmp_path: Path) -> None:
    files = {name: content for name, content in late_host().items() if "stacks" not in name}
    finding = of(reported(tmp_path, files))
    text = text_of(finding)
    assert (finding.status, finding.ranks, finding.confidence) == ("confirmed", (2,), 0.6)
    assert "no traceback or stack was left. It is late, stuck or gone" in text.summary
    assert "check what rank 2 did after" in text.remedies[0].change


def test_where_an_interrupt_ended_the_late_rank_is_where_it_was(tmp_path: Path) -> None:
    files = {name: content for name, content in late_host().items() if "stacks" not in name}
    log = (
        "W1129 18:39:22.077000 11 torch/distributed/elastic/agent/server/api.py:753] Received 2 death signal\n"
        '[rank2]: Traceback (most recent call last):\n[rank2]:   File "/job/train.py", line 26, in main\n'
        '[rank2]:   File "/usr/lib/python3.11/multiprocessing/process.py", line 149, in join\n'
        '[rank2]:   File "/usr/lib/python3.11/multiprocessing/popen_fork.py", line 27, in poll\n'
        "[rank2]: KeyboardInterrupt\n"
    )
    finding = of(reported(tmp_path, {**files, "job.log": log}))
    assert (finding.ranks, finding.confidence) == ((2,), 0.95)
    assert (finding.where[0].file, finding.where[0].line) == ("/job/train.py", 26)
    assert "its host is waiting for a process to end" in text_of(finding).summary


def test_a_dump_that_is_older_than_the_end_of_its_rank_shows_no_late_rank(tmp_path: Path) -> None:
    files = {name: content for name, content in late_host().items() if "stacks" not in name}
    lost = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:18314: Connection reset by peer"
    trace = '[rank2]: Traceback (most recent call last):\n[rank2]:   File "/job/train.py", line 8, in save\n'
    log = f"{trace}[rank2]: {lost}\n"
    assert of(reported(tmp_path, {**files, "job.log": log})).status != "confirmed"


def test_a_rank_without_a_dump_may_have_it(tmp_path: Path) -> None:
    result = finding(tmp_path, job(*[STEP * 3] * 3, STEP * 2), CAUSE, without=(3,))
    assert result.status == "undecided" and result.missing


def test_ranks_that_completed_everything_are_not_late(tmp_path: Path) -> None:
    assert finding(tmp_path, job(STEP * 3, STEP * 3), CAUSE).status == "ruled_out"


def test_what_ended_a_rank_explains_that_it_never_came(tmp_path: Path) -> None:
    files = {name: content for name, content in late_host().items() if "stacks" not in name}
    raised = '[rank2]: Traceback (most recent call last):\n[rank2]:   File "/job/data.py", line 44, in load\n'
    report = reported(tmp_path, {**files, "job.log": f"{raised}[rank2]: ValueError: bad batch\n"})
    assert [(root.cause, root.ranks) for root in report.root_causes] == [("hang.rank_raised", (2,))]

"""A rank left without an exception or a signal while others waited for it."""

import os
from pathlib import Path

import pytest

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


SAVES = """\
import torch.distributed as dist
def save():
    dist.{op}()
r = dist.get_rank()
if {condition}:
    save()
"""
LOST = """\
[rank{0}]: Traceback (most recent call last):
[rank{0}]:   File "{1}", line 6, in <module>
[rank{0}]:     save()
[rank{0}]:   File "{1}", line 3, in save
[rank{0}]:     dist.{2}()
[rank{0}]:   File "/venv/torch/distributed/distributed_c10d.py", line 4287, in {2}
[rank{0}]: RuntimeError: [/p/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:52132.
"""
LISTED = """\
E1201 09:50:00.19 2 torch/api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 2000) of binary: /venv/bin/python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
train.py FAILED
Failures:
{}"""
ROW = "[{0}]:\n  rank      : {0} (local_rank: {0})\n  exitcode  : 1 (pid: 200{0})\n  error_file: <N/A>\n"


@pytest.mark.parametrize(
    ("op", "condition", "waiting", "expected"),
    [
        ("all_gather", "done and r == 0", 1, {"conditional_collective": 0.7, "rank_exited": 0.45}),
        # Nothing shows whose branch it is.
        ("all_gather", "done", 1, {"conditional_collective": 0.45, "rank_exited": 0.45}),
        ("all_gather", "done and r == 0", 2, {"rank_exited": 0.8}),  # Both came into it.
        # The other branch may have its other half.
        ("gather", "r == 0", 1, {"conditional_collective": 0.45, "rank_exited": 0.45}),
    ],
)
def test_of_one_rank_that_waits_after_the_others_ended_in_order_the_text_may_say_that_it_made_a_call_more(
    tmp_path: Path, op: str, condition: str, waiting: int, expected: dict[str, float]
) -> None:
    program = tmp_path / "src" / "train.py"
    program.parent.mkdir()
    program.write_text(SAVES.format(op=op, condition=condition))
    os.utime(program, (1, 1))
    folder = tmp_path / "logs"
    folder.mkdir()
    lost = "".join(LOST.format(rank, program, op) for rank in range(waiting))
    (folder / "out.log").write_text(lost + LISTED.format("".join(ROW.format(rank) for rank in range(waiting))))
    findings = [decided.finding for decided in diagnose(folder).findings]
    confirmed = {each.cause: (each.confidence, each.ranks) for each in findings if each.status == "confirmed"}
    assert confirmed == {
        f"hang.{cause}": (confidence, (0,) if cause == "conditional_collective" else ())
        for cause, confidence in expected.items()
    }


@pytest.mark.parametrize(
    ("said", "rank", "root"),
    [
        ("done 1\ndone 3\ndone 2\n", 0, "hang.conditional_collective"),
        ("[rank1]: training complete\n[rank2]: training complete\n", 0, "hang.conditional_collective"),
        ("rank 0 exiting\nrank 1 exiting\n", 2, "hang.conditional_collective"),
        ("done 1\ndone 2\ndone 3\n", 0, None),  # They may be epochs.
        ("epoch 1 done\nepoch 3 done\nepoch 2 done\n", 0, None),
        ("rank 1: loading done\nrank 2: loading done\n", 0, None),
        ("done 3\ndone 0\ndone 1\ndone 2\n", 3, None),  # Before its last call.
        ("done 3\ndone 1\n", 0, None),  # Not all of them.
        ("", 2, None),
    ],
)
def test_peers_that_print_that_they_are_done_were_not_waited_for(
    tmp_path: Path, said: str, rank: int, root: str | None
) -> None:
    row = ROW.format(rank).replace("local_rank: 0", f"local_rank: {rank}")
    listed = LISTED.format(row).replace("pid: 2000", f"pid: 200{rank}")
    (tmp_path / "out.log").write_text(said + LOST.format(rank, "/job/train.py", "all_gather") + listed)
    report = diagnose(tmp_path)
    assert [each.cause for each in report.root_causes] == ([root] if root else [])
    both = {
        (f.cause, f.ranks if "cond" in f.cause else ())
        for f in (each.finding for each in report.findings)
        if f.status == "confirmed"
    }
    assert both == {("hang.conditional_collective", (rank,)), ("hang.rank_exited", ())}
    assert report.outcome == ("hung" if root else "undecided")
    assert {suspicion.cause for suspicion in report.suspicions} <= {cause for cause, _ in both}


@pytest.mark.parametrize(("stopped", "early"), [((), True), ((1,), False)])
def test_ranks_that_did_not_reach_a_monitored_barrier_had_ended_unless_they_had_to_be_stopped(
    tmp_path: Path, stopped: tuple[int, ...], early: bool
) -> None:
    ended = "RuntimeError: [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 12000 ms"
    log = LOST.format(0, "/job/train.py", "all_gather").partition("RuntimeError: ")[0] + ended + "\n"
    log += "".join(f"W1201 09:50:01 2 torch/api.py:9] Sending process 200{n} closing signal SIGTERM\n" for n in stopped)
    (tmp_path / "out.log").write_text(log + LISTED.format(ROW.format(0)))
    report = diagnose(tmp_path)
    shown = {f.cause: f.confidence for f in (each.finding for each in report.findings) if f.status == "confirmed"}
    assert not report.root_causes
    assert shown == (dict.fromkeys(("hang.conditional_collective", CAUSE), 0.45) if early else {})

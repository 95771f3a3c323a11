"""What a job survived is no cause, and is told: earlier attempts, caught exceptions, exceptions of a finished job."""

import json
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import RunPaths, Status, write_json
from diagnostics.diagnose import diagnose
from diagnostics.report.model import Report
from tests.unit.diagnostics.hang.dumps import Job, Op, write

STACK = (
    "Traceback (most recent call last):",
    '  File "/job/fit.py", line 90, in {where}',
    '  File "/job/data.py", line 4, in load',
)


def steps(first: int, last: int, prefix: str = "") -> str:
    return "".join(
        f"{prefix}2031-03-10 06:{n:02}:00,120 INFO fit: step {n} loss 2.{n % 7}\n" for n in range(first, last)
    )


def raised(error: str, prefix: str = "", where: str = "<module>") -> str:
    return "".join(f"{prefix}{line.format(where=where)}\n" for line in (*STACK, error))


def of(folder: Path, text: str) -> Report:
    (folder / "job.log").write_text(text)
    return diagnose(folder)


AGENT = "torch/distributed/elastic"
RESTART = f"I0310 06:20:05.1 7 {AGENT}/agent/server/api.py:879] [default] Worker group FAILED. 2/3 attempts left; will restart worker group\n"  # noqa: E501
TABLE = (
    "fit.py FAILED\nFailures:\n[0]:\n  time      : 2031-03-10_06:20:05\n  host      : n1\n"
    "  rank      : 3 (local_rank: 3)\n  exitcode  : 1 (pid: 77)\n  error_file: <N/A>\n"
)
TIMEOUT = (
    "[rank2]:[E0310 06:30:00.1 ProcessGroupNCCL.cpp:616] [Rank 2] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=57, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600008 milliseconds "
    "before timing out.\n"
)


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (raised("ValueError: bad batch", "[rank3]: ") + RESTART, "rank 3: ValueError: bad batch"),
        (raised("ValueError: bad batch", "[rank3]: ") + TABLE, "rank 3: ValueError: bad batch"),
        (raised("ValueError: bad batch", "[rank3]: ") + "attempt 2\n", "rank 3: ValueError: bad batch"),
        (
            raised("ValueError: bad batch") + "srun: error: n1: task 3: Exited with exit code 1\n",
            "ValueError: bad batch",
        ),
        ("srun: error: n1: task 3: Segmentation fault (core dumped)\n", "task 3: Segmentation fault"),
    ],
)
@pytest.mark.parametrize("end", ["", "Training complete.\n"])
def test_a_failure_after_which_the_job_went_on_is_a_note(tmp_path: Path, failure: str, text: str, end: str) -> None:
    report = of(tmp_path, steps(0, 20) + failure + steps(15, 50) + end)
    assert (report.root_causes, report.suspicions) == ((), ())
    (note,) = [note for note in report.notes if text in note]
    assert "the job continued" in note or "the job was restarted" in note
    assert "job.log:2" in note


def test_so_is_a_timeout_of_a_job_that_then_ended_in_order(tmp_path: Path) -> None:
    report = of(tmp_path, steps(0, 20) + TIMEOUT + steps(15, 50) + "Training complete.\n")
    assert not report.root_causes
    assert any("Watchdog caught" in note and "the job continued" in note for note in report.notes)


def test_the_failure_of_the_last_attempt_is_the_cause(tmp_path: Path) -> None:
    report = of(
        tmp_path,
        steps(0, 20) + raised("ValueError: x", "[rank3]: ") + steps(15, 50) + raised("KeyError: 1", "[rank1]: "),
    )
    assert [(root.cause, root.ranks) for root in report.root_causes] == [("hang.rank_raised", (1,))]
    assert any("rank 3: ValueError: x" in note for note in report.notes)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("as_file", [False, True])
def test_a_finished_run_with_an_exception_is_not_in_good_health(tmp_path: Path, late: bool, as_file: bool) -> None:
    paths = RunPaths(tmp_path)
    write_json(paths.status, Status(state="finished", attempt=0, exit_code=0, step=6))
    write_json(paths.manifest, {"schema_version": 1, "run_id": "x", "argv": [], "config_sha256": "x"})
    folder = tmp_path / "logs" / "attempt_0" / "rank_00002"
    folder.mkdir(parents=True)
    (folder / "stderr.log").write_text(steps(0, 20 if late else 0) + ("" if as_file else raised("KeyError: 'x'")))
    if as_file:
        text = "\n".join(line.format(where="main") for line in (*STACK, "KeyError: 'x'"))
        error = {"type": "KeyError", "message": "'x'", "traceback": text, "rank": 2, "time_s": 1.9e9}
        (folder / "error.json").write_text(json.dumps(error))
    report = diagnose(tmp_path)
    assert (report.outcome, report.root_causes) == ("undecided", ())
    assert "finished, but rank 2 raised KeyError: 'x'" in report.statement
    assert ("after the last progress" in report.statement) == (late and not as_file)


def test_of_a_tie_one_side_is_to_blame(tmp_path: Path) -> None:
    step = [Op(line=10), Op("all_gather", 16, 20)]
    write(tmp_path, Job({rank: [*step, Op("all_gather", 16, 30) if rank else step[0]] for rank in range(2)}))
    (root,) = diagnose(tmp_path).root_causes
    assert root.tie and root.ranks == (0, 1)

"""A job that was restarted is judged by its last attempt; how the earlier ones failed is a note."""

import json
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import RunPaths, Status, write_json
from diagnostics.diagnose import diagnose
from diagnostics.report.model import Report

TRACEBACK = """Traceback (most recent call last):
  File "/home/me/train.py", line 5, in <module>
    step()
  File "/home/me/train.py", line 3, in step
    raise {error}
{error}
"""


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def error_json(rank: int, message: str, time_s: float, kind: str = "ValueError") -> str:
    record = {
        "schema_version": 1,
        "rank": rank,
        "attempt": 0,
        "type": kind,
        "message": message,
        "file": "/home/me/train.py",
    }
    return json.dumps(
        {**record, "line": 3, "time_s": time_s, "traceback": TRACEBACK.format(error=f"{kind}: {message}")}
    )


def notes(report: Report) -> list[str]:
    return [note for note in report.notes if note.startswith("Attempt ")]


def test_torchrun_logs_of_a_job_whose_restart_failed_otherwise(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "id/attempt_0/0/stderr.log": TRACEBACK.format(error="ValueError: bad batch"),
            "id/attempt_0/1/stderr.log": "",
            "id/attempt_1/0/stderr.log": "",
            "id/attempt_1/1/stderr.log": TRACEBACK.format(error="KeyError: 'loss'"),
        },
    )
    report = diagnose(tmp_path)
    assert [(root_cause.cause, root_cause.ranks) for root_cause in report.root_causes] == [("hang.rank_raised", (1,))]
    (note,) = notes(report)
    assert note.startswith(
        "Attempt 0 failed and the job was restarted: ValueError: bad batch (id/attempt_0/0/stderr.log:"
    )


def test_an_attempt_that_left_nothing_to_read_does_not_hide_the_one_before(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"id/attempt_0/0/stderr.log": TRACEBACK.format(error="ValueError: x"), "id/attempt_1/0/stdout.log": "step 1\n"},
    )
    report = diagnose(tmp_path)
    assert report.outcome == "crashed" and not notes(report)


@pytest.mark.parametrize("ended_well", [True, False])
def test_a_watched_command_that_ended_well_after_a_restart_is_no_crash(tmp_path: Path, ended_well: bool) -> None:
    write(
        tmp_path,
        {
            "start/attempt_1/rank_00000.json": "{}",
            "logs/attempt_0/rank_00001/error.json": error_json(1, "bad batch", 2.0),
            "logs/attempt_0/rank_00000/error.json": error_json(0, "Connection closed by peer", 1.0, "DistBackendError"),
            "logs/host/stderr.log": TRACEBACK.format(error="ValueError: bad batch"),
        },
    )
    if ended_well:
        (tmp_path / "finished.json").write_text('{"kind": "finished", "command": "torchrun", "time_s": 3.0}')
    report = diagnose(tmp_path)
    assert (report.outcome == "crashed") == (not ended_well) and bool(report.root_causes) == (not ended_well)
    assert bool(notes(report)) == ended_well
    if ended_well:
        assert report.outcome == "healthy" and "rank 1: ValueError: bad batch" in notes(report)[0]


def test_a_run_of_dtk_that_finished_in_its_second_attempt(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    write_json(paths.status, Status(state="finished", attempt=0, exit_code=0, step=6))
    write_json(paths.manifest, {"schema_version": 1, "run_id": "x", "argv": [], "config_sha256": "x"})
    write(
        tmp_path,
        {
            "logs/attempt_0/rank_00000/error.json": error_json(0, "Connection closed by peer", 1.0, "DistBackendError"),
            "logs/attempt_0/rank_00001/error.json": error_json(1, "bad batch", 2.0),
            "logs/attempt_1/rank_00000/stderr.log": "",
        },
    )
    report = diagnose(tmp_path)
    assert report.outcome == "healthy"
    (note,) = notes(report)
    assert note.endswith("restarted: rank 1: ValueError: bad batch (logs/attempt_0/rank_00001/error.json)")
    (tmp_path / "logs/attempt_0/rank_00001/error.json").unlink()
    (note,) = notes(diagnose(tmp_path))
    assert "restarted: rank 1 left no error file (killed, or aborted in native code); rank 0: " in note


AGENT = "E1122 10:2{n}:05.000000 4000 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: {rank} (pid: 500{n}) of binary: python\n"  # noqa: E501
RESTART = "I1122 10:21:05.1 4000 torch/distributed/elastic/agent/server/api.py:879] [default] Worker group FAILED. 2/3 attempts left; will restart worker group\n"  # noqa: E501


def error_lines(rank: int, error: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in TRACEBACK.format(error=error).splitlines())


@pytest.mark.parametrize("restart", [RESTART, ""])
@pytest.mark.parametrize("then", [(2, "KeyError: 'x'"), (1, "KeyError: 'x'")])
def test_in_one_log_the_last_attempt_counts(tmp_path: Path, restart: str, then: tuple[int, str]) -> None:
    """torchrun tells of the restart at LOGLEVEL=INFO only; at any level each attempt that failed has a line."""
    first = error_lines(1, "ValueError: bad batch") + AGENT.format(n=1, rank=1) + restart
    write(tmp_path, {"train.log": first + error_lines(*then) + AGENT.format(n=2, rank=then[0])})
    report = diagnose(tmp_path)
    assert [(root_cause.cause, root_cause.ranks) for root_cause in report.root_causes] == [
        ("hang.rank_raised", then[:1])
    ]
    assert "KeyError" in str(report.root_causes[0].evidence[0].detail)
    assert any("Attempt 0 failed" in note and "ValueError: bad batch" in note for note in report.notes)


def test_an_attempt_of_which_the_log_says_nothing_more_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, {"train.log": error_lines(1, "ValueError: bad batch") + AGENT.format(n=1, rank=1) + RESTART})
    assert [(root_cause.cause, root_cause.ranks) for root_cause in diagnose(tmp_path).root_causes] == [
        ("hang.rank_raised", (1,))
    ]


def test_the_launchers_of_two_nodes_are_of_one_attempt(tmp_path: Path) -> None:
    other = AGENT.format(n=2, rank=0).replace(" 4000 ", " 4100 ")
    write(tmp_path, {"train.log": error_lines(1, "ValueError: bad batch") + AGENT.format(n=1, rank=1) + other})
    report = diagnose(tmp_path)
    assert [(root_cause.cause, root_cause.ranks) for root_cause in report.root_causes] == [("hang.rank_raised", (1,))]
    assert not any("Attempt" in note for note in report.notes)


@pytest.mark.parametrize(
    ("listed", "who"),
    [
        ("", "local rank 1 of a node: exit code 1"),
        ("  rank      : 5 (local_rank: 1)\n  exitcode  : 1 (pid: 5002)\n", "rank 5: exit code 1"),
    ],
)
def test_the_local_rank_of_an_attempt_is_no_rank_unless_torchrun_lists_it(
    tmp_path: Path, listed: str, who: str
) -> None:
    begins = "[default1]:[rank5]: starting\n"
    log = begins + AGENT.format(n=1, rank=1) + RESTART + begins + AGENT.format(n=2, rank=1)
    write(tmp_path, {"train.log": log + listed})
    (note,) = notes(diagnose(tmp_path))
    assert note == f"Attempt 0 failed and the job was restarted: {who} (train.log:2)"

"""`dtk.record.attach` in one process without a group: what a loop leaves behind, however it ends."""

import json
import signal
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from diagnostics.contract.artifacts import RunPaths, read_status
from diagnostics.evidence.metrics import WARMUP_STEPS
from dtk.errors import DtkError
from dtk.parallel.regions import current, observe
from dtk.record.own_loop import Recording, attach

Attach = Callable[..., Recording]


@pytest.fixture
def attached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attach]:
    for name in ("RANK", "WORLD_SIZE", "DTK_WATCH_FOLDER"):
        monkeypatch.delenv(name, raising=False)
    hook, handler = sys.excepthook, signal.getsignal(signal.SIGTERM)
    recordings: list[Recording] = []

    def start(**options: Any) -> Recording:
        recordings.append(attach(tmp_path / "runs", **options))
        return recordings[-1]

    yield start
    for run in recordings:
        run.close()
    observe(())
    assert sys.excepthook is hook and signal.getsignal(signal.SIGTERM) is handler


def records(run: Recording) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


def test_a_loop_that_ends_is_a_finished_run(attached: Attach) -> None:
    regions = []
    with attached(name="my job/7", config={"lr": 0.1, "path": Path("x")}) as run:
        for number, batch in enumerate(run.steps("abcde"), 1):
            with run.region("forward"):
                regions.append(current())
            run.log(loss=torch.tensor(1.0 / number), tokens=8 * number, text=batch)
    assert run.step == 5 and {region.name for region in regions if region} == {"forward"}
    logged = records(run)
    assert [record["step"] for record in logged] == [1, 2, 3, 4, 5]
    assert all(record["step_time_s"] > 0 and record["tokens_per_s"] > 0 for record in logged)
    assert logged[-1]["loss"] == pytest.approx(0.2) and logged[-1]["text"] == "e"
    status = read_status(RunPaths(run.folder).status)
    assert (status.state, status.exit_code, status.step) == ("finished", 0, 5)
    figures = json.loads((run.folder / "summary.json").read_text())["figures"]
    assert figures["steps_measured"] == 5 - WARMUP_STEPS
    assert figures["step_time_s"] == statistics.median(record["step_time_s"] for record in logged[WARMUP_STEPS:])
    assert yaml.safe_load((run.folder / "config.yaml").read_text()) == {"lr": 0.1, "path": "x"}
    assert "my_job_7" in run.folder.name, "a name is one folder"


def test_an_exception_is_the_failure_of_this_rank(attached: Attach) -> None:
    with pytest.raises(ValueError, match="bad batch"), attached() as run:
        run.begin_step(3)
        with run.region("backward"):
            raise ValueError("bad batch")
    status = read_status(RunPaths(run.folder).status)
    assert (status.state, status.exit_code, status.step) == ("failed", 1, 2)
    assert status.failure is not None and (status.failure.rank, status.failure.step) == (0, 3)
    assert "ValueError: bad batch (test_own_loop.py:" in status.failure.reason
    assert status.failure.region == "backward"
    error = json.loads(RunPaths(run.folder).error(0, 0).read_text())
    assert (error["type"], error["message"]) == ("ValueError", "bad batch")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        MemoryError("Unable to allocate 7.28 TiB for an array with shape (1000000, 1000000)"),
    ],
)
def test_memory_that_runs_out_is_a_state_of_its_own(attached: Attach, error: Exception) -> None:
    with pytest.raises(type(error)), attached() as run:
        raise error
    assert read_status(RunPaths(run.folder).status).state == "oom"


@pytest.mark.parametrize(
    ("ends", "state", "code"),
    [
        (SystemExit(0), "finished", 0),
        (SystemExit(3), "preempted", 3),
        (SystemExit("no data"), "preempted", 1),
        (KeyboardInterrupt(), "preempted", 130),
    ],
)
def test_who_leaves_by_himself_is_no_failed_rank(attached: Attach, ends: BaseException, state: str, code: int) -> None:
    with pytest.raises(type(ends)), attached() as run:
        raise ends
    status = read_status(RunPaths(run.folder).status)
    assert (status.state, status.exit_code, status.failure) == (state, code, None)


def test_closing_twice_says_nothing_more(attached: Attach) -> None:
    run = attached()
    run.close()
    run.close(ValueError("late"))
    assert read_status(RunPaths(run.folder).status).state == "finished"


def test_steps_continue_where_a_resumed_loop_stands(attached: Attach) -> None:
    with attached() as run:
        assert [run.step for _ in run.steps([1, 2], first=7)] == [7, 8]
        run.begin_step()
        assert run.step == 9


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"level": "loud"}, r"record\.level"),
        ({"stall_timeout_s": "soon"}, "soon"),
        ({"tracker": {"name": "mlflow"}}, "mlflow"),
    ],
)
def test_bad_options_are_refused(attached: Attach, options: dict[str, Any], text: str) -> None:
    with pytest.raises((DtkError, ValueError), match=text):
        attached(**options)


def test_a_process_is_recorded_once(attached: Attach, monkeypatch: pytest.MonkeyPatch) -> None:
    run = attached()
    with pytest.raises(DtkError, match="attach once"):
        attached()
    run.close()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(DtkError, match="call it after init_process_group"):
        attached()


def test_a_watched_process_and_a_folder_that_is_closed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(DtkError, match="cannot write to the runs folder"):
        attach("/proc/none")
    monkeypatch.setenv("DTK_WATCH_FOLDER", "x")
    with pytest.raises(DtkError, match="dtk watch already records this process"):
        attach()

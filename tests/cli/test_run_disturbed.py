"""Rough runs: clocks that are set while they train, a rank that is stopped, two commands at the same instant."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from diagnostics.contract.artifacts import RunPaths, Status, write_json
from diagnostics.diagnose import diagnose
from tests.cli.command import ROOT, TINY, environment, metrics, run, start, status

JOB = [*TINY, "launcher.nproc=2", "launcher.device=cpu", "strategy=ddp", "train.evaluate_every=-1", "checkpoint=off"]
CLOCK = """
import os, time
_true, _calls = time.time, [0]
def _set_once():
    _calls[0] += 1
    rank = os.environ.get("RANK")
    jumped = rank is not None and _calls[0] > 300
    if jumped and "DTK_TEST_JUMPS" in os.environ:
        open(os.path.join(os.environ["DTK_TEST_JUMPS"], rank), "a").close()
    return _true() + (0 if not jumped else 3600 if rank == "0" else -3600)
time.time = _set_once
"""
"""Python's wall clock of rank 0 goes an hour forward in the middle of the run, that of rank 1 an hour back."""


def test_clocks_that_are_set_while_a_run_trains_change_nothing(tmp_path: Path) -> None:
    place, jumps = tmp_path / "clock", tmp_path / "jumps"
    place.mkdir()
    jumps.mkdir()
    (place / "sitecustomize.py").write_text(CLOCK)
    path = f"{place}:{ROOT}"
    done = run(tmp_path / "runs", *JOB, "train.steps=30", PYTHONPATH=path, DTK_TEST_JUMPS=str(jumps))
    assert done.returncode == 0, done.stderr
    assert {rank.name for rank in jumps.iterdir()} == {"0", "1"}, "no clock was set"
    (folder,) = (tmp_path / "runs").iterdir()
    assert status(folder)["state"] == "finished" and len(metrics(folder)) > 1
    assert all(0 < record["step_time_s"] < 60 for record in metrics(folder) if record.get("step_time_s"))
    spans = [json.loads(line) for file in (folder / "events").iterdir() for line in file.read_text().splitlines()]
    assert all(0 <= span["duration_ms"] < 60_000 for span in spans if span["kind"] == "span")
    assert not diagnose(folder).root_causes


@pytest.mark.extended
def test_a_rank_that_is_stopped_for_a_while_goes_on(tmp_path: Path) -> None:
    process = start(tmp_path, *JOB, "train.steps=60", "train.log_every=1")
    ends_s = time.monotonic() + 60
    ranks: list[psutil.Process] = []
    while process.poll() is None and time.monotonic() < ends_s:
        if any(tmp_path.glob("*/metrics.jsonl")):
            children = psutil.Process(process.pid).children(recursive=True)
            ranks = [child for child in children if "dtk.rank" in " ".join(child.cmdline())]
            break
        time.sleep(0.05)
    assert ranks, "it never trained"
    ranks[-1].send_signal(signal.SIGSTOP)
    time.sleep(4)
    assert process.poll() is None, "a rank that is merely stopped was taken for lost"
    ranks[-1].send_signal(signal.SIGCONT)
    _, error = process.communicate(timeout=90)
    (folder,) = tmp_path.iterdir()
    assert (process.returncode, status(folder)["state"]) == (0, "finished"), error
    assert not [cause for cause in diagnose(folder).root_causes if cause.cause.startswith("hang.")]


def both(*words: str) -> list[tuple[int, str]]:
    """Exit code and standard error of one command that is started twice at the same instant."""
    command = [sys.executable, "-m", *words]
    started = [
        subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(2)
    ]
    return [(process.wait(), error) for process in started for error in [process.communicate(timeout=90)[1]]]


@pytest.mark.extended
def test_two_starts_at_the_same_instant_make_two_runs(tmp_path: Path) -> None:
    ends = both("dtk.run", f"runs_folder={tmp_path}", *TINY, "launcher.nproc=1", "train.steps=1", "checkpoint=off")
    assert [code for code, _ in ends] == [0, 0], ends
    assert [status(folder)["state"] for folder in tmp_path.iterdir()] == ["finished", "finished"]


def test_two_removals_at_the_same_instant_leave_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "20260101-000000-gpt2_tiny-ddp-w2-ab12"
    (folder / "logs").mkdir(parents=True)
    for number in range(300):
        (folder / "logs" / f"{number}.txt").write_text("line")
    write_json(RunPaths(folder).status, Status(state="finished", started="2026-01-01T00:00:00+00:00"))
    ends = both("dtk", "rm", str(folder), "--yes")
    assert 0 in [code for code, _ in ends] and not any("Traceback" in error for _, error in ends), ends
    assert not list(tmp_path.iterdir())

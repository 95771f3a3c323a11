"""What the person at the terminal sees of a run: lines, the live line, the failure, and the ranks' logs."""

import io
import os
import signal
import sys
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import Failure, RunPaths, Status, read_status, write_json
from dtk.launch.console import Console, Follower, explanation
from dtk.train.progress import Progress

ERASE = "\r\x1b[2K"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_in_a_file_every_step_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.progress("step 1/100 loss 2.0")
    console.line("a word in between", 31)
    console.progress("step 2/100 \x1b[2J loss 1.9")
    out = capsys.readouterr().out
    assert out.splitlines()[:2] == ["step 1/100 loss 2.0", "a word in between"] and "\x1b" not in out


def test_on_a_terminal_steps_share_a_line_that_other_lines_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "30")
    console = Console()
    for step in range(1, 4):
        console.progress(f"step {step}/20 {'x' * 40}")
    shown = terminal.getvalue()
    assert "\n" not in shown and {len(part) for part in shown.split(ERASE)[1:]} == {29}, "cut to the width"
    console.line("a word in between", 32)
    assert terminal.getvalue() == f"{shown}{ERASE}\x1b[1;32ma word in between\x1b[0m\n", "in place of the live line"
    console.progress("step 4/20")
    console.end_live()
    console.line("end")
    assert terminal.getvalue().endswith(f"{ERASE}step 4/20\nend\n")


def test_a_failure_names_who_where_whom_and_which_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    failure = Failure(
        rank=3, reason="ValueError: bad", step=7, region="backward", log="logs/x.log", victims=list(range(4, 24))
    )
    Console().failure(failure, "failed", RunPaths(tmp_path / "runs" / "a"))
    assert capsys.readouterr().out.splitlines() == [
        "FAILED: rank 3 failed first",
        "  what    ValueError: bad",
        "  where   step 7, region backward",
        "  then    ranks 4-23 ended as a consequence",
        "  log     runs/a/logs/x.log",
    ]
    Console().failure(Failure(rank=-1, reason="nobody in particular"), "hung", RunPaths(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0] == "HUNG" and lines[2].endswith("before the first step, or unknown (record=off)") and len(lines) == 3
    )


def test_a_terminal_that_is_closed_costs_the_output_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        Console().line("to nobody")
        Console().line("to nobody again")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def test_the_logs_of_the_ranks_are_followed_line_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths, ticks = RunPaths(tmp_path), []
    follower = Follower(paths, Console(), 2, 0, {}, lambda: ticks.append(1))
    write(paths.logs(0, 0) / "stdout.log", "step 1/2 loss 3\r\nhalf a li")
    write(paths.logs(0, 1) / "stderr.log", "a library's warning\ndtk: warning: slow disk\n")
    follower._poll()
    assert capsys.readouterr().out == "step 1/2 loss 3\n[rank 1] warning: slow disk\n"
    write(paths.logs(0, 0) / "stdout.log", "ne\n")
    follower._poll()
    assert capsys.readouterr().out == "half a line\n"


def test_a_restart_is_told_with_the_failure_before_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = RunPaths(tmp_path)
    follower = Follower(paths, Console(), 1, 0, {}, lambda: None)
    write(paths.logs(0, 0) / "stdout.log", "last words\n")
    write_json(paths.error(0, 0), {"rank": 0, "type": "ValueError", "message": "bad", "time_s": 1.0})
    write(paths.logs(1, 0) / "stdout.log", "step 1/2 again\n")
    follower._poll()
    assert capsys.readouterr().out.splitlines() == [
        "last words",
        "attempt 0 failed: rank 0: ValueError: bad",
        "restarting: attempt 1",
        "step 1/2 again",
    ]
    assert follower.attempt == 1


def test_a_restart_names_the_rank_that_was_killed_although_all_are_gone_by_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = RunPaths(tmp_path)
    write_json(paths.status, Status(state="running", started="2026-01-01", updated=""))
    follower = Follower(paths, Console(), 4, 0, {0: {2: -signal.SIGKILL}}, lambda: None)
    text = "[gloo/transport/tcp/pair.cc:547] Connection closed by peer"
    write_json(paths.error(0, 3), {"rank": 3, "type": "RuntimeError", "message": text, "time_s": 1.0})
    write(paths.logs(1, 0) / "stdout.log", "")
    follower._poll()
    assert capsys.readouterr().out.startswith("attempt 0 failed: rank 2: killed by SIGKILL")
    status = read_status(paths.status)
    assert (status.attempt, status.started, status.state) == (1, "2026-01-01", "running")


def test_what_comes_last_is_still_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = RunPaths(tmp_path)
    with Follower(paths, Console(), 1, 0, {}, lambda: None):
        write(paths.logs(0, 0) / "stdout.log", "the end\n")
    assert capsys.readouterr().out == "the end\n"


def test_a_step_line_stays_where_a_tenth_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    progress, paths = Progress(steps=20, world_size=1, first_step=0), RunPaths(tmp_path)
    record = {"loss": 2.5, "tokens_per_s": 4.0, "mfu": None, "peak_memory_bytes": 0}
    lines = [progress.line({**record, "step": step}) for step in range(1, 21)]
    write(paths.logs(0, 0) / "stdout.log", "step by step\n" + "".join(f"{line}\n" for line in lines))
    with Follower(paths, Console(), 1, 0, {}, lambda: None):
        pass
    shown = [line.rpartition(ERASE)[2].split("  ")[0] for line in terminal.getvalue().split("\n")[:-1]]
    assert shown == ["step by step", *(f"step {step}/20" for step in range(2, 21, 2))]


def test_of_a_field_on_a_terminal_only_the_label_is_dim(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    Console().fields([("run", "/runs/a"), ("", "more")])
    assert terminal.getvalue().splitlines()[0] == "  \x1b[2mrun     \x1b[0m/runs/a"


def test_a_folder_with_a_cause_is_explained_and_others_are_not(tmp_path: Path) -> None:
    assert explanation(RunPaths(tmp_path / "absent"), terminal=False) == ""
    paths = RunPaths(tmp_path / "run")
    paths.root.mkdir()
    write_json(paths.manifest, {"schema_version": 1, "run_id": "run", "topology": {"world_size": 2}})
    failure = Failure(1, "killed by SIGKILL", step=3, exit_code=-9, victims=[0], kind="killed", signal="SIGKILL")
    write_json(paths.status, Status(state="failed", exit_code=1, failure=failure))
    text = explanation(paths, terminal=False)
    assert "hang.rank_killed" in text and "rank 1" in text and not text.endswith("\n")
    write_json(paths.status, Status(state="finished", exit_code=0))
    assert explanation(paths, terminal=False) == ""

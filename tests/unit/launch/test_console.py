"""What the person at the terminal sees of a run: lines, the live line, the failure, and the ranks' logs."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import Failure, RunPaths, Status, read_status, write_json
from diagnostics.contract.formatting import command
from dtk.config.batch import settle
from dtk.config.compose import compose
from dtk.config.placement import place
from dtk.launch.console import Console, Follower, banner, explanation, farewell
from dtk.train.progress import Progress
from tests.patience import stretched

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


@pytest.fixture
def paths(tmp_path):
    (tmp_path / "run").mkdir()
    return RunPaths(tmp_path / "run")


def opening(capsys, paths, *overrides, ranks=2):
    config = settle(compose(list(overrides)), ranks).config
    banner(Console(), config, paths, place(config.launcher, config.strategy, 0, ranks), 0)
    return capsys.readouterr().out


def last_words(capsys, paths, status):
    farewell(Console(), paths, status)
    return capsys.readouterr().out.splitlines()


def test_one_is_singular(capsys, paths):
    assert "1 sample = 1 rank x 1 micro-batch of 1" in opening(
        capsys, paths, "strategy=single", "train.global_batch_size=1", ranks=1
    )
    assert "8 samples = 2 ranks x 1 micro-batch of 4" in opening(capsys, paths)
    Console().failure(Failure(rank=1, reason="x", victims=[0]), "failed", paths)
    assert "then    rank 0 ended as a consequence" in capsys.readouterr().out
    Console().failure(Failure(rank=1, reason="x", victims=[0, 2]), "failed", paths)
    assert "then    ranks 0 and 2 ended as a consequence" in capsys.readouterr().out


def test_the_degrees_of_the_mesh_are_named_those_of_experts_too(capsys, paths):
    assert "  mesh      dp_shard 2, ep 2; 2 ranks along" in opening(capsys, paths, "model=moe_tiny", "strategy=moe")
    assert "  mesh      pp 2; 1 rank along" in opening(capsys, paths, "strategy=pp")
    assert "  mesh " not in opening(capsys, paths, "strategy=fsdp")


@pytest.mark.parametrize(
    ("batch", "advice"),
    [
        ("8", "fewer micro-batches than ranks; with parallel.microbatches=8 it is 27%"),
        ("2", "fewer micro-batches than ranks; with parallel.microbatches=16 train.global_batch_size=16 it is 16%"),
    ],
)
def test_a_pipeline_of_few_micro_batches_is_told_a_number_that_divides_its_batch(batch, advice, capsys, paths):
    typed = ("strategy=pp", "parallel.pp=4", "parallel.microbatches=2", f"train.global_batch_size={batch}")
    assert advice in opening(capsys, paths, *typed, ranks=4)


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_a_run_that_is_all_warm_up_says_so(schedule, capsys, paths):
    assert "5 steps, all of them warm-up (schedule.warmup_steps=5)" in opening(
        capsys, paths, f"schedule={schedule}", "train.steps=5"
    )
    assert "warm-up" not in opening(capsys, paths, f"schedule={schedule}", "train.steps=16")


@pytest.mark.parametrize(
    ("typed", "idle"),
    [
        (["topk_ratio=0.1"], "strategy.topk_ratio=0.1 has no effect with strategy.communication_hook=none"),
        (["error_feedback=false", "powersgd_rank=2", "communication_hook=bf16"], "have no effect with"),
        (["topk_ratio=0.1", "communication_hook=topk"], ""),
    ],
)
def test_a_key_without_effect_is_named(typed, idle, capsys, paths):
    said = opening(capsys, paths, "strategy=zero1", *(f"strategy.{key}" for key in typed))
    assert idle in said and ("no effect" in said) == bool(idle)


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        (["strategy.communication_hook=topk"], True),
        (["strategy.communication_hook=topk", "optimizer=sgd", "optimizer.momentum=0.9"], True),
        (["strategy.communication_hook=topk", "optimizer=sgd", "optimizer.momentum=0"], False),
        (["strategy.communication_hook=int8"], False),
    ],
)
def test_topk_behind_an_optimizer_that_averages_is_warned_of(typed, text, capsys, paths):
    assert ("topk trains worse" in opening(capsys, paths, "strategy=ddp", *typed)) == text


def test_a_stop_at_once_names_no_step(capsys, paths):
    at_once = Status("preempted", exit_code=143, reason="stopped at once, without a checkpoint")
    assert last_words(capsys, paths, at_once) == [
        "stopped at once, without a checkpoint",
        f"next: {command('run', f'resume={paths.root}')}",
    ]
    stopped = Status("preempted", exit_code=143, reason="stopped by a signal", step=7)
    assert last_words(capsys, paths, stopped)[0] == "stopped at step 7: stopped by a signal"


def test_a_run_with_a_trace_is_to_be_diagnosed_next(capsys, paths):
    paths.summary.write_text(json.dumps({"figures": {"peak_memory_bytes": 2**30, "loss": 1.0, "tokens_per_s": 10.0}}))
    assert last_words(capsys, paths, Status("finished", exit_code=0))[-1] == f"next: {command('show', str(paths.root))}"
    paths.trace(0).parent.mkdir(parents=True)
    paths.trace(0).write_bytes(b"")
    assert (
        last_words(capsys, paths, Status("finished", exit_code=0))[-1]
        == f"next: {command('diagnose', str(paths.root))}"
    )


def test_a_loss_that_is_not_finite_is_to_be_diagnosed_next(capsys, paths):
    paths.summary.write_text('{"figures": {"peak_memory_bytes": 1073741824, "loss": NaN, "tokens_per_s": 10.0}}')
    lines = last_words(capsys, paths, Status("finished", exit_code=0))
    assert (
        lines[0].startswith("finished: loss nan, 10 tokens/s")
        and lines[-1] == f"next: {command('diagnose', str(paths.root))}"
    )


def test_what_wandb_kept_is_told_with_the_command_that_sends_it(capsys, paths):
    figures = {"peak_memory_bytes": 2**30, "loss": 1.0, "tokens_per_s": 10.0}
    paths.summary.write_text(json.dumps({"figures": figures}))
    assert not any(line.startswith("wandb") for line in last_words(capsys, paths, Status("finished", exit_code=0)))
    folders = [paths.root / "wandb" / f"offline-run-2026010{day}_000000-x" for day in (2, 1)]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "run-x.wandb").touch()
    line = last_words(capsys, paths, Status("finished", exit_code=0))[0]
    assert line == f"wandb was offline; to upload it: {command('sync', *reversed(folders), name='wandb')}"


def test_a_closed_pipe_costs_the_output_only():
    code = """
import sys
from dtk.launch.console import Console
console = Console()
console.line("first")
sys.stdin.read()
for _ in range(3):
    console.progress("step 1/2")
    console.line("more")
sys.exit(7)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline() == b"first\n"
    process.stdout.close()
    process.stdin.close()
    assert process.wait(timeout=stretched(60)) == 7
    assert process.stderr.read() == b""

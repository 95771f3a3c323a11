"""Sweeps as a user types them: lists, a file, one that is stopped and continues. W&B's server: test_sweep_wandb.py."""

import json
import os
import signal
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from diagnostics.runs.find import list_runs
from tests.cli.command import ROOT, TINY, environment, metrics, status
from tests.unit.sweep.files import BAYES, GRID, write
from tests.warm_python import Program

SHORT = [*TINY, "experiment=bench", "train.log_every=1", "train.steps=4"]
needs_sweeps = pytest.mark.skipif(find_spec("sweeps") is None, reason="the extra sweeps is not installed")


def dtk(*arguments: str, **more: str) -> Program:
    return Program(["dtk", *arguments], environment(**more), ROOT)


def done(process: Program, timeout_s: float = 200) -> tuple[int, str, str]:
    try:
        out, error = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    return process.wait(), out, error


def only_sweep(runs: Path) -> Path:
    (path,) = (runs / "sweeps").iterdir()
    return path


def events(runs: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (only_sweep(runs) / "runs.jsonl").read_text().splitlines()]


@pytest.mark.timeout(240)
def test_lists_are_run_one_after_another_and_compared_at_the_end(tmp_path, capsys):
    from dtk.run import main

    arguments = ["-m", f"runs_folder={tmp_path}", *SHORT, "strategy=single", "train.micro_batch_size=4,8"]
    code, out, error = done(dtk("run", *arguments))
    assert code == 0, out + error
    assert [run.state for run in list_runs(tmp_path)] == ["finished"] * 2
    rows = [(event["event"], event["point"]) for event in events(tmp_path)]
    assert rows == [(what, point) for point in (0, 1) for what in ("began", "opened", "ended")]
    ran = [tmp_path / str(event["run"]) for event in events(tmp_path) if event["event"] == "opened"]
    sizes = [yaml.safe_load((run / "config.yaml").read_text())["train"]["micro_batch_size"] for run in ran]
    assert sizes == [4, 8]
    words = out[out.index("2 of 2 runs done") :]
    assert "comparable: the runs did the same work" in words and "tokens/s" in words, "the comparison"
    assert main([*arguments, "--resume"]) == 0
    assert "continuing the sweep" in capsys.readouterr().out and len(list_runs(tmp_path)) == 2, "nothing to do"


@pytest.mark.extended
@pytest.mark.timeout(240)
def test_what_preflight_refuses_is_recorded_and_the_rest_go_on(tmp_path):
    arguments = ["run", "-m", f"runs_folder={tmp_path}", *SHORT, "preflight=on", "fault=branch,none", "strategy=fsdp"]
    code, out, error = done(dtk(*arguments, "repeats=2"))
    assert code == 1, out + error
    assert [run.state for run in list_runs(tmp_path)] == ["finished"] * 2
    ended = [(event["point"], event["state"]) for event in events(tmp_path) if event["event"] == "ended"]
    assert ended == [(0, "refused"), (1, "finished"), (1, "finished")]
    assert "fault=branch, repeat 1: refused: preflight: it would hang" in out


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["strategy=ddp,fsdpp"], 'unknown strategy "fsdpp" - did you mean strategy=fsdp?'),
        (["strategy=ddp,fsdp", "repeats=many"], "repeats=many"),
        (["strategy=ddp,fsdp", "train.micro_batch_size=3"], "micro_batch_size"),
        (["strategy=ddp,fsdp", "--resume"], "no sweep of this command"),
        (["strategy=ddp,fsdp", "resume=x"], "resume"),
        (["strategy=ddp,fsdp", "runs_folder=/proc/runs"], "cannot write to the runs folder /proc/runs"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_what_is_wrong_in_any_point_is_one_line_before_the_first(arguments, line, tmp_path, monkeypatch, capsys):
    from dtk.run import main

    monkeypatch.chdir(tmp_path)
    assert main(["-m", *TINY, *arguments]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1 and line in error
    assert list(tmp_path.iterdir()) == []


def test_what_belongs_to_sweeps_is_refused_elsewhere(capsys):
    from dtk.run import main

    assert main(["repeats=3"]) == 2
    assert main(["sweep=strategies"]) == 2
    assert main(["--resume"]) == 2
    error = capsys.readouterr().err
    assert "use dtk run -m, or dtk sweep" in error and "use dtk sweep NAME" in error and "add -m" in error


@needs_sweeps
def test_a_file_that_is_checked_runs_nothing(tmp_path, monkeypatch, capsys):
    from dtk.commands.main import main

    monkeypatch.chdir(tmp_path)
    assert main(["sweep", str(write(tmp_path, GRID)), "--dry-run", "repeats=3"]) == 0
    assert capsys.readouterr().out == "6 runs, 3 of each point:\n  strategy=ddp\n  strategy=fsdp\n"
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.yaml"]


@pytest.mark.extended
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_sweep_that_was_stopped_goes_on(number, tmp_path):
    """By Ctrl-C with a checkpoint, from which it continues; after SIGKILL of the parent from the last one."""
    point = ["strategy=single,ddp", "train.steps=60", "checkpoint=default", "checkpoint.every=5", "train.log_every=1"]
    arguments = ["run", "-m", f"runs_folder={tmp_path}", *TINY, *point, "data.sequence_length=64", "checkpoint.keep=3"]
    process = dtk(*arguments)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("*single*/checkpoints/step_*")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    code, out, error = done(process)
    assert code == (130 if number == signal.SIGINT else -9), out + error
    (first,) = list_runs(tmp_path)
    if number == signal.SIGINT:
        assert "to continue with the remaining runs: " in out
        assert first.state == "preempted"
    else:
        while any(path.exists() for path in ranks_of(Path(first.path))):  # They end when their parent is gone.
            assert time.monotonic() < deadline
            time.sleep(0.2)
    code, out, error = done(dtk(*arguments[:2], "--resume", *arguments[2:]))
    assert code == 0, out + error
    runs = list_runs(tmp_path)
    assert [run.state for run in runs] == ["finished"] * 2, "one folder for each point"
    single = next(Path(run.path) for run in runs if "single" in run.id)
    assert status(single)["attempt"] == 1 and "resumed from" in out
    assert {record["step"] for record in metrics(single) if "loss" in record} == set(range(1, 61))


def ranks_of(run: Path) -> list[Path]:
    pids = [json.loads(path.read_text().rstrip("\0 "))["pid"] for path in run.glob("heartbeat/*.json")]
    return [Path("/proc") / str(pid) for pid in pids if str(run) in cmdline(pid)]


def cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


@needs_sweeps
@pytest.mark.extended
@pytest.mark.timeout(400)
def test_a_run_that_falls_behind_is_ended_early(tmp_path):
    """The third of a grid learns nothing; the others run to their end, and the ranking says so."""
    content = {
        **GRID,
        "command": [
            *BAYES["command"][:4],
            *SHORT,
            "model.width=64",
            "train.steps=150",
            "strategy=single",
            "${args_no_hyphens}",
        ],
        "metric": {"name": "loss", "goal": "minimize"},
        "parameters": {"optimizer.lr": {"values": [1.0e-2, 5.0e-3, 1.0e-9]}},
        "early_terminate": {"type": "hyperband", "min_iter": 10, "eta": 2},
    }
    runs = tmp_path / "runs"
    code, out, error = done(
        dtk("sweep", str(write(tmp_path, content)), f"runs_folder={runs}", OMP_NUM_THREADS="1"), 390
    )
    assert code == 0, out + error
    ended = [event["state"] for event in events(runs) if event["event"] == "ended"]
    assert ended == ["finished", "finished", "stopped early"]
    assert "the search ends this run: others were better at this step" in out
    (stopped,) = [run for run in list_runs(runs) if run.state == "preempted"]
    assert 10 <= stopped.step < 150
    ranking = [line.split()[1] for line in out[out.index("best first") :].splitlines()[2:5]]
    assert ranking[-1] == "optimizer.lr=1e-09"


@needs_sweeps
@pytest.mark.timeout(60)
def test_sweeps_start_no_jobs_inside_a_job(tmp_path, monkeypatch, capsys):
    from dtk.commands.main import main

    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "x"}.items():
        monkeypatch.setitem(os.environ, name, value)
    assert main(["sweep", str(write(tmp_path, GRID))]) == 2
    assert "torchrun or srun started this process" in capsys.readouterr().err

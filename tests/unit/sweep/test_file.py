"""Wrong sweep files: one line each that names the file and the way out, exit code 2, nothing touched."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from dtk.commands.main import main
from tests.unit.sweep.files import BAYES, COMMAND, GRID, RANDOM, needs_sweeps, refused, write


def grid(**parameters: Any) -> dict[str, Any]:
    return {**GRID, "parameters": parameters}


READ = [
    ("a: [\n", "line 2", "not valid YAML"),
    ("- a\n", "not a mapping", "conf/sweep/"),
    ({**GRID, "parameterz": {}}, 'unknown key "parameterz"', "did you mean parameters?"),
    ({**GRID, "scheduler": {"engine": "ax"}}, 'unknown key "scheduler"', "keys: program"),
    ({**GRID, "method": "gird"}, "unknown method gird", "grid, random, bayes"),
    ({"command": COMMAND, "parameters": {"seed": {"value": 1}}}, "no method", "grid, random, bayes"),
    ({**GRID, "parameters": {}}, "no parameters", "values: [ddp, fsdp]"),
    (grid(strategy=["ddp"]), "strategy has no values", "{values: [...]}"),
    (grid(strategy={"vals": ["ddp"]}), 'unknown key "vals"', "did you mean values?"),
    (grid(strategy={"values": []}), "strategy: values is not a list", ""),
    (grid(optimizer={"parameters": {"lr": {"value": 0.1}}}), "optimizer is nested", "dotted keys: optimizer.KEY"),
    (grid(optimizer={"value": {"lr": 0.1}}), "optimizer has a dictionary", "optimizer.KEY"),
    (grid(**{"tracker.tags": {"value": [{"a": 1}]}}), "tracker.tags has a dictionary", "tracker.tags.KEY"),
    (grid(resume={"values": [None]}), "resume has a null", "leave the key out"),
    (grid(**{"data.path": {"value": "a,b"}}), "data.path=a,b", "several values"),
    (grid(**{"data.path": {"value": "a=b"}}), "data.path=a=b", "--config-dir"),
    (grid(**{"data.path": {"value": "null"}}), "data.path=null", "read as None"),
    (grid(**{"data.path": {"value": "a b'c"}}), "data.path=a b'c", "--config-dir"),
    (grid(**{"optimizer.lr": {"min": "1e-4", "max": 1.0}}), "min: 1e-4 is a text", "1.0e-3"),
    ({**BAYES, "metric": None}, "bayes needs a metric", "{name: loss"),
    ({**BAYES, "metric": {"name": "lost"}}, 'no run records the metric "lost"', "did you mean loss"),
    ({**BAYES, "metric": {"name": "loss", "goal": "less"}}, "unknown goal less", "minimize or maximize"),
    ({**GRID, "early_terminate": {"type": "hyperband", "min_iter": 3}}, "early_terminate needs a metric", ""),
    ({**GRID, "run_cap": 0}, "run_cap: 0 is not a number of runs", "run_cap: 20"),
    ({"method": "grid", "parameters": GRID["parameters"]}, "no command", "${args_no_hyphens}"),
    ({**GRID, "command": "dtk run"}, "command is not a list", "${args_no_hyphens}"),
    ({**GRID, "command": ["${env}", "python", "train.py", "${args}"]}, "does not run dtk", "dtk.run"),
    ({**GRID, "command": [*COMMAND[:-1], "${args}"]}, "parameters 0 times", "${args_no_hyphens}"),
    ({**GRID, "command": [*COMMAND, "-m"]}, "command: -m cannot be used", "KEY=VALUE"),
    ("method: grid\nparameters:\n  seed: {value: 1}\n  seed: {value: 2}\n", "line 4", 'the key "seed" is there twice'),
    ("a: " + "[" * 20_000, "nested over 20 levels", "conf/sweep/"),
    ("a: " + "[" * 50 + "]" * 50, "nested over 20 levels", "conf/sweep/"),
    (grid(**{"optimizer.lr": {"values": [1.0, float("inf")]}}), "optimizer.lr has the value .inf", "a finite number"),
    (grid(**{"optimizer.lr": {"values": [float("nan")]}}), "optimizer.lr has the value .nan", "a finite number"),
    ({**BAYES, "parameters": {"optimizer.lr": {"min": 0.1, "max": float("inf")}}}, "lr: max has the value .inf", ""),
    (grid(seed={"min": 1, "max": 10**9}, **{"optimizer.lr": {"values": [0.1, 0.2]}}), "2,000,000,000 points", "random"),
    (grid(**{"optimizer.lr": {"distribution": "q_uniform", "min": 0, "max": 1, "q": 1e-9}}), "points", "random"),
    (grid(seed={"values": [1] * 10_001}), "seed has 10,001 values", "min and max"),
    ({**RANDOM, "parameters": {"seed": {"values": [1] * 10_001}}}, "seed has 10,001 values", "min and max"),
    ({**GRID, "command": [*COMMAND, "seed=1,2"]}, "seed=1,2 asks for several runs", "parameters"),
]
SEARCH = [
    (grid(**{"optimizer.lr": {"min": 0.1, "max": 0.2}}), "optimizer.lr", "method: random"),
    (grid(**{"optimizer.lr": {"min": 0.2, "max": 0.1}}), "is not less than max", ""),
    ({**BAYES, "early_terminate": {"type": "hyperbend"}}, "not a valid W&B sweep", ""),
    ({**RANDOM, "run_cap": None}, "never stops on its own", "--count 20"),
    (grid(stratgy={"values": ["ddp"]}), "stratgy", "strategy"),
    (grid(strategy={"values": ["ddp", "fsdpp"]}), 'unknown strategy "fsdpp"', "did you mean strategy=fsdp?"),
    (grid(**{"train.stpes": {"values": [1, 2]}}), "train.stpes", "did you mean train.steps"),
    (grid(**{"train.micro_batch_size": {"values": [4, 3]}}), "point 2 (train.micro_batch_size=3)", ""),
    ({**RANDOM, "parameters": {"strategy": {"values": ["ddp", "fsdpp"]}}}, 'unknown strategy "fsdpp"', "fsdp?"),
    ({**RANDOM, "parameters": {"train.steps": {"values": [1, "many"]}}}, "train.steps", ""),
]


@pytest.mark.parametrize(("content", "what", "fix"), READ, ids=lambda value: str(value)[:30])
def test_what_dtk_could_not_run_is_one_line(content, what, fix, tmp_path, monkeypatch, capsys):
    line = refused(content, tmp_path, monkeypatch, capsys)
    assert what in line and fix in line
    assert "sweep.yaml" in line


@needs_sweeps
@pytest.mark.parametrize(("content", "what", "fix"), SEARCH, ids=lambda value: str(value)[:30])
def test_what_has_no_points_is_one_line(content, what, fix, tmp_path, monkeypatch, capsys):
    if content.get("run_cap", 1) is None:
        content = {key: value for key, value in content.items() if key != "run_cap"}
    line = refused(content, tmp_path, monkeypatch, capsys)
    assert what in line and fix in line


@needs_sweeps
@pytest.mark.parametrize(
    ("content", "arguments", "what"),
    [
        (GRID, ["repeats=0"], "repeats=0"),
        (GRID, ["repeats=1,2"], "repeats=1,2"),
        (GRID, ["seed=1,2"], "put the list into the file: parameters: {seed: {values: [...]}}"),
        (
            {**GRID, "parameters": {"seed": {"min": 1, "max": 300_000}, "train.steps": {"min": 1, "max": 3000}}},
            ["--count", "2"],
            "the grid has 900,000,000 points",
        ),
        (GRID, ["strategy=ddp"], "strategy=ddp is one of the sweep's parameters"),
        (GRID, ["--count", "0"], "is not a whole number from 1 to 10,000"),
        (GRID, ["--resume"], "no sweep of this command"),
        (GRID, ["resume=runs/x"], "resume"),
        (GRID, ["--wandb", "--resume"], "without a server"),
        (BAYES, ["repeats=2"], "repeats=2 is for grids"),
        (
            {**GRID, "metric": BAYES["metric"], "early_terminate": {"type": "hyperband", "min_iter": 1}},
            ["repeats=2"],
            "equal",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_options_that_do_not_fit(content, arguments, what, tmp_path, monkeypatch, capsys):
    assert what in refused(content, tmp_path, monkeypatch, capsys, *arguments)


def test_no_such_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "strategie"]) == 2
    assert "there is no sweep file strategie - did you mean strategies?" in capsys.readouterr().err


@pytest.mark.timeout(60)
def test_what_is_no_file_is_said_and_never_waited_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "/dev/zero"):
        assert main(["sweep", name]) == 2
        assert capsys.readouterr().err == f"dtk: cannot read {name}: not a regular file\n"
    assert main(["sweep", "folder"]) == 2
    assert capsys.readouterr().err.startswith("dtk: folder is a folder, not a sweep file - ")
    assert main(["sweep", "x" * 5000]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dtk: there is no sweep file xxx") and error.count("\n") == 1


@needs_sweeps
@pytest.mark.parametrize("content", [GRID, RANDOM], ids=["grid", "random"])
def test_a_full_standard_output_is_one_line(content, tmp_path, monkeypatch, capsys):
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["sweep", str(write(tmp_path, content)), "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dtk: cannot write to standard output: No space left") and error.count("\n") == 1


def test_without_the_extra_it_says_which(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("dtk.sweep.search.find_spec", lambda name: None)
    assert "dtk-train[sweeps]" in refused(RANDOM, tmp_path, monkeypatch, capsys)

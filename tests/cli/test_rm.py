"""`dtk rm` removes run folders and nothing else: links, foreign folders, runs that are going, and the question."""

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.artifacts import RunPaths, write_json
from diagnostics.runs.find import made_by_dtk, process_start
from dtk.commands.main import main
from dtk.runs.remove import remove, size_of
from tests.cli.test_ls import make

Answer = Callable[[str], None]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs"
    make(folder, "good", "finished", 10)
    make(folder, "bad", "failed", 9 * 86400)
    make(folder, "stuck", "hung", 3600)
    return folder


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Types at a real terminal that standard input is."""
    ours, theirs = os.openpty()
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        yield lambda text: os.write(ours, text.encode())
    os.close(ours)


def names_of_runs(runs: Path) -> set[str]:
    return {path.name for path in runs.iterdir()}


def test_one_run_after_a_yes(runs: Path, answer: Answer, capsys: Any) -> None:
    (runs / "bad" / "weights.bin").write_bytes(b"x" * 5000)
    answer("y\n")
    assert main(["rm", "bad"]) == 0
    captured = capsys.readouterr()
    assert "1 run, 2 files, " in captured.out and "removed runs/bad" in captured.out
    assert "remove 1 run (" in captured.err and captured.err.endswith("permanently? [y/N] ")
    assert names_of_runs(runs) == {"good", "stuck"}
    assert int(captured.out.split("(")[1].split(" bytes")[0].replace(",", "")) > 5000


@pytest.mark.parametrize("typed", ["n\n", "\n", "yess\n", "\x04"])
def test_anything_but_yes_removes_nothing(runs: Path, answer: Answer, capsys: Any, typed: str) -> None:
    answer(typed)
    assert main(["rm", "bad", "good"]) == 1
    assert capsys.readouterr().err.endswith("nothing was removed\n")
    assert names_of_runs(runs) == {"good", "bad", "stuck"}


def test_nobody_to_ask_is_one_line(runs: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert main(["rm", "bad"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("dtk: nothing was removed: no terminal to ask for confirmation - add --yes")
    assert (captured.err.count("\n"), captured.out, len(names_of_runs(runs))) == (1, "", 3)


@pytest.mark.parametrize(
    ("options", "rest"),
    [
        (["--failed"], {"good"}),
        (["--older-than", "7d"], {"good", "stuck"}),
        (["--failed", "--older-than", "7d"], {"good", "stuck"}),
        (["--state", "finished"], {"bad", "stuck"}),
        (["--state", "oom"], {"good", "bad", "stuck"}),
        (["bad", "runs/bad", "./runs/bad"], {"good", "stuck"}),
    ],
)
def test_selections(runs: Path, options: list[str], rest: set[str], capsys: Any) -> None:
    assert main(["rm", *options, "--dry-run"]) == 0
    assert len(names_of_runs(runs)) == 3 and "removed" not in capsys.readouterr().out
    assert main(["rm", *options, "--yes"]) == 0
    assert names_of_runs(runs) == rest


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["rm"], "no run is given"),
        (["rm", "bad", "--failed"], "runs and options that select runs are both given"),
        (["rm", "--yes"], "no run is given"),
    ],
)
def test_names_or_a_selection(runs: Path, capsys: Any, words: list[str], what: str) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"dtk: {what} - ")
    assert len(names_of_runs(runs)) == 3


def test_one_that_is_refused_keeps_all(runs: Path, capsys: Any) -> None:
    assert main(["rm", "--yes", "good", "absent"]) == 2
    assert 'no run "absent" here or in runs' in capsys.readouterr().err
    assert len(names_of_runs(runs)) == 3


def going(run: Path, host: str = "") -> None:
    make(run.parent, run.name, "running", 9 * 86400)
    pid = os.getpid()
    manifest = {"pid": pid, "pid_start": process_start(pid), "host": host or socket.gethostname()}
    write_json(RunPaths(run).manifest, manifest)


@pytest.mark.parametrize("host", ["", "another-machine"])
def test_a_run_that_is_going_stays_without_force(runs: Path, capsys: Any, host: str) -> None:
    going(runs / "going", host)
    assert main(["rm", "--yes", "going"]) == 2
    err = capsys.readouterr().err
    assert "runs/going is still running (" in err and err.count("\n") == 1
    assert main(["rm", "--yes", "--older-than", "7d"]) == 0
    assert capsys.readouterr().err.startswith("kept: runs/going is still running")
    assert names_of_runs(runs) == {"good", "stuck", "going"}
    assert main(["rm", "--yes", "--force", "going"]) == 0
    assert names_of_runs(runs) == {"good", "stuck"}


def test_a_queued_run_stays_without_force(runs: Path, capsys: Any) -> None:
    make(runs, "waits", "queued")
    assert main(["rm", "--yes", "waits"]) == 2
    assert "runs/waits waits for its scheduler; cancel the job first" in capsys.readouterr().err
    assert "waits" in names_of_runs(runs)


def test_a_lost_run_may_go(runs: Path) -> None:
    make(runs, "lost", "running")
    write_json(RunPaths(runs / "lost").manifest, {"pid": 2**22 + 5, "host": socket.gethostname()})
    assert main(["rm", "--yes", "lost"]) == 0
    assert "lost" not in names_of_runs(runs)


def test_a_damaged_run_goes_only_by_force(runs: Path, capsys: Any) -> None:
    manifest = {"schema_version": 1, "run_id": "bad", "argv": [], "config_sha256": "0"}
    write_json(RunPaths(runs / "bad").manifest, manifest)
    (runs / "bad" / "status.json").write_text('{"sta')
    assert main(["rm", "--yes", "bad"]) == 2
    assert "runs/bad is damaged: status.json: " in capsys.readouterr().err
    assert main(["rm", "--yes", "--force", "bad"]) == 0
    assert names_of_runs(runs) == {"good", "stuck"}


@pytest.mark.parametrize(
    "files",
    [
        {"config.yaml": "a: 1"},
        {"manifest.json": '{"name": "my browser extension", "manifest_version": 3}'},
        {"status.json": '{"state": "running"}', "thesis.tex": "\\documentclass"},
        {"status.json": "{"},
    ],
)
def test_a_folder_of_somebody_else_is_never_removed(runs: Path, capsys: Any, files: dict[str, str]) -> None:
    folder = runs / "mine"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
    assert main(["rm", "--yes", "--force", "mine"]) == 2
    assert "runs/mine is not a run folder" in capsys.readouterr().err
    assert main(["rm", "--yes", "--force", "--state", "damaged,running,lost"]) == 0
    assert {path.name: path.read_text() for path in folder.iterdir()} == files


def test_links_are_removed_not_followed(runs: Path, tmp_path: Path, capsys: Any) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x" * 10_000)
    (runs / "bad" / "to_folder").symlink_to(outside)
    (runs / "bad" / "to_file").symlink_to(outside / "precious")
    (runs / "bad" / "logs").mkdir()
    (runs / "bad" / "logs" / "up").symlink_to(runs)
    assert size_of(runs / "bad").bytes < 5000
    assert main(["rm", "--yes", "bad"]) == 0
    assert (outside / "precious").stat().st_size == 10_000 and names_of_runs(runs) == {"good", "stuck"}


def test_a_link_to_a_run_is_refused(runs: Path, capsys: Any) -> None:
    (runs / "latest").symlink_to("good")
    for words in (["latest"], ["runs/latest"], ["runs/latest/"]):
        assert main(["rm", "--yes", "--force", *words]) == 2
        assert "runs/latest is a symbolic link, and links are not followed" in capsys.readouterr().err
    assert main(["rm", "--yes", "--state", "finished"]) == 0
    assert names_of_runs(runs) == {"bad", "stuck", "latest"}
    assert (runs / "latest").is_symlink()


def test_a_status_behind_a_link_makes_no_run(runs: Path) -> None:
    mine = runs / "mine"
    mine.mkdir()
    (mine / "status.json").symlink_to(runs / "good" / "status.json")
    assert made_by_dtk(runs / "good") and not made_by_dtk(mine)


def test_not_the_folder_one_is_in(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (runs / "good" / "logs").mkdir()
    monkeypatch.chdir(runs / "good" / "logs")
    assert main(["rm", "--yes", str(runs / "good")]) == 2
    assert "is or contains the current directory" in capsys.readouterr().err


def test_what_a_cut_off_removal_leaves_can_be_removed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records that tell a run go last."""
    (runs / "bad" / "a_folder" / "deep").mkdir(parents=True)
    (runs / "bad" / "zzz").write_text("x")
    removed: list[str] = []
    unlink = Path.unlink

    def cut_off(path: Path, missing_ok: bool = False) -> None:
        if path.name == "status.json":
            raise KeyboardInterrupt
        removed.append(path.name)
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", cut_off)
        with pytest.raises(KeyboardInterrupt):
            remove(runs / "bad")
    assert removed == ["zzz"] and not (runs / "bad" / "a_folder").exists()
    assert main(["rm", "--yes", "bad"]) == 0


def test_a_name_with_control_characters_is_shown_not_obeyed(runs: Path, capsys: Any) -> None:
    make(runs, "evil\x1b[2J\nremoved runs-good", "failed")
    assert main(["rm", "--yes", "--failed"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "removed runs/evil\\x1b[2J\\nremoved runs-good\n" in out
    assert "\nremoved runs-good" not in out and names_of_runs(runs) == {"good"}
    assert json.loads((runs / "good" / "status.json").read_text())["state"] == "finished"


def test_two_ways_of_saying_states_remove_nothing(runs: Path, capsys: Any) -> None:
    assert main(["rm", "--failed", "--state", "finished", "--yes"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("dtk: --failed and --state both name states") and captured.out == ""
    assert captured.err.count("\n") == 1 and len(names_of_runs(runs)) == 3


def test_a_missing_folder_is_said_without_a_terminal(runs: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert main(["rm", "--folder", "nope", "--failed"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("dtk: cannot list nope: No such file or directory") and err.count("\n") == 1


def test_a_config_yaml_alone_is_no_run_for_any_command(runs: Path, capsys: Any) -> None:
    (runs / "mine").mkdir()
    (runs / "mine" / "config.yaml").write_text("a: 1")
    assert main(["ls"]) == 0 and "mine" not in capsys.readouterr().out
    assert main(["rm", "--state", "damaged", "--force", "--yes"]) == 0
    assert capsys.readouterr().err == "nothing to remove\n"
    for words in (["show", "mine"], ["show", "min"], ["rm", "--yes", "mine"]):
        assert main(words) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert (runs / "mine" / "config.yaml").exists()

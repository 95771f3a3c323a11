"""Which command runs, with which arguments, and one line for whatever any of them refuses before it does anything."""

import atexit
import gc
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dtk import __version__
from dtk.commands.main import _COMMANDS, main


def error(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line of a command line that is wrong."""
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    return captured.err.removeprefix("dtk: ").rstrip("\n")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["diagnoze"], 'there is no command "diagnoze" - did you mean diagnose?'),
        (["zzz"], 'there is no command "zzz" - commands: run, strategies, new, ls, '),
        (["ls", "--nonsense"], "unrecognized arguments: --nonsense - "),
        (["plan", "--nonsense", "strategy=ddp"], "unrecognized arguments: --nonsense - "),
        (["--nonsense"], "unrecognized arguments: --nonsense - "),
        (["ls", "a", "b"], "unrecognized arguments: b - "),
        (["ls", "--limit"], "argument -n/--limit: expected one argument - "),
    ],
)
def test_what_is_no_command_or_option(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert error(argv, capsys).startswith(message)


@pytest.mark.parametrize("triton", [False, True])
def test_what_triton_holds_is_collected_at_exit(triton: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it prints hundreds of objects as leaked below the output of a command."""
    at_exit: list[Callable[[], object]] = []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    if triton:
        monkeypatch.setitem(sys.modules, "triton", sys)
    threshold, frozen = gc.get_threshold(), []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    assert main([]) == 0
    gc.set_threshold(*threshold)
    at_exit[0]()
    assert bool(frozen) is not triton


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    shown = [line.split()[0] for line in text.splitlines() if line.startswith("    ") and line[4] != " "]
    assert shown == ["run", *_COMMANDS]
    assert main(["bench"]) == main(["tune"]) == 0, "a topic is missing"
    assert "comm" in capsys.readouterr().out


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"dtk {__version__}\n"


def test_overrides_may_stand_between_options(capsys: pytest.CaptureFixture[str]) -> None:
    text = error(["sweep", "no_such_sweep", "repeats=2", "--dry-run", "model=gpt2_tiny"], capsys)
    assert text.startswith("there is no sweep file no_such_sweep")


def test_what_follows_two_dashes_is_a_command_for_watch_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert error(["watch", "--", "no-such-program", "--help"], capsys).startswith(
        'there is no command "no-such-program"'
    )
    assert error(["ls", "--", "--limit"], capsys).startswith("cannot list --limit")


def test_a_closed_standard_output_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["ls"]) == 2
    monkeypatch.undo()
    assert capsys.readouterr().err == "dtk: standard output is closed - redirect it: > FILE, or > /dev/null\n"


def test_strategies_as_a_table_and_as_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["strategies"]) == 0
    assert "fsdp" in capsys.readouterr().out
    assert main(["strategies", "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("| ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("compare none other", 'there is no run "none"'),
        ("compare --json --markdown a b", "argument --markdown: not allowed with argument --json"),
        ("compare a b --warmup -1", "argument --warmup: '-1' is not a whole number from 0 to"),
        ("doctor --only gpuz", '--only: there is no check "gpuz" - did you mean gpus?'),
        ("doctor --runs-folder=", "--runs-folder names no folder - dtk doctor --runs-folder runs"),
        ("doctor --port 0", "argument --port: '0' is not a whole number from 1 to 65,535"),
        ("nccl show autoo", 'there is no preset "autoo" - did you mean auto?'),
        ("nccl export tcp_ethernet --format sh interface", '"interface" is not KEY=VALUE - for example interface=eth0'),
        ("nccl export tcp_ethernet --format sh interface=", '"interface=" is not KEY=VALUE'),
        ("nccl export tcp_ethernet --format sh hca=x", "nccl=tcp_ethernet does not use hca - keys: interface, run"),
        ("nccl export roce --format sh traffic_class=high", "traffic_class=high is not a number"),
        ("nccl export roce --format sh traffic_class=256", "nccl.traffic_class=256 is out of range"),
        ("nccl export roce --format toml", "argument --format: invalid choice: 'toml'"),
        ("plan --calibrate strategy=ddp", "--calibrate measures this machine: strategy=ddp has no effect on it"),
        ("plan --html folder", "cannot write folder: it is a folder - write --html folder/plan.html"),
        ("plan --engine magic", "argument --engine: invalid choice: 'magic'"),
        ("preflight -- --epochs 1", "arguments after -- belong to a script"),
        ("preflight --steps 0", "--steps 0 is for scripts: a dtk job would be simulated to its last step"),
        ("preflight --script none.py --world-size 2", "there is no script none.py"),
        ("preflight --script train.py", "a script does not declare its number of ranks - add --world-size 8"),
        ("preflight --script train.py --what-if --world-size 2", "--what-if needs a dtk job"),
        ("preflight --script train.py seed=1", "'seed=1' applies to dtk jobs: a script has its own configuration"),
        ("rm", "no run is given"),
        ("rm a --failed", "runs and options that select runs are both given"),
        ("sweep strategy", "there is no sweep file strategy - did you mean strategies?"),
        (
            "sweep strategies seed=1,2",
            "seed=1,2 asks for several runs: an override applies to all points",
        ),
        ("tune bucket --values 5,,25", "--values '5,,25' has an empty entry - separate values by single commas"),
        ("tune bucket --steps 1", "argument --steps: '1' is not a whole number from 2 to"),
        ("tune wrap --max 3", "unrecognized arguments: --max"),
        ("attach --rounds 8 --every-s 40", "8 rounds 40 s apart exceed 45 s - use fewer"),
        ("show none", 'there is no run "none"'),
        ("rerun none", 'there is no run "none"'),
    ],
)
def test_one_line_and_exit_2(
    line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "train.py").touch()
    assert main(line.split()) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"dtk: {message}") and captured.err.count("\n") == 1
    assert captured.out == ""

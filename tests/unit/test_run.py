"""`dtk run`: how its words are read, what of Hydra it does without, and what needs no launch."""

from pathlib import Path

import pytest

from dtk import run as entry
from dtk.errors import USER_ERROR, DtkError
from dtk.run import main, options


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)


def test_overrides_may_stand_between_options() -> None:
    arguments = options().parse_intermixed_args(["strategy=ddp", "--dry-run", "model=gpt2_tiny"])
    assert arguments.overrides == ["strategy=ddp", "model=gpt2_tiny"] and arguments.dry_run


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (["-cd", "mine"], Path("mine")),
        (["-cn", "first"], Path("conf/first.yaml")),
        (["-cp", "mine", "-cn", "first.yaml"], Path("mine/first.yaml")),
    ],
)
def test_hydras_short_options_are_understood(words: list[str], folder: Path) -> None:
    assert entry._parse(words).config_dir == folder


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--package", "train"], "dtk run has no --package"),
        (["-p", "train"], "dtk run has no --package"),
        (["--hydra-help"], "dtk uses Hydra to compose only"),
        (["--cfg", "hydra"], "--cfg hydra prints nothing"),
        (["--strict"], "add --rerun RUN"),
        (["--resume"], "this is a single run"),
        (["-m", "--dry-run", "strategy=ddp,zero1"], "-m makes several"),
        (["--no-such-option"], "--no-such-option"),
        (["strategy=dpp"], "did you mean"),
        (["--rerun", "no_such_run"], "no_such_run"),
    ],
)
def test_what_cannot_be_run_is_one_line(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == USER_ERROR
    captured = capsys.readouterr()
    assert text in captured.err and captured.err.startswith("dtk: ") and len(captured.err.splitlines()) == 1


def test_ranks_of_a_launcher_start_no_jobs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["-m", "strategy=ddp,zero1"]) == USER_ERROR
    assert "-m starts its jobs itself" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--cfg"], ["--cfg", "job"]])
def test_the_configuration_is_printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model=gpt2_tiny", "train.steps=7", *words]) == 0
    assert "steps: 7" in capsys.readouterr().out


def test_the_files_are_printed_in_the_order_of_merging(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--info", "defaults", "strategy=zero1"]) == 0
    out = capsys.readouterr().out
    assert out.index("searched, in this order:") < out.index("strategy/zero1")


def test_help_of_one_group_lists_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help", "strategy"])
    out = capsys.readouterr().out
    assert ended.value.code == 0 and "zero1" in out and "schedule" not in out
    with pytest.raises(DtkError, match="strategie"):
        entry._parse(["--help", "strategie"])

"""W&B's server: what is refused before it is asked, and by which keys a report groups the runs of a sweep."""

from pathlib import Path
from typing import Any

import pytest

from dtk.errors import DtkError
from dtk.sweep.folder import About, Point, Sweep
from dtk.sweep.server import _varied, save
from tests.unit.sweep.files import COMMAND, GRID, needs_sweeps, refused


@needs_sweeps
def test_handing_over_needs_a_key_and_a_tracker(tmp_path, monkeypatch, capsys):
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    assert "--wandb needs a key" in refused(GRID, tmp_path, monkeypatch, capsys, "--wandb")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    untracked = {**GRID, "command": [word for word in COMMAND if word != "tracker=wandb"]}
    assert "add tracker=wandb" in refused(untracked, tmp_path, monkeypatch, capsys, "--wandb")
    assert "cannot be handed to W&B" in refused(GRID, tmp_path, monkeypatch, capsys, "--wandb", "repeats=2")


def sweep(tmp_path: Path, repeats: int) -> Sweep:
    config: dict[str, Any] = {"strategy": {"name": "ddp"}, "train": {"steps": 3}}
    names = ("strategy=ddp train.steps=3", "strategy=fsdp train.steps=3")
    points = [Point(i, name, name.split(), config, {}, "{}", None) for i, name in enumerate(names)]
    return Sweep(tmp_path, About("20261124-sweep", "multirun", {}, repeats, "now"), points)


def test_repeats_are_grouped_by_what_was_typed(tmp_path: Path) -> None:
    assert _varied(sweep(tmp_path, 3)) == ["config.strategy.name", "config.train.steps"]


def test_single_runs_are_no_groups(tmp_path: Path) -> None:
    assert _varied(sweep(tmp_path, 1)) == []


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dtk.extras.find_spec", lambda name: None)
    with pytest.raises(DtkError, match="wandb-workspaces") as refused:
        save(sweep(tmp_path, 1), "dtk", None, "step")
    assert "install" in refused.value.fix

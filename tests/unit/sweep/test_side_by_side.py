"""The report of a sweep at W&B: by which keys runs are grouped, and what is refused before anything is asked for."""

from pathlib import Path
from typing import Any

import pytest

from dtk.errors import DtkError
from dtk.sweep.folder import About, Sweep
from dtk.sweep.points import Point
from dtk.sweep.side_by_side import _varied, save


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

"""A job for another place: what is printed, what is refused, where its run folder will lie."""

from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import RunPaths
from dtk.config.placement import Placement
from dtk.config.resume import Resumed
from dtk.errors import DtkError
from dtk.launch.prepare import compose_point, place_point
from dtk.launch.remote.hand_over import UNMOUNTED, _moved, hand_over

TINY = ["model=gpt2_tiny", "strategy=ddp", "data=synthetic"]
CLUSTERS = {
    "kubernetes": [
        "launcher=kubernetes",
        "launcher.nodes=2",
        "launcher.image=example/dtk:1",
        "launcher.volume_claim=runs",
    ],
    "skypilot": ["launcher=skypilot"],
}


def placed(*typed: str) -> tuple[Resumed, Placement]:
    return place_point(compose_point([*TINY, *typed], None))


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_dry_run_prints_the_job_and_writes_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert hand_over(*placed(*CLUSTERS[name]), dry_run=True) == 0
    printed = capsys.readouterr().out
    assert "gpt2_tiny-ddp" in printed and "manifest.json" in printed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_run_of_this_machine_cannot_go_on_there(name: str, tmp_path: Path) -> None:
    point, placement = placed(*CLUSTERS[name])
    with pytest.raises(DtkError, match=f"launcher={name} cannot continue with a run folder of this machine"):
        hand_over(replace(point, paths=RunPaths(tmp_path)), placement, dry_run=True)


def test_the_run_folder_moves_to_what_the_job_mounts() -> None:
    point, _ = placed(*CLUSTERS["kubernetes"])
    mounted = point.composed.config.launcher.volume_path
    assert _moved(point).composed.config.runs_folder == _moved(point).composed.plain["runs_folder"] == mounted
    inside, _ = placed(*CLUSTERS["kubernetes"], f"runs_folder={mounted}/of/mine")
    assert _moved(inside) is inside
    without_bucket, _ = placed(*CLUSTERS["skypilot"])
    assert _moved(without_bucket).composed.config.runs_folder == UNMOUNTED

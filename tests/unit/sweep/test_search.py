"""Points of a grid, random and Bayesian proposals, early ends and targets, by the package's own search."""

import math
from importlib.util import find_spec
from pathlib import Path

import pytest

from dtk.config.folders import SWEEPS, conf_folder
from dtk.sweep import local
from dtk.sweep.file import read, spelled
from dtk.sweep.search import Tried, listed_points, load
from tests.unit.sweep.files import BAYES, GRID, RANDOM, write

pytestmark = pytest.mark.skipif(find_spec("sweeps") is None, reason="the extra sweeps is not installed")


def search(tmp_path, content):
    return load(read(write(tmp_path, content)))


@pytest.mark.parametrize("path", sorted((conf_folder() / SWEEPS).glob("*.yaml")), ids=lambda path: path.stem)
def test_dtks_own_files_are_valid(path: Path) -> None:
    file = read(path)
    job = local.Job(file, load(file), [], 1, file.run_cap, None)
    local.check(job)
    assert "tracker=wandb" in file.fixed


def test_the_three_methods_are_shown() -> None:
    files = {path.stem: read(path) for path in (conf_folder() / SWEEPS).glob("*.yaml")}
    assert {name: file.method for name, file in files.items()} == {
        "strategies": "grid",
        "nccl": "random",
        "batch": "bayes",
    }
    assert files["batch"].stops_early


def test_a_grid_has_every_combination(tmp_path):
    content = {**GRID, "parameters": {**GRID["parameters"], "seed": {"min": 1, "max": 3}}}
    points = search(tmp_path, content).grid()
    assert len(points) == 6 and all(point["train.steps"] == 3 for point in points)
    assert {(point["strategy"], point["seed"]) for point in points} == {
        (s, n) for s in ("ddp", "fsdp") for n in (1, 2, 3)
    }


@pytest.mark.parametrize("content", [BAYES, RANDOM], ids=["bayes", "random"])
def test_proposals_are_plain_values_within_bounds_and_can_be_repeated(content, tmp_path):
    match = search(tmp_path, content)
    tried = []
    for index in range(4):
        values = match.propose(tried, f"id:{index}")
        assert values == match.propose(tried, f"id:{index}")
        assert type(values["optimizer.lr"]) is float and 1e-4 <= values["optimizer.lr"] <= 1e-1
        assert values["train.global_batch_size"] in (8, 16)
        assert all(spelled(key, value).startswith(f"{key}=") for key, value in values.items())
        tried.append(Tried(str(index), values, "finished", [], {"loss": abs(values["optimizer.lr"] - 0.01)}))
    assert len({item.values["optimizer.lr"] for item in tried}) == 4


def test_a_bayesian_search_learns(tmp_path):
    """Its last points lie where the first ones showed the least loss, around a rate of 0.01."""
    content = {**BAYES, "parameters": {"optimizer.lr": BAYES["parameters"]["optimizer.lr"]}}
    match = search(tmp_path, content)
    tried = []
    for index in range(10):
        values = match.propose(tried, f"0:{index}")
        loss = (math.log10(values["optimizer.lr"]) + 2) ** 2
        tried.append(Tried(str(index), values, "finished", [], {"loss": loss}))
    assert all(0.005 < item.values["optimizer.lr"] < 0.02 for item in tried[-3:])
    assert max(item.summary["loss"] for item in tried[:3]) > 0.3


def test_hyperband_ends_what_falls_behind(tmp_path):
    content = {**BAYES, "early_terminate": {"type": "hyperband", "min_iter": 3, "eta": 2}}
    match = search(tmp_path, content)

    def run(*losses, state="finished"):
        values = {"optimizer.lr": 0.01, "train.global_batch_size": 8}
        return Tried("x", values, state, [{"loss": loss} for loss in losses])

    others = [run(5.0, 4.0, 3.0), run(5.0, 3.5, 2.0)]
    assert not match.ends(run(5.0, 4.9, state="running"), others), "before the first band"
    assert match.ends(run(5.0, 4.9, 4.8, state="running"), others)
    assert not match.ends(run(5.0, 3.0, 1.9, state="running"), others)


@pytest.mark.parametrize(
    ("goal", "target", "reached"), [("minimize", 2.0, True), ("minimize", 1.0, False), ("maximize", 4.5, True)]
)
def test_a_target_ends_the_search(goal, target, reached, tmp_path):
    match = search(tmp_path, {**RANDOM, "metric": {"name": "loss", "goal": goal, "target": target}})
    assert match.reached(Tried("0", {}, "finished", [{"loss": 5.0}, {"step": 2}, {"loss": 1.5}])) is reached


@pytest.mark.parametrize(
    "parameters",
    [
        GRID["parameters"],
        {"seed": {"min": 1, "max": 3}, "strategy": {"values": ["ddp", "fsdp", "ddp"]}, "train.steps": {"value": 4}},
        {"optimizer.betas": {"values": [[0.9, 0.95], [0.9, 0.99]]}, "train.compile": {"values": [True, False]}},
    ],
)
def test_a_grid_without_the_package_is_the_packages(parameters, tmp_path):
    file = read(write(tmp_path, {**GRID, "parameters": parameters}))
    assert listed_points(file) == load(file).grid()

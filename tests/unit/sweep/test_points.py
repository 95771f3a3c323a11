"""Points: how often each is run, what distinguishes them, and freezing and thawing."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from dtk.errors import DtkError
from dtk.sweep.points import Point, combinations, freeze, take_repeats
from tests.cli.command import TINY


@pytest.mark.parametrize(
    ("typed", "rest", "repeats"),
    [
        (["seed=1"], ["seed=1"], 1),
        (["repeats=3", "seed=1"], ["seed=1"], 3),
        (["repeats=3", "repeats=5"], [], 5),
        (["train.repeats=3"], ["train.repeats=3"], 1),
    ],
)
def test_repeats_belong_to_the_sweep(typed: list[str], rest: list[str], repeats: int) -> None:
    assert take_repeats(typed) == (rest, repeats)


@pytest.mark.parametrize("value", ["0", "101", "-1", "x", "1.5", "", "1,2"])
def test_a_number_of_repeats_that_is_none(value: str) -> None:
    with pytest.raises(DtkError, match="repeated 1 to 100 times"):
        take_repeats([f"repeats={value}"])


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        (["strategy=ddp,fsdp", "seed=1"], ["strategy=ddp", "strategy=fsdp"]),
        (["strategy=ddp,fsdp", "seed=1,2"], ["strategy=ddp seed=1", "strategy=ddp seed=2", "strategy=fsdp seed=1",
                                             "strategy=fsdp seed=2"]),
        (["seed=1"], [""]),
    ],
)  # fmt: skip
def test_a_point_is_named_by_what_distinguishes_it(typed: list[str], names: list[str]) -> None:
    result = combinations(typed, None)
    assert [name for name, _ in result] == names
    assert all(len(overrides) == len(typed) for _, overrides in result)


@pytest.fixture(scope="module")
def point(tmp_path_factory: Any) -> Point:
    folder = tmp_path_factory.mktemp("runs")
    return freeze(2, "seed=7", ["strategy=ddp", f"runs_folder={folder}", "seed=7", *TINY], None, values={"seed": 7})


def test_a_frozen_point_thaws_to_what_it_was(point: Point) -> None:
    thawed = point.thaw("20260101-sweep")
    assert thawed.composed.config.seed == 7 and thawed.composed.plain == point.config
    assert thawed.paths is None
    assert (point.index, point.name, point.values) == (2, "seed=7", {"seed": 7})


def test_a_point_whose_origins_are_damaged_is_refused(point: Point) -> None:
    with pytest.raises(DtkError, match="point 3 of the sweep is damaged"):
        dataclasses.replace(point, origins="{").thaw("a")


def test_a_point_that_resumes_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DtkError, match="resume"):
        freeze(0, "", [f"resume={tmp_path}", *TINY], None)


@pytest.mark.parametrize(("typed", "group"), [([], "20260101-sweep"), (["tracker.group=mine"], "mine")])
def test_runs_of_a_sweep_are_one_group_in_wandb(typed: list[str], group: str, tmp_path: Path) -> None:
    overrides = ["strategy=ddp", f"runs_folder={tmp_path}", *TINY, "tracker=wandb", *typed]
    composed = freeze(0, "", overrides, None).thaw("20260101-sweep").composed
    assert composed.config.tracker.group == composed.plain["tracker"]["group"] == group

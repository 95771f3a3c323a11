"""The record of a sweep: what is written once, what is appended, and what is read back after any kind of end."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from diagnostics.runs.find import list_runs
from dtk.errors import DtkError
from dtk.sweep.folder import SCHEMA_VERSION, Point, combinations, create, find, freeze, take_repeats
from tests.cli.command import TINY

SOURCE = {"overrides": ["strategy=ddp,fsdp"]}


def point(index: int) -> Point:
    return Point(index, f"seed={index}", [f"seed={index}"], {"seed": index}, {}, "{}", None)


@pytest.fixture
def sweep(tmp_path):
    result = create(tmp_path, "multirun", "multirun", SOURCE, 2)
    for index in range(2):
        result.add(point(index))
    yield result
    result.close()


def again(tmp_path, source=SOURCE, repeats=2):
    return find(tmp_path, "multirun", source, repeats)


def test_points_and_runs_are_read_back(sweep, tmp_path):
    done = sweep.begin(0, 0)
    sweep.opened(done, tmp_path / "run-a")
    sweep.end(done, "finished", 0, "")
    sweep.end(sweep.begin(1, 0), "refused", 2, "no such data")
    sweep.close()
    read = again(tmp_path)
    assert read.points == sweep.points
    assert read.trials == sweep.trials
    assert read.last(0, 0).run == tmp_path / "run-a"
    assert read.last(0, 1) is None
    read.close()


def test_it_is_no_run(sweep, tmp_path):
    assert list_runs(tmp_path) == []


def test_runs_of_another_folder_keep_their_path(sweep, tmp_path):
    elsewhere = tmp_path.parent / "elsewhere" / "run-b"
    sweep.opened(sweep.begin(0, 0), elsewhere)
    sweep.close()
    with_it = again(tmp_path)
    assert with_it.last(0, 0).run == elsewhere
    with_it.close()


def test_the_runs_folder_can_be_moved(sweep, tmp_path):
    (tmp_path / "run-a").mkdir()
    sweep.opened(sweep.begin(0, 0), tmp_path / "run-a")
    sweep.close()
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    read = again(moved)
    assert read.last(0, 0).run == moved / "run-a"
    read.close()


def test_after_a_kill_the_run_itself_says_how_it_ended(sweep, tmp_path):
    for index, state in enumerate(("finished", "running")):
        run = tmp_path / f"run-{index}"
        run.mkdir()
        (run / "status.json").write_text(json.dumps({"schema_version": 1, "state": state}))
        sweep.opened(sweep.begin(index, 0), run)
    sweep.begin(0, 1)
    with (sweep.root / "runs.jsonl").open("a") as log:
        log.write('{"event": "end')
    sweep.close()
    read = again(tmp_path)
    assert [trial.state for trial in read.trials] == ["finished", "running", "lost"]
    read.end(read.begin(1, 1), "finished", 0, "")
    read.close()
    third = again(tmp_path)
    assert third.last(1, 1).state == "finished", "what follows a torn line is not lost"
    third.close()


def test_only_the_same_command_finds_it(sweep, tmp_path):
    sweep.close()
    for source, repeats in (({"overrides": ["strategy=ddp"]}, 2), (SOURCE, 3)):
        with pytest.raises(DtkError, match="no sweep of this command"):
            again(tmp_path, source, repeats)
    with pytest.raises(DtkError, match="there are no sweeps"):
        again(tmp_path / "other")


def test_the_newest_is_taken(sweep, tmp_path):
    sweep.close()
    newer = create(tmp_path, "multirun", "multirun", SOURCE, 2)
    newer.close()
    newer.root.rename(newer.root.with_name("99999999-000000-multirun-0000"))
    result = again(tmp_path)
    assert result.root.name.startswith("9999")
    result.close()


def test_two_cannot_go_on_with_it_at_once(sweep, tmp_path):
    with pytest.raises(DtkError, match="is still running"):
        again(tmp_path)


def test_a_newer_schema_is_one_line_and_nothing_is_touched(sweep, tmp_path):
    sweep.close()
    path = sweep.root / "sweep.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": SCHEMA_VERSION + 1}))
    before = path.read_bytes()
    with pytest.raises(DtkError, match="was written by a newer dtk"):
        again(tmp_path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"index": 0}'])
def test_a_damaged_point_is_one_line(content, sweep, tmp_path):
    sweep.close()
    (sweep.root / "points" / "00001.json").write_text(content)
    with pytest.raises(DtkError, match="is damaged"):
        again(tmp_path)


def test_a_damaged_sweep_does_not_hide_the_others(sweep, tmp_path):
    sweep.close()
    other = sweep.root.with_name("99999999-000000-multirun-0000")
    other.mkdir()
    (other / "sweep.json").write_text("{")
    again(tmp_path).close()


def test_a_folder_that_cannot_be_written_is_one_line():
    with pytest.raises(DtkError, match="cannot write to the runs folder /proc"):
        create(Path("/proc/runs"), "multirun", "multirun", SOURCE, 1)


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
def frozen(tmp_path_factory: Any) -> Point:
    folder = tmp_path_factory.mktemp("runs")
    return freeze(2, "seed=7", ["strategy=ddp", f"runs_folder={folder}", "seed=7", *TINY], None, values={"seed": 7})


def test_a_frozen_point_thaws_to_what_it_was(frozen: Point) -> None:
    thawed = frozen.thaw("20260101-sweep")
    assert thawed.composed.config.seed == 7 and thawed.composed.plain == frozen.config
    assert thawed.paths is None
    assert (frozen.index, frozen.name, frozen.values) == (2, "seed=7", {"seed": 7})


def test_a_point_whose_origins_are_damaged_is_refused(frozen: Point) -> None:
    with pytest.raises(DtkError, match="point 3 of the sweep is damaged"):
        dataclasses.replace(frozen, origins="{").thaw("a")


def test_a_point_that_resumes_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DtkError, match="resume"):
        freeze(0, "", [f"resume={tmp_path}", *TINY], None)


@pytest.mark.parametrize(("typed", "group"), [([], "20260101-sweep"), (["tracker.group=mine"], "mine")])
def test_runs_of_a_sweep_are_one_group_in_wandb(typed: list[str], group: str, tmp_path: Path) -> None:
    overrides = ["strategy=ddp", f"runs_folder={tmp_path}", *TINY, "tracker=wandb", *typed]
    composed = freeze(0, "", overrides, None).thaw("20260101-sweep").composed
    assert composed.config.tracker.group == composed.plain["tracker"]["group"] == group

"""What runs recorded, as a search reads it: complete records and numbers only, whatever became of the run."""

import json
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.artifacts import RunPaths
from dtk.sweep.folder import STOPPED_EARLY, Point, Sweep, Trial, create
from dtk.sweep.summary import look, tried


def make_run(folder: Path, lines: list[str], figures: Any = None) -> Path:
    paths = RunPaths(folder)
    folder.mkdir(parents=True)
    paths.metrics.write_text("\n".join(lines))
    if figures is not None:
        paths.summary.write_text(json.dumps({"figures": figures}))
    return folder


@pytest.mark.parametrize(
    ("state", "seen"),
    [
        ("finished", "finished"),
        ("running", "running"),
        (STOPPED_EARLY, "killed"),
        ("preempted", "preempted"),
        ("oom", "failed"),
        ("refused", "failed"),
    ],
)
def test_states_are_told_in_the_words_of_the_search(tmp_path: Path, state: str, seen: str) -> None:
    assert look(Trial(0, 3, 0, None, state), {"seed": 1}).state == seen
    assert look(Trial(0, 3, 0, tmp_path / "none", state), {}).history == []


def test_numbers_of_complete_records_are_read(tmp_path: Path) -> None:
    lines = [
        '{"step": 1, "loss": 2.5, "good": true, "note": "x"}',
        "[]",
        "{",
        '{"step": 2, "loss": null}',
        '{"step": 3',
    ]
    tried = look(Trial(0, 0, 0, make_run(tmp_path / "run", lines, {"loss": 2, "name": "x", "ok": False})), {"seed": 1})
    assert tried.history == [{"step": 1, "loss": 2.5}, {"step": 2}]
    assert tried.summary == {"loss": 2} and tried.name == "0" and tried.values == {"seed": 1}


@pytest.mark.parametrize("figures", [None, [1], "text"])
def test_a_summary_without_figures_is_an_empty_one(tmp_path: Path, figures: Any) -> None:
    assert look(Trial(0, 0, 0, make_run(tmp_path / "run", [], figures)), {}).summary == {}


def sweep_of(tmp_path: Path, points: int) -> Sweep:
    sweep = create(tmp_path, "random", "name", {}, 1)
    for index in range(points):
        sweep.add(Point(index, f"p{index}", [], {}, {"seed": index}, "", None))
    return sweep


def test_every_point_counts_once_with_its_last_run_and_one_may_be_left_out(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, 3)
    first, again, other = (sweep.begin(index, 0) for index in (0, 0, 1))
    sweep.end(first, "failed", 1, "")
    sweep.end(again, "finished", 0, "")
    assert [(item.values["seed"], item.state) for item in tried(sweep)] == [(0, "finished"), (1, "running")]
    assert [item.values["seed"] for item in tried(sweep, but=other)] == [0]
    sweep.close()

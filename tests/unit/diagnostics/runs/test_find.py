"""Run folders: found by path, id, prefix or `last`; a damaged one is listed and never an error."""

import json
import os
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.artifacts import SCHEMA_VERSION, RunPaths, write_json
from diagnostics.runs.find import (
    NoSuchRunError,
    find_run,
    list_runs,
    looks_like_run,
    made_by_dtk,
    process_start,
    read_details,
    read_run,
)


def run(folder: Path, name: str, started: str = "2026-01-05T10:00:00+00:00", **status: Any) -> RunPaths:
    """Write the status of a run."""
    paths = RunPaths(folder / name)
    record = {"state": "finished", "started": started, "updated": started, "schema_version": SCHEMA_VERSION,
              "attempt": 0, "failure": None, **status}  # fmt: skip
    write_json(paths.status, record)
    return paths


def test_runs_are_listed_newest_first_and_other_folders_are_not_runs(tmp_path: Path) -> None:
    run(tmp_path, "old", "2026-01-01T00:00:00")
    run(tmp_path, "new", "2026-01-09T00:00:00")
    (tmp_path / "notes").mkdir()
    (tmp_path / ".hidden").mkdir()
    run(tmp_path, ".trash")
    (tmp_path / "file").write_text("")
    assert [item.id for item in list_runs(tmp_path)] == ["new", "old"]
    with pytest.raises(OSError):
        list_runs(tmp_path / "absent")


def test_a_run_is_found_by_path_id_prefix_and_as_the_last(tmp_path: Path) -> None:
    run(tmp_path, "a-1", "2026-01-01T00:00:00")
    run(tmp_path, "a-2", "2026-01-02T00:00:00")
    run(tmp_path, "b-1", "2026-01-09T00:00:00")
    assert find_run(str(tmp_path / "a-1")) == tmp_path / "a-1"
    assert find_run("a-2", tmp_path) == tmp_path / "a-2"
    assert find_run("b", tmp_path) == find_run("last", tmp_path) == tmp_path / "b-1"


@pytest.mark.parametrize(
    ("name", "text"),
    [("a", 'several runs begin with "a": a-1, a-2'), ("c", 'no run "c" here'), ("", 'no run ""'), ("..", 'no run ".."'),
     ("x" * 5000, "no run"), ("a\0b", "no run"), ("notes", "neither status.json nor manifest.json")],
)  # fmt: skip
def test_a_name_that_is_no_run_is_one_line(tmp_path: Path, name: str, text: str) -> None:
    run(tmp_path, "a-1")
    run(tmp_path, "a-2")
    (tmp_path / "notes").mkdir()
    with pytest.raises(NoSuchRunError, match=text.replace(".", "\\.")) as raised:
        find_run(name, tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("folder", ["empty", "absent"])
def test_without_runs_there_is_no_last(tmp_path: Path, folder: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoSuchRunError, match="no last run"):
        find_run("last", tmp_path / folder)


def test_figures_come_from_the_summary_and_else_from_the_last_record(tmp_path: Path) -> None:
    paths = run(tmp_path, "a", step=None)
    paths.metrics.write_text(
        '{"step": 7, "loss": 2.5, "tokens_per_s": 90}\n{"step": 8, "eval_loss": 1}\n{"step": 9, "lo'
    )
    assert (read_run(paths.root).step, read_run(paths.root).loss, read_run(paths.root).tokens_per_s) == (7, 2.5, 90.0)
    write_json(paths.summary, {"figures": {"loss": 1.5, "tokens_per_s": None}})
    assert (read_run(paths.root).loss, read_run(paths.root).tokens_per_s) == (1.5, 90.0)


@pytest.mark.parametrize(
    ("content", "state"),
    [("{", "damaged"), ("[]", "damaged"), ('{"state": "asleep"}', "damaged"), ('{"state": 3}', "damaged"),
     ('{"state": "finished", "schema_version": 99}', "newer"),
     ('{"state": "finished", "failure": {"x": 1}}', "damaged")],
)  # fmt: skip
def test_a_damaged_status_is_told(tmp_path: Path, content: str, state: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "status.json").write_text(content)
    (run,) = list_runs(tmp_path)
    assert run.state == state and run.problems and str(tmp_path / "a") in run.unreadable
    assert read_run(tmp_path / "a").age_s is not None


def test_a_folder_without_any_record_is_a_damaged_run_when_it_is_named(tmp_path: Path) -> None:
    result = read_run(tmp_path)
    assert (result.state, result.problems) == ("damaged", ["no status.json"])
    assert not run(tmp_path, "a").root.joinpath("x").exists() and read_run(tmp_path / "a").unreadable == ""


def test_a_run_whose_process_is_gone_is_lost(tmp_path: Path) -> None:
    paths = run(tmp_path, "a", state="running")
    manifest = {"host": socket.gethostname(), "pid": os.getpid(), "pid_start": process_start(os.getpid())}
    write_json(paths.manifest, manifest)
    assert read_run(paths.root).state == "running"
    write_json(paths.manifest, {**manifest, "pid_start": 1})
    assert read_run(paths.root).state == "lost"
    write_json(paths.manifest, {**manifest, "pid_start": 1, "host": "elsewhere"})
    assert read_run(paths.root).state == "running", "of another machine nothing is known"


def test_the_details_of_a_run(tmp_path: Path) -> None:
    failure = {"rank": 1, "reason": "ValueError: bad", "log": "logs/attempt_0/rank_00001"}
    paths = run(tmp_path, "a", state="failed", failure=failure, step=3)
    for folder, count in (("events", 2), ("flight", 1), ("stacks", 0)):
        (paths.root / folder).mkdir()
        for n in range(count):
            (paths.root / folder / f"rank_{n:05}").touch()
    (paths.root / "flight" / ".partial").touch()
    paths.overrides.write_text("# typed\n- train.steps=3\n-  strategy=ddp \nother\n")
    details = read_details(paths.root)
    assert details.recorded == {"events": 2, "flight": 1} and details.overrides == ["train.steps=3", "strategy=ddp"]
    assert details.log == str(paths.root / "logs/attempt_0/rank_00001") and details.status is not None
    assert "no metrics.jsonl (record=off, or removed)" in details.run.problems
    assert json.loads(json.dumps(asdict(details), default=str))["run"]["state"] == "failed"


def test_details_of_a_damaged_run_are_what_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")
    details = read_details(tmp_path)
    assert details.status is None and details.run.state == "damaged" and not details.overrides
    assert any(problem.startswith("manifest.json: ") for problem in details.run.problems)


def test_only_what_dtk_writes_is_its_own(tmp_path: Path) -> None:
    mine = run(tmp_path, "mine", schema_version=1)
    assert made_by_dtk(mine.root) and looks_like_run(mine.root)
    other = tmp_path / "other"
    other.mkdir()
    (other / "status.json").write_text('{"state": "finished"}')
    assert looks_like_run(other) and not made_by_dtk(other)
    link = tmp_path / "link"
    link.mkdir()
    (link / "status.json").symlink_to(mine.status)
    assert not made_by_dtk(link), "a link may lead to the record of another run"
    write_json(link / "manifest.json", {"schema_version": 1, "run_id": "x", "argv": [], "config_sha256": ""})
    assert made_by_dtk(link)

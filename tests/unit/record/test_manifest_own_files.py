"""Which files of a repository are dtk's own output."""

import json

import pytest

from diagnostics.contract.artifacts import RunPaths, Status, write_json
from dtk.record.manifest import without_runs


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "code"
    root.mkdir()

    def run(name):
        paths = RunPaths(root / name)
        paths.root.mkdir(parents=True)
        write_json(paths.status, Status(state="finished"))
        write_json(paths.manifest, {"run_id": paths.root.name, "schema_version": 1})
        return paths.root

    return root, run


def foreign_files(root, new, tracked=(), standing=None):
    new, tracked = ([name.encode() for name in names] for names in (new, tracked))
    return [name.decode() for name in without_runs(root, new, tracked, standing or root)]


def test_files_of_a_run_are_dtks(repository):
    root, run = repository
    run("runs/a")
    new = ["runs/a/status.json", "runs/a/logs/x.log", "train.py", "notes/a.md"]
    assert foreign_files(root, new) == ["train.py", "notes/a.md"]


def test_a_folder_that_holds_runs_is_dtks_with_what_lies_beside_them(repository):
    root, run = repository
    run("out/a")
    assert foreign_files(root, ["out/sweep.log", "other/x.log"]) == ["other/x.log"]


def test_a_folder_of_code_stays_one_whatever_it_holds(repository):
    root, run = repository
    run("lab/a")
    assert foreign_files(root, ["lab/new.py", "lab/a/status.json"], tracked=["lab/train.py"]) == ["lab/new.py"]
    assert foreign_files(root, ["lab/new.py", "lab/a/status.json"], standing=root / "lab") == ["lab/new.py"]


def test_the_record_of_a_sweep_is_one_of_dtks(repository):
    root, _ = repository
    (root / "sweeps" / "one" / "points").mkdir(parents=True)
    (root / "sweeps" / "one" / "sweep.json").write_text(json.dumps({}))
    (root / "mine").mkdir()
    (root / "mine" / "sweep.json").write_text(json.dumps({}))
    assert foreign_files(root, ["sweeps/one/sweep.json", "mine/sweep.json", "points/x.py"]) == [
        "mine/sweep.json",
        "points/x.py",
    ]


def test_the_root_itself_is_code(repository):
    root, run = repository
    run("a")
    assert foreign_files(root, ["new.py"]) == ["new.py"]


def test_names_that_are_not_there_and_no_text(repository):
    root, _ = repository
    assert without_runs(root, [b"gone/\xff.py"], [], root) == [b"gone/\xff.py"]
    assert without_runs(root, [], [b"a/b/c.py"], root) == []

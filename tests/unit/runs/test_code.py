"""Whether code, versions, data and ranks are still what a run's manifest says, with a real git repository."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.artifacts import RunPaths, write_json
from dtk.errors import DtkError
from dtk.record.manifest import git_state, versions
from dtk.runs.code import Comparison, compare_code, ground_differences, read_manifest


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=folder, check=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a repository with one commit, and go there."""
    git(tmp_path, "init", "-q")
    (tmp_path / "train.py").write_text("print()\n", encoding="utf-8")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def manifest(folder: Path, **more: Any) -> dict[str, Any]:
    return {"git": git_state(folder), "versions": versions(), "cwd": str(folder), **more}


def test_nothing_has_changed(repository: Path) -> None:
    comparison = compare_code(manifest(repository))
    assert comparison == Comparison([], []) and comparison.words("run") == ""


def test_changes_that_are_not_committed(repository: Path) -> None:
    clean = manifest(repository)
    (repository / "train.py").write_text("print(1)\n", encoding="utf-8")
    dirty = manifest(repository)
    assert compare_code(clean).differs == ["uncommitted changes: none then, some now"]
    assert compare_code(dirty).differs == []
    (repository / "train.py").write_text("print(2)\n", encoding="utf-8")
    assert compare_code(dirty).differs == ["uncommitted changes: different ones"]
    git(repository, "checkout", "-q", "train.py")
    assert compare_code(dirty).differs == ["uncommitted changes: some then, none now"]


def test_another_commit_comes_first(repository: Path) -> None:
    before = manifest(repository, versions={"torch": "0.0", "numpy": versions().get("numpy"), "gone": "1"})
    git(repository, "commit", "-q", "--allow-empty", "-m", "two")
    commit, version = compare_code(before).differs
    was, now = before["git"]["commit"], git_state(repository)["commit"]  # type: ignore[index]
    assert commit == f"commit was {was[:10]}, now {now[:10]}" and version.startswith("torch was 0.0, now ")
    assert compare_code(before).words("it").startswith("the code differs from that of it: commit was ")


def test_runs_are_no_code(repository: Path) -> None:
    before = manifest(repository)
    (repository / "runs").mkdir()
    (repository / "runs" / "log").touch()
    assert compare_code(before, repository / "runs").differs == []


def test_what_cannot_be_compared_is_said(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    before = manifest(repository)
    assert compare_code({**before, "git": None}).unknown == ["it was started outside any git repository"]
    untold = {**before, "git": {**before["git"], "dirty": None, "diff_sha256": None}}
    assert compare_code(untold).unknown == ["git could not list the uncommitted changes then"]
    words = compare_code(untold).words("it")
    assert words == "the code cannot be compared with that of it: git could not list the uncommitted changes then"


def test_outside_a_repository(repository: Path, tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = manifest(repository)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    if git_state(elsewhere) is not None:
        pytest.skip("temporary folders of this machine lie in a git repository")
    monkeypatch.chdir(elsewhere)
    (line,) = compare_code(before).unknown
    assert line.startswith(f"it ran at commit {before['git']['commit'][:10]} in {repository}, and this is not a git")


@pytest.mark.parametrize(
    ("manifest_values", "expected"),
    [
        ({"data": {"sha256": "abc"}, "topology": {"world_size": 2}}, []),
        ({}, []),
        ({"data": "broken", "topology": []}, []),
        ({"data": {"sha256": "other"}}, ["the data has changed (hash other, now abc)"]),
        ({"topology": {"world_size": 4}}, ["world_size was 4, now 2"]),
    ],
)
def test_data_and_ranks(manifest_values: dict[str, Any], expected: list[str]) -> None:
    assert ground_differences(manifest_values, "abc", 2) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is damaged"),
        ("[1]", "is damaged"),
        ('{"schema_version": 99}', "was written by a newer dtk: manifest.json has schema 99 - upgrade dtk"),
        ('{"schema_version": "x"}', "was written by a newer dtk"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_one_line(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_text(content, encoding="utf-8")
    with pytest.raises(DtkError) as caught:
        read_manifest(tmp_path)
    assert message in str(caught.value)


def test_a_manifest_that_can(tmp_path: Path) -> None:
    write_json(RunPaths(tmp_path).manifest, {"schema_version": 1, "run_id": "x"})
    assert read_manifest(tmp_path)["run_id"] == "x"

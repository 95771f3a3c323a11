"""What may be removed, what a folder holds, and that nothing outside it is ever touched."""

import os
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.artifacts import RunPaths, Status, write_json
from diagnostics.runs.find import read_run
from dtk.runs.remove import Size, refusal, remove, size_of


def make(folder: Path, state: Any = "finished", **manifest: Any) -> Path:
    """Make a run folder as dtk does."""
    paths = RunPaths(folder)
    write_json(paths.status, Status(state=state, started="2026-01-01T00:00:00+00:00"))
    described = {"schema_version": 1, "run_id": folder.name, "argv": [], "config_sha256": "0"}
    write_json(paths.manifest, {**described, **manifest})
    return folder


def why(path: Path, *, force: bool = False) -> str:
    return refusal(read_run(path), force=force)


def test_a_run_that_has_ended_may_go(tmp_path: Path) -> None:
    assert why(make(tmp_path / "run")) == ""
    assert why(make(tmp_path / "other", "failed")) == ""


def test_a_run_that_goes_on_is_removed_by_force_only(tmp_path: Path) -> None:
    waiting = make(tmp_path / "waiting", "queued")
    assert "waits for its scheduler; cancel the job first" in why(waiting) and why(waiting, force=True) == ""
    elsewhere = make(tmp_path / "elsewhere", "running", pid=1, host="another-machine")
    assert "is still running (apparently on another machine)" in why(elsewhere)


def test_a_run_that_cannot_be_read_is_removed_by_force_only(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    (run / "status.json").write_text("{", encoding="utf-8")
    assert "is damaged" in why(run) and why(run).endswith("(--force removes it)")
    assert why(run, force=True) == ""


def test_what_dtk_did_not_make_stays_also_by_force(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "status.json").write_text('{"state": "done"}', encoding="utf-8")
    assert "is not a run folder that dtk created according to its status.json" in why(foreign, force=True)
    link = tmp_path / "link"
    link.symlink_to(make(tmp_path / "run"))
    assert why(link, force=True) == f"{link} is a symbolic link, and links are not followed"


def test_where_somebody_stands_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path / "run")
    (run / "logs").mkdir()
    monkeypatch.chdir(run / "logs")
    assert why(run, force=True) == f"{run} is or contains the current directory"


def test_size_counts_files_below_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "run" / "deep").mkdir(parents=True)
    (tmp_path / "run" / "a").write_bytes(b"x" * 10)
    (tmp_path / "run" / "deep" / "b").write_bytes(b"x" * 5)
    (tmp_path / "large").write_bytes(b"x" * 1000)
    (tmp_path / "run" / "link").symlink_to(tmp_path / "large")
    size = size_of(tmp_path / "run")
    assert size.files == 3 and 15 <= size.bytes < 1000, "a link is as large as its own text"
    assert size_of(tmp_path / "none") == Size(0, 0)


def test_a_removal_leaves_what_links_lead_to(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "kept").touch()
    run = make(tmp_path / "run")
    (run / "checkpoints" / "step_1").mkdir(parents=True)
    (run / "checkpoints" / "data").symlink_to(tmp_path / "data")
    (run / "data").symlink_to(tmp_path / "data")
    remove(run)
    assert not run.exists() and (tmp_path / "data" / "kept").exists()


def test_status_and_manifest_go_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path / "run")
    for name in ("zzz", "aaa"):
        (run / name).touch()
    order: list[str] = []
    unlink = Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda path: (order.append(path.name), unlink(path)))
    remove(run)
    assert order == ["aaa", "zzz", "manifest.json", "status.json"], "a removal that is cut off can be repeated"


def test_a_link_to_a_run_is_not_removed_through(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(make(tmp_path / "run"))
    with pytest.raises(NotADirectoryError):
        remove(link)
    assert (tmp_path / "run" / "status.json").exists() and os.path.islink(link)  # noqa: PTH114

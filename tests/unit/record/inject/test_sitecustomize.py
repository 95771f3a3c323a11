"""What `dtk watch` puts into each Python of a job: how far a rank is, when the watch begins, what stays untouched."""

import importlib.util
import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

import dtk.record

SOURCE = Path(dtk.record.__file__).parent / "inject" / "sitecustomize.py"


@pytest.fixture
def inject(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module under another name and without a watched job, so that loading it installs nothing."""
    for name in ("DTK_WATCH_FOLDER", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    before = list(sys.meta_path)
    spec = importlib.util.spec_from_file_location("injected", SOURCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert sys.meta_path == before
    return module


@pytest.fixture
def watched(inject: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("DTK_WATCH_FOLDER", str(tmp_path))
    monkeypatch.setattr(inject, "EVERY_S", 3600.0)  # Its thread says nothing more.
    return inject


def start_record(folder: Path, attempt: int = 0) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / f"start/attempt_{attempt}/rank_00001.json").read_text())
    return record


def test_a_rank_tells_its_state_and_where_it_is(watched: Any, tmp_path: Path) -> None:
    start = watched.started("1", "4", "started")
    record = start_record(tmp_path)
    assert (record["dtk_start"], record["rank"], record["world_size"], record["pid"]) == (1, 1, 4, os.getpid())
    assert record["state"] == "started" and record["alive_s"] >= record["since_s"]
    assert any(frame[2] == "test_a_rank_tells_its_state_and_where_it_is" for frame in record["frames"])
    assert all(frame[0] != str(SOURCE) for frame in record["frames"]), "its own frames say nothing"
    start.enter("meets")
    assert start_record(tmp_path)["state"] == "meets" and not start.stopped
    start.enter("met")
    assert start_record(tmp_path)["state"] == "met" and start.stopped


def test_only_the_first_process_of_a_rank_starts_it(watched: Any, tmp_path: Path) -> None:
    assert watched.started(1, 2, "started") is not None
    assert watched.started(1, 2, "started") is None, "a worker of the data loader has the same RANK"
    assert watched.started(1, 2, "meets") is not None, "who makes the process group is the rank"
    assert start_record(tmp_path)["state"] == "meets"


def test_an_attempt_has_files_of_its_own(watched: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert watched.started(1, 2, "started") is not None
    assert start_record(tmp_path, attempt=2)["attempt"] == 2


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (0, 1), (None, 2), ("first", "2")])
def test_what_is_no_rank_of_several_is_left_alone(
    watched: Any, tmp_path: Path, rank: Any, world_size: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert watched.started(rank, world_size, "started") is None
    assert not (tmp_path / "start").exists()
    assert len(capsys.readouterr().err.splitlines()) <= 1


def test_a_folder_that_cannot_be_written_is_one_line(
    watched: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DTK_WATCH_FOLDER", str(tmp_path / "file"))
    assert watched.started(1, 2, "started") is None
    assert capsys.readouterr().err.startswith("dtk watch: cannot report the start of a rank: ")


class Attachment:
    """Stands for the watch of a rank: how often it was attached and detached."""

    def __init__(self) -> None:
        self.attached = self.detached = 0

    def attach(self) -> "Attachment":
        self.attached += 1
        return self

    def detach(self) -> None:
        self.detached += 1


def c10d(raises: BaseException | None = None) -> Any:
    """A module with the functions of torch's that are wrapped."""
    module = types.SimpleNamespace(GroupMember=types.SimpleNamespace(WORLD=object()), groups=[])

    def init_process_group(*args: Any, **kwargs: Any) -> str:
        if raises is not None:
            raise raises
        module.groups.append((args, kwargs))
        return "made"

    def destroy_process_group(group: Any = None) -> str:
        return "gone"

    module.init_process_group, module.destroy_process_group = init_process_group, destroy_process_group
    return module


def test_the_watch_lasts_as_long_as_the_group(watched: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dtk.record.recorder", raising=False)
    watch, module = Attachment(), c10d()
    monkeypatch.setattr(watched, "load", lambda: watch)
    watched.wrap(module)
    assert module.init_process_group("gloo", rank=1, world_size=2) == "made"
    assert module.groups == [(("gloo",), {"rank": 1, "world_size": 2})] and watch.attached == 1
    assert start_record(tmp_path)["state"] == "met"
    assert module.destroy_process_group("one of several groups") == "gone" and watch.detached == 0
    module.destroy_process_group()
    module.destroy_process_group()
    assert watch.detached == 1


def test_a_watch_that_fails_does_not_keep_the_group(
    watched: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "dtk.record.recorder", raising=False)

    def load() -> Any:
        raise RuntimeError("its Python is older than 3.11")

    monkeypatch.setattr(watched, "load", load)
    module = c10d()
    watched.wrap(module)
    assert module.init_process_group(rank=1, world_size=2) == "made"
    assert capsys.readouterr().err == "dtk watch: a rank is not watched: RuntimeError: its Python is older than 3.11\n"


def test_a_group_that_cannot_be_made_raises_what_torch_raises(
    watched: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "dtk.record.recorder", raising=False)
    module = c10d(ValueError("no backend"))
    watched.wrap(module)
    with pytest.raises(ValueError, match="no backend"):
        module.init_process_group(rank=1, world_size=2)
    assert start_record(tmp_path)["state"] == "meets"


def test_only_the_awaited_module_is_looked_for(inject: Any) -> None:
    finder = inject.Awaiting()
    assert finder.find_spec("json") is None and inject.Own().find_spec("json") is None
    spec = inject.Own().find_spec("dtk")
    assert spec is not None and Path(spec.origin).parent == Path(dtk.record.__file__).parents[1]


def test_a_script_with_a_module_named_dtk_is_not_watched(
    inject: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dtk.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match="the script has a module named dtk"):
        inject.load()


def test_an_old_python_is_not_watched(inject: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inject, "OLDEST", (99, 1))
    with pytest.raises(RuntimeError, match=r"older than 99\.1"):
        inject.load()


def test_loading_leaves_the_scripts_own_diagnostics(inject: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own = types.ModuleType("diagnostics")
    kept = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "diagnostics"}
    for name in kept:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "diagnostics", own)
    finders = list(sys.meta_path)
    assert inject.load().__name__ == "dtk.record.watched_rank"
    assert sys.modules["diagnostics"] is own and sys.meta_path == finders


def test_the_work_of_a_child_counts_and_its_waiting_does_not(watched: Any, tmp_path: Path) -> None:
    for code, works in (("while True: pass", True), ("input()", False)):
        child = subprocess.Popen(["sh", "-c", f"{sys.executable} -S -c '{code}'; true"], stdin=subprocess.PIPE)
        try:
            start = watched.Start(1, 2)
            (tmp_path / "start/attempt_0").mkdir(parents=True, exist_ok=True)
            for _ in range(3):  # The first record has none before it to be compared with, the second other frames.
                time.sleep(0.7)
                before_s = time.time()
                start.write()
            assert (start_record(tmp_path)["worked_s"] > before_s) is works
        finally:
            for pid in [*watched._descendants(child.pid), child.pid]:
                os.kill(pid, 9)
            child.communicate()

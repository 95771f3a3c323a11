"""A command that is printed runs as it stands: from this directory, with this PATH."""

import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from diagnostics.contract.invocation import command, override, typed


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The scripts folder of this environment, below the working directory, with a `dtk` that says who it is."""
    folder = tmp_path / "my project" / ".venv" / "bin"
    program(folder / "dtk", "ours")
    monkeypatch.setattr(sysconfig, "get_path", lambda name, scheme: str(folder))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(tmp_path / "my project")
    return folder


def program(path: Path, says: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {says} $1\n")
    path.chmod(0o755)


def says(line: str) -> str:
    return subprocess.run(line, shell=True, capture_output=True, text=True, check=True).stdout.strip()


def test_a_script_that_is_not_on_path_is_named_by_its_path(scripts: Path) -> None:
    assert command("show", "runs/a b") == ".venv/bin/dtk show 'runs/a b'"
    assert says(command("show")) == "ours show"


def test_on_path_the_bare_name_is_enough(scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{scripts}:/bin")
    assert command("ls") == "dtk ls"
    assert says("dtk ls") == "ours ls"


def test_a_link_on_path_is_this_environments_too(
    scripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "dtk").symlink_to(scripts / "dtk")
    monkeypatch.setenv("PATH", f"{tmp_path / 'local'}:/bin")
    assert command("ls") == "dtk ls"


def test_another_program_of_that_name_is_not_taken_for_ours(
    scripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "other" / "dtk", "theirs")
    monkeypatch.setenv("PATH", f"{tmp_path / 'other'}:/bin")
    assert says(command("ls")) == "ours ls"


def test_from_elsewhere_the_path_is_absolute(scripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert says(command("ls")) == "ours ls", "the folder's name has a space in it"
    monkeypatch.chdir(scripts)
    assert command("ls") == "./dtk ls"


def test_without_a_script_the_interpreter_runs_it(scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (scripts / "dtk").unlink()
    assert command("ls") == f"{sys.executable} -m dtk ls"
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert command("ls") == "python -m dtk ls"


@pytest.mark.parametrize("folder", ["runs/20260101-gpt2", "runs/a = b, c", "it's", 'a "b"', "\u00e9\u2603", "null"])
def test_a_resumed_folder_comes_through_the_shell_and_hydra(folder: str) -> None:
    pytest.importorskip("hydra")
    from dtk.config.overrides import parse

    (argument,) = shlex.split(command("run", override("resume", folder)).split(" run ", 1)[1])
    assert parse(argument).value() == folder


def test_paths_are_relative_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert typed(tmp_path / "runs" / "x") == Path("runs/x")
    assert typed(tmp_path.parent) == tmp_path.parent
    lost = tmp_path / "gone"
    lost.mkdir()
    monkeypatch.chdir(lost)
    lost.rmdir()
    assert typed(tmp_path / "x") == tmp_path / "x"

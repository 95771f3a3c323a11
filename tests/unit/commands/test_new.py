"""`dtk new`: what is made, and that nothing is overwritten. That it runs is tested in tests/cli/test_new.py."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dtk.commands.main import main
from tests.patience import stretched

ROOT = Path(__file__).parents[3]


def test_a_project_is_made_and_its_files_name_its_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my-lab"
    assert main(["new", str(folder)]) == 0
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files == {
        "README.md", "my_lab.py", "conf/experiment/first.yaml", "tests/test_my_lab.py"
    }  # fmt: skip
    out = capsys.readouterr().out
    assert all(str(folder / name) in out for name in files) and f"cd {folder}" in out
    for path in folder.rglob("*.py"):
        ast.parse(path.read_text())
    plain = yaml.safe_load((folder / "conf/experiment/first.yaml").read_text())
    assert plain["model"]["_target_"] == "my_lab.Net" and plain["allow_targets"] == ["my_lab.*"]
    assert not [path for path in folder.rglob("*") if path.is_file() and "{" + "module}" in path.read_text()]


def test_what_is_typed_next_runs_as_it_stands(tmp_path: Path) -> None:
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}  # So that dtk is called by a path.
    (tmp_path / "bin").symlink_to(Path(sys.prefix))
    make = [str(tmp_path / "bin" / "bin" / "python"), "-m", "dtk", "new", "my lab/lab"]
    result = subprocess.run(make, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=stretched(60))
    line = result.stdout.splitlines()[-1].removeprefix("next: ").replace("experiment=first", "--help strategy")
    assert result.returncode == 0 and line.startswith("cd 'my lab/lab' && "), result.stdout + result.stderr
    shown = subprocess.run(
        line, shell=True, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=stretched(60)
    )
    assert shown.returncode == 0 and "fsdp" in shown.stdout, shown.stdout + shown.stderr


@pytest.mark.parametrize("name", ["3rd", "naïve", "a b"])
def test_a_name_that_no_module_can_have_is_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", str(tmp_path / name)]) == 2
    assert "is not a valid module name" in capsys.readouterr().err and not (tmp_path / name).exists()


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lab").mkdir()
    assert main(["new", str(tmp_path / "lab")]) == 0  # An empty folder is taken.
    mine = tmp_path / "lab" / "lab.py"
    mine.write_text("mine")
    assert main(["new", str(tmp_path / "lab")]) == 2 and mine.read_text() == "mine"
    (tmp_path / "file").write_text("mine")
    assert main(["new", str(tmp_path / "file")]) == 2
    assert "existing files are never overwritten" in capsys.readouterr().err

"""`dtk new`: what is made, and that nothing is overwritten. That it runs is tested in tests/cli/test_new.py."""

import ast
from pathlib import Path

import pytest
import yaml

from dtk.commands.main import main


def test_a_project_is_made_and_its_files_name_its_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my-lab"
    assert main(["new", str(folder)]) == 0
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files == {
        "README.md", "my_lab.py", "conf/experiment/first.yaml", "tests/test_my_lab.py", "tests/conftest.py"
    }  # fmt: skip
    out = capsys.readouterr().out
    assert all(str(folder / name) in out for name in files) and f"cd {folder}" in out
    for path in folder.rglob("*.py"):
        ast.parse(path.read_text())
    plain = yaml.safe_load((folder / "conf/experiment/first.yaml").read_text())
    assert plain["model"]["_target_"] == "my_lab.Net" and plain["allow_targets"] == ["my_lab.*"]
    assert not [path for path in folder.rglob("*") if path.is_file() and "{" + "module}" in path.read_text()]


@pytest.mark.parametrize("name", ["3rd", "naïve", "a b"])
def test_a_name_that_no_module_can_have_is_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", str(tmp_path / name)]) == 2
    assert "cannot name a Python module" in capsys.readouterr().err and not (tmp_path / name).exists()


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lab").mkdir()
    assert main(["new", str(tmp_path / "lab")]) == 0  # An empty folder is taken.
    mine = tmp_path / "lab" / "lab.py"
    mine.write_text("mine")
    assert main(["new", str(tmp_path / "lab")]) == 2 and mine.read_text() == "mine"
    (tmp_path / "file").write_text("mine")
    assert main(["new", str(tmp_path / "file")]) == 2
    assert "nothing of yours is overwritten" in capsys.readouterr().err

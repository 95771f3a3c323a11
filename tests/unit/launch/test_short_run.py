"""A short run for commands that try something: its folder, its figures, and one line where it could not start."""

from pathlib import Path
from typing import Any

import pytest

from diagnostics.runs.find import Details, Run
from dtk.errors import DtkError
from dtk.launch import short_run
from dtk.launch.short_run import run_short, speed_and_peak


def details(metrics: dict[str, Any], summary: dict[str, Any]) -> Details:
    return Details(Run("a", "runs/a", "finished"), None, None, summary, metrics, [], {})


@pytest.mark.parametrize(
    ("metrics", "summary", "expected"),
    [
        ({}, {}, (None, None)),
        ({"tokens_per_s": 5.0}, {}, (5.0, None)),
        ({"tokens_per_s": 5.0}, {"tokens_per_s": 7.0, "peak_memory_bytes": 10}, (7.0, 10)),
        ({}, {"peak_memory_bytes": 10, "peak_memory_bytes_per_rank": [3, 30, 20]}, (None, 30)),
        ({}, {"peak_memory_bytes": 10, "peak_memory_bytes_per_rank": []}, (None, 10)),
        ({"tokens_per_s": "fast"}, {"peak_memory_bytes": None}, (None, None)),
    ],
)
def test_the_summary_counts_before_the_last_step(
    metrics: dict[str, Any], summary: dict[str, Any], expected: tuple[float | None, float | None]
) -> None:
    assert speed_and_peak(details(metrics, summary)) == expected


def stand_in(folder: Path, script: str) -> None:
    """Make a package `dtk` whose `run` is this script, for Python that starts in the folder."""
    (folder / "dtk").mkdir()
    (folder / "dtk" / "__init__.py").touch()
    (folder / "dtk" / "run.py").write_text(f"import pathlib, sys\n{script}\n", encoding="utf-8")


MAKE = "home = pathlib.Path(sys.argv[-1].split('=', 1)[1]); (home / 'b-new').mkdir(parents=True)"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Leave an earlier run in the folder, and keep dtk itself off the path of the process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(short_run, "importable", lambda environment: {**environment, "PYTHONPATH": str(tmp_path)})
    (tmp_path / "home" / "z-earlier").mkdir(parents=True)
    return tmp_path / "home"


def test_the_new_run_folder_is_returned(home: Path, tmp_path: Path) -> None:
    stand_in(tmp_path, MAKE)
    assert run_short(["train.steps=1"], home) == home / "b-new"


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("sys.exit('warning\\ndtk: unknown key \"x\"')", 'unknown key "x"'),
        ("pass", "it left no run folder"),
        (f"{MAKE}; print('dtk: no such data', file=sys.stderr); sys.exit(2)", "no such data"),
    ],
)
def test_a_run_that_could_not_start_is_one_line(script: str, line: str, home: Path, tmp_path: Path) -> None:
    stand_in(tmp_path, script)
    with pytest.raises(DtkError) as caught:
        run_short(["model.name=a b"], home)
    assert str(caught.value) == f"a short run could not start: {line} - tried: dtk run 'model.name=a b'"

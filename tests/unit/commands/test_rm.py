"""`dtk rm`: what it lists, asks and leaves alone."""

import io
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import RunPaths, Status, write_json
from dtk.commands.main import main
from dtk.commands.rm import DECLINED


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs in `runs/` of a working folder."""
    monkeypatch.chdir(tmp_path)
    for name, state in (("a1", "finished"), ("b2", "failed"), ("c3", "running")):
        paths = RunPaths(Path("runs") / name)
        paths.root.mkdir(parents=True)
        write_json(paths.status, Status(state=state, started="2026-01-01T00:00:00", updated="2026-01-01T00:00:00"))  # type: ignore[arg-type]
        write_json(paths.manifest, {"schema_version": 1, "run_id": name, "argv": [], "config_sha256": ""})
    return tmp_path / "runs"


def names_of_runs(runs: Path) -> list[str]:
    return sorted(path.name for path in runs.iterdir())


def test_a_dry_run_counts_and_removes_nothing(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm", "a1", "--dry-run"]) == 0
    assert "1 run, 2 files" in capsys.readouterr().out
    assert names_of_runs(runs) == ["a1", "b2", "c3"]


def test_failed_runs_are_chosen_by_their_state(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm", "--failed", "--yes"]) == 0
    assert names_of_runs(runs) == ["a1", "c3"]
    assert "removed runs/b2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rm"], "no run is given"),
        (["rm", "a1", "--failed"], "runs and options that select runs are both given"),
        (["rm", "zz", "--yes"], 'no run "zz"'),
        (["rm", "a1"], "no terminal to ask for confirmation"),
    ],
)
def test_what_is_unclear_removes_nothing(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert names_of_runs(runs) == ["a1", "b2", "c3"]


def test_the_answer_is_no_unless_it_is_yes(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal("\n"))
    assert main(["rm", "a1"]) == DECLINED and names_of_runs(runs) == ["a1", "b2", "c3"]
    monkeypatch.setattr("sys.stdin", Terminal("yes\n"))
    assert main(["rm", "a1"]) == 0 and names_of_runs(runs) == ["b2", "c3"]

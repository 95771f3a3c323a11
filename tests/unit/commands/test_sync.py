"""`dtk sync`: which tracker takes a run, and which of its records it gets."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from diagnostics.contract.artifacts import RunPaths, Status, write_json
from dtk.commands import sync
from dtk.commands.main import main
from dtk.record import trackers


@pytest.fixture
def run(tmp_path: Path) -> Path:
    paths = RunPaths(tmp_path / "one")
    when = "2026-01-02T03:04:05+00:00"
    write_json(paths.status, Status(state="finished", started=when, updated=when, exit_code=0))
    paths.config.write_text(yaml.safe_dump({"tracker": {"name": "none"}, "seed": 1}))
    rows = ['{"step": 1, "attempt": 0, "loss": 3}', '{"step": 2, "attempt": 0, "loss": 2}', "torn", '{"loss": 9}']
    paths.metrics.write_text("\n".join([*rows, '{"step": 2, "attempt": 1, "loss": 1.5}']) + "\n")
    write_json(paths.summary, {"figures": {"loss": 1.5}})
    return paths.root


def test_of_a_step_that_was_made_again_the_latest_attempt_counts(run: Path) -> None:
    records = list(sync._records(RunPaths(run).metrics))
    assert [(record["step"], record["loss"]) for record in records] == [(1, 3), (2, 1.5)]


@pytest.mark.parametrize("code", [0, 1])
def test_the_tracker_that_was_named_takes_it(
    run: Path, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken: list[Any] = []

    class Taking:
        def __init__(self, settings: Any, folder: Path) -> None:
            taken.append((settings.tracker.name, settings.tracker.project, settings.tracker.mode, folder))

        def replay(self, records: Any, figures: Any, exit_code: int | None, timeout_s: float) -> tuple[int, int]:
            taken.append((figures, exit_code))
            return code, len(list(records))

    monkeypatch.setattr(trackers, "Tracker", Taking)
    monkeypatch.setattr(trackers, "check_tracker", lambda chosen: None)
    words = ["sync", str(run), "--tracker", "wandb", "--project", "mine", "--offline"]
    assert main(words) == (2 if code else 0)
    captured = capsys.readouterr()
    assert taken == [("wandb", "mine", "offline", run), ({"loss": 1.5}, 0)]
    assert captured.out.startswith("one: 2 records uploaded to wandb") if not code else "did not accept" in captured.err


def test_a_run_without_a_tracker_names_the_option(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sync", str(run)]) == 2
    assert "the run has no tracker" in capsys.readouterr().err
    RunPaths(run).config.unlink()
    assert main(["sync", str(run), "--tracker", "wandb"]) == 2
    assert "config.yaml cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml", "tensorboard"])
def test_what_a_link_leads_to_is_not_sent(run: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(run.parent / "outside")
    assert main(["sync", str(run), "--tracker", "tensorboard"]) == 2
    assert f"dtk sync: {name} is a link out of the folder" in capsys.readouterr().err

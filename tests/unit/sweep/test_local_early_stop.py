"""A run that the search gives up is asked to stop, once its metrics say so, and not before."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.artifacts import RunPaths
from dtk.sweep import local
from dtk.sweep.folder import Point, create
from dtk.sweep.local import following


class Searches:
    """Stands in for the package's rule: ends a run whose last loss is above 3."""

    def __init__(self) -> None:
        self.looks = 0

    def ends(self, running: Any, others: Any) -> bool:
        self.looks += 1
        return bool(running.history) and running.history[-1]["loss"] > 3


@pytest.fixture
def stop_request(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    event = threading.Event()
    monkeypatch.setattr(local, "ask_ranks", event.set)
    monkeypatch.setattr(local, "LOOK_S", 0.01)
    return event


@pytest.mark.parametrize(("loss", "stopped"), [(5.0, True), (1.0, False)])
def test_a_run_is_stopped_when_the_search_says_so(
    tmp_path: Path, stop_request: threading.Event, capsys: pytest.CaptureFixture[str], loss: float, stopped: bool
) -> None:
    sweep = create(tmp_path, "bayes", "name", {}, 1)
    sweep.add(Point(0, "p", [], {}, {"seed": 1}, "", None))
    trial, search = sweep.begin(0, 0), Searches()
    with following(search, sweep, trial) as given_up:  # type: ignore[arg-type]
        time.sleep(0.05)
        assert search.looks == 0, "there is no run folder yet"
        trial.run = tmp_path / "run"
        trial.run.mkdir()
        RunPaths(trial.run).metrics.write_text(f'{{"step": 1, "loss": {loss}}}\n')
        stop_request.wait(5 if stopped else 0.1)
    assert given_up.is_set() is stopped and stop_request.is_set() is stopped
    assert search.looks == 1, "metrics that did not change are not looked at again"
    assert ("the search ends this run" in capsys.readouterr().out) is stopped
    sweep.close()

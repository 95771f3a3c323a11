"""`dtk plan`: the request that is made of the options, and the exit code of a job that does not fit."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dtk.bench import calibrate
from dtk.commands.main import main
from dtk.plan import make, model


@pytest.mark.parametrize(("fits", "code"), [(True, 0), (None, 0), (False, 1)])
def test_a_job_that_is_too_large_is_exit_code_1(
    fits: bool | None, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requests: list[Any] = []
    simple_namespace = SimpleNamespace(plan=SimpleNamespace(fits=fits))
    monkeypatch.setattr(make, "make", lambda request: (requests.append(request), simple_namespace)[1])
    monkeypatch.setattr(model, "as_json", lambda report: {"fits": report.plan.fits})
    assert main(["plan", "strategy=ddp", "--world-size", "2,4", "--engine", "closed_form", "--json"]) == code
    assert '"fits"' in capsys.readouterr().out
    request = requests[0]
    assert (request.overrides, request.world_size, request.engine) == (("strategy=ddp",), "2,4", "closed_form")
    assert not request.html


def test_calibration_measures_and_takes_no_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibrate, "calibrate", lambda show: (show("products"), "hardware")[1])
    monkeypatch.setattr(calibrate, "as_json", lambda hardware: {"made": hardware})
    assert main(["plan", "--calibrate", "--json"]) == 0
    captured = capsys.readouterr()
    assert '"made": "hardware"' in captured.out and captured.err == "dtk: products\n"
    assert main(["plan", "--calibrate", "strategy=ddp"]) == 2
    assert "strategy=ddp has no effect on it" in capsys.readouterr().err
    assert main(["plan", "--calibrate", "--max-batch"]) == 2
    assert "--max-batch has no effect on it" in capsys.readouterr().err
    assert main(["plan", "--calibrate", "--world-size", "4"]) == 2
    assert "--world-size has no effect on it" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_told_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "strategy=ddp", "--html", str(tmp_path / "absent" / "plan.html")]) == 2
    assert "there is no folder" in capsys.readouterr().err

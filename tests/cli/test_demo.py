"""`dtk demo`: the fault is run and diagnosed as a user would type it; all three are in tests/faults."""

from argparse import Namespace
from pathlib import Path

import pytest

from dtk.commands import demo


@pytest.mark.extended
@pytest.mark.timeout(150)
def test_a_fault_is_run_and_its_report_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "PARTS", dict(list(demo.PARTS.items())[-1:]))
    assert demo.run(Namespace(runs_folder=tmp_path / "runs", no_open=True)) == 0
    out = capfd.readouterr().out
    (folder,) = (tmp_path / "runs").iterdir()
    assert "[1/1] low overlap" in out and "fault=one_bucket" in out
    assert out.endswith(f"reports to open in a browser:\n  {folder / 'report' / 'report.html'}\n")

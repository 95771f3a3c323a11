"""`dtk rerun RUN` is `dtk run --rerun RUN`."""

import pytest

import dtk.run
from dtk.commands.main import main


def test_the_run_and_the_changes_reach_dtk_run(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = []
    monkeypatch.setattr(dtk.run, "run", lambda arguments: (typed.append(arguments), 7)[1])
    assert main(["rerun", "last", "train.steps=3"]) == 7
    assert (typed[0].rerun, typed[0].overrides) == ("last", ["train.steps=3"])


def test_without_the_training_extra_it_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dtk.extras.find_spec", lambda name: None)
    assert main(["rerun", "last"]) == 2
    assert "dtk rerun needs" in capsys.readouterr().err

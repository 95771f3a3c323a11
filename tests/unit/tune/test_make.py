"""From probes to a verdict: gains in pairs, memory told from other failures, nothing claimed that noise could be."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from diagnostics.report.document import Document
from diagnostics.report.jsonform import text
from diagnostics.report.terminal import render
from dtk.commands.main import main
from dtk.errors import DtkError
from dtk.tune import micro
from dtk.tune.make import STOPPED, _Job, _searched
from dtk.tune.model import TuneReport, as_json, document
from dtk.tune.probe import Probe
from tests.unit.tune.probes import OOM, Place, asked_for, probe, sizes, trials, turned


def test_a_gain_beyond_noise_is_taken() -> None:
    """The machine slows down from round to round; within each, 100 MiB is a fifth faster."""
    tune_report = turned(
        trials(
            b25=[probe(1000.0), probe(800.0), probe(600.0)],
            b1=[probe(995.0), probe(810.0), probe(598.0)],
            b100=[probe(1200.0), probe(961.0), probe(719.0)],
        )
    )
    assert tune_report.take is not None and tune_report.take.override == "strategy.bucket_cap_mb=100"
    assert tune_report.verdict.startswith(
        "use strategy.bucket_cap_mb=100: 1.20x the tokens/s of strategy.bucket_cap_mb=25"
    )
    shown = render(document(tune_report), columns=None, colour=False)
    assert "run strategy=ddp strategy.bucket_cap_mb=100\n" in shown
    assert "no gain distinguishable from noise" in shown or "no loss distinguishable from noise" in shown
    data = json.loads(text(as_json(tune_report)))
    assert data["take"] == "strategy.bucket_cap_mb=100" and data["candidates"][0]["gain"] is None
    assert data["candidates"][2]["gain"]["low"] > 1


def test_noise_is_no_gain() -> None:
    tune_report = turned(trials(b25=[probe(1000.0), probe(800.0)] * 2, b1=[probe(1300.0), probe(700.0)] * 2))
    assert tune_report.take is None
    assert tune_report.verdict == "no gain distinguishable from noise: keep strategy.bucket_cap_mb=25"
    two = turned(trials(b25=[probe(1000.0)] * 2, b1=[probe(1500.0)] * 2))
    assert two.take is None and two.rows[1].verdict == "too few repeats for an interval"
    assert two.verdict == "too few repeats for an interval: use --repeats 3"
    alone = turned(trials(b25=[OOM], b1=[probe(1500.0)] * 3))
    assert alone.take is None and alone.verdict == "nothing could be compared with strategy.bucket_cap_mb=25"


def test_slower_is_not_taken_and_a_failure_does_not_cost_the_rest() -> None:
    slower = [probe(500.0), probe(501.0), probe(499.0)]
    tune_report = turned(
        trials(b25=[probe(1000.0), probe(999.0), probe(1001.0)], b1=slower, b9=[probe(state="hung", reason="a stall")])
    )
    assert [row.verdict for row in tune_report.rows] == ["", "slower", ""]
    assert tune_report.rows[2].ended == "hung: a stall" and tune_report.take is None and tune_report.measured


def test_a_search_that_was_stopped_recommends_nothing() -> None:
    trials = sizes(m1=[probe(100.0)], m2=[probe(200.0)])
    trials.stopped = STOPPED
    request = asked_for("micro_batch_size")
    report = _searched(trials, [1, 2, 4], request, _Job(None, Place()))  # type: ignore[arg-type]
    assert report.take is None and report.verdict == "stopped before the search had ended: nothing is recommended"
    shown = render(document(report), columns=None, colour=False)
    assert "take" not in shown and "dtk run" not in shown
    trials.stopped = ""
    assert _searched(trials, [1, 2, 4], request, _Job(None, Place())).take == micro.candidate(2)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_called_one(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second probe is interrupted; the first one's figure is shown, and no more made of it."""
    count = 0

    def run(overrides: list[str], config_dir: object, home: object) -> Probe:
        nonlocal count
        count += 1
        if count == 2:
            os.kill(os.getpid(), number)
            time.sleep(5)
        return probe(100.0)

    monkeypatch.setattr("dtk.tune.probe.probe", run)
    job = ["experiment=smoke", "strategy=single", "train.global_batch_size=8", f"runs_folder={tmp_path}"]
    assert main(["tune", "micro_batch_size", *job, "--json"]) == 130
    output = json.loads(capsys.readouterr().out)
    assert output["take"] is None and output["notes"] == ["stopped by a signal"] and len(output["candidates"]) == 1


def test_a_second_sigterm_does_not_cost_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second signal arrives while the report is written."""
    folder = tmp_path / "probes"

    def run(overrides: list[str], config_dir: object, home: object) -> Probe:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
        raise AssertionError("SIGTERM does not end the probe")

    def written(report: TuneReport) -> Document:
        os.kill(os.getpid(), signal.SIGTERM)
        return document(report)

    monkeypatch.setattr("dtk.tune.probe.probe", run)
    monkeypatch.setattr("dtk.tune.model.document", written)
    job = ["experiment=smoke", "strategy=single", "train.global_batch_size=8", f"runs_folder={tmp_path}"]
    assert main(["tune", "micro_batch_size", *job, "--keep", str(folder)]) == 130
    assert "stopped by a signal" in capsys.readouterr().out


def test_a_later_probe_that_cannot_start_keeps_the_measurements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk fills up, say: what was measured is reported, and the command fails; the first probe is refused."""
    starts = 1

    def run(overrides: list[str], config_dir: object, home: Path) -> Probe:
        nonlocal starts
        starts -= 1
        if starts < 0:
            raise DtkError("a short run could not start", "no space left on device")
        return probe(1000.0)

    monkeypatch.setattr("dtk.tune.probe.probe", run)
    job = ["experiment=smoke", "strategy=ddp", "launcher.nproc=2", "train.global_batch_size=8"]
    words = ["tune", "bucket", *job, "--json", "--keep", str(tmp_path)]
    assert main(words) == 1
    data = json.loads(capsys.readouterr().out)
    assert "no space left" in data["failure"] and data["candidates"][0]["tokens_per_s"]["median"] == 1000.0
    assert main(words) == 2 and "no space left" in capsys.readouterr().err

"""Candidates in turns: what failed is not tried again, and no probe starts when the time is up."""

from pathlib import Path

import pytest

from dtk.tune import micro
from dtk.tune.probe import Probe, Trials
from tests.unit.tune.probes import probe


def test_a_candidate_that_failed_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def run(overrides: list[str], config_dir: object, home: object) -> Probe:
        tried.append(overrides[-1])
        return probe(state="failed", reason="ValueError") if overrides[-1].endswith("=2") else probe(1.0)

    monkeypatch.setattr("dtk.tune.probe.probe", run)
    trials = Trials([], None, Path(), lambda text: None, float("inf"))
    trials.rounds([micro.candidate(1), micro.candidate(2), micro.candidate(4)], 1, 3)
    assert [text[-1] for text in tried] == list("1241414"), "in turns"
    assert not trials.stopped


def test_no_probe_starts_when_the_time_is_up() -> None:
    trials = Trials([], None, Path(), lambda text: None, 0.0)
    trials.rounds([micro.candidate(1)], 1, 3)
    assert trials.stopped.startswith("the time is up") and not trials.probes
    assert micro.find_largest(trials, [1, 2]) is None

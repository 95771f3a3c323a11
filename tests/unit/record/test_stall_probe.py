"""A rank's answer to whoever is about to stop the job."""

import json

import pytest

from diagnostics.contract.artifacts import RunPaths
from dtk.record.stall_probe import STANDS_S, StallAnswer


@pytest.fixture
def probe(tmp_path):
    dumped = []
    paths = RunPaths(tmp_path)
    stall_answer = StallAnswer(paths, 2, lambda: dumped.append(1))
    stall_answer.dumped = dumped
    return stall_answer


def ask(probe):
    probe.paths.question.parent.mkdir(parents=True, exist_ok=True)
    probe.paths.question.write_text("")


def answer(probe):
    path = probe.paths.answer(2)
    return json.loads(path.read_text()) if path.exists() else None


def test_nobody_asks(probe):
    probe.answer(99.0, True)
    assert answer(probe) is None
    assert not probe.dumped


@pytest.mark.parametrize(("idle_s", "dumps"), [(0.0, 0), (STANDS_S - 0.1, 0), (STANDS_S, 1), (600.0, 1)])
def test_a_rank_that_stands_still_dumps_before_it_answers(probe, idle_s, dumps):
    ask(probe)
    probe.answer(idle_s, True)
    assert answer(probe) == {"idle_s": idle_s, "inside": True}
    assert len(probe.dumped) == dumps


def test_it_answers_once(probe):
    ask(probe)
    probe.answer(STANDS_S, False)
    probe.answer(99.0, True)
    assert answer(probe) == {"idle_s": STANDS_S, "inside": False}
    assert len(probe.dumped) == 1


def test_dumps_that_fail_cost_no_answer(tmp_path, capfd):
    def fails():
        raise OSError("disk full")

    probe = StallAnswer(RunPaths(tmp_path), 2, fails)
    ask(probe)
    probe.answer(STANDS_S, True)
    assert answer(probe)["inside"]

"""What the checks share: torch's facts and NVML are asked for once, and a torch that hangs costs its limit only."""

import threading

import pytest

from dtk.doctor import model as module
from dtk.doctor.model import ChildOutput, Scope


@pytest.fixture
def requests(monkeypatch):
    """The child's answers, each taken once; how often it was asked."""
    answers = []
    calls = []

    def run_child(arguments, timeout_s):
        calls.append((arguments, timeout_s))
        return answers.pop(0)

    monkeypatch.setattr(module, "run_child", run_child)
    return answers, calls


def test_torch_is_asked_once_even_by_several_threads(tmp_path, requests):
    answers, calls = requests
    answers.append(ChildOutput([{"begin": "x"}, {"version": "2.13.0"}]))
    scope = Scope(tmp_path, timeout_s=7.0)
    result = []
    threads = [threading.Thread(target=lambda: result.append(scope.torch())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(facts.facts == {"version": "2.13.0"} and facts.installed for facts in result) and len(result) == 4
    assert calls == [(["-m", "dtk.doctor.torch_facts"], 7.0)]


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (ChildOutput([], "no answer in 7 s", late=True), "import torch: no answer in 7 s"),
        (ChildOutput([{"version": "2"}], "killed by signal 11"), "import torch: killed by signal 11"),
        (ChildOutput(), "import torch: it printed nothing"),
    ],
)
def test_an_incomplete_answer_is_no_answer(tmp_path, requests, output, reason):
    answers, calls = requests
    answers.append(output)
    scope = Scope(tmp_path)
    assert (scope.torch().facts, scope.torch().reason) == ({}, reason)
    assert scope.torch().installed and len(calls) == 1, "it is not asked again"


def test_without_torch_no_child_is_started(tmp_path, requests, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    facts = Scope(tmp_path).torch()
    assert (facts.installed, facts.reason) == (False, "torch is not installed") and requests[1] == []

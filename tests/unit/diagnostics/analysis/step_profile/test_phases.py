"""Steps, micro-batches and phases of one rank."""

import itertools
from pathlib import Path

import pytest

from diagnostics.analysis.step_profile.classify import classify
from diagnostics.analysis.step_profile.phases import Backward, Step, find_steps
from tests.trace_generator import Simulator
from tests.trace_scenarios import STEPS, ddp, fsdp, optimizer, reduced_backward
from tests.unit.diagnostics.analysis.step_profile.profiles import traces


def steps(folder: Path, simulator: Simulator) -> list[Step]:
    trace = traces(simulator, folder)[0]
    return find_steps(trace, classify(trace))


@pytest.mark.parametrize("micros", [1, 3])
def test_marked_steps_their_backward_passes_and_the_optimizer(tmp_path: Path, micros: int) -> None:
    result = steps(tmp_path, ddp(Simulator(ranks=1), micros=micros))
    assert [step.number for step in result] == [step + 5 for step in range(STEPS)]
    for step in result:
        assert len(step.backwards) == micros and step.updated == 1
        assert step.optimizer_ns is not None and step.optimizer_ns >= step.backwards[-1].host[1]
        assert len(step.autograd) == 1
        hosts = [border for backward in step.backwards for border in backward.host]
        assert hosts == sorted(hosts)


def test_steps_together_cover_the_device_work(tmp_path: Path) -> None:
    result = steps(tmp_path, fsdp())
    for left, right in itertools.pairwise(result):
        assert left.device[1] == right.device[0] and left.host[1] <= right.host[0]


def test_without_marks_the_whole_window_is_one_step(tmp_path: Path) -> None:
    sim = Simulator(ranks=1)
    sim.kernel(100.0)
    reduced_backward(sim)
    optimizer(sim)
    (only,) = steps(tmp_path, sim)
    assert only.number is None and len(only.backwards) == 1


def test_without_a_backward_pass_there_are_no_phases(tmp_path: Path) -> None:
    sim = Simulator(ranks=1)
    sim.kernel(100.0)
    (only,) = steps(tmp_path, sim)
    assert only.backwards == [] and only.phase(1000) == ("", 0)


STEP = Step(
    0, (0, 1000), (0, 1000), [Backward((200, 300), (0, 0)), Backward((500, 600), (0, 0))], 700, autograd=frozenset({9})
)


@pytest.mark.parametrize(
    ("host_ns", "phase"),
    [
        (100, ("forward", 0)),
        (200, ("backward", 0)),
        (300, ("backward", 0)),
        (400, ("forward", 1)),
        (600, ("backward", 1)),
        (650, ("after", 1)),
        (700, ("optimizer", 1)),
        (-1, ("", 0)),
    ],
)
def test_the_phase_of_what_the_host_issued(host_ns: int, phase: tuple[str, int]) -> None:
    assert STEP.phase(host_ns) == phase


def test_what_a_thread_of_autograd_issues_is_backward_before_its_first_operation_too() -> None:
    assert STEP.phase(400, thread=9) == ("backward", 1) and STEP.phase(400, thread=1) == ("forward", 1)

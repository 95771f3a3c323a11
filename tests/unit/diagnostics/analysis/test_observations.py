"""Looks at running processes: whether a rank stood still, since when, and where."""

from pathlib import Path
from typing import Any

import pytest

from diagnostics.analysis.observations import Observation, observations
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, Frame, LogFact, Stacks, Thread
from diagnostics.evidence.readers.process import KIND, Moment
from diagnostics.report.without_cause import processes_text
from tests.unit.diagnostics.analysis.calls import fact, frame

HERE, THERE = frame(10), frame(20)


def process(rank: int, *moments: Moment, **fields: Any) -> LogFact:
    """Looks of one moment each: nothing passes while one is taken."""
    each = [(moment, moment) for moment in moments]
    return fact(KIND, rank, looks=each, last=moments[-1], call={}, counters={}, **fields)


def stacks(rank: int, *lines: Frame) -> list[Stacks]:
    return [Stacks(rank, "s", (Thread("MainThread", (line,), main=True),)) for line in lines]


def seen(*moments: Moment, lines: tuple[Frame, ...] = ()) -> Observation:
    evidence = Evidence(Path(), Limits(), facts=[process(0, *moments)], stacks=stacks(0, *lines))
    return observations(evidence)[0]


def test_a_thread_whose_wait_does_not_end_is_blocked() -> None:
    observation = seen(Moment(0, "S"), Moment(10, "S"), Moment(30, "S"), lines=(HERE, HERE, HERE))
    assert (observation.blocked_s, observation.idle_s, observation.fixed_s, observation.busy) == (30, 30, 30, False)


def test_only_the_last_windows_in_a_row_count() -> None:
    observation = seen(
        Moment(0, "S"), Moment(10, "S", switches=5), Moment(30, "S", switches=5), lines=(HERE, HERE, HERE)
    )
    assert (observation.blocked_s, observation.idle_s) == (20, 30), "a wait ended before the second look"
    moved = seen(Moment(0, "S"), Moment(10, "S"), Moment(30, "S"), lines=(HERE, HERE, THERE))
    assert (moved.blocked_s, moved.idle_s, moved.fixed_s) == (0, 0, 0)


@pytest.mark.parametrize(("cpu_s", "idle_s", "busy"), [(0.1, 10, False), (2.0, 0, False), (9.0, 0, True)])
def test_cpu_time_tells_a_thread_at_work_from_one_that_polls(cpu_s: float, idle_s: float, busy: bool) -> None:
    observation = seen(Moment(0, "S"), Moment(10, "S", cpu_s=cpu_s), lines=(HERE, HERE))
    assert (observation.idle_s, observation.fixed_s, observation.busy) == (idle_s, 10, busy)


def test_without_stacks_cpu_time_and_switches_alone_count() -> None:
    assert seen(Moment(0, "S"), Moment(10, "S")).blocked_s == 10
    assert seen(Moment(0, "S"), Moment(10, "S"), lines=(HERE,)).blocked_s == 0, "one stack for two looks says nothing"


@pytest.mark.parametrize(
    ("state", "lost", "stopped"),
    [("S", False, False), ("", True, False), ("Z", True, False), ("T", False, True), ("t", False, True)],
)
def test_processes_that_ended_or_are_held(state: str, lost: bool, stopped: bool) -> None:
    observation = seen(Moment(0, "S"), Moment(10, state))
    assert (observation.exited, observation.stopped) == (lost, stopped)


def test_a_summary_for_a_report_without_a_cause() -> None:
    facts = [
        process(0, Moment(0, "S"), Moment(10, "S")),
        process(1, Moment(0, "S"), Moment(10, "R", cpu_s=9)),
        process(2, Moment(0, "S"), Moment(10, "")),
    ]
    text = processes_text(Evidence(Path(), Limits(), facts=facts))
    assert (
        text == "rank 2 no longer has a process; rank 1 made progress between the observations; rank 0 waited for 10 s"
    )
    text = processes_text(Evidence(Path(), Limits(), facts=facts[:1]))
    assert text == "no rank made progress between the observations; rank 0 waited for 10 s"
    assert processes_text(Evidence(Path(), Limits())) == "" and observations(Evidence(Path(), Limits())) == {}

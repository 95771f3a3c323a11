"""How far two clocks are apart, by collectives that both ranks made."""

import random

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.evidence.dump_agreement import SURE_POSITIONS, offset


def ranks(count, ahead_s, step_s=1.0, wait_s=0.001):
    """Two ranks in step, of which the second one's clock is ahead."""
    first = {n: n * step_s for n in range(count)}
    return first, {n: n * step_s + ahead_s + (wait_s if n % 2 else 0.0) for n in range(count)}


@given(st.floats(-1e6, 1e6), st.integers(4, 60))
@settings(max_examples=80)
def test_the_offset_lies_within_its_bounds(ahead_s, count):
    measured = offset(*ranks(count, ahead_s))
    assert measured is not None
    assert measured.low_s - 1e-6 <= ahead_s <= measured.high_s + 1e-6
    assert measured.positions == count


@given(st.floats(-1e4, 1e4))
@settings(max_examples=40)
def test_the_other_way_round_it_is_the_opposite(ahead_s):
    first, second = ranks(20, ahead_s)
    there, back = offset(first, second), offset(second, first)
    assert there.low_s == pytest.approx(-back.high_s)
    assert there.high_s == pytest.approx(-back.low_s)
    assert there.value_s == pytest.approx(-back.value_s)


def test_clocks_that_may_agree_are_not_apart():
    assert offset(*ranks(20, 0.0)).apart_s() == 0.0
    assert offset(*ranks(20, 100.0)).apart_s() == pytest.approx(99.0, abs=0.1)
    assert offset(*ranks(20, -100.0)).apart_s() == pytest.approx(99.0, abs=0.1)


def test_it_takes_many_positions_and_a_long_time_to_be_sure():
    """The bounds are as wide as two steps; only a rank that is waited for at each one shows them closer."""
    first = {n: float(n // 2) + (n % 2) * 0.001 for n in range(4000)}
    second = {n: at + 50.0 for n, at in first.items()}
    assert offset(first, second).sure
    few = {n: first[n] for n in range(SURE_POSITIONS - 1)}
    assert not offset(few, second).sure
    assert not offset(*ranks(100, 50.0)).sure


def test_nothing_is_said_of_too_little():
    assert offset({}, {}) is None
    assert offset({1: 1.0, 2: 2.0}, {1: 1.0, 2: 2.0}) is None
    assert offset({1: 1.0, 50: 2.0, 99: 3.0}, {1: 1.0, 50: 2.0, 99: 3.0}) is None, "no two positions are neighbours"


def test_ranks_of_two_jobs_do_not_go_in_step():
    first = {n: float(n) for n in range(200)}
    second = {n: n * 3.0 for n in range(200)}
    assert offset(first, second) is None


def steps(seed: int, count: int, pace_s: float, jitter: float) -> list[float]:
    chance = random.Random(seed)
    at_s, times = 1000.0, []
    for _ in range(count):
        at_s += pace_s * (1 + jitter * chance.random())
        times += [at_s, at_s + 2e-4]
    return times


def test_two_runs_of_one_program_are_not_in_step() -> None:
    for seed in range(20):
        first, other = (dict(enumerate(steps(seed + 100 * run, 200, 0.05, 0.02))) for run in (0, 1))
        result = offset(first, {at: when + 40 for at, when in other.items()})
        assert result is None or not result.sure


def test_ranks_of_one_job_are_in_step_also_where_calls_are_under_way() -> None:
    base = steps(1, 200, 0.05, 0.5)
    for under_way in (0, 3):
        other = {at: base[max(0, at - under_way)] + 40 + 1e-5 * (at % 7) for at in range(len(base))}
        result = offset(dict(enumerate(base)), other)
        assert result is not None and result.low_s - 0.2 < 40 < result.high_s + 0.2
    assert offset({1: 5.0}, {1: 6.0}) is None

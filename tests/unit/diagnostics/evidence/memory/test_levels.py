"""Levels over time in a bounded number of rows that keep peaks and valleys."""

from itertools import chain

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.evidence.memory.levels import AT, KINDS, MAX_ROWS, RESERVED, Stack, by_levels, by_sizes, highest, total

LAST = len(KINDS) - 1


def rows(moves, end=100.0, start_levels=None, pinned=None):
    stack = Stack(0.0, end, start_levels or [0] * len(KINDS), pinned)
    for time, changes in moves:
        stack.move(time, changes)
    return stack.finish()


MOVES = st.lists(
    st.tuples(st.floats(0, 100), st.tuples(st.integers(0, LAST - 1), st.integers(0, 1000))), max_size=60
).map(lambda moves: [(time, [change]) for time, change in sorted(moves)])


@given(MOVES)
@settings(max_examples=80)
def test_the_highest_and_the_last_moment_stay(moves):
    """Levels that only grow: the last is the highest."""
    result = rows(moves)
    assert total(result[-1]) == sum(change for _, ((_, change),) in moves) == total(highest(result))
    assert [time for time, _ in result] == sorted(time for time, _ in result)
    assert (result[0][0], result[-1][0]) == (0.0, 100.0)


def test_many_moments_become_few_rows_with_their_peaks():
    moves = [(n / 100, [(0, 7 if n % 2 else -7)]) for n in range(1, 10_000)]
    result = rows(moves)
    assert len(result) <= MAX_ROWS
    assert {total(row) for row in result} == {0, 7}


def test_one_moment_of_a_peak_is_not_lost():
    moves = [(50.0, [(2, 100)]), (50.0001, [(2, -100)])]
    result = rows(moves, end=1000.0)
    assert total(highest(result)) == 100
    assert highest(result)[1][2] == 100


def test_a_known_peak_stays_even_where_another_is_higher():
    moves = [(10.0, [(0, 5)]), (10.1, [(0, 9)]), (10.2, [(0, -14)])]
    assert 10.0 in [time for time, _ in rows(moves, end=10_000.0, pinned=10.0)]
    assert 10.0 not in [time for time, _ in rows(moves, end=10_000.0)]


def test_a_quiet_time_keeps_its_two_ends():
    result = rows([(10.0, [(1, 8)]), (90.0, [(1, -8)])])
    assert [(time, sizes[1]) for time, sizes in result if sizes[1]] == [(10.0, 8), (90.0, 8)]


def test_what_is_reserved_is_what_no_tensor_holds():
    result = rows([(10.0, [(AT[RESERVED], 100)]), (20.0, [(0, 30)]), (30.0, [(0, 90)])])
    assert list(dict.fromkeys(sizes[LAST] for time, sizes in result if time > 10.0 or sizes[LAST])) == [100, 70, 0], (
        "never below zero"
    )
    assert total(result[-1]) == 120


def test_times_out_of_the_window_count_at_its_ends():
    result = rows([(-5.0, [(0, 4)]), (500.0, [(0, 3)])])
    assert total(result[-1]) == 7
    assert highest([]) is None


STEP = [300, 700, 900, -700, 40, -900, -300]


def steps(count: int, kept: int = 0) -> list[int]:
    """A step makes and frees what it needs, and keeps 40 and what is said."""
    return list(chain.from_iterable([*STEP, -40, *([kept] if kept else [])] for _ in range(count)))


@pytest.mark.parametrize("kept", [0, 64])
def test_equal_stretches_after_what_is_made_once(kept: int) -> None:
    rise = by_sizes([5000, 5001, *steps(8, kept)])
    assert rise is not None and not rise.are_steps
    assert set(rise.grown) == {kept} and len(rise.grown) >= 6


def test_a_step_of_equal_layers_makes_no_size_only_once() -> None:
    layers = list(chain.from_iterable([*STEP * 3, 80, -80, *STEP * 3, -80, 64] for _ in range(8)))
    rise = by_sizes([5000, 5001, *layers])
    assert rise is not None and set(rise.grown) == {6 * 40 - 80 + 64}


def test_sizes_that_differ_from_step_to_step_show_no_stretches() -> None:
    assert by_sizes([change * step for step in range(1, 9) for change in STEP]) is None
    assert by_sizes(steps(3)) is None, "too few"
    assert by_sizes([*steps(8), *range(1000, 1100)]) is None, "what came last is not explained"


@pytest.mark.parametrize("kept", [0, 64])
def test_a_category_that_each_step_fills_and_empties(kept: int) -> None:
    rows = [(full, 1000 * (step > 0) + full + kept * step) for step in range(7) for full in (0, 50, 100, 60, 90, 10)]
    rise = by_levels(rows)
    assert rise is not None and rise.are_steps and rise.grown == [kept] * 5


def test_a_category_that_stays_shows_no_steps() -> None:
    assert by_levels([(100, 100 + step) for step in range(40)]) is None
    assert by_levels([]) is None

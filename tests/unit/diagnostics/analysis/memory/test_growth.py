"""Growth per step: robust against outliers, and warm-up is no growth."""

import random

import pytest

from diagnostics.causes.memory.leak import MAX_POINTS, growth, slope


def test_a_line_has_its_slope_and_rises_everywhere():
    found = growth([(step, 1000 + 50 * step) for step in range(100)])
    assert (found.first_half, found.second_half, found.rising) == (50, 50, 1.0)
    assert found.steps == 99


def test_outliers_do_not_move_the_slope():
    generator = random.Random(5)
    points = [(step, 1000 + 50 * step) for step in range(200)]
    for n in generator.sample(range(200), 30):
        points[n] = (n, 10**9)
    assert growth(points).second_half == pytest.approx(50, rel=0.1)


def test_warm_up_shows_as_a_flat_second_half():
    found = growth([(step, min(step, 40) * 1000) for step in range(100)])
    assert found.first_half > 500
    assert found.second_half == 0
    assert found.rising < 1


def test_few_points_say_nothing():
    assert growth([(step, step) for step in range(7)]) is None
    assert slope([(1, 5)]) == 0.0
    assert slope([(1, 5), (1, 9)]) == 0.0


def test_long_series_are_thinned():
    found = growth([(step, 3 * step) for step in range(50 * MAX_POINTS)])
    assert found.second_half == 3
    assert found.steps == 50 * MAX_POINTS - 1

"""Leaks by a timeline: a rise that does not end, of the allocator or of the process; growth per step is robust."""

import random

import pytest

from diagnostics.causes.memory.leak import MAX_POINTS, growth, slope
from diagnostics.contract.findings import CERTAIN, POSSIBLE, text_of
from tests.unit.diagnostics.causes.memory.jobs import findings
from tests.unit.diagnostics.evidence.readers.test_timeline import rank_file

MIB = 1 << 20


def leak_of(folder, allocated, resident=None):
    rank_file(folder, allocated, resident or [500 * MIB] * len(allocated))
    return findings(folder)["leak"]


def test_a_steady_rise_is_a_leak_with_its_cost(tmp_path):
    result = leak_of(tmp_path, [(100 + 2 * n) * MIB for n in range(60)])
    assert (result.status, result.ranks, result.confidence) == ("confirmed", (0,), CERTAIN)
    assert result.cost.value == pytest.approx(100 * 2 * MIB, rel=0.01)
    text = text_of(result)
    assert text.summary == "Each step leaves 2 MiB behind on rank 0: 200 MiB after 100 steps."
    assert "keeps the step's tensors" in text.remedies[0].change


@pytest.mark.parametrize(
    "sizes",
    [
        [100 + min(n, 20) for n in range(60)],  # warm-up
        [100 + n % 7 for n in range(60)],  # a saw
        [100 + 10 * (n > 30) for n in range(60)],  # one step up
        [10_000 + n // 20 for n in range(60)],  # less than a twentieth
        [100 + 4**n if n < 9 else 65636 for n in range(60)],  # grows ever faster, then stays
    ],
)
def test_other_shapes_are_none(tmp_path, sizes):
    assert leak_of(tmp_path, [size * MIB for size in sizes]).status == "ruled_out"


def test_noise_is_none(tmp_path):
    generator = random.Random(3)
    assert leak_of(tmp_path, [generator.randint(90, 110) * MIB for _ in range(200)]).status == "ruled_out"


def test_the_process_needs_more_steps_and_more_growth(tmp_path):
    for name, steps, each, expected in (("few", 30, 10, "ruled_out"), ("many", 80, 10, "confirmed")):
        (tmp_path / name).mkdir()
        rank_file(tmp_path / name, None, [(500 + each * n) * MIB for n in range(steps)])
        leak = findings(tmp_path / name)["leak"]
        assert leak.status == expected
    assert leak.confidence == POSSIBLE, "the process holds more than tensors"


def test_few_steps_stay_open(tmp_path):
    result = leak_of(tmp_path, [(100 + 2 * n) * MIB for n in range(9)])
    assert result.status == "undecided"
    assert "two steps" in text_of(result).missing


def test_a_line_has_its_slope_and_rises_everywhere():
    result = growth([(step, 1000 + 50 * step) for step in range(100)])
    assert (result.first_half, result.second_half, result.rising) == (50, 50, 1.0)
    assert result.steps == 99


def test_outliers_do_not_move_the_slope():
    generator = random.Random(5)
    points = [(step, 1000 + 50 * step) for step in range(200)]
    for n in generator.sample(range(200), 30):
        points[n] = (n, 10**9)
    assert growth(points).second_half == pytest.approx(50, rel=0.1)


def test_warm_up_shows_as_a_flat_second_half():
    result = growth([(step, min(step, 40) * 1000) for step in range(100)])
    assert result.first_half > 500
    assert result.second_half == 0
    assert result.rising < 1


def test_few_points_say_nothing():
    assert growth([(step, step) for step in range(7)]) is None
    assert slope([(1, 5)]) == 0.0
    assert slope([(1, 5), (1, 9)]) == 0.0


def test_long_series_are_thinned():
    result = growth([(step, 3 * step) for step in range(50 * MAX_POINTS)])
    assert result.second_half == 3
    assert result.steps == 50 * MAX_POINTS - 1

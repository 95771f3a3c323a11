"""Growth between equal points of recordings that have no stacks: steps by categories, stretches by sizes."""

from itertools import chain

import pytest

from diagnostics.evidence.memory.rise import by_levels, by_sizes

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

"""One sharded unit is told from many of equal size, or it is said that it cannot be."""

import pytest

from diagnostics.analysis.memory.gathers import Move, Whole, remaining_of, whole_of

A, B = 4096, 1024


def gather(unit: int | str, phase: str = "forward", ahead: bool = False) -> Move:
    size = 4 * unit if isinstance(unit, int) else 4 * A
    return Move("gather", unit, size, phase, ahead)  # type: ignore[arg-type]


def reduce(unit: int | str) -> Move:
    return Move("reduce", unit)


def again(units: int, ahead: int) -> list[Move]:
    """A backward pass that gathers again, so many of them before their turn."""
    moves = [gather(A, "backward") for _ in range(units - ahead)]
    return [*moves, *(gather(A, "backward", ahead=True) for _ in range(ahead)), *(reduce(A) for _ in range(units))]


def step(units: int, ahead: int) -> list[Move]:
    return [*(gather(A) for _ in range(units)), *again(units, ahead)]


END = Move("root_end", "")
CASES = {
    "one unit": (3 * [gather(A), reduce(A)], Whole(4 * A, True)),
    "one unit that is gathered again": (3 * step(1, 0), Whole(4 * A, True)),
    "four of equal size with prefetch": (3 * step(4, 3), Whole(16 * A, True)),
    "four of equal size that stay": (
        3 * [*(gather(A) for _ in range(4)), *(reduce(A) for _ in range(4))],
        Whole(16 * A, True),
    ),
    "four without prefetch, or one that is used four times": (3 * step(4, 0), Whole(4 * A, False)),
    "a shared block beside a root": (3 * [gather(B), *step(4, 1), reduce(B)], Whole(4 * A + 4 * B, False)),
    "two blocks and a root": (3 * [gather(B), *step(2, 2), reduce(B)], Whole(8 * A + 4 * B, True)),
    "a dump that begins and ends in mid-step": (
        [reduce(A), *step(4, 3), *step(4, 3), gather(A), gather(A)],
        Whole(16 * A, True),
    ),
    "evaluation between the steps": (
        3 * [*(gather(A) for _ in range(8)), *step(4, 3)] + 2 * step(4, 3),
        Whole(16 * A, True),
    ),
    "one forward pass that hangs": ([gather(A)] * 3, Whole(4 * A, False)),
    "four roots in a trace": (
        3 * [*(gather("") for _ in range(4)), *(reduce("") for _ in range(4)), *4 * [END]],
        Whole(16 * A, True, 4),
    ),
    "one root in a trace that is used twice": (
        3 * [gather(""), gather(""), gather("", "backward"), reduce(""), reduce(""), END],
        Whole(4 * A, True, 1),
    ),
    "nothing": ([], Whole(0, False)),
}


@pytest.mark.parametrize("name", CASES)
def test_units_are_counted_or_a_lower_bound_is_said(name):
    moves, expected = CASES[name]
    assert whole_of(moves) == expected


def test_units_that_stay_are_all_counted():
    moves = 3 * [*(gather(A, "") for _ in range(4)), *(reduce(A) for _ in range(4))]
    assert remaining_of(moves) == Whole(16 * A, True)
    assert remaining_of(3 * step(4, 3)) is None

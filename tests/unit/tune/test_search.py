"""The search finds the largest that fits, asks little, and never far above it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtk.tune.search import largest


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


@given(st.integers(1, 720), st.integers(0, 800))
def test_it_finds_the_largest_that_fits(share: int, most: int) -> None:
    sizes, asked = divisors(share), list[int]()

    def fits(size: int) -> bool:
        asked.append(size)
        return size <= most

    assert largest(sizes, fits) == max((size for size in sizes if size <= most), default=None)
    assert len(asked) == len(set(asked)), "each size once"
    assert sum(size > most for size in asked) <= 1 + len(sizes).bit_length()
    doubled = [size for size in asked if size <= most]
    if doubled:
        beyond = [size for size in asked if size > most]
        following = [size for size in sizes if size > max(doubled)]
        assert all(size <= max(2 * max(doubled), following[0]) for size in beyond)


def test_powers_of_two_are_doubled_and_then_bisected() -> None:
    asked: list[int] = []
    assert largest(divisors(48), lambda size: asked.append(size) or size <= 7) == 6  # type: ignore[func-returns-value]
    assert asked == [1, 2, 4, 8, 6]
    asked.clear()
    assert largest(divisors(48), lambda size: asked.append(size) or True) == 48  # type: ignore[func-returns-value]
    assert asked == [1, 2, 4, 8, 16, 24, 48]


def test_nothing_fits() -> None:
    asked: list[int] = []
    assert largest([1, 2, 4], lambda size: bool(asked.append(size))) is None  # type: ignore[func-returns-value]
    assert asked == [1], "what does not fit at its smallest is not tried larger"


def test_primes_lie_far_apart() -> None:
    assert largest([1, 97], lambda size: True) == 97


@pytest.mark.parametrize("sizes", [[1], [5]])
def test_one_size(sizes: list[int]) -> None:
    assert largest(sizes, lambda size: True) == sizes[0]

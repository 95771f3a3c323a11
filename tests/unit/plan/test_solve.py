"""The largest that fits: bisection itself, and the sizes that grow together."""

import pytest

from dtk.plan.solve import largest


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 100])
@pytest.mark.parametrize("power", [0.5, 1, 2, 3])
def test_every_edge_is_found(limit: int, power: float) -> None:
    for edge in range(0, 130):
        assert largest(lambda n, edge=edge: int(1000 * (n**power - edge**power)), limit) == min(edge, limit)


@pytest.mark.parametrize("edge", [1, 2, 47, 6666, 700_001])
def test_an_edge_between_steps_is_found(edge: int) -> None:
    assert largest(lambda n: 5 if n > edge else -7, 1 << 24) == edge


def test_the_number_of_guesses_grows_with_the_logarithm() -> None:
    asked: list[int] = []

    def excess(n: int) -> int:
        asked.append(n)
        return 1_000_000 + 3_217 * n - 21_446_000

    assert largest(excess, 100_000) == 6355
    assert len(asked) <= 2 * 13 + 1, "13 bits"

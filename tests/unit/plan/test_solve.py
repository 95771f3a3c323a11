"""The largest that fits: bisection itself, and the sizes that grow together."""

import pytest

from dtk.plan.solve import largest


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 100])
@pytest.mark.parametrize("power", [0.5, 1, 2, 3])
def test_every_edge_is_found(limit: int, power: float) -> None:
    for edge in range(0, 130):
        found = largest(range(1, limit + 1), lambda n, edge=edge: n**power <= edge**power)
        assert found == (min(edge, limit) or None)


@pytest.mark.parametrize("edge", [1, 2, 47, 6666, 700_001])
def test_an_edge_between_steps_is_found(edge: int) -> None:
    assert largest(range(1, 1 << 24), lambda n: n <= edge) == edge


def test_the_number_of_guesses_grows_with_the_logarithm() -> None:
    asked: list[int] = []

    def fits(n: int) -> bool:
        asked.append(n)
        return 1_000_000 + 3_217 * n <= 21_446_000

    assert largest(range(1, 100_001), fits) == 6355
    assert len(asked) <= 2 * 13 + 1, "13 bits"

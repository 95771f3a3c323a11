"""Which rank updates which parameter: dealt out as torch's ZeroRedundancyOptimizer does it."""

from math import prod

import pytest
from hypothesis import given, settings, strategies as st

from dtk.plan.formulas.replication import owned_elements
from tests.work import calls_in

SHAPES = st.lists(st.sampled_from([(3, 5), (4, 4), (16,), (2, 2, 2), (7,), (1, 1), (40, 3)]), min_size=1, max_size=60)


def dealt_one_by_one(shapes: list[tuple[int, ...]], ranks: int) -> list[int]:
    """Matrices, then vectors; the largest first, each to the rank that has least, the first of equals."""
    owned = [0] * ranks
    for matrices in (True, False):
        group = [prod(shape) for shape in shapes if (len(shape) >= 2) == matrices]
        for size in sorted(group, reverse=True):
            owned[owned.index(min(owned))] += size
    return owned


@given(shapes=SHAPES, ranks=st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_dealing_in_rounds_is_dealing_one_by_one(shapes: list[tuple[int, ...]], ranks: int) -> None:
    assert sorted(owned_elements(shapes, ranks)) == sorted(dealt_one_by_one(shapes, ranks))


@pytest.mark.parametrize(("count", "ranks"), [(1, 4), (5, 3), (12, 4), (13, 4)])
def test_equal_parameters_are_counted_off(count: int, ranks: int) -> None:
    each, more = divmod(count, ranks)
    assert owned_elements([(2, 3)] * count, ranks) == [6 * (each + (rank < more)) for rank in range(ranks)]


def test_ranks_without_parameters_own_nothing() -> None:
    assert owned_elements([(2, 3), (9,)], 4) == [6, 9, 0, 0]


def test_a_deep_model_on_many_ranks_is_cheap() -> None:
    shapes = [(100, 100), (100,), (400, 100)] * 4000
    owned, calls = calls_in(lambda: owned_elements(shapes, 512))
    assert sum(owned) == sum(map(prod, shapes))
    assert calls < 60_000

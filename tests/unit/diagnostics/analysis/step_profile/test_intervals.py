from itertools import pairwise

from hypothesis import given, strategies as st

from diagnostics.analysis.step_profile.intervals import Ruler, holes, intersect, subtract, total, union
from diagnostics.causes.overlap._shared import exposed_in_buckets, exposed_in_units

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda p: (p[0], p[0] + p[1])), max_size=12)


def points(spans: list[tuple[int, int]]) -> set[int]:
    return {n for start, end in spans for n in range(start, end)}


@given(SPANS, SPANS)
def test_covers_behave_as_sets_of_points(item: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    a, b = union(item), union(other)
    assert points(a) == points(item)
    assert total(a) == len(points(item))
    assert all(left[1] < right[0] for left, right in pairwise(a))
    assert points(intersect(a, b)) == points(item) & points(other)
    assert points(subtract(a, b)) == points(item) - points(other)
    assert total(intersect(a, b)) + total(subtract(a, b)) == total(a)


@given(SPANS, st.integers(0, 80), st.integers(0, 80), st.integers(1, 5))
def test_holes_are_what_is_not_covered(spans: list[tuple[int, int]], start: int, end: int, least: int) -> None:
    free = subtract([(start, end)] if end > start else [], union(spans))
    assert holes(union(spans), start, end, least) == [item for item in free if item[1] - item[0] >= least]


@given(SPANS, st.integers(0, 80), st.integers(0, 80))
def test_a_ruler_measures_any_stretch(spans: list[tuple[int, int]], start: int, end: int) -> None:
    ruler = Ruler(union(spans))
    assert ruler.within(start, end) == len({n for n in points(spans) if start <= n < end})
    holding = [item for item in ruler.cover if item[0] <= start <= item[1]]
    assert ruler.start_of(start) == (holding[-1][0] if holding else None)


def test_buckets_hide_all_but_the_last_one() -> None:
    assert exposed_in_buckets(100, 0, 1, 1000) == 100
    assert exposed_in_buckets(100, 0, 4, 1000) == 25
    assert exposed_in_buckets(2000, 0, 4, 1000) == 1250  # 250 before the first is ready, then the wire is the limit
    assert exposed_in_buckets(100, 50, 4, 100) > exposed_in_buckets(100, 0, 4, 100)


def test_units_expose_the_first_gather_and_what_compute_cannot_hide() -> None:
    assert exposed_in_units(80, 0, 8, 1000) == 10
    assert exposed_in_units(80, 0, 8, 40) == 10 + 7 * 5

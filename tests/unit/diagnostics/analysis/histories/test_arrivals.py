"""When ranks arrived at the positions of a group: the latest, by how much, and how many came."""

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from diagnostics.analysis.histories.arrivals import Arrivals


def arrivals(ranks: dict[int, dict[int, float]]) -> Arrivals:
    """Rank -> position -> when it came (s)."""
    found = Arrivals()
    for rank, times in ranks.items():
        found.add(rank, array("q", times), array("d", times.values()))
    return found


def test_the_latest_and_its_distance_to_the_one_before() -> None:
    found = arrivals({0: {1: 10.0, 2: 20.0}, 1: {1: 13.0, 2: 19.0}, 2: {1: 11.0, 2: 25.0}})
    assert found.positions() == [(1, 1, 2.0, 3, 13.0), (2, 2, 5.0, 3, 25.0)]
    assert found.span_s() == 15.0


def test_a_position_with_one_arrival_and_times_that_were_not_recorded_say_nothing() -> None:
    found = arrivals({0: {1: 10.0, 2: 0.0}, 1: {2: 12.0}})
    assert found.positions() == [] and found.span_s() == 2.0
    assert Arrivals().span_s() == 0.0


@settings(max_examples=50)
@given(
    st.dictionaries(
        st.integers(0, 6), st.dictionaries(st.sampled_from((1, 255, 256, 700)), st.integers(1, 99)), min_size=1
    )
)
def test_as_a_plain_sort_of_all_arrivals_would_say(ranks: dict[int, dict[int, int]]) -> None:
    found = arrivals({rank: {at: float(time) for at, time in times.items()} for rank, times in ranks.items()})
    for position, rank, late_s, count, at_s in found.positions():
        times = sorted(times[position] for times in ranks.values() if position in times)
        assert (count, at_s, late_s) == (len(times), times[-1], times[-1] - times[-2])
        assert ranks[rank][position] == times[-1]
    assert [row[0] for row in found.positions()] == sorted(
        at for at in (1, 255, 256, 700) if sum(at in times for times in ranks.values()) > 1
    )

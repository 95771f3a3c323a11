"""Numbers of names and lanes, and the join of two columns of ids."""

from array import array

from hypothesis import given, settings, strategies as st

from diagnostics.evidence.trace.model import Indices, Names, places

IDS = st.lists(st.integers(-50, 50) | st.integers(-(1 << 40), 1 << 40), max_size=30)


@given(IDS, IDS)
@settings(max_examples=100)
def test_where_each_wanted_id_stands_last(listed, expected):
    """By a table where ids are dense, by a dict where they are not: the same answer."""
    result = places(array("q", listed), array("q", expected))
    assert list(result) == [
        max((n for n, item in enumerate(listed) if item == number), default=-1) for number in expected
    ]


def test_equal_names_have_one_number():
    listed = []
    names = Names(listed)
    assert [names[name] for name in ("a", "b", "a")] == [0, 1, 0]
    assert listed == ["a", "b"]


def test_names_beyond_the_limit_are_others(monkeypatch):
    monkeypatch.setattr("diagnostics.evidence.trace.model.MAX_NAMES", 2)
    listed = []
    names = Names(listed)
    numbers = [names[name] for name in ("a", "b", "c", "d", "a")]
    assert numbers == [0, 1, 2, 2, 0]
    assert listed == ["a", "b", "(other)"]


def test_lanes_are_listed_as_they_come():
    listed = []
    lanes = Indices(listed)
    assert [lanes[key] for key in ((0, 7), (None, "gloo"), (0, 7))] == [0, 1, 0]
    assert listed == [(0, 7), (None, "gloo")]

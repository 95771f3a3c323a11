"""From events of storages to what each part of a step held at its highest use."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from dtk.simulate.replay import Event, highest

KINDS = {0: "parameters", 1: "activations", 2: "activations"}


def parts(events: list[Event], begin: int = 0) -> dict[tuple[str, str], dict[str, int]]:
    return highest(events, begin, lambda entry: KINDS.get(entry, "others"), lambda place: (place[0], str(place[1])))


def test_the_peak_of_each_part_by_category() -> None:
    forward, backward = ("forward", 0), ("backward", 0)
    events: list[Event] = [
        (0, 100, forward),
        (1, 10, forward),
        (2, 20, forward),
        (1, -10, backward),
        (-1, 0, backward),
        (0, -100, backward),
    ]
    found = parts(events)
    assert found["forward", "0"] == {"parameters": 100, "activations": 30}
    assert found["backward", "0"] == {"parameters": 100, "activations": 20}


def test_what_began_before_is_held_but_makes_no_part() -> None:
    events: list[Event] = [(0, 100, ("set-up", 0)), (1, 50, ("set-up", 0)), (1, -50, ("set-up", 0))]
    found = parts([*events, (-1, 0, ("forward", 0))], begin=3)
    assert found == {("forward", "0"): {"parameters": 100}}


def test_a_place_that_only_begins_has_what_is_held() -> None:
    found = parts([(0, 8, ("forward", 0)), (-1, 0, ("clip", 0))])
    assert found["clip", "0"] == {"parameters": 8}


@given(
    changes=st.lists(st.tuples(st.integers(0, 3), st.integers(-20, 40), st.integers(0, 2)), max_size=40),
    begin=st.integers(0, 10),
)
@settings(max_examples=80, deadline=None)
def test_the_parts_are_those_of_a_plain_replay(changes: list[tuple[int, int, int]], begin: int) -> None:
    held: Counter[int] = Counter()
    events: list[Event] = []
    expected: dict[tuple[str, str], int] = {}
    for number, (entry, change, block) in enumerate(changes):
        change = max(change, -held[entry])  # A storage never holds less than nothing.
        held[entry] += change
        events.append((entry, change, ("forward", block)))
        if number >= begin:
            part = ("forward", str(block))
            expected[part] = max(expected.get(part, 0), sum(held.values()))
    found = parts(events, begin)
    assert {part: sum(sizes.values()) for part, sizes in found.items()} == expected

"""A rank that leaves the backward pass without a bucket, and one that never entered it."""

from typing import Any

import pytest

from diagnostics.analysis.divergence.explanation import not_ready
from diagnostics.evidence.calls import Call
from tests.unit.diagnostics.analysis.calls import call


def bucket(seq: int, size: int, **more: Any) -> Call:
    return call(seq, 40, size=size, region="backward", **more)


def metric(seq: int, **more: Any) -> Call:
    return call(seq, 50, "all_gather", 1, **more)


def names(ours: list[Call], theirs: list[Call], before: list[Call]) -> list[str]:
    return [term.name for term in not_ready(ours, theirs, before)]


def step(first: int, buckets: int, **more: Any) -> list[Call]:
    return [bucket(first + at, 100 + at, **more) for at in range(buckets)]


def test_the_recorded_steps_decide() -> None:
    before = step(1, 2, step=3)
    assert names([bucket(3, 102, step=3)], [metric(3, step=3)], before) == ["round already begun"]
    assert names([bucket(3, 102, step=4)], [metric(3, step=4)], before) == []


def test_the_number_of_buckets_that_ddp_announced_decides() -> None:
    def integers(seq: int, size: int) -> Call:
        return call(seq, None, "broadcast", size, wire={"dtypes": ("int32",)})

    announced = [integers(1, 21), integers(2, 3)]
    assert names([bucket(5, 102)], [metric(5)], [*announced, *step(3, 2)]) == ["round already begun"]
    assert names([bucket(6, 100)], [metric(6)], [*announced, *step(3, 3)]) == []


def test_two_announcements_are_of_two_models_and_say_nothing() -> None:
    pair = [call(1, None, "broadcast", 21, wire={"dtypes": ("int32",)})]
    pair.append(call(2, None, "broadcast", 3, wire={"dtypes": ("int32",)}))
    before = [*pair, *pair, *step(5, 2)]
    assert names([bucket(7, 102)], [metric(7)], before) == []


@pytest.mark.parametrize(("left", "expected"), [(2, ["round already begun"]), (3, [])])
def test_how_far_the_peers_are_in_their_round_decides(left: int, expected: list[str]) -> None:
    """Rounds of three buckets: with three left, the peers begin a round that this rank never entered."""
    before = [*step(1, 3), *step(4, 3), *step(7, 3 - left)]
    ours = [*step(10 - left, 3)[3 - left :], metric(10)]
    assert names(ours, [metric(ours[0].seq)], before) == expected


def test_a_call_that_was_never_made_before_is_behind_the_loop() -> None:
    assert names([bucket(2, 101)], [metric(2)], [bucket(1, 100)]) == []
    assert names([bucket(3, 101)], [metric(3)], [metric(1), bucket(2, 100)]) == ["round already begun"]


def test_before_the_first_bucket_only_one_and_the_same_step_says_something() -> None:
    assert names([bucket(1, 100, step=0)], [metric(1, step=0)], []) == ["backward begun"]
    assert names([bucket(1, 100, step=1)], [metric(1, step=0)], []) == []
    assert names([bucket(1, 100)], [metric(1)], []) == []


def test_outside_of_backward_nothing_is_said() -> None:
    assert names([metric(1)], [bucket(1, 100)], []) == []
    assert names([bucket(1, 100)], [bucket(1, 200)], []) == []

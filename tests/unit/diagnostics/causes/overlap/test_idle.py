"""Idle time by its reason: the typical rank, or those that stand out, and what their hosts did."""

from types import SimpleNamespace
from typing import Any

import pytest

from diagnostics.analysis.step_profile.gaps import Gap
from diagnostics.analysis.step_profile.overview import MS
from diagnostics.causes.overlap._idle import idle


def rank(number: int, ms_per_step: list[float], *gaps: Gap) -> Any:
    steps = [SimpleNamespace(gaps={"pause": ms * MS}) for ms in ms_per_step]
    return SimpleNamespace(rank=number, steps=steps, gaps=list(gaps))


def view(*profiles: Any) -> Any:
    return SimpleNamespace(
        profiles=profiles, ranks=tuple(profile.rank for profile in profiles), worth=lambda ms: ms >= 2.0
    )


def gap(ms: float, detail: str, reason: str = "pause", work: str = "") -> Gap:
    return Gap(0, round(ms * MS), reason, detail, work)  # type: ignore[arg-type]


def test_the_typical_rank_and_its_median_step_count() -> None:
    result = idle(view(rank(0, [4.0, 4.0, 90.0]), rank(1, [5.0]), rank(2, [6.0])), "pause")
    assert (result.ms, result.ranks) == (5.0, (0, 1, 2)), "one hiccup of a step does not count"


def test_what_recurs_in_some_steps_counts_with_its_mean() -> None:
    assert idle(view(rank(0, [30.0, 0.0, 0.0, 30.0, 0.0])), "pause").ms == 12.0, "a loader that stalls now and then"
    assert idle(view(rank(0, [0.0, 70.0])), "pause").ms == 0.0, "one checkpoint in two steps: how often is not known"
    assert idle(view(rank(0, [0.0, 20.0, 20.0])), "pause").ms == 20.0, "the window begins after the first one"


def test_a_rank_that_stands_out_is_named_alone() -> None:
    result = idle(view(rank(0, [1.0]), rank(1, [1.0]), rank(2, [40.0], gap(40.0, "save", work="checkpoint"))), "pause")
    assert (result.ms, result.ranks, result.within, result.work) == (40.0, (2,), "save", "checkpoint")
    assert (result.count, result.longest_ms) == (1, 40.0)


def test_one_of_two_ranks_can_stand_out() -> None:
    result = idle(view(rank(0, [0.0]), rank(1, [162.0])), "pause")
    assert (result.ms, result.ranks) == (162.0, (1,))


def test_two_that_stand_out_alike_are_named_together() -> None:
    profiles = [rank(number, [30.0 if number in (1, 4) else 1.0]) for number in range(6)]
    assert idle(view(*profiles), "pause").ranks == (1, 4)


def test_standing_out_has_to_be_worth_it() -> None:
    assert idle(view(rank(0, [0.1]), rank(1, [0.1]), rank(2, [1.0])), "pause").ranks == (0, 1, 2)


def test_what_the_host_did_most_of_the_time_is_named() -> None:
    gaps = (gap(3.0, "log"), gap(2.0, "save"), gap(2.0, "save"), gap(50.0, "other", reason="data"))
    result = idle(view(rank(0, [7.0], *gaps)), "pause")
    assert (result.within, result.count, result.longest_ms) == ("save", 3, 3.0)


@pytest.mark.parametrize("reason", ["data", "sync"])
def test_without_such_time_there_is_nothing(reason: Any) -> None:
    result = idle(view(rank(0, [7.0], gap(7.0, "log")), rank(1, [])), reason)
    assert (result.ms, result.within, result.count, result.longest_ms) == (0.0, "", 0, 0.0)

"""A rank that is late, not stuck: by arrival times alone, and never by a clock that is off."""

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.causes.hang.straggler import LATE_S, ONCE_S, TIMES, Straggler, late_rank
from diagnostics.evidence.calls import Call
from tests.unit.diagnostics.analysis.calls import DEFAULT, START_S, call, job

STEP_S = 1.0


def ranks(delays_s: dict[int, dict[int, float]], steps: int = 12, world: int = 3) -> dict[int, list[Call]]:
    """Ranks that go in step; a delay moves the calls of all ranks behind it, as they wait for the one that is late."""
    calls: dict[int, list[Call]] = {rank: [] for rank in range(world)}
    now_s = START_S
    for seq in range(1, steps + 1):
        late_s = [delays_s.get(rank, {}).get(seq, 0.0) for rank in range(world)]
        for rank in range(world):
            calls[rank].append(call(seq, 10 + seq % 3, at_s=now_s + late_s[rank] + rank * 1e-4))
        now_s += STEP_S + max(late_s)
    return calls


def straggler_of(delays_s: dict[int, dict[int, float]], **more: int) -> Straggler | None:
    return late_rank(job(ranks(delays_s, **more), more.get("world", 3)))


def test_a_rank_that_keeps_coming_late() -> None:
    case = straggler_of({1: dict.fromkeys(range(2, 12), 2.0)})
    assert case is not None and case.rank == 1 and case.key == DEFAULT
    assert case.times == 10 and case.lost_s == pytest.approx(20, abs=0.1) and case.worst_s == pytest.approx(2, abs=0.01)
    assert case.call is not None and case.call.seq == case.position and case.seen_at is None


def test_once_is_enough_where_it_took_very_long() -> None:
    case = straggler_of({2: {5: ONCE_S + 1}})
    assert case is not None and (case.rank, case.times, case.position) == (2, 1, 5)
    assert straggler_of({2: {5: ONCE_S / 2}}) is None


def test_ranks_that_take_turns_are_no_straggler() -> None:
    assert straggler_of({0: {3: 2.0, 6: 2.0, 9: 2.0}, 1: {4: 2.0, 7: 2.0, 10: 2.0}}) is None


@pytest.mark.parametrize(("times", "late_s"), [(TIMES - 1, 2.0), (11, LATE_S / 2)])
def test_seldom_or_hardly_late_is_not_late(times: int, late_s: float) -> None:
    assert straggler_of({1: dict.fromkeys(range(2, 2 + times), late_s)}) is None


def test_a_clock_that_is_off_shows_at_every_position_alike() -> None:
    calls = ranks({})
    for item in calls[1]:
        item.created_s = (item.created_s or 0.0) + 0.4
    assert late_rank(job(calls, 3)) is None


@pytest.mark.parametrize("by_s", [3600.0, -3600.0, 30.0])
@pytest.mark.parametrize("back_at", [None, 8])
def test_a_clock_that_was_set_meanwhile_makes_no_rank_late(by_s: float, back_at: int | None) -> None:
    calls = ranks({})
    for result in calls[1][4:back_at]:
        result.created_s = (result.created_s or 0.0) + by_s
    assert late_rank(job(calls, 3)) is None


def test_calls_that_peers_had_queued_behind_a_late_one_do_not_hide_it() -> None:
    """The late rank comes to them at once, and to the next of all in time."""
    calls = ranks({2: {5: ONCE_S + 20}})
    late = calls[2][4].created_s or 0.0
    for seq in (6, 7, 8, 9):
        for rank in range(3):
            calls[rank][seq - 1].created_s = (late if rank == 2 else late - ONCE_S - 20) + seq * 1e-3
    case = late_rank(job(calls, 3))
    assert case is not None and (case.rank, case.times, case.position) == (2, 1, 5)


def test_a_position_at_which_not_all_ranks_came_says_nothing() -> None:
    calls = ranks({1: dict.fromkeys(range(2, 12), 2.0)})
    assert late_rank(job(calls, 5)) is None


def test_while_ranks_wait_for_a_missing_one_nobody_is_slow() -> None:
    calls = ranks({1: dict.fromkeys(range(2, 12), 2.0)})
    calls[0].append(call(13, done=False))
    assert late_rank(job(calls, 3)) is None


@settings(max_examples=25)
@given(st.integers(2, 5), st.data())
def test_the_planted_rank_is_the_one_that_is_named(world: int, data: st.DataObject) -> None:
    late = data.draw(st.integers(0, world - 1))
    at = data.draw(st.sets(st.integers(2, 20), min_size=8, max_size=19))
    case = straggler_of({late: dict.fromkeys(at, 3.0)}, steps=20, world=world)
    assert case is not None and case.rank == late and case.position in at

"""All ranks' positions of a group against one base, and what a survey knows of groups and their members."""

import random
from array import array

from hypothesis import given, settings, strategies as st

from diagnostics.analysis.histories.align import MAX_DEVIATIONS, Arrivals, GroupTable, Survey
from diagnostics.analysis.histories.one_rank import Line
from diagnostics.evidence.calls import Call, GroupKey
from tests.unit.diagnostics.analysis.calls import DEFAULT, call, history, survey


def table(ranks: dict[int, dict[int, int]]) -> GroupTable:
    """Rank -> position -> number of the signature, from 1."""
    result = GroupTable()
    for rank, issued in ranks.items():
        positions = sorted(issued)
        result.lines[rank] = Line(positions[0], positions[-1], 0)
        result.add(rank, array("q", positions), array("I", [issued[at] for at in positions]))
    return result


def test_equal_ranks_leave_no_deviation() -> None:
    group_table = table({rank: {at: at % 5 + 1 for at in range(200, 600)} for rank in range(4)})
    assert not group_table.deviations and len(group_table.base) == 3
    assert group_table.issued_at(300) == {300 % 5 + 1: [0, 1, 2, 3]} and group_table.issued_at(9000) == {}


def test_the_first_rank_that_covers_a_position_sets_its_base() -> None:
    group_table = table({2: {1: 7, 2: 7}, 0: {1: 7, 2: 8, 3: 9}, 1: {3: 9}})
    assert group_table.deviations == {2: {8: [0]}}
    assert group_table.issued_at(2) == {8: [0], 7: [2]} and group_table.issued_at(3) == {9: [0, 1]}


def test_only_the_first_deviations_of_a_rank_are_kept() -> None:
    group_table = table({0: dict.fromkeys(range(1, 51), 1), 1: dict.fromkeys(range(1, 51), 2)})
    assert sorted(group_table.deviations) == list(range(1, MAX_DEVIATIONS + 1))


RANKS = st.dictionaries(
    st.integers(0, 5), st.dictionaries(st.integers(250, 262), st.integers(1, 2), min_size=1), min_size=1
)


@settings(max_examples=100)
@given(RANKS)
def test_the_first_position_at_which_ranks_differ_is_that_of_a_plain_comparison(
    ranks: dict[int, dict[int, int]],
) -> None:
    """Also across the border of two chunks (256), with gaps and with rings that wrapped at other places."""
    group_table = table(ranks)
    differing = [at for at in range(240, 270) if len({own[at] for own in ranks.values() if at in own}) > 1]
    assert min(group_table.deviations, default=None) == min(differing, default=None)
    for at, numbers in group_table.deviations.items():
        for number, deviating in numbers.items():
            assert all(ranks[rank][at] == number for rank in deviating)
            assert number != next(own[at] for own in ranks.values() if at in own)


@settings(max_examples=30)
@given(st.integers(0, 1 << 16))
def test_a_call_left_out_shows_where_it_was(seed: int) -> None:
    """Planted in one group of several: no other group deviates, and none before that position."""
    chance = random.Random(seed)
    keys = [GroupKey("nccl", str(number), f"group {number}") for number in range(3)]
    program = [(chance.randrange(3), line) for line in range(10, 10 + chance.randint(9, 30))]
    at, rank = chance.randrange(len(program) - 3), chance.randrange(4)

    def calls(program: list[tuple[int, int]]) -> list[Call]:
        counts = [0, 0, 0]
        result = []
        for group, line in program:
            counts[group] += 1
            result.append(call(counts[group], line, size=line, key=keys[group]))
        return result

    ranks = {other: calls(program) for other in range(4)} | {rank: calls(program[:at] + program[at + 1 :])}
    value = survey(ranks, 4)
    group = program[at][0]
    position = sum(other == group for other, _ in program[: at + 1])
    later = sum(other == group for other, _ in program[at + 1 :])
    for number, key in enumerate(keys):
        first = min(value.groups[key].deviations, default=None) if key in value.groups else None
        assert first == (position if number == group and later else None)
        if first is not None:
            assert sorted(map(len, value.groups[key].issued_at(first).values())) == [1, 3]


def test_the_order_in_which_ranks_are_taken_does_not_matter() -> None:
    ranks = {rank: history(1, 2, 3 + (rank == 2), 4) for rank in range(4)}
    first, other = survey(ranks, 4), survey(dict(reversed(ranks.items())), 4)
    assert first.positions == other.positions == 16
    sides = [{tuple(side) for side in job.groups[DEFAULT].issued_at(3).values()} for job in (first, other)]
    assert sides[0] == sides[1] == {(2,), (0, 1, 3)}


def test_members_are_those_declared_then_those_known_by_name_then_those_seen() -> None:
    tp, unnamed = GroupKey("nccl", "1", "tp"), GroupKey("gloo", "5", "")
    ranks = {0: [call(1), call(1, key=unnamed)], 3: [call(1), call(1, key=unnamed)]}
    result = survey(ranks, 6, members={tp: (0, 3)})
    assert result.members(tp) == (0, 3) and result.membership_known(tp)
    assert result.members(DEFAULT) == tuple(range(6)) and result.membership_known(DEFAULT)
    assert result.members(unnamed) == (0, 3) and not result.membership_known(unnamed)
    result.inferred[unnamed] = (0, 2, 3)
    assert result.members(unnamed) == (0, 2, 3)
    assert result.members(GroupKey("nccl", "9", "pp")) == ()


def test_the_largest_declaration_and_the_largest_world_count() -> None:
    result = survey({7: [call(1)]}, 4, members={DEFAULT: (0,)})
    assert result.world() == 8, "at least as many as were seen"
    assert Survey().world() == 0


def test_counters_of_a_group_with_sends_are_taken_back_for_all_ranks() -> None:
    ranks = {0: [call(1), call(2)], 1: [call(1), call(2), call(1, op="send", p2p="send", peer=0)]}
    result = survey(ranks, 2, counters={DEFAULT: (9, 9)})
    assert {line.issued for line in result.groups[DEFAULT].lines.values()} == {2}
    del ranks[1][2]
    result = survey(ranks, 2, counters={DEFAULT: (9, 9)})
    assert {line.issued for line in result.groups[DEFAULT].lines.values()} == {9}


def arrivals(ranks: dict[int, dict[int, float]]) -> Arrivals:
    """Rank -> position -> when it came (s)."""
    result = Arrivals()
    for rank, times in ranks.items():
        result.add(rank, array("q", times), array("d", times.values()))
    return result


def test_the_latest_and_its_distance_to_the_one_before() -> None:
    result = arrivals({0: {1: 10.0, 2: 20.0}, 1: {1: 13.0, 2: 19.0}, 2: {1: 11.0, 2: 25.0}})
    assert result.positions() == [(1, 1, 2.0, 3, 13.0), (2, 2, 5.0, 3, 25.0)]
    assert result.span_s() == 15.0


def test_a_position_with_one_arrival_and_times_that_were_not_recorded_say_nothing() -> None:
    result = arrivals({0: {1: 10.0, 2: 0.0}, 1: {2: 12.0}})
    assert result.positions() == [] and result.span_s() == 2.0
    assert Arrivals().span_s() == 0.0


@settings(max_examples=50)
@given(
    st.dictionaries(
        st.integers(0, 6), st.dictionaries(st.sampled_from((1, 255, 256, 700)), st.integers(1, 99)), min_size=1
    )
)
def test_as_a_plain_sort_of_all_arrivals_would_say(ranks: dict[int, dict[int, int]]) -> None:
    result = arrivals({rank: {at: float(time) for at, time in times.items()} for rank, times in ranks.items()})
    for position, rank, late_s, count, at_s in result.positions():
        times = sorted(times[position] for times in ranks.values() if position in times)
        assert (count, at_s, late_s) == (len(times), times[-1], times[-1] - times[-2])
        assert ranks[rank][position] == times[-1]
    assert [row[0] for row in result.positions()] == sorted(
        at for at in (1, 255, 256, 700) if sum(at in times for times in ranks.values()) > 1
    )

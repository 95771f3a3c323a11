"""Waiting for late ranks apart from transfer: collectives matched over all ranks, without comparing clocks."""

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.analysis.step_profile.profile import CallProfile
from diagnostics.analysis.step_profile.skew import Late, find_skew, group_ranks
from diagnostics.evidence.trace.model import GroupInfo
from tests.unit.diagnostics.analysis.step_profile.profiles import call, rank, step


def ranks(*lengths: int, **more: object) -> list:
    """One all_reduce on each rank, which all leave together: who stayed shortest came last."""
    return [rank(number, call(start=1000 - length, length=length, **more)) for number, length in enumerate(lengths)]


def test_the_shortest_stay_is_the_transfer_of_all() -> None:
    profiles = ranks(100, 400, 380)
    skew = find_skew(profiles, 3)
    assert [profile.calls[0].floor for profile in profiles] == [100, 100, 100]
    assert [profile.calls[0].exposed_transfer for profile in profiles] == [100, 100, 100]
    (late,) = skew.late
    assert (late.ranks, late.lead, late.reason, skew.matched, skew.complete) == ((0,), 280, "", 1, True)


def test_equal_stays_are_nobodys_lateness() -> None:
    assert find_skew(ranks(100, 101, 100), 3).late == []
    assert find_skew(ranks(100), 1).matched == 0


@pytest.mark.parametrize(
    ("more", "reason"),
    [({"idle": ("data", 300)}, "data"), ({"idle": ("data", 50)}, ""), ({"busy": 300}, "compute"), ({}, "")],
)
def test_what_took_the_late_rank_longer(more: dict[str, object], reason: str) -> None:
    profiles = ranks(400, 400)
    profiles.append(rank(2, call(start=900, length=100, **more)))  # type: ignore[arg-type]
    (late,) = find_skew(profiles, 3).late
    assert (late.ranks, late.reason) == ((2,), reason)
    assert bool(late.detail) == (reason == "data")


def test_two_of_four_may_be_late_together() -> None:
    (late,) = find_skew(ranks(100, 900, 110, 880), 4).late
    assert isinstance(late, Late) and late.ranks == (0, 2) and late.lead == 770


def test_collectives_are_matched_in_order_and_by_sequence_number() -> None:
    def numbered(first: int, second: int) -> list[CallProfile]:
        return [call(start=0, length=100, seq=first), call(start=200, length=300, seq=second)]

    by_number = [rank(0, *numbered(1, 2)), rank(1, *numbered(2, 3))]
    assert find_skew(by_number, 2).matched == 1 and by_number[0].calls[1].floor == 100
    in_order = [rank(number, call(length=100), call(start=200, length=300)) for number in (0, 1)]
    assert find_skew(in_order, 2).matched == 2


def test_ranks_that_recorded_different_numbers_are_told() -> None:
    profiles = [rank(0, call(), call(start=200)), rank(1, call())]
    skew = find_skew(profiles, 2)
    assert skew.differing == [{"op": "all_reduce", "group": "dp", "step": 0}] and skew.matched == 1
    apart = find_skew([rank(0, call(), steps=[step(3)]), rank(1, call(), steps=[step(4)])], 2)
    assert apart.matched == 0 and len(apart.differing) == 2


def test_sends_and_groups_that_were_not_traced_say_nothing() -> None:
    assert find_skew([rank(number, call("send")) for number in (0, 1)], 2).matched == 0
    partly = find_skew(ranks(100, 400), 4)
    assert not partly.complete and partly.matched == 1
    pairs = {"tp": GroupInfo("tp", ranks=(0, 7))}
    alone = find_skew([rank(number, call(group="tp"), groups=pairs) for number in (0, 1)], 8)
    assert alone.matched == 0 and not alone.complete


def test_ranks_of_a_group_by_name_or_by_the_mesh_dimension_that_it_is() -> None:
    groups = {"7": GroupInfo("7", "mesh_tp", (3, 1)), "9": GroupInfo("9", "dp", (0, 2))}
    assert group_ranks(rank(1, groups=groups), "7") == (1, 3) == group_ranks(rank(1, groups=groups), "tp")
    assert group_ranks(rank(1, groups=groups), "dp") == () == group_ranks(rank(1, groups=groups), "")


@settings(max_examples=50)
@given(st.lists(st.integers(1, 10_000), min_size=2, max_size=8))
def test_floor_and_late_ranks_of_any_stays(lengths: list[int]) -> None:
    profiles = ranks(*lengths)
    skew = find_skew(profiles, len(lengths))
    assert {profile.calls[0].floor for profile in profiles} == {min(lengths)}
    for late in skew.late:
        others = [length for number, length in enumerate(lengths) if number not in late.ranks]
        assert min(others) - max(lengths[number] for number in late.ranks) == late.lead > 0
        assert 0 < len(late.ranks) <= max(1, len(lengths) // 2)

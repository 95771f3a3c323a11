"""When ranks differ, as published hashes and as rings tell it; and who is blamed."""

import random

import pytest

from diagnostics.evidence.calls import Call, Described, GroupKey, Wire
from diagnostics.evidence.model import Frame
from dtk.record.verdict import Called, Place, desync, first_difference, stall


def history(calls, keep=8):
    """Count and rolling hashes of a list of calls."""
    hashes, value = [], 0
    for call in calls:
        value = hash((value, call))
        hashes.append(value)
    return len(calls), tuple(hashes[-keep:])


SAME = list("abcdefghij")


def test_ranks_that_are_ahead_are_no_difference():
    assert first_difference({0: history(SAME), 1: history(SAME[:7]), 2: history(SAME[:3]), 3: history([])}) is None


def test_the_first_differing_position():
    other = [*SAME[:4], "X", *SAME[5:]]
    assert first_difference({0: history(SAME), 1: history(other)}) == 5
    assert first_difference({0: history(SAME), 1: history(other[:5])}) == 5
    assert first_difference({0: history(SAME), 1: history(other[:4])}) is None
    assert first_difference({0: history(SAME[:2]), 1: history(SAME), 2: history(other)}) == 5


def test_too_far_apart_to_compare_is_no_difference():
    far = list(range(100))
    assert first_difference({0: history(far), 1: history(["X"])}) is None
    assert first_difference({0: history(far, keep=100), 1: history(["X"])}) == 1


def test_any_single_difference_is_found_and_nothing_else():
    rng = random.Random(5)
    for _ in range(500):
        ranks = rng.randint(2, 6)
        counts = [rng.randint(1, 12) for _ in range(ranks)]
        calls = [list(range(count)) for count in counts]
        victim = rng.randrange(ranks)
        at = rng.randrange(counts[victim])
        assert first_difference({r: history(c, 64) for r, c in enumerate(calls)}) is None
        calls[victim][at] = "X"
        seen = max(count for rank, count in enumerate(counts) if rank != victim) > at
        assert first_difference({r: history(c, 64) for r, c in enumerate(calls)}) == (at + 1 if seen else None)


def place(rank, what):
    return Place(rank, what, f"train.py:{len(what)} in step", "0:pg", step=3, region="backward")


def called(rank, *calls, position=5):
    """The calls of a rank up to `position`, each with its line."""
    result = [
        Call(
            GroupKey("dtk", "0", "default_pg"), seq, Described(Wire(what, (), ()), what), True, float(seq),
            stack=(Frame("/job/train.py", line, ""),), step=3, region="backward",
        )
        for seq, (what, line) in enumerate(calls, position - len(calls) + 1)
    ]  # fmt: skip
    return Called(rank, "0:pg", hash(calls[-1][0]), result)


def test_the_minority_is_blamed():
    same, other = ("all_reduce [8]", 14), ("barrier", 7)
    verdict = desync([called(0, same), called(1, same), called(2, other)], 5, 1, 9.0)
    assert (verdict.culprits, verdict.victims, verdict.position, verdict.attempt) == ([2], [0, 1], 5, 1)
    assert "ranks 0 and 1 called all_reduce [8] at train.py:14" in verdict.reason
    assert "rank 2 called barrier at train.py:7" in verdict.reason
    assert verdict.failure().rank == 2


@pytest.mark.parametrize("sides", [("a", "b"), ("a", "a", "b", "b"), ("a", "b", "c")])
def test_a_tie_blames_nobody(sides):
    verdict = desync([called(rank, (what, ord(what))) for rank, what in enumerate(sides)], 5, 0, 9.0)
    assert (verdict.culprits, verdict.victims, verdict.failure().rank) == ([], [], -1)


def test_a_stall_blames_who_is_outside_while_others_wait():
    outside = Place(1, "", "loader.py:3 in get (inside wait)", region="data", step=4)
    verdict = stall([place(0, "all_reduce"), outside, place(2, "all_reduce")], [], {}, 7.2, 0, 9.0)
    assert (verdict.culprits, verdict.victims, verdict.region, verdict.step) == ([1], [0, 2], "data", 4)
    assert "rank 1 is at loader.py:3" in verdict.reason


def test_a_stall_in_which_all_wait_blames_nobody():
    assert stall([place(0, "all_reduce"), place(1, "all_reduce")], [], {}, 7, 0, 9.0).culprits == []
    assert stall([Place(0, "", "a.py:1 in f"), Place(1, "", "a.py:1 in f")], [], {}, 7, 0, 9.0).culprits == []


def test_a_majority_outside_is_not_blamed():
    """The one rank inside may have made a call too many, as the diagnosis assumes of observed ranks."""
    outside = [Place(rank, "", "a.py:1 in f") for rank in (1, 2, 3)]
    verdict = stall([place(0, "all_reduce"), *outside], [], {}, 7, 0, 9.0)
    assert (verdict.culprits, verdict.victims) == ([], [])
    assert "rank 0 waits in all_reduce" in verdict.reason and "ranks 1-3 are at a.py:1 in f" in verdict.reason
    assert stall([place(0, "all_reduce"), outside[0]], [], {}, 7, 0, 9.0).culprits == [1]
    assert stall([place(0, "all_reduce"), *outside[:2]], [3], {}, 7, 0, 9.0).culprits == [3]


def test_a_rank_that_does_not_answer_is_blamed():
    verdict = stall([place(0, "all_reduce")], [1], {}, 7, 0, 9.0)
    assert verdict.culprits == [1]
    assert "rank 1 does not answer" in verdict.reason


def test_ranks_part_where_equal_calls_come_from_other_lines():
    """A call that one rank adds may look like the one its peers make there; the calls differ only later."""
    same = [("all_gather [8]", 5), ("all_reduce [8]", 6)]
    original = [*same, ("all_reduce scalar", 9), ("all_gather [8]", 5)]
    uneven = [*same, ("all_reduce scalar", 7), ("all_reduce scalar", 9)]
    ranks = {0: original, 1: uneven, 2: original}
    verdict = desync([called(rank, *calls, position=14) for rank, calls in ranks.items()], 14, 0, 9.0)
    assert (verdict.position, verdict.culprits) == (13, [1])
    assert verdict.reason == (
        "ranks called the same collective from different lines at position 13 of group default_pg (their calls differ "
        "from position 14 on): ranks 0 and 2 called all_reduce scalar at train.py:9; rank 1 called all_reduce "
        "scalar at train.py:7"
    )


def test_ranks_that_come_from_the_same_lines_part_where_their_calls_differ():
    ranks = [called(0, ("a", 5), ("b", 9), position=14), called(1, ("a", 5), ("c", 7), position=14)]
    verdict = desync(ranks, 14, 0, 9.0)
    assert verdict.position == 14
    assert verdict.reason.startswith("ranks called different collectives at position 14 of group default_pg: rank 0")


def test_a_stall_tells_groups_apart():
    places = [Place(r, "all_reduce [8]", "train.py:4", f"{r}:pg", group_name=f"group_{r}") for r in range(2)]
    reason = stall(places, [], {}, 5, 0, 9.0).reason
    assert "rank 0 waits in all_reduce [8] at train.py:4 of group group_0; rank 1 waits in" in reason
    assert (
        "ranks 0 and 1 wait in all_reduce"
        in stall([place(0, "all_reduce"), place(1, "all_reduce")], [], {}, 7, 0, 9.0).reason
    )

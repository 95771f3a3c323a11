"""The matcher: what completes, what stands where, and that neither depends on luck."""

import random
from array import array

from hypothesis import given, settings, strategies as st

from diagnostics.analysis.pairwise import Misfit
from diagnostics.contract.findings import Group
from dtk.preflight.calls import End, Program, Record
from dtk.preflight.match import alike, match
from tests.unit.preflight.programs import Step, blocking, entry, record

WORLD = Group("0", (0, 1))
OTHER = Group("1", (0, 1))


def both(first: list[Step], second: list[Step], *kinds: str) -> list[Record]:
    ends = kinds or ("finished", "finished")
    return [record(0, [WORLD, OTHER], first, ends[0]), record(1, [WORLD, OTHER], second, ends[1])]


def pending(records: list[Record]) -> dict[int, int | None]:
    return {rank: progress.pending for rank, progress in match(records).progress.items()}


def test_equal_programs_end() -> None:
    steps = blocking(("call", 0, "all_reduce", 8), ("call", 1, "barrier", 1))
    assert match(both(steps, steps)).ends


def test_a_collective_of_one_rank_only_stands_there() -> None:
    steps = blocking(("call", 0, "all_reduce", 8))
    assert pending(both([*steps, ("call", 0, "barrier", 1), ("wait", 1)], steps)) == {0: 1, 1: None}


def test_other_operation_amount_or_dtype_never_completes() -> None:
    for other in (("call", 0, "broadcast", 8), ("call", 0, "all_reduce", 4)):
        assert pending(both(blocking(("call", 0, "all_reduce", 8)), blocking(other))) == {0: 0, 1: 0}


def test_amounts_that_may_differ_do_not_matter() -> None:
    steps = blocking(("call", 0, "gather", -1))
    assert match(both(steps, steps)).ends


def test_nothing_completes_in_a_group_after_a_mismatch() -> None:
    first = [("call", 0, "all_reduce", 8), ("call", 0, "all_reduce", 2), ("wait", 1)]
    second = [("call", 0, "all_reduce", 4), ("call", 0, "all_reduce", 2), ("wait", 1)]
    assert pending(both(first, second)) == {0: 1, 1: 1}


def test_groups_in_opposite_order_stand_unless_issued_before_they_are_waited_for() -> None:
    a, b = ("call", 0, "all_reduce", 8), ("call", 1, "all_reduce", 8)
    assert pending(both(blocking(a, b), blocking(b, a))) == {0: 0, 1: 0}
    assert match(both([a, b, ("wait", 0), ("wait", 1)], [b, a, ("wait", 0), ("wait", 1)])).ends


def test_a_call_that_is_never_waited_for_holds_up_the_end() -> None:
    assert pending(both([("call", 0, "all_reduce", 8)], [])) == {0: 0, 1: None}


def test_a_rank_that_raised_does_nothing_more() -> None:
    steps = blocking(("call", 0, "all_reduce", 8))
    assert pending(both(steps, [], "finished", "raised")) == {0: 0, 1: None}
    assert pending(both([], [("call", 0, "all_reduce", 8)], "finished", "raised")) == {}


def test_send_meets_recv() -> None:
    first = blocking(("send", 0, 1), ("recv", 0, 1))
    second = blocking(("recv", 0, 0), ("send", 0, 0))
    assert match(both(first, second)).ends


def test_both_receive_first() -> None:
    assert pending(both(blocking(("recv", 0, 1), ("send", 0, 1)), blocking(("recv", 0, 0), ("send", 0, 0)))) == {
        0: 0,
        1: 0,
    }


def test_both_send_first_is_a_rendezvous() -> None:
    assert not match(both(blocking(("send", 0, 1), ("recv", 0, 1)), blocking(("send", 0, 0), ("recv", 0, 0)))).ends


def test_posted_together_they_pass() -> None:
    first = [("send", 0, 1), ("recv", 0, 1), ("wait", 0), ("wait", 1)]
    second = [("send", 0, 0), ("recv", 0, 0), ("wait", 0), ("wait", 1)]
    assert match(both(first, second)).ends


def test_groups_of_equal_ranks_and_other_names_are_not_the_same() -> None:
    steps = blocking(("call", 0, "all_reduce", 8))
    records = [record(0, [Group("1", (0, 1))], steps), record(1, [Group("2", (0, 1))], steps)]
    assert not alike(records)
    assert pending(records) == {0: 0, 1: 0}


GROUPS = [Group("0", (0, 1, 2, 3)), Group("1", (0, 1)), Group("2", (2, 3)), Group("3", (0, 2)), Group("4", (1, 3))]


def consistent(seed: int, calls: int) -> list[list[Step]]:
    """Programs that end: one global order of calls, each issued by all members; waits anywhere behind their call."""
    chance = random.Random(seed)
    programs: list[list[Step]] = [[] for _ in range(4)]
    issued, open_calls = [0] * 4, [[] for _ in range(4)]  # type: ignore[var-annotated]
    for _ in range(calls):
        if chance.random() < 0.2:
            sender, receiver = chance.sample(range(4), 2)
            steps = {sender: ("send", 0, receiver), receiver: ("recv", 0, sender)}
        else:
            index = chance.randrange(len(GROUPS))
            step = ("call", index, chance.choice(["all_reduce", "broadcast", "barrier"]), chance.randrange(1, 5))
            steps = dict.fromkeys(GROUPS[index].ranks, step)
        for rank, step in steps.items():
            programs[rank].append(step)
            open_calls[rank].append(issued[rank])
            issued[rank] += 1
            while open_calls[rank] and chance.random() < 0.6:
                programs[rank].append(("wait", open_calls[rank].pop(0)))
    return programs


def records_of(programs: list[list[Step]]) -> list[Record]:
    """Lines do not matter here, so equal calls are one entry whatever their place."""
    return [record(rank, GROUPS, steps) for rank, steps in enumerate(programs)]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 30))
def test_random_consistent_programs_end(seed: int, calls: int) -> None:
    assert match(records_of(consistent(seed, calls))).ends


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 30), st.sampled_from(["drop", "add", "amount"]))
def test_one_mutation_of_one_rank_is_caught(seed: int, calls: int, mutation: str) -> None:
    programs = consistent(seed, calls)
    chance = random.Random(seed + 1)
    places = [(rank, at) for rank in range(4) for at, step in enumerate(programs[rank]) if step[0] == "call"]
    if not places:
        return
    rank, at = chance.choice(places)
    steps = programs[rank]
    if mutation == "amount":
        steps[at] = (*steps[at][:3], 99)
    else:  # Waits name calls by number: without them one call more or less changes nothing else.
        programs[rank] = steps = [step for step in steps if step[0] != "wait" or step is steps[at]]
        at = [step[0] for step in steps].index("call")
        steps[at : at + 1] = [] if mutation == "drop" else [steps[at], steps[at]]
    assert not match(records_of(programs)).ends


def test_work_is_linear_in_the_calls() -> None:
    steps = blocking(*[("call", 0, "all_reduce", 8)] * 500)
    ranks = tuple(range(64))
    records = [record(rank, [Group("0", ranks)], steps) for rank in ranks]
    records[0] = record(0, [Group("0", ranks)], [*steps, ("call", 0, "barrier", 1), ("wait", 500)])
    result = match(records)
    assert result.events == 64 * 1000 + 2
    assert result.progress[0].pending == 500


def transfer(rank: int, sent: tuple[int, ...], taken: tuple[int, ...]) -> Record:
    """A rank whose only call has these lengths."""
    item = entry(0, "all_to_all")._replace(sent=sent, taken=taken)
    return Record(rank, Program((item,), array("i", [0, -1]).tobytes()), (WORLD,), End())


def test_what_is_sent_must_be_expected() -> None:
    assert match([transfer(0, (4,), (4,)), transfer(1, (4,), (4,))]).ends
    assert match([transfer(0, (4, 8), (4, 12)), transfer(1, (12, 4), (8, 4))]).ends
    result = match([transfer(0, (4,), (4,)), transfer(1, (12, 4), (4,))])
    assert {rank: value.pending for rank, value in result.progress.items()} == {0: 0, 1: 0}
    assert result.misfit == Misfit(sender=1, receiver=0, sent=12, expected=4, calls=(0, 0))


def test_equal_ranks_may_misfit_each_other() -> None:
    """Each sends 4 bytes to rank 0 and 8 to rank 1, and expects 4 of both."""
    assert not match([transfer(0, (4, 8), (4,)), transfer(1, (4, 8), (4,))]).ends

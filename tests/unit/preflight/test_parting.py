"""Where a rank parts from the others: what the whole lists of calls decide, and what they leave to others."""

import dataclasses

import pytest

from diagnostics.evidence.calls import Wire
from dtk.preflight.calls import End, Entry, Group, Program, Record
from dtk.preflight.edits import Edit, Token, edits
from dtk.preflight.parting import Parting, part
from tests.unit.preflight.programs import entry

RANKS = (0, 1, 2, 3)
LOOP = "/job/train.py:9\tmain"


def call(name: str, line: int, region: str = "", step: int = -1, op: str = "all_gather", size: int = 8) -> Entry:
    """A call at `line` of function `name`, in a loop."""
    site = f"/job/train.py:{line}\t{name}"
    return entry(0, op, size)._replace(site=site, stack=f"{site}\n{LOOP}", region=region, step=step)


A, B, C = call("forward", 1), call("forward", 2), call("update", 5, op="all_reduce", size=1)
EXTRA = call("evaluate", 7)


def ranks(usual: list[Entry], odd: list[Entry], who: int = 2, rounds: tuple[int, int] = (2, 2)) -> dict[int, Record]:
    found = {}
    for rank in RANKS:
        calls = odd if rank == who else usual
        kinds = tuple(dict.fromkeys(calls))
        events = b"".join(kinds.index(one).to_bytes(4, "little") for one in calls)
        program = Program(kinds, events)
        found[rank] = Record(rank, program, (Group("0", RANKS),), End(), rounds=rounds[rank == who])
    return found


def parted(usual: list[Entry], odd: list[Entry], rounds: tuple[int, int] = (2, 2)) -> Parting:
    found = part(ranks(usual, odd, rounds=rounds))
    assert found is not None
    return found


def test_a_call_that_the_others_never_make_though_it_fits_theirs() -> None:
    found = parted([A, B, C] * 3, [A, B, C, EXTRA, A, B, C, EXTRA, A, B, C])
    assert (found.kind, found.ranks, found.odd_site) == ("extra", (2,), "/job/train.py:7\tevaluate")
    assert (found.odd, found.usual, found.calls) == (3, 3, (3,))


def test_a_call_that_only_one_rank_leaves_out() -> None:
    found = parted([A, B, C] * 3, [A, B, C, A, C, A, C])
    assert (found.kind, found.ranks, found.usual_site) == ("skipped", (2,), "/job/train.py:2\tforward")
    assert (found.odd, found.usual) == (4, 4)


def test_a_forward_more_is_placed_at_its_own_line() -> None:
    again = [one._replace(stack=one.stack.replace(":9", ":11")) for one in (A, B)]
    found = parted([A, B, C] * 2, [A, B, *again, C] * 2)
    assert (found.kind, found.odd_site, len(found.calls)) == ("extra", "/job/train.py:11\tmain", 2)


def test_another_number_of_steps_is_told_by_the_steps() -> None:
    found = parted([A, B, C] * 3, [A, B, C, A, B, C, EXTRA], rounds=(3, 2))
    assert (found.kind, found.odd, found.why) == ("fewer", 6, "it runs 2 steps, its peers 3")


def test_whole_passes_again_are_iterations_and_parts_of_one_are_not() -> None:
    forward, backward = [call("f", 1, "forward", 1)], [call("b", line, "backward", 1) for line in (2, 3)]
    usual = [*forward, *backward, C] * 2
    assert parted(usual, [*forward, *backward, *backward, *backward, C] * 2).kind == "more"
    assert parted(usual, [*forward, *backward, backward[1], C] * 2).kind == "extra"


def test_gradients_that_are_never_reduced() -> None:
    usual = [A, call("loss", 3, "backward", 1), C] * 2
    assert parted(usual, [A, C] * 2).kind == "bucket"


OTHERS = {
    "another operation": ([A, B, C], [A, call("forward", 3, op="reduce"), C]),
    "another size at the same line": ([A, B, C], [A, B._replace(wire=B.wire._replace(amounts=(4,))), C]),
    "another order": ([A, B, C], [B, A, C]),
    "an equal call from another line": ([A, B, C], [A, call("other", 30), C]),
    "a bucket of DDP": ([A, call("loss", 3, "backward", op="all_reduce"), C], [A, C]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_left_to_the_detectors(name: str) -> None:
    usual, odd = OTHERS[name]
    assert part(ranks(usual, odd)) is None


def test_halves_and_failed_ranks_are_left_to_the_detectors() -> None:
    records = ranks([A, B, C], [A, C])
    halves = {rank: dataclasses.replace(records[2 if rank % 2 else 0], rank=rank) for rank in RANKS}
    assert part(halves) is None
    records[2] = dataclasses.replace(records[2], end=End("raised"))
    assert part(records) is None


def test_an_innocent_branch_is_not_blamed() -> None:
    records = ranks([A, B, C], [A, B, C, EXTRA])
    innocent = ranks([A, B, C], [A, call("other", 30), C], who=0)
    found = part({**records, 0: innocent[0]})
    assert found is not None
    assert found.ranks == (2,)


def test_long_lists_are_compared_to_where_they_were_cut_off() -> None:
    tokens = [Token("0", Wire("all_reduce", (number % 7,), ()), "x") for number in range(3000)]
    assert edits(tokens, [*tokens[:5], *tokens[6:]]) == [Edit("left out", 5, 5)]


def test_numbers_are_those_of_the_rank_that_is_shown() -> None:
    records = ranks([A, B, C], [A, B, EXTRA, C])
    events = b"".join(number.to_bytes(4, "little") for number in range(4))
    sends = Program((entry(0, "send", p2p="send", peer=1), A, B, C), events)
    records[3] = dataclasses.replace(records[3], program=sends)
    found = part(records)
    assert found is not None
    assert (found.usual_rank, found.usual, found.odd) == (0, 2, 2)

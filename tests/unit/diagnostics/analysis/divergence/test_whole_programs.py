"""How whole programs differ: the cheapest edit, what calls known to their very end decide, and what they leave open."""

import random

import pytest
from msgspec.structs import replace

from diagnostics.analysis.divergence.find import Divergence
from diagnostics.analysis.divergence.whole_programs import LONGEST, Change, PathCall, Program, align, compare_programs
from diagnostics.evidence.calls import Call, Described, GroupKey, Wire
from diagnostics.evidence.model import Frame

KEY = GroupKey("dtk", "0", "")
LOOP = Frame("/job/train.py", 9, "main")


def call(
    name: str, line: int, region: str = "", step: int | None = None, op: str = "all_gather", size: int = 8
) -> Call:
    """A call at `line` of function `name`, in a loop."""
    wire = Wire(op, (size,), ("float32",))
    stack = (Frame("/job/train.py", line, name), LOOP)
    return Call(KEY, 0, Described(wire, op), False, None, stack=stack, region=region, step=step)


A, B, C = call("forward", 1), call("forward", 2), call("update", 5, op="all_reduce", size=1)
EXTRA = call("evaluate", 7)


def program(ranks: tuple[int, ...], calls: list[Call], iterations: int = 2) -> Program:
    numbered = tuple(replace(call, seq=number) for number, call in enumerate(calls, 1))
    return Program(ranks, numbered, {KEY: (0, 1, 2, 3)}, iterations)


def compared(majority: list[Call], minority: list[Call], iterations: tuple[int, int] = (2, 2)) -> Divergence | None:
    """Rank 2 against the others."""
    return compare_programs([program((0, 1, 3), majority, iterations[0]), program((2,), minority, iterations[1])])


def divergence_of(majority: list[Call], minority: list[Call], iterations: tuple[int, int] = (2, 2)) -> Divergence:
    divergence = compared(majority, minority, iterations)
    assert divergence is not None
    assert (divergence.culprits, divergence.majority_rank, divergence.minority_rank) == ((2,), 0, 2)
    return divergence


def site(call: Call) -> tuple[int, str]:
    assert call.site is not None
    return call.site.line, call.site.function


def test_a_call_that_the_others_never_make_though_it_fits_theirs() -> None:
    divergence = divergence_of([A, B, C] * 3, [A, B, C, EXTRA, A, B, C, EXTRA, A, B, C])
    assert (divergence.kind, site(divergence.minority)) == ("added", (7, "evaluate"))
    assert (divergence.minority.seq, divergence.majority.seq) == (4, 4)
    assert [call.seq for call in divergence.explanation.calls] == [4]
    assert (divergence.whole, divergence.ended, divergence.confidence >= 0.95) == (True, "", True)


def test_a_call_that_only_one_rank_leaves_out() -> None:
    divergence = divergence_of([A, B, C] * 3, [A, B, C, A, C, A, C])
    assert (divergence.kind, site(divergence.majority)) == ("left_out", (2, "forward"))
    assert (divergence.minority.seq, divergence.majority.seq) == (5, 5)
    assert divergence.explanation.calls == (divergence.majority,)


def test_a_forward_more_is_placed_at_its_own_line() -> None:
    again = [replace(item, stack=(item.stack[0], Frame("/job/train.py", 11, "main"))) for item in (A, B)]
    divergence = divergence_of([A, B, C] * 2, [A, B, *again, C] * 2)
    assert (divergence.kind, site(divergence.minority)) == ("added", (11, "main"))
    assert len(divergence.explanation.calls) == 2


def test_another_number_of_steps_is_told_by_the_steps() -> None:
    divergence = divergence_of([A, B, C] * 3, [A, B, C, A, B, C, EXTRA], iterations=(3, 2))
    assert (divergence.kind, divergence.minority.seq, divergence.iterations) == ("fewer_iterations", 7, (2, 3))
    assert divergence.explanation.calls == (divergence.majority, divergence.minority)
    assert divergence_of([A, B, C], [A, B, C, A, B, C], iterations=(1, 2)).kind == "more_iterations"


def test_a_rank_whose_program_is_over_has_no_call_there() -> None:
    divergence = divergence_of([A, B, C] * 3, [A, B, C], iterations=(3, 1))
    assert (divergence.ended, divergence.minority.seq, divergence.majority.seq) == ("minority", 3, 4)


def test_whole_passes_again_are_iterations_and_parts_of_one_are_not() -> None:
    forward, backward = [call("f", 1, "forward", 1)], [call("b", line, "backward", 1) for line in (2, 3)]
    majority = [*forward, *backward, C] * 2
    assert divergence_of(majority, [*forward, *backward, *backward, *backward, C] * 2).kind == "more_iterations"
    assert divergence_of(majority, [*forward, *backward, backward[1], C] * 2).kind == "added"


def test_passes_without_regions_are_those_of_the_loops_lines() -> None:
    def at(line: int, *inner: int) -> list[Call]:
        frame = Frame("/job/train.py", line, "main")
        return [replace(call("f", item), stack=(Frame("/job/train.py", item, "f"), frame)) for item in inner]

    forward, backward = at(20, 1, 2), at(21, 3, 4)
    majority = [*forward, *backward, C] * 3
    assert divergence_of(majority, [*forward, *backward, *backward, C] * 3).kind == "more_iterations"
    assert divergence_of(majority, [*forward, *backward, backward[1], C] * 3).kind == "added"


def test_gradients_that_are_never_reduced() -> None:
    majority = [A, call("loss", 3, "backward", 1), C] * 2
    divergence = divergence_of(majority, [A, C] * 2)
    assert (divergence.kind, divergence.explanation.calls) == ("gradients_not_ready", (divergence.majority,))


OTHERS = {
    "equal programs": ([A, B, C], [A, B, C]),
    "another operation": ([A, B, C], [A, call("forward", 3, op="reduce"), C]),
    "another size at the same line": ([A, B, C], [A, call("forward", 2, size=4), C]),
    "another order": ([A, B, C], [B, A, C]),
    "an equal call from another line": ([A, B, C], [A, call("other", 30), C]),
    "a bucket of DDP": ([A, call("loss", 3, "backward", op="all_reduce"), C], [A, C]),
    "no calls at all": ([A, B, C], []),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_left_to_the_calls_up_to_the_stall(name: str) -> None:
    majority, minority = OTHERS[name]
    assert compared(majority, minority) is None


def test_halves_have_no_minority() -> None:
    assert compare_programs([program((0, 2), [A, B, C]), program((1, 3), [A, C])]) is None


def test_one_against_one_is_a_tie() -> None:
    both = [
        Program((rank,), program((rank,), calls).calls, {KEY: (0, 1)}, 2)
        for rank, calls in ((0, [A, B, C]), (1, [A, C]))
    ]
    divergence = compare_programs(both)
    assert divergence is not None
    assert (divergence.tie, divergence.culprits, divergence.vote.sides) == (True, (0, 1), ((0,), (1,)))
    steps = [replace(item, iterations=2 + number) for number, item in enumerate(both)]
    assert compare_programs(steps) is None, "nothing says which number of steps is right"
    assert compare_programs(steps, 4) is None, "neither rank ran the requested number"
    early = compare_programs(steps, 3)
    assert early is not None
    assert (early.kind, early.tie, early.culprits, early.iterations) == ("fewer_iterations", False, (0,), (2, 3))


def test_the_half_that_stops_early_is_at_fault() -> None:
    halves = [replace(program((0, 2), [A, B, C]), iterations=1), program((1, 3), [A, B, C] * 2)]
    divergence = compare_programs(halves, 2)
    assert divergence is not None
    assert (divergence.kind, divergence.tie, divergence.culprits) == ("fewer_iterations", False, (0, 2))


@pytest.mark.parametrize(("iterations", "culprits"), [((1, 1), (1, 2)), ((1, 2), None)])
def test_half_of_the_ranks_are_at_fault_if_all_stop_early(
    iterations: tuple[int, int], culprits: tuple[int, ...] | None
) -> None:
    """Where no number of ranks is a majority, the requested steps count against the ranks that began fewer only."""
    programs = [
        program((0, 3), [A, B, C] * 3),
        program((1,), [A, B, C], iterations[0]),
        program((2,), [A, B, C] * 2, iterations[1]),
    ]
    divergence = compare_programs(programs, 2)
    assert (divergence and divergence.culprits) == culprits


def test_ranks_that_differ_alike_are_blamed_together() -> None:
    five = {KEY: (0, 1, 2, 3, 4)}
    programs = [
        replace(program((0, 3, 4), [A, B, C]), members=five),
        replace(program((1,), [A, B, EXTRA, C]), members=five),
        replace(program((2,), [A, B, EXTRA, C, C]), members=five),
    ]
    divergence = compare_programs(programs)
    assert divergence is not None
    assert (divergence.culprits, divergence.vote.sides) == ((1, 2), ((0, 3, 4), (1, 2)))


def test_an_innocent_branch_is_not_blamed() -> None:
    programs = [
        program((1, 3), [A, B, C]),
        program((0,), [A, call("other", 30), C]),
        program((2,), [A, B, C, EXTRA]),
    ]
    divergence = compare_programs(programs)
    assert divergence is not None
    assert divergence.culprits == (2,)


def test_equal_programs_in_groups_of_their_own_are_equal() -> None:
    """Rank 0 and rank 2 each broadcast from the first rank of their own half."""

    def half(ranks: tuple[int, int], name: str) -> Program:
        key = GroupKey("dtk", name, "half")
        wire = Wire("broadcast", (8,), (), root=ranks[0])
        return Program(ranks, (replace(A, key=key, seq=1, described=Described(wire, "broadcast")),), {key: ranks}, 1)

    assert compare_programs([half((0, 1), "1"), half((2, 3), "2")]) is None
    other = replace(
        half((2, 3), "2"),
        ranks=(3,),
        calls=(*half((2, 3), "2").calls, EXTRA),
        members={KEY: (0, 1, 2, 3), **half((2, 3), "2").members},
    )
    divergence = compare_programs([half((0, 1), "1"), replace(half((2, 3), "2"), ranks=(2,)), other])
    assert divergence is not None
    assert (divergence.culprits, divergence.kind) == ((3,), "added")


PROGRAMS = 2_000


def path_call(number: int, op: str = "all_reduce", group: str = "0", size: int = 8) -> PathCall:
    return PathCall(group, Wire(op, (size,), ()), (Frame("train.py", number, "main"),))


def loop(chance: random.Random) -> list[PathCall]:
    """A few calls of several groups, a loop, a few more calls."""
    body = [
        path_call(10 + line, chance.choice(("all_reduce", "broadcast")), chance.choice("012"))
        for line in range(chance.randrange(1, 7))
    ]
    before = [path_call(1 + line) for line in range(chance.randrange(3))]
    return [*before, *body * chance.randrange(1, 9), *(path_call(50 + line) for line in range(chance.randrange(3)))]


def planted(chance: random.Random, program: list[PathCall]) -> tuple[list[PathCall], Change]:
    """The program with one run dropped, inserted or with other arguments; the run is like no other call."""
    at = chance.randrange(len(program))
    count = chance.randrange(1, 1 + min(4, len(program) - at))
    kind = chance.choice(("drop", "insert", "arguments"))
    if kind == "drop":
        run = [path_call(90 + number) for number in range(count)]
        program[at:at] = run
        return program[:at] + program[at + count :], Change("drop", at, at, count)
    if kind == "insert":
        run = [path_call(90 + number) for number in range(count)]
        return [*program[:at], *run, *program[at:]], Change("insert", at, at, count)
    other = [item._replace(wire=item.wire._replace(amounts=(4,))) for item in program[at : at + count]]
    return [*program[:at], *other, *program[at + count :]], Change("arguments", at, at, count)


def test_the_planted_edit_is_the_one_that_is_found() -> None:
    for seed in range(PROGRAMS):
        chance = random.Random(seed)
        majority = loop(chance)
        minority, change = planted(chance, majority)
        assert align(majority, minority) == [change], seed


def test_several_edits_are_found_in_order() -> None:
    a, b, c, extra = (path_call(line, size=line) for line in range(1, 5))
    assert align([a, b, c] * 2, [a, b, c, extra, a, c]) == [Change("insert", 3, 3, 1), Change("drop", 4, 5, 1)]


def test_equal_calls_from_other_lines_are_no_change() -> None:
    assert align([path_call(1), path_call(2)], [path_call(1), path_call(3)]) == []


@pytest.mark.parametrize("kind", ["drop", "insert"])
def test_histories_that_are_cut_off_say_nothing_about_their_ends(kind: str) -> None:
    long = [path_call(number % 7) for number in range(LONGEST + 500)]
    short = [*long[:5], *long[6:]]
    pair = (long, short) if kind == "drop" else (short, long)
    assert [(change.kind, change.majority_at, change.count) for change in align(*pair)] == [(kind, 5, 1)]


def test_where_a_run_ends() -> None:
    assert Change("drop", 3, 4, 2).end == (5, 4)
    assert Change("insert", 3, 4, 2).end == (3, 6)
    assert Change("arguments", 3, 4, 2).end == (5, 6)

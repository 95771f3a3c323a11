"""The cheapest edit of whole histories equals the one that was planted."""

import random

import pytest

from diagnostics.analysis.divergence.whole_programs import LONGEST, Change, PathCall, align
from diagnostics.evidence.calls import Wire
from diagnostics.evidence.model import Frame

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
    other = [one._replace(wire=one.wire._replace(amounts=(4,))) for one in program[at : at + count]]
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
    assert [(one.kind, one.majority_at, one.count) for one in align(*pair)] == [(kind, 5, 1)]


def test_where_a_run_ends() -> None:
    assert Change("drop", 3, 4, 2).end == (5, 4)
    assert Change("insert", 3, 4, 2).end == (3, 6)
    assert Change("arguments", 3, 4, 2).end == (5, 6)

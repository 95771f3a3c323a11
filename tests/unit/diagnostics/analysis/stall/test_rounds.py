"""How calls repeat from round to round, and where a rank departs from its own earlier rounds."""

import pytest

from diagnostics.analysis.stall.rounds import departure, rounds
from diagnostics.evidence.calls import Call
from tests.unit.diagnostics.analysis.calls import history

FORWARD, BACKWARD, END = [12, 14], [16, 17], [18]
ROUND = [*FORWARD * 4, *BACKWARD * 4, *END]


def parts(*lines: int) -> list[list[int]]:
    return [[call.site.line for call in part if call.site] for part in rounds(history(*lines))]


def departs(*lines: int) -> tuple[str, int, int] | None:
    passes = rounds(history(*lines))
    departs_by = departure(passes, len(passes) - 1)
    return departs_by and (departs_by.kind, line_of(departs_by.call), line_of(departs_by.expected))


def line_of(call: Call) -> int:
    return call.site.line if call.site else 0


def test_the_outermost_loop_makes_the_rounds() -> None:
    assert parts(*ROUND * 3, 12) == [ROUND, ROUND, ROUND, [12]]
    assert parts(5, 6, *ROUND * 2, 12, 14) == [[5, 6, *ROUND], ROUND, [12, 14]], "the set-up is in the first part"
    assert parts(1, 2, 3) == [[1, 2, 3]] and parts() == [[]]
    assert parts(*[7] * 3) == [[7], [7], [7]]


def test_loops_of_different_lengths_and_a_rare_call_after_a_round_leave_the_rounds() -> None:
    uneven = [[*FORWARD * count, *BACKWARD * count] for count in (1, 3, 2, 4)]
    assert parts(*[line for calls in uneven for line in calls], 12) == [*uneven, [12]]
    assert parts(*ROUND, *ROUND, 30, *ROUND, 12) == [ROUND, [*ROUND, 30, *ROUND], [12]]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ([], None),
        (FORWARD * 2, None),
        (ROUND, None),
        ([12, 14, 12, 12], ("order", 12, 14)),  # A call is skipped ...
        ([12, 14, 12, 16], ("order", 16, 14)),
        ([12, 12, 14, 12, 14, 16, 17, 16], ("order", 12, 14)),  # ... and the rank went on.
        ([*FORWARD * 3, 16], ("count", 16, 12)),  # Fewer, and more.
        ([*FORWARD * 4, 12], ("count", 12, 16)),
        ([*FORWARD * 4, *BACKWARD * 4, 16], ("count", 16, 18)),
        ([12, 14, 99], ("new", 99, 12)),
    ],
)
def test_the_first_call_that_no_earlier_round_had_there(now: list[int], expected: tuple[str, int, int] | None) -> None:
    assert departs(*ROUND * 3, *now) == expected


def test_a_round_like_any_earlier_one_departs_from_none() -> None:
    short = [*FORWARD * 2, *BACKWARD * 2, *END]
    assert departs(*ROUND, *short, *ROUND, *short, *FORWARD * 2, 16) is None
    assert departs(*ROUND, *short, *ROUND, *short, *FORWARD * 3, 16) == ("count", 16, 12)


def test_a_whole_round_ends_with_the_first_call_of_the_next() -> None:
    passes = rounds(history(*ROUND * 3, *FORWARD * 3, *BACKWARD * 3, *END, 12))
    assert departure(passes, 4) is None and (departs_by := departure(passes, 3)) is not None
    assert (departs_by.kind, line_of(departs_by.call), line_of(departs_by.expected)) == ("count", 16, 12)

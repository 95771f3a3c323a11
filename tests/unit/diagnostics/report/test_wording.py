"""Words for the parts of a finding: who is to blame, places, the cost."""

import pytest

from diagnostics.contract.findings import Cost, Group, Where
from diagnostics.report import wording
from diagnostics.report.document import plain
from tests.unit.diagnostics.report.samples import finding, mismatch


def test_blame_names_ranks_victims_step_group_and_position() -> None:
    assert wording.blame(mismatch()) == ("rank 1 (victims: ranks 0, 2-3), step 12, group default_pg [0-3], position 41")
    assert wording.blame(finding("hang.network")) == "no rank"
    assert wording.blame(finding("hang.rank_killed")) == "a rank that no line names"
    assert wording.blame(finding("hang.network", group=Group("", ()))) == "no rank, group default"
    assert wording.blame(finding("x", ranks=(2,), group=Group("5", (), ""))) == "rank 2, group 5"


def test_a_place_is_shown_with_the_ranks_there_and_what_they_do() -> None:
    where = Where(3, "/job/train.py", 12, "step", "waits in all_reduce")
    long, short = wording.place_of((1, 3), where)
    assert plain(long) == "/job/train.py:12 in step (ranks 1, 3), waits in all_reduce"
    assert plain(short) == "/job/train.py:12 in step (ranks 1, 3)"
    assert isinstance(short, tuple) and [getattr(span, "elastic", False) for span in short] == [True, False]
    assert plain(wording.place_of((), Where(None, "a.py", 1))[0]) == wording.place(Where(None, "a.py", 1)) == "a.py:1"


def test_ranks_at_one_place_are_one_side_and_those_to_blame_come_first() -> None:
    sides = wording.sides(mismatch())
    assert [(ranks, where.line) for ranks, where in sides] == [((1,), 88), ((0, 2, 3), 61)]
    late = finding(
        "x", ranks=(2,), where=(Where(0, "a.py", 1), Where(2, "a.py", 1), Where(None, "b.py", 2), Where(0, "a.py", 1))
    )
    assert [(ranks, where.file) for ranks, where in wording.sides(late)] == [
        ((2,), "a.py"),
        ((0, 0), "a.py"),
        ((), "b.py"),
    ]


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (None, ""),
        (Cost(3.0, "none"), ""),
        (Cost(3.1 * 2**30, "bytes"), "3.1 GiB"),
        (Cost(5.234, "s blocked"), "5.23 s blocked"),
        (Cost(12345.6, "s blocked"), "12,346 s blocked"),
        (Cost(41.0, "ms per step"), "41 ms per step"),
        (Cost(1.0, "steps lost"), "1 step lost"),
        (Cost(7.0, "steps lost"), "7 steps lost"),
    ],
)
def test_the_cost(cost: Cost | None, text: str) -> None:
    assert wording.cost(cost) == text

"""Groups that are used in different orders, so that each side waits for the other."""

from pathlib import Path

from tests.unit.diagnostics.causes.hang.helpers import finding, job
from tests.unit.diagnostics.hang.dumps import Op

CAUSE = "hang.group_order"
FIRST, SECOND = Op(group="1", line=11), Op(group="2", line=12)


def test_a_circle_of_two_names_both_lines_and_both_causes(tmp_path: Path) -> None:
    result = finding(tmp_path, job([FIRST, SECOND], [SECOND, FIRST], groups={"1": [0, 1], "2": [0, 1]}), CAUSE)
    assert (result.status, result.ranks, result.victims) == ("confirmed", (0, 1), ())
    assert "rank 0 waits for rank 1 in " in result.summary and "rank 1 waits for rank 0 in " in result.summary
    assert "Neither order is wrong by itself. Alternatively, one of them skips the call" in result.summary
    assert result.confidence == 0.6 and "leaves one of the calls out" in result.remedies[1].change
    assert result.measured == "cycle of 2 ranks over 2 operations"
    assert result.remedies[0].change.endswith(": /job/train.py:11 and /job/train.py:12")


def test_others_that_wait_behind_the_circle_are_victims(tmp_path: Path) -> None:
    barrier = Op("barrier", line=30)
    groups = {"1": [0, 1], "2": [0, 1]}
    result = finding(tmp_path, job([FIRST, SECOND, barrier], [SECOND, FIRST, barrier], [barrier], groups=groups), CAUSE)
    assert (result.ranks, result.victims) == ((0, 1), (2,))


def test_one_order_on_all_ranks_is_none(tmp_path: Path) -> None:
    result = finding(tmp_path, job([FIRST, SECOND], [FIRST, SECOND], groups={"1": [0, 1], "2": [0, 1]}), CAUSE)
    assert result.status == "ruled_out"


def test_one_line_that_serves_both_groups_through_a_variable_is_left_by_nobody(tmp_path: Path) -> None:
    """`first, second = (b, a)`: the other order, or a call that was left out, but no loop that ended."""
    first, second = (Op(group=group, line=11 + at) for at, group in enumerate("12"))
    turned = [Op(group="2", line=11), Op(group="1", line=12)]
    steps = [first, second] * 5
    played = job(
        [*steps, first, second], [*steps, *turned], [*steps, first, second], groups={"1": [0, 1, 2], "2": [0, 1, 2]}
    )
    result = finding(tmp_path, played, CAUSE)
    assert (result.status, result.ranks, result.victims, result.confidence) == ("confirmed", (1,), (0, 2), 0.6)
    assert result.summary.endswith("skips the call in which the other waits.")
    assert finding(tmp_path, played, "hang.uneven_iterations").status != "confirmed"

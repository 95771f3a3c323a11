"""Another operation at the same position of a group."""

from pathlib import Path

from tests.unit.diagnostics.causes.hang.helpers import STEP, finding, job
from tests.unit.diagnostics.hang.dumps import Op

CAUSE = "hang.collective_mismatch"
MINE, THEIRS = Op("broadcast", line=21), Op("all_reduce", line=22)


def test_both_sides_are_named_with_their_lines(tmp_path: Path) -> None:
    result = finding(tmp_path, job(*[[*STEP, MINE if rank == 2 else THEIRS] for rank in range(4)]), CAUSE)
    assert (result.status, result.ranks, result.victims, result.position) == ("confirmed", (2,), (0, 1, 3), 3)
    assert (
        result.summary.startswith("Rank 2 calls broadcast")
        and "where ranks 0, 1 and 3 call all_reduce" in result.summary
    )
    assert "position 3 of group default_pg" in result.summary and result.measured.startswith("1 of 4 ranks differ at ")
    assert [(place.rank, place.line) for place in result.where] == [(2, 21), (0, 22)]
    (remedy,) = result.remedies
    assert remedy.change.endswith("/job/train.py:21 and /job/train.py:22 must be the same collective")


def test_without_stacks_the_calls_are_named_by_what_they_are(tmp_path: Path) -> None:
    result = finding(tmp_path, job(*[[MINE if rank else THEIRS] for rank in range(3)], stacks=False), CAUSE)
    assert result.where == () and "broadcast [8] float32 (#1) occupy the same position" in result.remedies[0].change


def test_two_against_two_is_a_tie(tmp_path: Path) -> None:
    result = finding(tmp_path, job([MINE], [MINE], [THEIRS], [THEIRS]), CAUSE)
    assert result.ranks == (0, 1, 2, 3) and "It is a tie (2 against 2)" in result.summary


def test_the_same_calls_rule_it_out(tmp_path: Path) -> None:
    result = finding(tmp_path, job(STEP * 3, STEP * 3), CAUSE)
    assert result.status == "ruled_out" and result.measured == "0 of 2 ranks wait; 0 of 12 calls differ"

"""All ranks of a group are in the same collective and none comes out of it."""

from pathlib import Path

from tests.unit.diagnostics.causes.hang.helpers import STEP, finding, job

CAUSE = "hang.network"


def test_nobody_is_blamed_and_all_are_victims(tmp_path: Path) -> None:
    found = finding(tmp_path, job(*[STEP * 2] * 4, nobody_completes=4), CAUSE)
    assert (found.status, found.ranks, found.victims, found.position) == ("confirmed", (), (0, 1, 2, 3), 4)
    assert (
        found.summary.startswith("All 4 ranks of the group agree: they are in all_gather") and found.confidence == 0.75
    )
    assert "first collective" not in found.summary and found.measured.endswith("in the same collective, 0 completed")


def test_the_first_collective_of_a_group_may_lack_its_connections(tmp_path: Path) -> None:
    found = finding(tmp_path, job(*[STEP] * 2, nobody_completes=1), CAUSE)
    assert "It is the group's first collective" in found.summary


def test_ranks_that_disagree_are_no_fault_of_the_network(tmp_path: Path) -> None:
    found = finding(tmp_path, job(STEP * 2, STEP), CAUSE)
    assert found.status != "confirmed"

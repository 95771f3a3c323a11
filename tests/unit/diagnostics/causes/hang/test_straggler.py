"""A rank is slow, not stuck: everything completed, and one rank kept coming late."""

from dataclasses import replace
from pathlib import Path

from tests.unit.diagnostics.causes.hang.helpers import STEP, finding, job

CAUSE = "hang.straggler"


def test_the_rank_that_keeps_coming_late_is_named_with_what_it_costs(tmp_path: Path) -> None:
    slow = [replace(STEP[0], takes_s=2.0), STEP[1]] * 5
    found = finding(tmp_path, job(STEP * 5, slow, STEP * 5), CAUSE)
    assert (found.status, found.ranks, found.victims) == ("confirmed", (1,), (0, 2))
    assert (
        found.summary.startswith("Rank 1 is late, not stuck: ")
        and "after ranks 0 and 2; everything completed" in found.summary
    )
    assert found.cost is not None and 8.0 <= found.cost.value <= 10.5 and found.cost.unit == "s blocked"


def test_ranks_that_come_together_are_none(tmp_path: Path) -> None:
    assert finding(tmp_path, job(STEP * 5, STEP * 5), CAUSE).status != "confirmed"

"""A rank ran fewer or more steps of the loop than the others."""

from pathlib import Path

import pytest

from tests.unit.diagnostics.causes.hang.helpers import STEP, finding, job
from tests.unit.diagnostics.hang.dumps import Op

CAUSE = "hang.uneven_iterations"
END = Op("barrier", line=30, function="finish", caller=95)


@pytest.mark.parametrize(("steps", "times"), [(3, "fewer"), (5, "more")])
def test_one_rank_runs_the_loop_otherwise(tmp_path: Path, steps: int, times: str) -> None:
    programs = [[*STEP * (steps if rank == 1 else 4), END] for rank in range(4)]
    result = finding(tmp_path, job(*programs), CAUSE)
    assert (result.status, result.ranks) == ("confirmed", (1,))
    assert (
        f"{times} times than ranks 0, 2 and 3" in result.summary
        or "left the loop" in result.summary
        or "continues with" in result.summary
    )
    assert result.remedies[0].change.startswith("make all ranks run the same number of steps")
    assert result.remedies[0].why == "every rank must run the loop the same number of times"


def test_equal_steps_rule_it_out(tmp_path: Path) -> None:
    result = finding(tmp_path, job(*[[*STEP * 4, END]] * 4), CAUSE)
    assert result.status == "ruled_out"

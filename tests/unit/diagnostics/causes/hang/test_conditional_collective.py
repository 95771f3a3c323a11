"""A collective that only some ranks issue."""

from pathlib import Path

from tests.unit.diagnostics.causes.hang.helpers import STEP, finding, job
from tests.unit.diagnostics.hang.dumps import Op

CAUSE = "hang.conditional_collective"
METRIC = Op(size=1, line=50, function="log_metrics")


def test_a_call_of_one_rank_is_added(tmp_path: Path) -> None:
    programs = [[*STEP * 2, *([METRIC] if rank == 0 else []), *STEP * 2] for rank in range(4)]
    result = finding(tmp_path, job(*programs), CAUSE)
    assert (result.status, result.ranks, result.victims) == ("confirmed", (0,), (1, 2, 3))
    assert result.summary.startswith("Only rank 0 calls all_reduce [1] float32 (#5, train.py:50); ranks 1-3 are in ")
    (remedy,) = result.remedies
    assert remedy.change == (
        "make /job/train.py:50 unconditional, so that all ranks or none call all_reduce [1] float32"
    )


def test_a_call_that_one_rank_leaves_out(tmp_path: Path) -> None:
    programs = [[*STEP * 2, *([] if rank == 3 else [METRIC]), *STEP * 2] for rank in range(4)]
    result = finding(tmp_path, job(*programs), CAUSE)
    assert (result.status, result.ranks) == ("confirmed", (3,))
    assert result.summary.startswith(
        "Rank 3 skipped all_reduce [1] float32 (#5, train.py:50), in which ranks 0-2 wait; it is already in "
    )
    assert result.remedies[0].change.startswith(
        "call all_reduce [1] float32 at /job/train.py:50 on all ranks of its group"
    )
    assert str(result.where[0].does).startswith("is already in")


def test_a_mismatch_of_operations_leaves_no_call_out(tmp_path: Path) -> None:
    calls = [[*STEP, Op("broadcast", line=21) if rank == 1 else Op(line=22), *STEP] for rank in range(4)]
    result = finding(tmp_path, job(*calls), CAUSE)
    assert result.status == "ruled_out" and result.summary.startswith("No call was skipped or added: ")


def test_of_a_dump_that_cannot_be_read_it_stays_open(tmp_path: Path) -> None:
    result = finding(tmp_path, job(STEP * 2, STEP * 2, STEP), CAUSE, without=(2,))
    assert (result.status, result.victims) == ("undecided", (0, 1))
    assert "wait for rank 2, which left no readable dump" in result.summary and "rank 2" in result.missing

"""The same operation with other arguments."""

from pathlib import Path

import pytest

from diagnostics.diagnose import diagnose
from tests.unit.diagnostics.causes.hang.helpers import STEP, finding, job
from tests.unit.diagnostics.hang.dumps import Op

CAUSE = "hang.signature_mismatch"


@pytest.mark.parametrize("odd", [Op(size=9, line=12), Op(dtype="Half", line=12)])
def test_the_rank_with_other_arguments_is_blamed(tmp_path: Path, odd: Op) -> None:
    found = finding(tmp_path, job(*[[*STEP, odd if rank == 1 else Op(line=12)] for rank in range(4)]), CAUSE)
    assert (found.status, found.ranks, found.position) == ("confirmed", (1,), 3)
    assert (
        found.summary.startswith("Rank 1 calls all_reduce")
        and "where ranks 0, 2 and 3 have all_reduce [8]" in found.summary
    )
    assert found.remedies[0].change == "use the same shape, dtype, root and ReduceOp on every rank at /job/train.py:12"


def test_another_operation_is_not_another_argument(tmp_path: Path) -> None:
    found = finding(tmp_path, job([Op(line=3)], [Op("broadcast", line=4)], [Op(line=3)]), CAUSE)
    assert (found.status, found.summary) == (
        "ruled_out",
        "The ranks issue different operations at position 1 of group default_pg.",
    )


def test_where_all_completed_root_and_operator_are_not_in_the_dumps(tmp_path: Path) -> None:
    found = finding(tmp_path, job(STEP, STEP), CAUSE)
    assert found.status == "ruled_out" and "root and ReduceOp are not in these dumps" in found.summary


def test_gloos_own_text_alone_blames_nobody(tmp_path: Path) -> None:
    """The rank that aborts is the one that met the wrong size, not the one that brought it."""
    abort = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at "
    abort += "../third_party/gloo/gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 48 vs 32\n"
    (tmp_path / "job.log").write_text("step 1 loss 2.0\n" + abort)
    report = diagnose(tmp_path)
    assert (report.outcome, report.root_causes) == ("undecided", ())
    suspected = {suspicion.cause: suspicion for suspicion in report.suspicions}
    assert {CAUSE, "hang.conditional_collective", "hang.uneven_iterations"} == {*suspected}
    assert suspected[CAUSE].ranks == () and suspected[CAUSE].decide.startswith("dtk watch -- ")

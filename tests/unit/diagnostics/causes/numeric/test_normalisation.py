"""`numeric.normalisation` from the lines that trainers print of their steps."""

from pathlib import Path

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from tests.unit.diagnostics.causes.numeric.trainers import falling, log

LOSSES = falling(60)
FOUR = [round(4 * float(str(loss)), 4) for loss in LOSSES]


def test_the_factor_and_both_runs_are_named(tmp_path: Path) -> None:
    (tmp_path / "mean.log").write_text(log("titan", LOSSES, [1.0] * 60))
    (tmp_path / "sum.log").write_text(log("titan", FOUR, [4.0] * 60))
    (root,) = diagnose(tmp_path).root_causes
    assert root.cause == "numeric.normalisation"
    assert "The loss in sum.log is 4 times that in mean.log" in text_of(root).summary


def test_two_runs_that_differ_otherwise_are_none(tmp_path: Path) -> None:
    (tmp_path / "one.log").write_text(log("titan", LOSSES, [1.0] * 60))
    (tmp_path / "other.log").write_text(log("titan", [*LOSSES[:30], *FOUR[:30]], [1.0] * 60))
    assert "numeric.normalisation" not in [root.cause for root in diagnose(tmp_path).root_causes]

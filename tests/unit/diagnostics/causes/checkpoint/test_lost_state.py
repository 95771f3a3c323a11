"""`checkpoint.lost_state` from the lines that trainers print of their steps."""

from pathlib import Path

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from tests.unit.diagnostics.causes.numeric.trainers import falling, log

FIRST = log("titan", falling(200), [1.0] * 200)


def resumed(losses: list[object]) -> str:
    """Lines from step 201 on."""
    return "".join(log("titan", [*falling(200), *losses], [1.0] * (200 + len(losses))).splitlines(keepends=True)[200:])


def test_a_model_that_starts_anew(tmp_path: Path) -> None:
    (tmp_path / "before.log").write_text(FIRST)
    (tmp_path / "after.log").write_text(resumed(falling(40)))
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.step) == ("checkpoint.lost_state", 201)
    assert "training starts from scratch" in text_of(root).summary


def test_in_one_log_it_is_no_spike(tmp_path: Path) -> None:
    back = "".join(log("titan", [*falling(150), *[2.2] * 40], [1.0] * 190).splitlines(keepends=True)[150:])
    (tmp_path / "train.log").write_text(FIRST + "Loading checkpoint step 150\n" + back)
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ["checkpoint.lost_state"]


def test_a_resume_that_goes_on_is_none(tmp_path: Path) -> None:
    (tmp_path / "before.log").write_text(FIRST)
    (tmp_path / "after.log").write_text(resumed([*falling(240)[200:]]))
    assert not diagnose(tmp_path).root_causes

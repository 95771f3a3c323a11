"""`numeric.frozen_update` from the lines that trainers print of their steps."""

from pathlib import Path

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from tests.unit.diagnostics.causes.numeric.trainers import falling, log

NOISE: list[object] = [round(2.0 + 0.01 * ((n * 7919) % 13), 4) for n in range(60)]


@pytest.mark.parametrize(
    ("losses", "norms", "words"),
    [
        (NOISE, [0.0] * 60, "the gradient norm is exactly 0 in the last 60 steps"),
        ([0.6931] * 60, [1.0] * 60, "the loss is 0.6931 in each of the last 60 steps"),
    ],
)
def test_one_run(tmp_path: Path, losses: list[object], norms: list[object], words: str) -> None:
    (tmp_path / "train.log").write_text(log("titan", losses, norms))
    (root,) = diagnose(tmp_path).root_causes
    assert root.cause == "numeric.frozen_update" and words in text_of(root).summary


@pytest.mark.parametrize(
    ("losses", "norms"),
    [
        (NOISE, [1.0] * 60),
        ([2.3] * 60, [1.0] * 60),  # Two digits repeat by themselves.
        ([0.0] * 60, [0.0] * 60),  # Everything is learnt, or not finite: another question.
        (falling(60), [*[0.0] * 50, *[1.0] * 10]),
    ],
)
def test_others_are_none(tmp_path: Path, losses: list[object], norms: list[object]) -> None:
    (tmp_path / "train.log").write_text(log("titan", losses, norms))
    assert "numeric.frozen_update" not in [root.cause for root in diagnose(tmp_path).root_causes]


@pytest.mark.parametrize(
    ("first", "grows", "frozen"), [(0, 1e-9, False), (1e-9, 0, True), (0, 0, True), (0, 1e-6, True)]
)
def test_the_first_steps_of_a_warm_up_change_no_printed_digit(
    tmp_path: Path, first: float, grows: float, frozen: bool
) -> None:
    rows = (f"step {n} loss 0.693147 grad_norm 2.{n} lr {first + grows * n:.2e}" for n in range(30))
    (tmp_path / "train.log").write_text("\n".join(rows))
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ["numeric.frozen_update"] * frozen

"""`checkpoint.lost_state` from the lines that trainers print of their steps."""

from pathlib import Path

import pytest

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


def test_a_loss_that_rises_some_steps_after_a_resume(tmp_path: Path) -> None:
    (tmp_path / "before.log").write_text(FIRST)
    (tmp_path / "after.log").write_text(resumed([1.0, 1.01, *[2.2] * 38]))
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.step) == ("checkpoint.lost_state", 201)
    assert "a part of the state was not loaded" in text_of(root).summary


def test_in_one_log_it_is_no_spike(tmp_path: Path) -> None:
    back = "".join(log("titan", [*falling(150), *[2.2] * 40], [1.0] * 190).splitlines(keepends=True)[150:])
    (tmp_path / "train.log").write_text(FIRST + "Loading checkpoint step 150\n" + back)
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ["checkpoint.lost_state"]


RESUMES = [
    "***** Running training *****\n  Continuing training from checkpoint, will skip to saved global_step",
    "Restoring states from the checkpoint path at /runs/a/last.ckpt",
    "Restored all states from the checkpoint at /runs/a/last.ckpt",
    "[2025-11-22 10:20:30,123] [INFO] [torch_checkpoint.py:27:load] Loading checkpoint from /runs/a/global_step60",
    " loading distributed checkpoint from /runs/a at iteration 60",
    "  successfully loaded checkpoint from /runs/a [ t 1/1, p 1/1 ] at iteration 60",
    "[rank0]:[titan] 2025-11-22 10:20:30,1 - root - INFO - Loading the checkpoint from outputs/checkpoint/step-60.",
    "Resuming from step 60",
    "=> loaded checkpoint 'model.pth' (epoch 3)",
    "Resuming training from out",
    "mmengine - INFO - resumed epoch: 3, iter: 60",
    "W1122 10:20:30 torch/distributed/elastic/agent/server/api.py:870] Worker group FAILED. 2/3 attempts left; will "
    "restart worker group",
]


@pytest.mark.parametrize("words", RESUMES)
@pytest.mark.parametrize("trainer", ["hf", "lightning", "megatron", "titan"])
def test_a_resume_in_one_log_whose_counter_goes_on(tmp_path: Path, trainer: str, words: str) -> None:
    lines = log(trainer, [*falling(60), *[round(3.6 - n * 0.01, 3) for n in range(30)]], [1.0] * 90).splitlines()
    (tmp_path / "train.log").write_text("\n".join([*lines[:60], words, *lines[60:], ""]))
    (root,) = diagnose(tmp_path).root_causes
    assert root.cause == "checkpoint.lost_state"
    place = "step 61" if trainer != "hf" else "epoch 0.61"
    assert f"before a resume at {place} and is 3.58 after it" in text_of(root).summary


@pytest.mark.parametrize(
    ("words", "after"),
    [
        ("Saving model checkpoint to /runs/a/checkpoint-60", 60),
        ("Loading checkpoint shards: 100%|####| 3/3 [00:01<00:00, 2.1it/s]", 60),
        ("Resuming from step 60", 45),  # The loss jumps long after it.
        ("Resuming from step 80", 75),  # It has jumped long before it.
    ],
)
def test_a_jump_without_a_resume_at_its_step_is_a_spike(tmp_path: Path, words: str, after: int) -> None:
    lines = log("titan", [*falling(60), *[round(7.6 - n * 0.01, 3) for n in range(30)]], [1.0] * 90).splitlines()
    (tmp_path / "train.log").write_text("\n".join([*lines[:after], words, *lines[after:], ""]))
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ["numeric.spike"]


def test_a_run_that_prints_less_often_than_another_is_no_resume(tmp_path: Path) -> None:
    (tmp_path / "one.log").write_text("".join(f"step {10 * n} loss {4.0 - 0.01 * n}\n" for n in range(1, 60)))
    (tmp_path / "other.log").write_text("".join(f"step {200 * n} loss {9.0 - 0.01 * n}\n" for n in range(1, 30)))
    assert not diagnose(tmp_path).root_causes


def test_a_resume_that_goes_on_is_none(tmp_path: Path) -> None:
    (tmp_path / "before.log").write_text(FIRST)
    (tmp_path / "after.log").write_text(resumed([*falling(240)[200:]]))
    assert not diagnose(tmp_path).root_causes

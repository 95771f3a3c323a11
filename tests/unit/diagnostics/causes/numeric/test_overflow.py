"""`numeric.overflow` from steps that trainers skip, and from the error with which they give up."""

from pathlib import Path

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from tests.unit.diagnostics.causes.numeric.trainers import TRAINERS, causes, falling, log


def deepspeed(scales: list[int]) -> str:
    what = "[INFO] [loss_scaler.py:181:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: "
    return "".join(f"{what}{scale}, reducing to {max(scale // 2, 1)}\n" for scale in scales)


def apex(powers: range) -> str:
    return "".join(
        f"Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {2.0**n}\n" for n in powers
    )


GAVE_UP = (
    '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/ds/loss_scaler.py", line 175, in update_scale\n'
    "[rank0]: Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.\n"
)
SKIPS = "".join(
    TRAINERS["megatron"](n, "", "inf")
    .replace(" lm loss:  |", "")
    .replace("skipped iterations:   0", "skipped iterations:   1")
    + "\n"
    for n in range(20)
)


@pytest.mark.parametrize(
    "text",
    [
        deepspeed([2**n for n in range(16, -1, -1)]) + GAVE_UP,
        deepspeed([4, 2, 1, 1, 1, 1]),
        log("hf", falling(20), [1.0] * 20) + deepspeed([2**n for n in range(7, 0, -1)]),
        apex(range(15, -30, -1)),
        log("megatron", falling(20), [1.0] * 20) + SKIPS,
    ],
)
def test_overflow_without_end(tmp_path: Path, text: str) -> None:
    assert causes(tmp_path, text) == ["numeric.overflow"]


@pytest.mark.parametrize("text", [deepspeed([65536, 32768, 16384]), apex(range(15, 11, -1))])
def test_finding_a_loss_scale_is_no_fault(tmp_path: Path, text: str) -> None:
    assert causes(tmp_path, text + log("hf", falling(40), [1.0] * 40)) == []


def test_what_skipped_steps_alone_show(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(deepspeed([2**n for n in range(24, 20, -1)]))
    report = diagnose(tmp_path)
    assert report.outcome == "undecided"
    assert report.statement.startswith("4 steps skipped to find float16's loss scale, now 1,048,576, and no known")


def test_the_error_of_the_trainer_names_the_ranks_that_gave_up(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1 loss 2.0\n" + GAVE_UP)
    (root,) = diagnose(tmp_path).root_causes
    text = text_of(root)
    assert (root.cause, root.ranks, root.victims, root.confidence) == ("numeric.overflow", (), (0,), 0.95)
    assert "The trainer gave up: Current loss scale already at minimum" in text.summary
    assert text.measured == "the loss scale is at its minimum" and "bfloat16" in text.remedies[0].change


def test_printed_steps_that_go_on_rule_it_out(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(log("hf", falling(40), [1.0] * 40))
    (finding,) = (item.finding for item in diagnose(tmp_path).findings if item.finding.cause == "numeric.overflow")
    assert finding.status == "ruled_out"
    assert text_of(finding).measured == "40 recorded steps; the last ones were not skipped"


def test_the_trainers_last_word_without_frames_and_rank_is_enough(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("step 9 loss 2.1\n" + GAVE_UP.splitlines()[-1].removeprefix("[rank0]: ") + "\n")
    assert diagnose(tmp_path).root_causes[0].cause == "numeric.overflow"


def test_a_scale_at_its_lowest_is_not_called_fine(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(deepspeed([4, 2]))
    report = diagnose(tmp_path)
    assert not report.root_causes and "at its minimum" in report.statement and "no known" not in report.statement


@pytest.mark.parametrize(
    "text",
    [
        deepspeed([2**n for n in range(16, 0, -1)]),  # It was still to be found.
        log("hf", falling(20), [1.0] * 20).join(deepspeed([2**n]) for n in range(7, 0, -1)),  # Steps lie between.
        deepspeed([2**n for n in range(7, 0, -1)]) + log("hf", falling(40), [1.0] * 40),
    ],
)
def test_a_scale_that_fell_otherwise_shows_no_overflow_without_end(tmp_path: Path, text: str) -> None:
    assert causes(tmp_path, text) == []


FAIRSEQ = "| WARNING: overflow detected, setting loss scale to: {}\n"
STEP = "| epoch 001:    {} / 1374 loss=12.636, num_updates={}, gnorm=2.302\n"


@pytest.mark.parametrize(("every", "roots"), [(0, ["numeric.overflow"]), (3, [])])
def test_below_a_scale_of_1_no_step_may_come_between(tmp_path: Path, every: int, roots: list[str]) -> None:
    """The scale of fairseq falls on below 1, unlike DeepSpeed's, and training may work there."""
    lines = [STEP.format(1, 1)]
    for n in range(12):
        lines += [FAIRSEQ.format(2.0**-n), *([STEP.format(n, n)] if every and n % every == 0 else [])]
    (tmp_path / "job.log").write_text("".join(lines))
    assert [root.cause for root in diagnose(tmp_path).root_causes] == roots


ROW = "[2021-11-25 02:07:16,494] [INFO] [logging.py:69:log_dist] [Rank 0] step={}, skipped={}, lr=[0.001], mom=[0.0]\n"


@pytest.mark.parametrize(
    ("rows", "roots"),
    [
        ([(2000, 1995)], ["numeric.overflow"]),
        ([(100, 20), (200, 119), (300, 219)], ["numeric.overflow"]),
        ([(10, 9), (20, 18), (30, 19)], []),  # The search for the first scale.
        ([(10, 10), (20, 20)], []),
        ([(100, 30), (200, 60), (300, 90)], []),
        ([(200, 199), (300, 200)], []),
    ],
)
def test_a_counter_of_skipped_steps(tmp_path: Path, rows: list[tuple[int, int]], roots: list[str]) -> None:
    assert causes(tmp_path, "".join(ROW.format(*row) for row in rows)) == roots


def scaled(form: str, scales: list[float], losses: list[object]) -> str:
    rows = zip(scales, losses, strict=False)
    return "".join(form.format(n=n, scale=scale, loss=loss) + "\n" for n, (scale, loss) in enumerate(rows, 1))


FALL = [2.0**n for n in range(15, -1, -1)]
FORMS = {
    "script": "step {n} loss {loss} loss_scale {scale:.0f}",
    "hf": "{{'loss': {loss}, 'grad_norm': 1.0, 'loss_scale': {scale:.0f}, 'learning_rate': 1e-05, 'epoch': {n}}}",
    "megatron": (
        " iteration {n}/ 500 | consumed samples: 9 | lm loss: {loss} | loss scale: {scale} | grad norm: 1.0 | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |"
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("scales", "losses", "is_overflow"),
    [
        ([65536.0] * 20 + FALL + [1.0] * 24, falling(60), True),
        (FALL + [1.0] * 14, [2.0] * 30, True),
        ([65536.0] * 20 + [2.0**n for n in range(15, -1, -1) for _ in (0, 1)] + [1.0] * 8, falling(60), True),
        (FALL + [1.0] * 14, falling(30), False),  # Sums of losses are trained with any scale.
        ([2.0**n for n in range(32, 13, -1)] + [2.0**14] * 40, falling(60), False),  # The search for the first scale.
        ([65536.0] * 20 + FALL[:4] + [4096.0] * 30, falling(60), False),
        ([65536.0] * 20 + FALL + [1.0] * 9 + [2.0] * 9, falling(60), False),  # It rises again.
        ([1.0] * 60, falling(60), False),  # bfloat16
    ],
)
def test_a_printed_scale_that_falls_to_its_minimum(
    tmp_path: Path, form: str, scales: list[float], losses: list[object], is_overflow: bool
) -> None:
    assert causes(tmp_path, scaled(FORMS[form], scales, losses)) == ["numeric.overflow"] * is_overflow

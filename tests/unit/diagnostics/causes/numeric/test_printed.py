"""Lines of trainers in a log: gradients that stay non-finite, lines made to be slow, lines over blocks."""

from pathlib import Path

import pytest

from diagnostics.analysis.printed_steps import printed_steps
from diagnostics.causes.numeric import spike
from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.logs.steps import FORMATS, Series, Steps
from diagnostics.evidence.model import Evidence
from tests.unit.diagnostics.causes.numeric.trainers import TRAINERS, causes, falling, log


@pytest.mark.parametrize("trainer", ["hf", "titan", "megatron"])
def test_gradients_that_stay_non_finite(tmp_path: Path, trainer: str) -> None:
    text = log(trainer, [*falling(20), *[0.0] * 12], [*[1.0] * 20, *["nan"] * 12])
    assert causes(tmp_path, text) == ["numeric.non_finite"]
    assert causes(tmp_path, log(trainer, falling(32), [*[1.0] * 15, "inf", *[1.0] * 16])) == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "line",
    [
        "{'loss': 1 ",
        "{'loss': 1 'grad_norm': x ",
        "iteration 1/ 1 | lm loss: 1 loss scale: 1 grad norm: 1 ",
        "Epoch 0: 1%| 1/2 [ loss ",
        "Epoch(",
        "epoch 1: loss=1 num_updates=x ",
        "step 1 loss norm ",
        "OVERFLOW! Gradient overflow ",
        "Epoch 1: 1/2 time: 1 data: loss ",
        "Epoch 1 1%|1%| 1/2 [00:01<00:02, 1it/s, ",
        "Train Epoch: 1 [1/2 (1%) Loss 1/9 [====] - ",
    ],
)
def test_lines_made_to_be_slow_are_not(line: str) -> None:
    data = ("loss verflow " + line * (60_000 // len(line)) + "\n").encode()
    steps = Steps({trainer: Series() for trainer in FORMATS})
    steps.feed(data * 4, 1)


def test_lines_are_counted_over_blocks() -> None:
    text = ("x\n" + log("hf", falling(3), [1.0] * 3)).encode()
    steps = Steps()
    half = text.index(b"\n", 80) + 1
    steps.feed(text[:half], 1)
    steps.feed(text[half:], 1 + text[:half].count(b"\n"))
    (series,) = steps.series.values()
    assert list(series.lines) == [2, 3, 4]


def test_zeros_in_place_of_a_loss_beside_norms_that_are_not_finite(tmp_path: Path) -> None:
    text = log("hf", [2.3, 2.2, 2.1, 0.0, 0.0, 0.0], [1.0, 1.1, "nan", "nan", "nan", "nan"])
    assert causes(tmp_path, text) == ["numeric.non_finite"]
    assert causes(tmp_path, log("hf", [2.3, 2.2, 0.0, 0.0], [1.0, "inf", "inf", 0.4])) == []


def test_the_older_words_of_an_overflow() -> None:
    steps = Steps()
    steps.feed(b"[Rank 0] Overflow detected. Skipping step. Attempted loss scale: 64.0, reducing to 32.0\n", 1)
    assert (list(steps.overflow_lines), list(steps.overflow_scales)) == ([1], [32.0])


def test_without_printed_steps_a_cause_stays_open(tmp_path: Path) -> None:
    nothing = printed_steps(Evidence(tmp_path, Limits()))
    finding = spike.decide(nothing)
    text = text_of(finding)
    assert (finding.status, text.summary, text.missing) == (
        "undecided",
        "No steps were recorded.",
        "the trainer's log, or its records of steps",
    )


def test_the_first_state_of_a_redrawn_bar_without_a_loss_is_where_it_began(tmp_path: Path) -> None:
    bars = [
        f"Epoch 0: {n}%|##  | {n}/200 [00:10<00:50, 9it/s, v_num=0, train_loss={'nan' if n > 36 else 2.5}]"
        for n in range(1, 160)
    ]
    (tmp_path / "train.log").write_text("GPU available: True\n" + "\r".join(bars) + "\nSaved.\n")
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.step) == ("numeric.non_finite", 37)


@pytest.mark.parametrize(("rows", "apart", "confirmed"), [(3, 50, True), (3, 1, False), (2, 50, False), (4, 5, True)])
def test_few_rows_that_are_many_steps_apart(tmp_path: Path, rows: int, apart: int, confirmed: bool) -> None:
    lines = (TRAINERS["mmcv"](n * apart, 4.3 + n / 100, "nan") + "\n" for n in range(14, 14 + rows))
    assert causes(tmp_path, "".join(lines)) == (["numeric.non_finite"] if confirmed else [])

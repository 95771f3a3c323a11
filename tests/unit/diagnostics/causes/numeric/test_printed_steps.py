"""`numeric.overflow`, `numeric.spike` and `numeric.non_finite` from the lines that trainers print of their steps."""

from collections.abc import Callable
from pathlib import Path

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from diagnostics.evidence.logs.steps import FORMATS, Series, Steps
from tests.unit.diagnostics.causes.examples import Example

Line = Callable[[int, object, object], str]
TRAINERS: dict[str, Line] = {
    "hf": lambda n, loss, norm: f"{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': 2e-05, 'epoch': {n / 100}}}",
    "hf5": lambda n, loss, norm: f"{{'loss': '{loss}', 'grad_norm': '{norm}', 'epoch': '{n / 100}'}}",
    "megatron": lambda n, loss, norm: (
        f" iteration {n:8}/  500 | consumed samples: 9 | lm loss: {loss} | loss scale: 1.0 | grad norm: {norm} | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |"
    ),
    "titan": lambda n, loss, norm: (
        f"[rank0]:[titan] 2025-11-22 10:20:30,1 - root - INFO - step: {n}  loss: {loss}  grad_norm: {norm}  tps: 7,200"
    ),
    "fairseq": lambda n, loss, norm: (
        f"| epoch 001:   {n} / 1891 loss={loss}, ppl=18.05, num_updates={n}, lr=8e-05, gnorm={norm}, loss_scale=2.000"
    ),
    "mmcv": lambda n, loss, norm: (
        f"mmseg - INFO - Iter [{n}/40000]\tlr: 8e-03, memory: 6, loss: {loss}, grad_norm: {norm}"
    ),
    "mmengine": lambda n, loss, norm: (
        f"INFO - Epoch(train)  [1][ {n}/196]  lr: 5.0e-03  memory: 5   loss_ce: 9.9  loss: {loss}  grad_norm: {norm}"
    ),
    "nanogpt": lambda n, loss, norm: f"iter {n}: loss {loss}, time 300ms",
    "lightning": lambda n, loss, norm: f"Epoch 0: {n}%|##  | {n}/100 [00:10<00:50, 9it/s, v_num=0, train_loss={loss}]",
}


def log(trainer: str, losses: list[object], norms: list[object]) -> str:
    return "".join(
        f"{TRAINERS[trainer](n, *figures)}\n" for n, figures in enumerate(zip(losses, norms, strict=True), 1)
    )


def falling(count: int) -> list[object]:
    return [round(2.0 - n * 0.005 + 0.01 * (n % 3), 4) for n in range(count)]


def causes(folder: Path, text: str) -> list[str]:
    (folder / "train.log").write_text(text)
    return [root.cause for root in diagnose(folder).root_causes]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_loss_that_jumps_and_stays_there_is_a_spike(tmp_path: Path, trainer: str) -> None:
    text = log(trainer, [*falling(40), *[7.5 + 0.01 * n for n in range(20)]], [1.0] * 40 + [40.0] * 20)
    assert causes(tmp_path, text) == ["numeric.spike"]
    (root,) = diagnose(tmp_path).root_causes
    assert root.evidence[0].line == 41
    assert root.confidence == (0.75 if trainer in ("nanogpt", "lightning") else 0.9)
    assert "from 1.8" in text_of(root).summary


@pytest.mark.parametrize(
    "losses",
    [
        [*falling(40), 9.0, 8.0, 4.0, *falling(30)],  # It came back.
        [*falling(40), 9.0, 9.0],  # Too early to say.
        [round(1.5 + 0.8 * ((n * 7919) % 13) / 13, 4) for n in range(80)],  # Noise.
        [round(1.5 + 0.01 * n, 4) for n in range(80)],  # It rises slowly.
        [0.02 * (((n * 7919) % 13) - 6) for n in range(80)],  # RL: around zero.
        falling(80),
    ],
)
def test_other_courses_are_none(tmp_path: Path, losses: list[object]) -> None:
    assert causes(tmp_path, log("hf", losses, [1.0] * len(losses))) == []
    report = diagnose(tmp_path)
    assert report.outcome == "undecided"  # How the job ended is not in these lines.
    assert "printed steps" in report.standing


def test_a_run_from_scratch_in_the_same_log_is_no_spike(tmp_path: Path) -> None:
    second = [round(10.0 - 0.01 * n, 3) for n in range(40)]
    assert causes(tmp_path, log("hf", falling(90), [1.0] * 90) + log("hf", [*second], [1.0] * 40)) == []


@pytest.mark.parametrize("trainer", ["hf", "titan", "megatron"])
def test_gradients_that_stay_non_finite(tmp_path: Path, trainer: str) -> None:
    text = log(trainer, [*falling(20), *[0.0] * 12], [*[1.0] * 20, *["nan"] * 12])
    assert causes(tmp_path, text) == ["numeric.non_finite"]
    assert causes(tmp_path, log(trainer, falling(32), [*[1.0] * 15, "inf", *[1.0] * 16])) == []


def test_zeros_in_place_of_a_loss_beside_norms_that_are_not_finite(tmp_path: Path) -> None:
    text = log("hf", [2.3, 2.2, 2.1, 0.0, 0.0, 0.0], [1.0, 1.1, "nan", "nan", "nan", "nan"])
    assert causes(tmp_path, text) == ["numeric.non_finite"]
    assert causes(tmp_path, log("hf", [2.3, 2.2, 0.0, 0.0], [1.0, "inf", "inf", 0.4])) == []


def test_what_skipped_steps_alone_show(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(deepspeed([2**n for n in range(24, 20, -1)]))
    report = diagnose(tmp_path)
    assert report.outcome == "undecided"
    assert report.standing.startswith("4 steps skipped to find float16's loss scale, now 1,048,576, and nothing wrong")


def test_the_older_words_of_an_overflow() -> None:
    steps = Steps()
    steps.feed(b"[Rank 0] Overflow detected. Skipping step. Attempted loss scale: 64.0, reducing to 32.0\n", 1)
    assert (list(steps.overflow_lines), list(steps.overflow_scales)) == ([1], [32.0])


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
        apex(range(15, -30, -1)),
        log("megatron", falling(20), [1.0] * 20) + SKIPS,
    ],
)
def test_overflow_without_end(tmp_path: Path, text: str) -> None:
    assert causes(tmp_path, text) == ["numeric.overflow"]


@pytest.mark.parametrize("text", [deepspeed([65536, 32768, 16384]), apex(range(15, 11, -1))])
def test_finding_a_loss_scale_is_no_fault(tmp_path: Path, text: str) -> None:
    assert causes(tmp_path, text + log("hf", falling(40), [1.0] * 40)) == []


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
    ],
)
def test_lines_made_to_be_slow_are_not(line: str) -> None:
    data = ("loss verflow " + line * (60_000 // len(line)) + "\n").encode()
    for trainer in FORMATS:
        steps = Steps({trainer: Series()})
        steps.feed(data * 4, 1)


def test_lines_are_counted_over_blocks() -> None:
    text = ("x\n" + log("hf", falling(3), [1.0] * 3)).encode()
    steps = Steps()
    half = text.index(b"\n", 80) + 1
    steps.feed(text[:half], 1)
    steps.feed(text[half:], 1 + text[:half].count(b"\n"))
    (series,) = steps.series.values()
    assert list(series.lines) == [2, 3, 4]


EXAMPLES = {
    "numeric.overflow": Example(lambda: {"train.log": deepspeed([4, 2, 1, 1, 1, 1])}),
    "numeric.spike": Example(
        lambda: {"train.log": log("titan", [*falling(40), *[7.5] * 20], [*[1.0] * 40, *[40.0] * 20])}
    ),
}

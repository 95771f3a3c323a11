"""Lines that trainers print of their steps, as columns."""

import math

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.evidence.logs import steps as module
from diagnostics.evidence.logs.steps import FORMATS, Series, Steps
from tests.unit.diagnostics.causes.numeric.trainers import falling, log

NAN = math.nan


def read(*blocks):
    steps, number = Steps(), 1
    for block in blocks:
        steps.feed(block.encode(), number)
        number += block.count("\n")
    return steps


def only(steps):
    ((trainer, series),) = steps.series.items()
    return trainer, series


@pytest.mark.parametrize(
    ("line", "trainer", "step", "loss", "norm", "scale"),
    [
        ("{'loss': 2.5, 'grad_norm': 1.5, 'epoch': 0.03}", "Hugging Face Trainer", 0.03, 2.5, 1.5, NAN),
        ("{'loss': '2.5', 'grad_norm': 'nan', 'epoch': '0.5'}", "Hugging Face Trainer", 0.5, 2.5, NAN, NAN),
        ("{\n    'loss': 2.5,\n    'grad_norm': nan,\n    'learning_rate': 4e-06,\n    'epoch': 0.5\n}",
         "Hugging Face Trainer, a value a line", 0.5, 2.5, NAN, NAN),
        (
            " iteration      7/  100 | lm loss: 2.5E+00 | loss scale: 65536.0 | grad norm: 1.500 | "
            "number of skipped iterations:   0 |", "Megatron-LM", 7, 2.5, 1.5, 65536.0,
        ),
        ("epoch 001:  7 / 100 loss=2.5, num_updates=7, gnorm=1.5, loss_scale=128", "fairseq", 7, 2.5, 1.5, 128.0),
        ("step 7 loss 2.5 grad_norm 1.5 lr 1e-3 scale 128", "step and loss", 7, 2.5, 1.5, 128.0),
        ("step: 7 | loss: 2.5 | loss_scale: 6e-08 | norm: 1.5 | dt: 9 ms", "step and loss", 7, 2.5, 1.5, 6e-8),
        ("Epoch(train) [1][  7/100]  lr: 1e-2  eta: 0:01  loss: 2.5000  grad_norm: 1.5", "MMEngine", 7, 2.5, 1.5, NAN),
        ("Iter [7/100] lr: 1e-2, eta: 0:01, loss: 2.5, grad_norm: 1.5", "mmcv", 7, 2.5, 1.5, NAN),
        ("Epoch [1][7/30]\tlr: 1e-2, loss/a: 0.1, loss: 2.5, grad_norm: 1.5", "epoch and batch", 7, 2.5, 1.5, NAN),
        ("Epoch 0:  7%|#  | 7/100 [00:01<00:10, v_num=0, train_loss_step=2.5]", "progress bar", 7, 2.5, NAN, NAN),
        ("step: 7  loss: 2.5  grad_norm: 1.5", "step and loss", 7, 2.5, 1.5, NAN),
        ("iter 7: loss 2.5000, time 3ms", "step and loss", 7, 2.5, NAN, NAN),
        ("step 7 | loss: inf", "step and loss", 7, math.inf, NAN, NAN),
        ("\x1b[31mstep:  7  \x1b[32mloss:  2.5000  \x1b[33mgrad_norm:  1.5\x1b[39m", "step and loss", 7, 2.5, 1.5, NAN),
        ("[titan] INFO - step:  7  loss:      inf  grad_norm:      nan", "step and loss", 7, math.inf, NAN, NAN),
        (
            "Training epoch 0, iteration 7/99 | lr: 1e-05 | global_batch_size: 8 | global_step: 7 | "
            "reduced_train_loss: 2.5 | train_step_timing in s: 1.9", "NeMo", 7, 2.5, NAN, NAN,
        ),
        ("Epoch 0: 7%| | 7/100 [00:09<01:30, reduced_train_loss=2.5, v_num=6]", "progress bar", 7, 2.5, NAN, NAN),
        ("iter: 7  total_loss: 2.5  loss_cls: 0.5  time: 0.2  data_time: 0.1", "detectron2", 7, 2.5, NAN, NAN),
        ("Epoch 1 | iter 7 step 7 | loss train: 2.5, val: n/a | iter time: 45.73 ms", "litgpt", 7, 2.5, NAN, NAN),
        (
            "iteration: 7 / 99 | tokens_per_sec: 22.8K | lm_loss: 2.5 | lr: 1e-05 | grad_norm: 1.5",
            "nanotron and GPT-NeoX", 7, 2.5, 1.5, NAN,
        ),
        ("Epoch [3/10], Step [100/600], Loss: 0.42", "epoch and batch", 1300, 0.42, NAN, NAN),
        ("Epoch 0: 3/10 | Train Loss = 0.42 | Val Loss = 3", "epoch and batch", 3, 0.42, NAN, NAN),
        ("Epoch: [1][ 10/500]\tTime 0.3 ( 0.4)\tData 0.1\tLoss 2.5e+00 (3)", "epoch and batch", 10, 2.5, NAN, NAN),
        ("| epoch   2 |   200/ 2983 batches | ms/batch 12.12 | loss  7.64", "epoch and batch", 3183, 7.64, NAN, NAN),
        ("Train Epoch: 2 [600/6000 (10%)]\tLoss: 2.5", "PyTorch examples", 2.1, 2.5, NAN, NAN),
        ("loss: 2.500  [  600/ 6000]", "PyTorch tutorial", 0.1, 2.5, NAN, NAN),
        ("Train: 1 [  50/100 ( 50%)]  Loss: 2.5 (2.6)  Time: 0.5s, 9/s", "timm", 50, 2.5, NAN, NAN),
        ("469/469 [======] - 3s 6ms/step - loss: 2.5 - accuracy: 0.9", "Keras", NAN, 2.5, NAN, NAN),
        ("469/469 ━━━━━━━━ 3s 6ms/step - accuracy: 0.9 - loss: 2.5", "Keras", NAN, 2.5, NAN, NAN),
        ("Epoch 2/9:  12%|#5   | 12/100 [00:03<00:20,  4.2it/s, lr=1, loss=2.5]", "progress bar", 112, 2.5, NAN, NAN),
        ("train:  12%|#5   | 12/100 [00:03<00:20,  4.2it/s, loss=2.5]", "progress bar", 12, 2.5, NAN, NAN),
        ("Step 7: Loss = 2.5", "step and loss", 7, 2.5, NAN, NAN),
        ("step:7 - actor/entropy:0.2 - actor/pg_loss:inf - actor/grad_norm:1.5", "verl", 7, math.inf, 1.5, NAN),
        ("step:7 - actor/entropy:0.2 - actor/pg_loss:0.3 - actor/grad_norm:1.5", "verl", 7, NAN, 1.5, NAN),
    ],
)  # fmt: skip
def test_a_step_of_each_trainer(line, trainer, step, loss, norm, scale):
    steps = read(f"start\n{line}\n")
    steps.series.pop("step and loss", None) if trainer == "epoch and batch" else None  # Its number within the epoch.
    result, series = only(steps)
    assert result == trainer
    assert list(series.lines) == [2]
    columns = [list(column) for column in (series.step, series.loss, series.norm, series.scale)]
    for column, value in zip(columns, (step, loss, norm, scale), strict=True):
        assert column == [value] or (math.isnan(value) and math.isnan(column[0]))


@pytest.mark.parametrize("line", ["[Eval] step 7 loss 2.5", "validate step: 7 loss: 2.5", "test step 7 loss 2.5"])
def test_steps_of_an_evaluation_are_none(line):
    assert not read(line + "\n").series


@pytest.mark.parametrize(
    "line",
    [
        "step 7 val loss 2.5",
        "eval loss 2.5",
        "step 7 validation loss 2.5",
        "Test Epoch: 1 [1/9 (1%)]\tLoss: 2.5",
        "Epoch 3/9, Train Loss: 2.5",
        "Val Epoch: [3][10/90] Loss 2.5",
        "Validation:  12%|#   | 12/100 [00:03<00:20, 4.2it/s, loss=2.5]",
        "Epoch 1: 10/90 done",
        "loss",
        "step 7 lost 2.5",
        "{'loss': }",
        "{\n    'name': 'x',\n    'loss': 'mse',\n}",
        "{\n    'eval_loss': 2.5,\n    'epoch': 0.5\n}",
    ],
)
def test_lines_that_are_no_steps(line):
    assert not read(line + "\n").series


@given(st.integers(0, 60), st.integers(1, 20))
@settings(max_examples=60)
def test_blocks_change_nothing(count, every):
    lines = [f"step {n} loss {n}.5\n" if n % 3 else "noise\n" for n in range(count)]
    whole = read("".join(lines))
    parts = read(*("".join(lines[at : at + every]) for at in range(0, count, every)))
    assert repr(whole) == repr(parts)
    assert [line for series in parts.series.values() for line in series.lines] == [n + 1 for n in range(count) if n % 3]


@pytest.mark.parametrize("parts", [1, 3])
def test_steps_of_several_trainers_are_kept_apart_however_the_log_is_cut(parts):
    lines = ["iter 1: loss 2.0\n", "{'loss': 9.0, 'epoch': 1}\n", "iter 2: loss 3.0\n"]
    steps = read(*lines) if parts == 3 else read("".join(lines))
    losses = {name: list(series.loss) for name, series in steps.series.items()}
    assert losses == {"step and loss": [2.0, 3.0], "Hugging Face Trainer": [9.0]}
    assert steps.last == 3


def test_megatron_prints_the_mean_of_the_losses_that_are_numbers():
    line = (
        " iteration {n:6}/ 90 | consumed samples: 9 | lm loss: 2.5E+00 | loss scale: 1.0 | grad norm: 1.500 | "
        "number of skipped iterations:   0 | number of nan iterations:   {nan} |\n"
    )
    trainer, series = only(read("".join(line.format(n=n, nan=n // 5) for n in range(10))))
    assert trainer == "Megatron-LM" and list(series.loss[:5]) == [2.5] * 5
    assert all(map(math.isnan, series.loss[5:])) and set(series.printed) == {3}
    assert list(series.norm) == [1.5] * 10


def test_what_was_printed_is_told_apart_from_what_is_not_a_number():
    _, series = only(read("step: 1 loss: nan norm: 2\nstep: 2 loss: 3\n"))
    assert list(series.printed) == [3, 1]


def test_skipped_steps_and_the_scale_that_they_led_to():
    steps = read(
        "x\n[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n"
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 4096.0\nstep 3 loss 2.0\n"
    )
    assert list(steps.overflow_lines) == [2, 3]
    assert list(steps.overflow_scales) == [32768.0, 4096.0]
    assert list(only(steps)[1].lines) == [4]
    assert steps, "a skipped step says something even alone"


def test_it_takes_some_steps_to_say_anything():
    assert not read("step 1 loss 1.0\n")
    assert read("step 1 loss 1.0\nstep 2 loss 1.0\n")
    assert Steps().last == 0


def test_the_number_of_steps_has_an_end(monkeypatch):
    monkeypatch.setattr(module, "MAX_POINTS", 5)
    steps = read(*(f"step {n} loss 1.0\nGradient overflow: setting loss scale to 2.0\n" for n in range(9)))
    assert len(only(steps)[1].lines) == 5
    assert len(steps.overflow_lines) == len(steps.overflow_scales) == 5


def test_one_trainer_after_the_other_prints_a_log():
    """A warm-up of the script's own before the trainer begins."""
    steps = Steps()
    steps.feed(b"".join(b"step %d loss 3.0\n" % n for n in range(5)), 1)
    steps.feed(b"".join(b"{'loss': 2.%d, 'grad_norm': 1.0, 'epoch': 0.%d}\n" % (n, n) for n in range(9)), 6)
    assert {name: len(series.lines) for name, series in steps.series.items()} == {
        "step and loss": 5,
        "Hugging Face Trainer": 9,
    }
    assert [steps.line_before(count) for count in (1, 2, 9, 10)] == [14, 13, 6, 0]


@pytest.mark.parametrize(
    ("line", "step_s", "data_s"),
    [
        ("Epoch: [3][ 40/900]\tTime  0.250 ( 0.301)\tData  0.061 ( 0.070)\tLoss 2.10 (2.31)", 0.25, 0.061),
        (
            "06/01 - mmengine - INFO - Epoch(train) [2][50/90]  lr: 1e-04  time: 1.5000  data_time: 0.4000  loss: 2.1",
            1.5,
            0.4,
        ),
        (
            "2024-01-02 - mmdet - INFO - Epoch [1][50/90]\tlr: 2e-02, time: 0.412, data_time: 0.009, loss: 1.1",
            0.412,
            0.009,
        ),
        ("iter: 59  total_loss: 1.2    time: 0.31  last_time: 0.30  data_time: 0.11  last_data_time: 0.12", 0.31, 0.11),
        (
            "Epoch: [7]  [ 20/390]  eta: 0:01:01  loss: 6.5 (6.6)  time: 0.4900  data: 0.0002  max mem: 19152",
            0.49,
            0.0002,
        ),
        (
            'json_stats: {"_type": "train_iter_k", "dt": 1.10, "dt_data": 0.65, "epoch": "1/20", "iter": "20/3000", '
            '"loss": 4.9, "lr": 0.01}',
            1.1,
            0.65,
        ),
        ("[epoch:  0, iter:   2,100, lr:(2e-04,)] [eta: 1:00, time (data): 1.100 (0.650)] l_pix: 4e-02", 1.1, 0.65),
        (
            "Train:    1/80 (  1%) [ 50/4640 ( 11%)]  Loss: 1.199 (1.21)  LR: 3e-03  Data time: 0.65(0.60)  "
            "Forward time: 0.35(0.35)  Batch time: 1.10(1.00)",
            1.1,
            0.65,
        ),
        ("[rank1] step 4 loss 2.96 time: 1.1 data_time: 0.8", 1.1, 0.8),
        ("step 20 loss 2.810 step_time 0.50s dataloader_time 0.35s", 0.5, 0.35),
        ("epoch: 1/20, iter: 10/51, iter_time: 2.500s, data_time: 0.330s, total_loss: 8.9", 2.5, 0.33),
    ],
)
def test_what_a_step_took_and_how_long_it_waited_for_data(line, step_s, data_s):
    steps = Steps()
    steps.feed(f"start\n{line}\n".encode(), 8)
    assert steps.data_times == [(9, step_s, data_s, 1.0)]


def test_times_of_a_trainer_that_counts_samples():
    line = "Train Epoch: 0 [ {}/9685 (1%)] Data (t): 0.650 Batch (t): 1.100, 1024.00/s LR: 5e-6 Loss: 6.1 (6.2)\n"
    (steps := Steps()).feed("".join(line.format(512 * n) for n in range(12)).encode(), 1)
    assert {row[1:3] for row in steps.data_times} == {(1.1, 0.65)}


def test_lines_without_a_time_of_data():
    steps = Steps()
    steps.feed(
        b"time: 0.3  loading data: done\nTime 3 Date 4 data_time: x\nstep 1 loss 2 time 1.0s data_time 350 ms\n", 1
    )
    assert not steps.data_times


@pytest.mark.parametrize(
    ("line", "took_s", "at_s"),
    [
        (" iteration 7/ 9 | elapsed time per iteration (ms): 1250.5 | lm loss: 2E+00 | loss scale: 1.0 | "
         "number of skipped iterations: 0 |", 1.2505, NAN),
        ("iter 7: loss 2.5000, time 320.50ms, mfu 1%", 0.3205, NAN),
        ("step 7 | loss: 6.1 | lr 1e-4 | norm: 0.3 | dt: 520.5ms | tok/sec: 1000", 0.5205, NAN),
        ("step 7 loss 2.5 step_time: 0.5s", 0.5, NAN),
        ("step 7 loss 2.5 time: 0.5", NAN, NAN),
        ("Epoch 1 | iter 7 step 7 | loss train: 2.5, val: n/a | iter time: 45.5 ms", 0.0455, NAN),
        ("| epoch   1 |   200/ 2983 batches | ms/batch 12.5 | loss  7.64", 0.0125, NAN),
        ("469/469 [======] - 3s 6ms/step - loss: 2.5", 0.006, NAN),
        ("Epoch 0: 12%|#  | 12/100 [1:02:03<00:20, 4.00it/s, loss=2.5]", 0.25, NAN),
        ("9%|# | 9/100 [00:03<00:20, 1.50s/it, loss=2.5]", 1.5, NAN),
        ("9%|# | 9/100 [00:00<?, 0.00it/s, loss=2.5]", NAN, NAN),
        ("2026-11-30 12:00:01,500 - INFO - step 7 loss 2.5", NAN, 1_796_040_001.5),
        ("11/30 12:00:01 - mmengine - INFO - Epoch(train) [2][50/90]  time: 1.5  loss: 2", 1.5, 1_796_040_001.0),
    ],
)  # fmt: skip
def test_when_a_step_was_printed_and_what_it_took(line, took_s, at_s):
    steps = Steps(near_s=1_790_000_000)
    steps.feed(f"start\n{line}\n".encode(), 1)
    series = next(iter(steps.series.values()))
    for column, value in ((series.took_s, took_s), (series.at_s, at_s)):
        assert list(column) == [pytest.approx(value, nan_ok=True)]


def test_a_bar_without_a_loss_is_no_step():
    steps = read("  1%|#    | 10/1000 [00:12<20:00,  1.20s/it]\rx\n{'loss': 2.5, 'epoch': 0.01}\n")
    assert (list(steps.bars.step), list(steps.bars.total), list(steps.bars.took_s)) == ([10], [1000], [1.2])
    assert steps.last == 2


@pytest.mark.parametrize("count", [100, 30_000])
def test_the_dates_of_some_steps_are_read_and_always_that_of_the_last_one(count):
    lines = (f"2026-11-30 12:{n // 1000:02}:{n % 60:02} step {n} loss 2.5\n" for n in range(count))
    _, series = only(read("".join(lines)))
    dated = [at_s for at_s in series.at_s if at_s == at_s]
    assert dated[-1] == series.at_s[-1] and min(count, 200) <= len(dated) <= 400


def test_batches_of_an_epoch_are_counted_on():
    lines = [f"Epoch [{epoch}][{n}/90] loss: 2.5\n" for epoch in (4, 5) for n in (45, 90)]
    _, series = only(read(*lines))
    assert list(series.step) == [315, 360, 405, 450]
    _, series = only(read("".join(f"Epoch: [{epoch}][{n}/90] Loss 2.5\n" for epoch in (0, 1) for n in (0, 45))))
    assert list(series.step) == [0, 45, 90, 135]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "line",
    [
        "{'loss': 1 ",
        "{\n  'loss': 1,\n  'a': 1",
        "{\n  'loss': 1",
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


def test_the_older_words_of_an_overflow() -> None:
    steps = Steps()
    steps.feed(b"[Rank 0] Overflow detected. Skipping step. Attempted loss scale: 64.0, reducing to 32.0\n", 1)
    assert (list(steps.overflow_lines), list(steps.overflow_scales)) == ([1], [32.0])


def deepspeed(*rows: tuple[int, int]) -> bytes:
    row = "[2021-11-25 02:07:16,494] [INFO] [logging.py:69] [Rank 0] step={}, skipped={}, lr=[0.001], mom=[0.0]\n"
    return "".join(row.format(*figures) for figures in rows).encode()


@pytest.mark.parametrize(
    ("rows", "skipped"),
    [
        (((2000, 1995),), [1995]),
        (((100, 50), (200, 147), (300, 246)), [0, 97, 99]),
        (((10, 1), (20, 2), (30, 3)), [0, 0, 0]),
        (((450, 4), (460, 4)), [0, 0]),
        (((100, 0), (200, 99), (10, 10)), [0, 99, 0]),  # Another run.
    ],
)
def test_a_counter_of_skipped_steps_tells_rows_of_which_nearly_all_were(rows, skipped):
    steps = Steps()
    steps.feed(deepspeed(*rows[:1]), 1)
    steps.feed(deepspeed(*rows[1:]), 2)
    series = steps.series["DeepSpeed"]
    assert list(series.skipped) == skipped and list(series.step) == [step for step, _ in rows]

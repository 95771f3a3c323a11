"""`numeric.spike` from the lines that trainers print of their steps."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from diagnostics.analysis.printed_steps import printed_steps
from diagnostics.causes.numeric import spike
from diagnostics.contract.findings import SUSPECTED, text_of
from diagnostics.diagnose import diagnose
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence
from tests.unit.diagnostics.causes.numeric.trainers import TRAINERS, causes, falling, log


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
    assert "printed steps" in report.statement


@pytest.mark.parametrize(("before", "after"), [(10, 20), (15, 20), (19, 12), (21, 10)])
def test_the_step_of_an_early_rise_is_where_it_is(tmp_path: Path, before: int, after: int) -> None:
    losses = [*falling(before), *[7.5 + 0.01 * n for n in range(after)]]
    assert causes(tmp_path, log("titan", losses, [1.0] * len(losses))) == ["numeric.spike"]
    (root,) = diagnose(tmp_path).root_causes
    assert (root.step, root.evidence[0].line) == (before + 1, before + 1)


@pytest.mark.parametrize(("before", "after"), [(19, 7), (25, 9), (40, 2), (6, 2)])
def test_a_rise_with_too_few_steps_around_it_is_open(tmp_path: Path, before: int, after: int) -> None:
    losses = [*falling(before), *[7.5 + 0.01 * n for n in range(after)]]
    assert causes(tmp_path, log("titan", losses, [1.0] * len(losses))) == []
    report = diagnose(tmp_path)
    spike_of = next(item.finding for item in report.findings if item.finding.cause == "numeric.spike")
    assert spike_of.status == "undecided"
    assert f"at step {before + 1}, with too few steps around it" in report.statement
    assert "no known problem" not in report.statement


@pytest.mark.parametrize("tail", [[9.0], [9.0, 1.9], [2.1, 2.2]])
def test_a_single_high_loss_or_a_small_rise_at_the_end_is_none(tmp_path: Path, tail: list[object]) -> None:
    causes(tmp_path, log("titan", [*falling(40), *tail], [1.0] * (40 + len(tail))))
    assert "no known problem" in diagnose(tmp_path).statement


@pytest.mark.parametrize(("norm", "is_said"), [(900.0, True), (3.0, False)])
def test_a_lasting_rise_of_the_gradient_norm_alone_is_said(tmp_path: Path, norm: float, is_said: bool) -> None:
    norms = [1.2 + 0.01 * (n % 5) for n in range(60)] + [norm + 0.1 * (n % 5) for n in range(60)]
    assert causes(tmp_path, log("hf", falling(120), [*norms])) == []
    statement = diagnose(tmp_path).statement
    assert ("the gradient norm rose from 1.22 to 900" in statement) is is_said
    assert ("no known problem" in statement) is not is_said


def test_a_run_from_scratch_in_the_same_log_is_no_spike(tmp_path: Path) -> None:
    second = [round(10.0 - 0.01 * n, 3) for n in range(40)]
    assert causes(tmp_path, log("hf", falling(90), [1.0] * 90) + log("hf", [*second], [1.0] * 40)) == []


CLIMB = [round(5.4 - 0.1 * n, 3) for n in range(10)] + [round(4.4 + 0.8 * n, 3) for n in range(60)]


def test_a_run_that_ends_far_worse_than_it_began_has_diverged(tmp_path: Path) -> None:
    assert causes(tmp_path, log("hf", [*CLIMB], [1.0] * len(CLIMB))) == ["numeric.spike"]
    (root,) = diagnose(tmp_path).root_causes
    assert root.confidence == 0.75 and "climbed from 4.4 to 44" in text_of(root).summary
    assert "learning rate" in text_of(root).remedies[0].change


def test_a_loss_that_never_fell_is_only_a_suspicion_as_it_may_be_one_that_grows(tmp_path: Path) -> None:
    assert causes(tmp_path, log("hf", [*CLIMB[12:]], [1.0] * len(CLIMB[12:]))) == []
    (suspicion,) = [item.finding for item in diagnose(tmp_path).findings if item.finding.cause == "numeric.spike"]
    assert suspicion.status == "confirmed" and suspicion.confidence == SUSPECTED


@pytest.mark.parametrize(
    ("launcher", "task", "confidence"),
    [
        ("local", {"name": "language_modeling", "_target_": None}, 0.75),
        ("local", {"name": "auto", "_target_": "my_package.Reward"}, SUSPECTED),  # Any loss, also one that is to grow.
        ("own", {"name": "language_modeling", "_target_": None}, SUSPECTED),  # A loop that recording was attached to.
        ("local", None, SUSPECTED),  # The configuration is lost.
    ],
)
def test_a_climb_of_a_run_is_certain_only_with_a_task_of_dtk(
    tmp_path: Path, launcher: str, task: dict[str, str | None] | None, confidence: float
) -> None:
    (tmp_path / "status.json").write_text('{"state": "finished", "attempt": 0, "schema_version": 1}')
    (tmp_path / "manifest.json").write_text(json.dumps({"run_id": "r", "schema_version": 1, "launcher": launcher}))
    (tmp_path / "config.yaml").write_text("" if task is None else json.dumps({"task": task}))
    rows = [{"step": n, "loss": loss} for n, loss in enumerate(CLIMB[12:])]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (finding,) = [item.finding for item in diagnose(tmp_path).findings if item.finding.cause == "numeric.spike"]
    assert (finding.status, finding.confidence) == ("confirmed", confidence)


def by_turns(other: int) -> list[object]:
    """A run, beside which another one that sums its losses prints `other` lines after each 10 of its own."""
    losses: list[object] = []
    for turn in range(6):
        losses += falling(60)[10 * turn : 10 * turn + 10]
        losses += [round(128 - 3 * turn - 3 * n / other, 4) for n in range(other)]
    return losses


@pytest.mark.parametrize("other", [12, 20, 30])
def test_two_series_by_turns_in_one_log_are_no_spike(tmp_path: Path, other: int) -> None:
    losses = by_turns(other)
    assert causes(tmp_path, log("hf", losses, [1.0] * len(losses))) == []
    report = diagnose(tmp_path)
    spike = next(decided.finding for decided in report.findings if decided.finding.cause == "numeric.spike")
    assert spike.status == "ruled_out" and "alternated" in text_of(spike).measured


def test_losses_of_evaluations_are_none_of_the_training(tmp_path: Path) -> None:
    lines = [f"step {n} loss {loss}" for n, loss in enumerate(falling(60), 1)]
    lines += [f"[eval] step {n} loss {90 + n / 100}" for n in range(40, 80)]
    assert causes(tmp_path, "\n".join(lines) + "\n") == []
    assert causes(tmp_path, "\n".join(lines).replace("[eval] ", "") + "\n") != []


def test_without_printed_steps_a_cause_stays_open(tmp_path: Path) -> None:
    nothing = printed_steps(Evidence(tmp_path, Limits()))
    finding = spike.decide(nothing)
    text = text_of(finding)
    assert (finding.status, text.summary, text.missing) == (
        "undecided",
        "No steps were recorded.",
        "the trainer's log, or its records of steps",
    )


CALM = [round(1.0 + 0.05 * (n % 5), 3) for n in range(100)]


@pytest.mark.parametrize("trainer", ["hf", "titan", "megatron", "fairseq", "mmcv"])
@pytest.mark.parametrize(
    ("losses", "norms", "said"),
    [
        ({40: 9.3}, {40: 250.0}, ["up to 9.3 for 1 step", "up to 250 for 1 step"]),
        ({40: 12.5, 41: 12.6, 42: 11.0, 43: 12.0}, {}, ["up to 12.6 for 4 steps, then 1.7"]),
        ({}, {50: 11000.0}, ["gradient norm at", "1.1, then up to 11,000 for 1 step"]),
        ({40: 2.1}, {40: 4.0}, []),  # Within what batches do.
        (dict.fromkeys(range(20, 90, 9), 9.0), {}, []),  # Another series in the same log, or heavy tails.
    ],
)
def test_a_spike_from_which_training_recovers_is_said(
    tmp_path: Path, trainer: str, losses: dict[int, float], norms: dict[int, float], said: list[str]
) -> None:
    rows = (
        [losses.get(n, loss) for n, loss in enumerate(falling(100))],
        [norms.get(n, each) for n, each in enumerate(CALM)],
    )
    assert causes(tmp_path, log(trainer, *rows)) == []
    statement = diagnose(tmp_path).statement
    assert all(text in statement for text in said) and ("no known problem" in statement) is not bool(said)
    assert statement.count("spike") == len(said) - said.count("gradient norm at")


def test_the_highest_losses_of_noise_are_no_spikes(tmp_path: Path) -> None:
    noise = [round(1.5 + 0.8 * ((n * 7919) % 13) / 13, 4) for n in range(80)]
    causes(tmp_path, log("hf", [*noise], CALM[:80]))
    assert "no known problem" in diagnose(tmp_path).statement


def shifted(*remarks: str, every: int = 1000, after: float = 5.0, lr: object = "") -> str:
    """A log whose loss shifts at step 60, with lines above that step, and one every few steps."""
    rows = []
    for n in range(120):
        rows += [*(remarks if n == 60 else ()), *([f"evaluation {n}"] if n % every == every - 1 else [])]
        rows.append(f"step {n} loss {(3 - 0.01 * n if n < 60 else after - 0.002 * n) + 0.01 * (n % 3):.4f}{lr}")
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize(
    ("log", "meant"),
    [
        (shifted("Switching to data mixture phase 2"), True),
        (shifted("--- Stage 2/3: joint training ---", "parameters: 3M"), True),
        (shifted("gradient_accumulation_steps changed 1 -> 4"), True),
        (shifted(), False),
        (shifted("saved checkpoint 60"), False),
        (shifted("unfreezing the backbone"), False),  # The loss and the data stay as they are.
        (shifted("WARNING: the gradient has changed by a factor of 40"), False),
        (shifted("evaluation 60", every=10), False),  # It is announced every ten steps.
        ("Starting stage 2\n" + shifted(), False),  # Far above.
        (shifted(lr=" lr 1.00e-03"), False),
    ],
)
def test_a_shift_that_the_log_announces_is_only_a_suspicion(tmp_path: Path, log: str, meant: bool) -> None:
    (tmp_path / "train.log").write_text(log)
    report = diagnose(tmp_path)
    assert [root.cause for root in report.root_causes] == ["numeric.spike"] * (not meant)
    (finding,) = (each.finding for each in report.findings if each.finding.cause == "numeric.spike")
    assert finding.suspected is meant and ("announces a change" in text_of(finding).summary) is meant


@pytest.mark.parametrize(
    ("setting", "meant"),
    [
        (lambda n: f"seq_len {1024 if n < 60 else 8192}", True),
        (lambda n: f"stage={1 + (n >= 60)},", True),
        (lambda n: f"'data_source': '{'web' if n < 60 else 'code'}',", True),
        (lambda n: f"batch size: {512 if n < 60 else 1024:5} |", True),
        (lambda n: f"phase: {'main' if n else 'warmup'}", False),  # At another step.
        (lambda n: f"seq_len {512 + n % 7}", False),  # It changes all the time.
        (lambda n: f"lr {1e-4 if n < 60 else 1e-3}", False),  # What makes a loss rise announces nothing.
        (lambda n: f"epoch {n // 60}", False),
        (lambda n: f"mem {20 if n < 60 else 40} GB", False),
        (lambda n: "stage 1", False),
    ],
)
@pytest.mark.parametrize("remarks", [(), ("saved 60",)])
def test_a_setting_in_the_steps_that_changes_with_the_loss_announces_its_shift(
    tmp_path: Path, setting: Callable[[int], str], meant: bool, remarks: tuple[str, ...]
) -> None:
    rows = iter(range(1000))
    log = re.sub(" loss", lambda _: f" {setting(next(rows))} loss", shifted(*remarks))
    (tmp_path / "train.log").write_text(log)
    report = diagnose(tmp_path)
    assert [root.cause for root in report.root_causes] == ["numeric.spike"] * (not meant)


@pytest.mark.parametrize(("search", "count"), [(True, 0), (False, 1)])
def test_a_search_for_a_learning_rate_ends_with_a_high_loss(tmp_path: Path, search: bool, count: int) -> None:
    loss = [3 - 0.01 * n if n < 70 else 2.3 * 1.15 ** (n - 70) for n in range(100)]
    rates = [1e-7 * 1.2**n if search else 1e-7 + 1e-5 * n for n in range(100)]  # The other one is a warm-up.
    rows = (f"step {n} loss {value:.4f} lr {rate:.2e}" for n, (value, rate) in enumerate(zip(loss, rates, strict=True)))
    (tmp_path / "train.log").write_text("\n".join(rows))
    assert len(diagnose(tmp_path).root_causes) == count
